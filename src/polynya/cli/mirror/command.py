"""`polynya mirror`: the command line."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from pathlib import Path

import click

from polynya.cli.mirror.connection import (
    MECHANISMS,
    Address,
    Login,
    Security,
    require_codecs,
)
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options

PASSWORD = "POLYNYA_MIRROR_PASSWORD"  # noqa: S105 (the name of the variable)
_PORT = 9092
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.ASCII)


@click.command("mirror")
@options.value(
    "--from HOST:PORT,...",
    "brokers",
    required=True,
    help="The brokers of the source, some of them.",
)
@options.value(
    "--topics GLOB",
    "globs",
    multiple=True,
    required=True,
    help="Names of topics, with * and ?. Separate several with commas, or repeat the option.",
)
@options.flag("--once", help="End when everything is here that the source has now.")
@options.flag("--cut-over", help="End the mirror when everything is here: see above.")
@options.flag("--force", help="With --cut-over: do not wait until the source's groups are empty.")
@options.value(
    "--from-sasl",
    "mechanism",
    type=click.Choice([each.lower() for each in MECHANISMS], case_sensitive=False),
    help="Log in at the source.",
)
@options.value("--from-user NAME", "user", help="The user of --from-sasl.")
@options.value(
    "--from-password-file FILE",
    "password_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A file with the password.  [default: the variable {PASSWORD}]",
)
@options.flag("--from-tls", "tls", help="Connect to the source with TLS.")
@options.value("--from-ca FILE", "ca", help="The CA of the source's certificates.")
@options.value("--from-cert FILE", "cert", help="A client certificate for the source.")
@options.value("--from-key FILE", "key", help="The key of --from-cert.")
@options.retry("5min", "Retry timeout, for the source and the server.")
@server_option
def mirror_command(
    client: Client,
    brokers: str,
    globs: tuple[str, ...],
    once: bool,
    cut_over: bool,
    force: bool,
    mechanism: str | None,
    user: str | None,
    password_file: Path | None,
    tls: bool,
    ca: str | None,
    cert: str | None,
    key: str | None,
    retry: float,
) -> None:
    """Copy topics of another Kafka cluster with their offsets, follow them until Ctrl-C, and take
    them over.

    Records keep their offsets, times, keys and headers; topics their partitions and configs; groups
    their positions. Only committed records are copied. Meanwhile the topics here take no other
    records. An interrupted mirror resumes at the ends of the topics here.

    --cut-over waits until each partition has everything, no transaction is open and the source's
    groups have no members, copies the positions once more, and lets the topics here take records.
    Stop the producers and consumers of the source first.

    \b
    polynya mirror --from old:9092 --topics 'orders*'
    polynya mirror --from old:9092 --topics 'orders*' --cut-over
    polynya mirror --from old:9093 --topics '*' --from-tls --from-sasl scram-sha-512 --from-user app
    """
    if once and cut_over:
        raise click.UsageError("--cut-over mirrors to the end too: leave --once out")
    if force and not cut_over:
        raise click.UsageError("--force is for --cut-over")
    addresses = [_address(each) for each in brokers.split(",") if each.strip()]
    names = [name.strip() for each in globs for name in each.split(",") if name.strip()]
    if not addresses or not names:
        raise click.UsageError("--from needs a broker, and --topics a name")
    login = _login(mechanism, user, password_file)
    security = Security(_tls(tls, ca, cert, key), login)
    require_codecs()
    origin = ",".join(f"{host}:{port}" for host, port in addresses)
    asyncio.run(_run(client, (addresses, security), names, origin, retry, (once, cut_over, force)))


async def _run(
    client: Client,
    where: tuple[list[Address], Security],
    names: list[str],
    origin: str,
    retry: float,
    how: tuple[bool, bool, bool],
) -> None:
    from polynya.cli.mirror.run import Mirror
    from polynya.cli.mirror.source import Source
    from polynya.cli.mirror.target import Target

    mirror = Mirror(Source(*where), Target(client, retry), names, origin, retry)
    once, cut_over, force = how
    await mirror.run(once=once, cut_over=cut_over, force=force)


def _address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or not 0 < int(found[2] or _PORT) < 1 << 16:
        raise click.UsageError(f"--from has '{text.strip()[:100]}'; expected HOST:PORT")
    return found[1].strip("[]"), int(found[2] or _PORT)


def _login(mechanism: str | None, user: str | None, password_file: Path | None) -> Login | None:
    if mechanism is None:
        if user is not None or password_file is not None:
            raise click.UsageError("--from-user needs --from-sasl: how to log in")
        return None
    if not user:
        raise click.UsageError("--from-sasl needs --from-user")
    if password_file is not None:
        try:
            password = password_file.read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise exits.Misused(f"{password_file} cannot be read: {error}") from None
    else:
        password = os.environ.get(PASSWORD, "")
    if not password:
        raise exits.Misused(
            f"--from-sasl needs a password: set {PASSWORD}, or pass --from-password-file"
        )
    return Login(mechanism.upper(), user, password)


def _tls(tls: bool, ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if not tls:
        if ca or cert or key:
            raise click.UsageError("--from-ca, --from-cert and --from-key need --from-tls")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise exits.Misused(f"the files of --from-tls cannot be used: {error}") from None
    if key and not cert:
        raise click.UsageError("--from-key needs --from-cert")
    return context
