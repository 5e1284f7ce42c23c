"""A certificate that the other nodes would refuse is not taken: the node greets itself first."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from polynya.base.errors import ConfigError
from polynya.cluster import certificates
from polynya.cluster.certificates import make_authority, make_certificate, peer_tls_of
from polynya.cluster.join import ClusterMember
from polynya.config.cluster_settings import ClusterConfig, parse_nodes


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Make `ca.crt`, `node-1.crt` and `node-1.key`, and in `other` the same of another
    authority."""
    for folder in (tmp_path, tmp_path / "other"):
        make_authority(folder)
        make_certificate(folder, 1, [])
    return tmp_path


def settings(folder: Path, *, of: Path | None = None, ca: str = "ca.crt") -> ClusterConfig:
    nodes = parse_nodes("1=h:1=http://h:1,2=h:2=http://h:2")
    own = of or folder
    return ClusterConfig(
        id="0" * 32,
        node=1,
        nodes=nodes,
        ca=f"{folder}/{ca}",
        cert=f"{own}/node-1.crt",
        key=f"{own}/node-1.key",
    )


def test_a_certificate_of_another_authority_is_not_taken_unless_both_are_known(files: Path):
    with pytest.raises(
        ConfigError,
        match=(
            r"node-1\.crt would be refused by nodes with the authority \S+ca\.crt: unable to get "
            r"local issuer"
        ),
    ):
        peer_tls_of(settings(files, of=files / "other"))
    (files / "both.crt").write_bytes(
        (files / "ca.crt").read_bytes() + (files / "other" / "ca.crt").read_bytes()
    )
    for of in (files, files / "other"):
        assert peer_tls_of(settings(files, of=of, ca="both.crt"), dates=True) is not None


def test_one_that_has_expired_starts_a_node_and_replaces_none(
    files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(certificates, "CERTIFICATE_DAYS", -0.5)
    make_certificate(files, 1, [])
    assert peer_tls_of(settings(files)) is not None, "a clock may be wrong that is soon right"
    with pytest.raises(ConfigError, match="certificate has expired"):
        peer_tls_of(settings(files), dates=True)


def test_a_key_that_tls_has_no_use_for_is_said_and_no_crash(
    files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ec, "SECP256R1", ec.SECP256K1)  # as of other authorities' tools
    make_certificate(files, 1, [])
    with pytest.raises(
        ConfigError,
        match=(
            r"cluster\.cert: TLS 1\.3 does not support the key type of \S+node-1\.crt; use ECDSA "
            r"P-256"
        ),
    ):
        peer_tls_of(settings(files))


def test_the_file_that_cannot_be_used_is_named(files: Path):
    make_certificate(files / "other", 1, [])
    (files / "node-1.key").write_bytes((files / "other" / "node-1.key").read_bytes())
    with pytest.raises(
        ConfigError,
        match=(
            r"cluster\.key: \S+node-1\.key cannot be used: it does not belong to the certificate "
            r"in \S+node-1\.crt"
        ),
    ):
        peer_tls_of(settings(files))
    (files / "node-1.crt").unlink()
    with pytest.raises(
        ConfigError, match=r"cluster\.cert: \S+node-1\.crt cannot be used: No such file"
    ):
        peer_tls_of(settings(files))


def test_at_sighup_the_old_one_is_kept_and_that_is_told_until_a_good_one_is_there(
    files: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "polynya.core")
    config = settings(files)
    tls = peer_tls_of(config)
    assert tls is not None
    kept = tls.client
    start: Any = SimpleNamespace(config=SimpleNamespace(cluster=config))
    joined = ClusterMember.__new__(ClusterMember)
    joined._start, joined._tls, joined._refused, joined._expires = start, tls, "", None
    assert joined.certificate_trouble() is None
    good = [(files / name).read_bytes() for name in ("node-1.crt", "node-1.key")]
    for name in ("node-1.crt", "node-1.key"):
        (files / name).write_bytes((files / "other" / name).read_bytes())
    joined.reload()
    assert tls.client is kept
    trouble = joined.certificate_trouble()
    assert (
        trouble is not None
        and "SIGHUP kept the old certificate, but a restart would fail" in trouble
        and "would be refused" in trouble
    )
    for name, data in zip(("node-1.crt", "node-1.key"), good, strict=True):
        (files / name).write_bytes(data)
    joined.reload()
    assert tls.client is not kept and joined.certificate_trouble() is None
    assert "loaded the node certificate" in {record.getMessage() for record in caplog.records}
