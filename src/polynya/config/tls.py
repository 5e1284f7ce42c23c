"""TLS of the ports: certificate files that may change while the node runs, and a self-signed one
for development."""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from polynya.base.errors import ConfigError
from polynya.config.model import Config, resolve, split_listen
from polynya.files import make_folder, write_whole

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

log = logging.getLogger("polynya.tls")

FOLDER = "tls"
DAYS = 397  # longest lifetime that browsers accept
RENEW_DAYS = 30
Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles(msgspec.Struct, frozen=True):
    """The certificate and key files, and the protocols that are served with them. `fingerprint` is
    the SHA-256 of a self-signed certificate, else empty."""

    cert: str
    key: str
    fingerprint: str = ""
    protocols: tuple[str, ...] = ("http/1.1",)  # by preference; the handshake chooses one (ALPN)


def prepare(config: Config) -> TlsFiles | None:
    """Return the TLS files, generated if self-signed, or None without TLS. Raise `ConfigError` if
    they are unusable."""
    if config.tls.self:
        files = _own_files(config)
    elif config.tls.cert:
        files = TlsFiles(config.tls.cert, config.tls.key)
    else:
        return None
    if config.serves_http2:
        files = msgspec.structs.replace(files, protocols=("h2", "http/1.1"))
    try:
        _load(files)
    except (OSError, ssl.SSLError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            else str(error)
        )
        raise ConfigError(
            f"tls: {files.cert} and {files.key} cannot be used: {reason}; they must be PEM, "
            "belong together, no passphrase"
        ) from None
    return files


class Tls:
    """The TLS context of one core's ports. After `tick` finds a new certificate, new handshakes use
    it; open connections stay."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = _stamp(files)
        self.context = _load(files)

    def tick(self) -> bool:
        """Reload the files if they changed. Return True if a new certificate is in use."""
        stamp = _stamp(self._files)
        if stamp == self._stamp or stamp is None:
            return False
        self._stamp = stamp
        return self.reload()

    def reload(self) -> bool:
        """Load the files. Keep the old certificate on failure: half of a pair may be written, and
        `tick` retries when the other half arrives."""
        try:
            # a trial: a failed load into the live context would leave it without a usable pair
            _load(self._files)
            self.context.load_cert_chain(self._files.cert, self._files.key)
        except (OSError, ssl.SSLError) as error:
            log.error(
                "cannot use the new certificate; keeping the old one",
                extra={"file": self._files.cert, "error": str(error)},
            )
            return False
        log.info("loaded a new certificate", extra={"file": self._files.cert})
        return True


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(files.protocols))
    context.load_cert_chain(files.cert, files.key, password=no_passphrase)
    return context


def no_passphrase() -> str:
    """Reject an encrypted key, instead of a prompt at the terminal."""
    raise ssl.SSLError("the key has a passphrase")


def _stamp(files: TlsFiles) -> Stamp | None:
    try:
        return tuple(
            (found.st_mtime_ns, found.st_ino, found.st_size)
            for found in map(os.stat, (files.cert, files.key))
        )
    except OSError:
        return None


def _own_files(config: Config) -> TlsFiles:
    folder = Path(config.data) / FOLDER
    cert, key = folder / "self.crt", folder / "self.key"
    host = split_listen(config.listen)[0]
    try:
        make_folder(folder, mode=0o700)
        if not _still_good(cert, key, host):
            _make(cert, key, host)
        return TlsFiles(str(cert), str(key), _fingerprint(cert))
    except OSError as error:
        raise ConfigError(f"tls.self: {folder}: {error.strerror}") from None


def _names(host: str) -> list[str]:
    """Return the names and addresses for the certificate."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    if ipaddress.ip_address(resolve(host)[0]).is_unspecified:
        try:
            names.update(resolve(socket.gethostname()))
        except ValueError:
            pass  # a machine that cannot resolve its own name
    else:
        names.update((host, *resolve(host)))
    return sorted(names)


def _still_good(cert: Path, key: Path, host: str) -> bool:
    from cryptography import x509

    if not cert.exists() or not key.exists():
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=no_passphrase)
        made = x509.load_pem_x509_certificate(cert.read_bytes())
        alternative = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, ssl.SSLError, x509.ExtensionNotFound):
        return False
    known = {
        *alternative.get_values_for_type(x509.DNSName),
        *map(str, alternative.get_values_for_type(x509.IPAddress)),
    }
    left = made.not_valid_after_utc - dt.datetime.now(dt.UTC)
    return known >= set(_names(host)) and left > dt.timedelta(days=RENEW_DAYS)


def _make(cert: Path, key: Path, host: str) -> None:
    """Write a certificate that is its own authority, so that clients can trust it directly."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    public = private.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "polynya, self-signed")])
    now = dt.datetime.now(dt.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    builder = (
        x509.CertificateBuilder(name, name, public, x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([general_name(each) for each in _names(host)]),
            critical=False,
        )
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    made = builder.sign(private, hashes.SHA256())
    plain = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(key, plain)
    write_whole(cert, made.public_bytes(serialization.Encoding.PEM))


def general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _fingerprint(cert: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    return (
        x509.load_pem_x509_certificate(cert.read_bytes())
        .fingerprint(hashes.SHA256())
        .hex(":")
        .upper()
    )
