"""`polynya walrus`: the text protocol, as a prompt or for single commands."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from urllib.parse import urlsplit

import click

from polynya.cli.remote.targets import Target, find_target, server_urls
from polynya.cli.terminal import exits, options, output

PORT_STEP = 4  # from the port of the server to that of the text protocol
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
VERBS = ("REGISTER", "PUT", "GET", "STATE", "METRICS")
HISTORY_LINES = 1000
_LENGTH = Struct("<I")
_HELP = (
    "REGISTER <topic>         create a topic",
    "PUT <topic> <payload>    append a message",
    "GET <topic>              take the next message of the shared cursor",
    "STATE <topic>            show the leader of a topic",
    "METRICS                  show the cluster as this node sees it",
    "help, exit",
)


class TextClient:
    """A blocking connection of the text protocol. Failures are `exits.Ended`."""

    def __init__(
        self, host: str, port: int, *, token: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = f"{host}:{port}"
        try:
            plain = socket.create_connection((host, port), CONNECT_SECONDS)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            raise exits.Unreachable(
                f"the text protocol of {self.address} cannot be reached: {error}",
                hint=(
                    "The node serves it with text_listen = on (docs/walrus.md); --addr names "
                    "another address."
                ),
            ) from None
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if token and (answer := self.call(f"AUTH {token}")) != "OK":
            raise exits.Refused(answer)

    def call(self, line: str) -> str:
        """Send a request and return the response."""
        body = line.encode("utf-8", "surrogateescape")
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
            return self._exactly(_LENGTH.unpack(self._exactly(4))[0]).decode("utf-8", "replace")
        except OSError as error:
            raise exits.Unknown(
                f"{self.address} did not answer: {error}; the command may or may not have been "
                "applied"
            ) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError("the connection was closed")
            data += piece
        return bytes(data)


@click.command("walrus")
@options.value(
    "--command", "-c TEXT", "commands", multiple=True, help="A command to run; may be repeated."
)
@options.value("--addr HOST:PORT", help="The text port.  [default: the server's port plus 4]")
@options.server("The node whose text port is meant.", context="The context to take the node from.")
@options.value(
    "--token TOKEN",
    help="The access token. Others here can see command lines: better is POLYNYA_TOKEN.",
)
def walrus_command(
    commands: tuple[str, ...],
    addr: str | None,
    server: str | None,
    context: str | None,
    token: str | None,
) -> None:
    """Speak the text protocol of Walrus: a prompt with history and completion, or single commands.

    Without a terminal, commands are read from stdin, one per line. The exit code is 1 if a command
    was answered with ERR.

    \b
    polynya walrus
    polynya walrus -c "REGISTER logs" -c "PUT logs hello" -c "GET logs"
    printf 'PUT logs %s\\n' one two | polynya walrus --addr 127.0.0.1:4441
    """
    target = find_target(server, context, os.environ, token=token or "")
    host, port = _address(addr, target)
    client = TextClient(host, port, token=target.token, tls=_tls(target))
    try:
        if commands or not sys.stdin.isatty():
            lines = commands or (line.rstrip("\n") for line in sys.stdin)
            _run(client, lines)
        else:
            _prompt(client)
    finally:
        client.close()


def _address(addr: str | None, target: Target) -> tuple[str, int]:
    """Return host and port of the text protocol. Raises `exits.Misused`."""
    try:
        if addr:
            parsed = urlsplit(f"//{addr}")
            if parsed.hostname and parsed.port and not parsed.path:
                return parsed.hostname, parsed.port
            raise ValueError
        parsed = urlsplit(server_urls(target.server, target.origin)[0])
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        return parsed.hostname or "", port + PORT_STEP
    except ValueError:
        raise exits.Misused(
            f"--addr {addr!r} is no address; it looks like 127.0.0.1:4441"
        ) from None


def _tls(target: Target) -> ssl.SSLContext | None:
    """Return the trust for a server with TLS; None for one without."""
    if not target.server.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file or None)
    except OSError as error:
        raise exits.Misused(f"the CA file {target.ca_file} cannot be read: {error}") from None


def _run(client: TextClient, lines: Iterable[str]) -> None:
    """Run commands and print the responses. Raises `exits.Refused` if the last response was an
    error."""
    failed = ""
    for line in lines:
        if not line.strip():
            continue
        answer = client.call(line)
        click.echo(answer)
        failed = answer if answer.startswith("ERR") else failed
    if failed:
        raise exits.Refused(failed.removeprefix("ERR "))


def _prompt(client: TextClient) -> None:
    output.notice(f"connected to {client.address}; 'help' lists the commands, Ctrl-D leaves")
    topics: set[str] = set()
    with _line_editor(topics):
        while True:
            try:
                line = input("walrus> ").strip()
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo()
                continue
            if line in ("exit", "quit"):
                return
            if line == "help":
                click.echo("\n".join(_HELP))
            elif line:
                click.echo(client.call(line))
                topics.update(line.split()[1:2])


def completions(line: str, word: str, topics: Iterable[str]) -> list[str]:
    """Return what may follow: commands for the first word, known topics for the second."""
    before = line[: len(line) - len(word)].split()
    if not before:
        return [f"{verb} " for verb in VERBS if verb.startswith(word.upper())]
    if len(before) == 1 and before[0] in VERBS[:4]:
        return sorted(topic for topic in topics if topic.startswith(word))
    return []


@contextmanager
def _line_editor(topics: set[str]) -> Iterator[None]:
    """Set up history and completion where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    history = Path(base) / "polynya" / "walrus_history"

    def complete(word: str, state: int) -> str | None:
        found = completions(readline.get_line_buffer()[: readline.get_endidx()], word, topics)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY_LINES)
    with suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        with suppress(OSError):
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(history)
