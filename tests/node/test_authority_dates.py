"""When certificates of the cluster's authority begin to hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509

from polynya.node.authority import make_authority, make_certificate


def test_a_node_whose_clock_is_hours_behind_is_let_in(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, 1, [])
    for name in ("ca.crt", "node-1.crt"):
        begins = x509.load_pem_x509_certificate((tmp_path / name).read_bytes()).not_valid_before_utc
        assert begins < dt.datetime.now(dt.UTC) - dt.timedelta(hours=23), name
