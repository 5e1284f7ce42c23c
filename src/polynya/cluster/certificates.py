"""Certificates for the links between nodes: a development authority, and checks of the configured
files."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from polynya.base.errors import ConfigError
from polynya.config.cluster_settings import ClusterConfig
from polynya.config.tls import general_name, no_passphrase
from polynya.files import make_folder, write_whole
from polynya.transport import PeerTls, node_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, KeyUsage, Name

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
WARN_BEFORE = dt.timedelta(days=14)
_DATES = (9, 10)  # OpenSSL verify codes: not yet valid, expired
_FLIGHTS = 3  # rounds that complete a TLS 1.3 handshake


def make_authority(folder: Path) -> None:
    """Create `ca.crt` and `ca.key` in `folder`. Raise FileExistsError if one exists: replacing it
    would void every certificate it signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if (folder / "ca.key").exists() or (folder / "ca.crt").exists():
        raise FileExistsError(
            f"{folder} already has a certificate authority; choose another folder"
        )
    private = ec.generate_private_key(ec.SECP256R1())
    name = _named("polynya cluster")
    builder = _builder(name, name, private, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    _store(folder / "ca.crt", folder / "ca.key", builder, private, private)


def make_certificate(folder: Path, node: int, hosts: list[str]) -> None:
    """Create `node-N.crt` and `node-N.key`, signed by the authority in `folder`; replace older
    files. `hosts` adds host names and addresses to the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, signer = _authority(folder)
    private = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(node_name(node)), authority.subject, private, CERTIFICATE_DAYS)
    names = [general_name(name) for name in dict.fromkeys((node_name(node), *hosts))]
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        critical=False,
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    _store(folder / f"node-{node}.crt", folder / f"node-{node}.key", builder, private, signer)


def peer_tls(ca: Path | str, cert: Path | str, key: Path | str) -> PeerTls:
    """Return the server and client contexts of a node's links. Raise OSError (ssl.SSLError
    included) if a file is unusable."""
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(str(ca))
        context.load_cert_chain(str(cert), str(key), password=no_passphrase)
        contexts.append(context)
    return PeerTls(*contexts)


def peer_tls_of(cluster: ClusterConfig, *, dates: bool = False) -> PeerTls | None:
    """Return the TLS contexts that the settings name, or None without certificates. Raise
    ConfigError. `dates` also rejects expired and not yet valid certificates. A start accepts them,
    because its clock may still be wrong."""
    if not cluster.ca:
        return None
    try:
        made = peer_tls(cluster.ca, cluster.cert, cluster.key)
        names = _names_in(Path(cluster.cert))
    except OSError as error:
        raise ConfigError(_unusable(cluster, error)) from None
    if node_name(cluster.node) not in names:
        shown = ", ".join(names) or "no host"
        raise ConfigError(
            f"cluster.cert: {cluster.cert} is for {shown}; the certificate of this node is for "
            f"{node_name(cluster.node)}"
        )
    refused = rehearse(made, node_name(cluster.node))
    if isinstance(refused, ssl.SSLCertVerificationError):
        if dates or refused.verify_code not in _DATES:
            raise ConfigError(
                f"cluster.cert: {cluster.cert} would be refused by nodes with the authority "
                f"{cluster.ca}: {refused.verify_message}"
            )
    elif refused is not None:
        raise ConfigError(
            f"cluster.cert: TLS 1.3 does not support the key type of {cluster.cert}; use ECDSA "
            "P-256, Ed25519 or RSA"
        ) from refused
    return made


def _unusable(cluster: ClusterConfig, error: OSError) -> str:
    """Return the message that names the unusable file, one line for each unreadable file."""
    unread = []
    for key, file in (("ca", cluster.ca), ("cert", cluster.cert), ("key", cluster.key)):
        try:
            Path(file).open("rb").close()
        except OSError as why:
            unread.append(
                f"cluster.{key}: {file} cannot be used: {why.strerror}; 'polynya cluster ca' "
                "makes certificates for a trial"
            )
    if unread:
        return "\n".join(unread)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"cluster.key: {cluster.key} cannot be used: it does not belong to the certificate in "
            f"{cluster.cert}"
        )
    return (
        f"cluster: {cluster.ca}, {cluster.cert} and {cluster.key} cannot be used: {error}; they "
        "must be PEM, no passphrase"
    )


def rehearse(tls: PeerTls, name: str) -> ssl.SSLError | None:
    """Run a TLS handshake with this certificate in memory, as a peer with the same authority would.
    Return its error, or None. The error may also come from the local side, when TLS 1.3 does not
    support the key type."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        tls.client.wrap_bio(back, there, server_hostname=name),
        tls.server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None


def expires(cert: Path) -> dt.datetime:
    """Return the expiry of a certificate."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc


def date_trouble(until: dt.datetime, now: dt.datetime) -> str | None:
    """Return a warning for operators when `until` is past or nearer than `WARN_BEFORE`, else
    None."""
    if until - now > WARN_BEFORE:
        return None
    said = "expired, and the other nodes refuse it, since" if until <= now else "expires on"
    return (
        f"cluster.cert: the certificate of this node {said} {until:%Y-%m-%d}; replace the file "
        "and send SIGHUP"
    )


def _names_in(cert: Path) -> list[str]:
    from cryptography import x509

    made = x509.load_pem_x509_certificate(cert.read_bytes())
    try:
        return made.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        return []


def _authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / 'ca.key'} is not an EC key of 'polynya cluster ca'")
    return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), signer


def _builder(
    subject: Name, issuer: Name, private: EllipticCurvePrivateKey, days: int
) -> CertificateBuilder:
    from cryptography import x509

    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(
        issuer, subject, private.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(
        now + dt.timedelta(days=days)
    )
    return builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False
    )


def _usage(*, signs: bool) -> KeyUsage:
    from cryptography import x509

    off = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **off)


def _named(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _store(
    cert: Path,
    key: Path,
    builder: CertificateBuilder,
    private: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
) -> None:
    from cryptography.hazmat.primitives import hashes, serialization

    made = builder.sign(signer, hashes.SHA256())
    make_folder(cert.parent, mode=0o700)
    plain = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(key, plain)
    write_whole(cert, made.public_bytes(serialization.Encoding.PEM), mode=0o644)
