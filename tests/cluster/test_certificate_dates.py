"""Start of validity of certificates by the cluster's authority."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509

from polynya.cluster.certificates import (
    CERTIFICATE_DAYS,
    date_trouble,
    expires,
    make_authority,
    make_certificate,
)


def test_a_node_whose_clock_is_hours_behind_is_let_in(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, 1, [])
    for name in ("ca.crt", "node-1.crt"):
        begins = x509.load_pem_x509_certificate((tmp_path / name).read_bytes()).not_valid_before_utc
        assert begins < dt.datetime.now(dt.UTC) - dt.timedelta(hours=23), name


def test_a_certificate_that_is_over_or_soon_will_be_is_told(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, 1, [])
    until, now = expires(tmp_path / "node-1.crt"), dt.datetime.now(dt.UTC)
    assert abs(until - now - dt.timedelta(days=CERTIFICATE_DAYS)) < dt.timedelta(days=2)
    assert date_trouble(until, now) is None
    soon = date_trouble(until, until - dt.timedelta(days=13))
    assert soon is not None and f"expires on {until:%Y-%m-%d}" in soon and "SIGHUP" in soon
    over = date_trouble(until, until + dt.timedelta(seconds=1))
    assert over is not None and "expired, and the other nodes refuse it" in over
