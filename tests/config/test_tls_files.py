"""Certificates: our own, and others' that change while the node runs."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from polynya.base.errors import ConfigError
from polynya.config.model import Config
from polynya.config.sections import TlsConfig
from polynya.config.tls import Tls, TlsFiles, prepare


def own(folder: Path, listen: str = "127.0.0.1:0") -> TlsFiles:
    files = prepare(Config(data=str(folder), listen=listen, tls=TlsConfig(self=True)))
    assert files is not None
    return files


def names(files: TlsFiles) -> set[str]:
    found = (
        x509.load_pem_x509_certificate(Path(files.cert).read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    return {
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    }


def shake(context: ssl.SSLContext, trusted: TlsFiles, host: str = "localhost") -> bytes:
    """Perform a handshake in memory, and return the certificate that the client saw. Raises
    SSLError."""
    client_context = ssl.create_default_context(cafile=trusted.cert)
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    client = client_context.wrap_bio(pipes[0], pipes[1], server_hostname=host)
    server = context.wrap_bio(pipes[2], pipes[3], server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            pipes[2].write(pipes[1].read())
            pipes[0].write(pipes[3].read())
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_no_files_without_tls(tmp_path: Path) -> None:
    assert prepare(Config(data=str(tmp_path))) is None


def test_a_certificate_of_our_own_is_made_once_and_is_trusted_as_its_own_authority(
    tmp_path: Path,
) -> None:
    files = own(tmp_path)
    assert {"localhost", "127.0.0.1", "::1"} <= names(files)
    assert os.stat(files.key).st_mode & 0o777 == 0o600 and len(files.fingerprint) == 95
    assert own(tmp_path) == files, "another start finds it again"
    shake(Tls(files).context, files)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Tls(files).context, files, host="elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Tls(files).context, own(tmp_path / "stranger"))


def test_it_is_made_again_for_another_address(tmp_path: Path) -> None:
    first = own(tmp_path)
    second = own(tmp_path, "127.0.0.9:0")
    assert second.fingerprint != first.fingerprint and "127.0.0.9" in names(second)


def test_a_new_certificate_is_taken_and_half_of_one_is_not(tmp_path: Path) -> None:
    old, new = own(tmp_path / "old"), own(tmp_path / "new")
    live = TlsFiles(str(tmp_path / "cert"), str(tmp_path / "key"))

    def put(cert: str, key: str) -> None:
        for source, target in ((cert, live.cert), (key, live.key)):
            (tmp_path / "fresh").write_bytes(Path(source).read_bytes())
            os.replace(tmp_path / "fresh", target)

    put(old.cert, old.key)
    tls = Tls(live)
    assert not tls.tick()
    seen = shake(tls.context, old)
    put(new.cert, old.key)
    assert not tls.tick()
    assert shake(tls.context, old) == seen, "what does not belong together is not taken"
    put(new.cert, new.key)
    assert tls.tick() and not tls.tick()
    assert shake(tls.context, new) != seen
    os.unlink(live.cert)
    assert not tls.tick()
    shake(tls.context, new)


def test_what_cannot_work_refuses_the_start(tmp_path: Path) -> None:
    files, other = own(tmp_path / "a"), own(tmp_path / "b")
    (tmp_path / "text").write_text("no PEM")
    for cert, key in (
        ("/nowhere", files.key),
        (files.cert, other.key),
        (str(tmp_path / "text"), files.key),
        (files.cert, str(tmp_path / "text")),
    ):
        with pytest.raises(ConfigError, match="tls: "):
            prepare(Config(data=str(tmp_path), tls=TlsConfig(cert=cert, key=key)))


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = own(tmp_path)
    private = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "locked").write_bytes(locked)
    with pytest.raises(ConfigError, match="passphrase"):
        prepare(
            Config(data=str(tmp_path), tls=TlsConfig(cert=files.cert, key=str(tmp_path / "locked")))
        )
