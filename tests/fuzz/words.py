"""The command line and the settings: random flags, values, TOML files and variables, and servers
that answer nonsense.

Every command ends with one of the documented exit codes and in words: never with a traceback, and
never not at all. The commands run in a process of their own (this file as a script), one after the
other, which says before each what it does.
"""

from __future__ import annotations

import json
import os
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import msgspec
from click.testing import CliRunner
from fuzz.bytes import Outcome, anything, damaged, noise, number, text
from product import environment

from polynya.cli.app import EXIT_MEANINGS, VERBS, cli
from polynya.cli.cluster import commands as health
from polynya.config.settings import SETTINGS

HANGS_SECONDS = 150.0  # more than the minute of retries that import and others have
CODES = frozenset(EXIT_MEANINGS)
# they go on, or are slow
LONG = {
    ("serve",),
    ("cluster", "dev"),
    ("demo",),
    ("bench",),
    ("lake", "run"),
    ("compact",),
    ("sql",),
    ("debug", "bundle"),
    ("doctor",),
}
VALUES = (
    "", "0", "1", "-1", "3", "1.5", "1e9", "9" * 30, "1 GiB", "64MiB", "1h", "15min", "forever", "true",
    "off", "x", "a/b", "127.0.0.1:0", ":", ":::", "[::1]:80",
    "0.0.0.0:99999", "localhost", "http://", "http://x:y", "ftp://x", "https://127.0.0.1:1", "s3://b/p", "s3://", "file:///nope", "-", "--", "nope.toml",
    "made.toml", "made.json", ".", "..", "\x7f", "é", "%", "{}", "[]", '{"a":1}', "*", "**", "local", "none", "s3", "json", "start", "now", "a=b", "=", ",",
    "http://127.0.0.1:1,http://127.0.0.1:2", "0000000000000001_0000000000000001", "2030-01-01T00:00:00Z", "\ud800", "\n", "'", '"',
)  # fmt: skip


class NonsenseServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that have gone."""


class Nonsense(BaseHTTPRequestHandler):
    """A server whose answers are anything."""

    chance = random.Random(0)
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        chance = self.chance
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = chance.choice(
            (
                b"",
                noise(chance),
                msgspec.json.encode(anything(chance)),
                msgspec.json.encode(self._near()),
            )
        )
        if chance.random() < 0.05:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(
            chance.choice(
                (
                    200,
                    200,
                    200,
                    201,
                    204,
                    206,
                    302,
                    304,
                    400,
                    401,
                    403,
                    404,
                    409,
                    410,
                    412,
                    429,
                    500,
                    501,
                    507,
                    599,
                )
            )
        )
        if chance.random() < 0.7:
            self.send_header(
                "Content-Type",
                chance.choice(("application/json", "text/plain", "text/event-stream", "x")),
            )
        for name in (
            "Stream-Next-Offset",
            "Stream-Closed",
            "Stream-Up-To-Date",
            "Stream-Cursor",
            "Stream-Incarnation",
            "ETag",
            "Location",
            "Retry-After",
        ):
            if chance.random() < 0.3:
                self.send_header(
                    name,
                    chance.choice(
                        ("0", "true", "x", "-1", "0" * 16 + "_" + "0" * 16, str(number(chance)))
                    ),
                )
        self.send_header("Content-Length", str(len(content) + (chance.random() < 0.02)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = True

    def _near(self) -> Any:
        """Draw something like an answer of ours."""
        chance = self.chance
        names = (
            "streams",
            "nodes",
            "groups",
            "problems",
            "notes",
            "tables",
            "tokens",
            "error",
            "subscriptions",
            "healthy",
            "cluster",
            "history",
            "ports",
        )
        found = {name: anything(chance) for name in names if chance.random() < 0.5}
        return found | (
            {"error": {"code": text(chance), "message": text(chance)}}
            if chance.random() < 0.3
            else {}
        )

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _answer  # noqa: N815

    def log_message(self, *what: Any) -> None:
        pass


def fuzz_words(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz the command line for a number of commands, or for a time."""
    outcome = Outcome()
    command = [sys.executable, "-m", "fuzz.words", str(seed), str(rounds), str(seconds)]
    known = environment(
        PYTHONPATH=os.pathsep.join(sys.path),
        XDG_CONFIG_HOME=str(folder / "config"),
        HOME=str(folder),
    )
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=known,
            cwd=folder,
            text=True,
        ) as worker,
    ):
        lines: queue.Queue[str] = queue.Queue()
        assert worker.stdout is not None
        reader = threading.Thread(
            target=lambda: [lines.put(line) for line in worker.stdout or ()] + [lines.put("")]
        )
        reader.start()
        doing = ""
        try:
            while line := lines.get(timeout=HANGS_SECONDS):
                what, content = json.loads(line)
                if what == "does":
                    doing = content
                elif what == "wrong":
                    outcome.wrong.append(f"seed {seed}: {content}")
                else:
                    outcome.counts += Counter(content)
        except queue.Empty:
            outcome.wrong.append(f"seed {seed}: it hangs: {doing}")
            worker.kill()
        reader.join()
        if worker.wait() and not outcome.wrong:
            said.seek(0)
            outcome.wrong.append(
                f"seed {seed}: the commands' process ended with {worker.returncode} in {doing}: "
                f"{said.read()[-2000:].decode(errors='replace')}"
            )
    return outcome


# --- in the process of the commands ---------------------------------------------------------------


def _commands() -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    with click.Context(cli) as context:
        for verb in VERBS:
            command = cli.get_command(context, verb)
            assert command is not None
            inner = command.commands.items() if isinstance(command, click.Group) else []
            found += [((verb, name), each) for name, each in inner] or [((verb,), command)]
    return found


def _flags(
    chance: random.Random, words: tuple[str, ...], command: click.Command, server: str
) -> list[str]:
    """Draw words for one command, some of which fit."""
    found = list(words)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if chance.random() > 0.25 and not (parameter.required and chance.random() < 0.9):
                continue
            found.append(chance.choice(parameter.opts))
            if not parameter.is_flag:
                found += [_value(chance, parameter, server) for _ in range(abs(parameter.nargs))]
        else:
            count = (
                chance.choice((0, 1, 1, 2))
                if parameter.nargs < 0 or chance.random() < 0.1
                else parameter.nargs
            )
            found += [_value(chance, parameter, server) for _ in range(count)]
    if chance.random() < 0.1:
        found.insert(
            chance.randrange(len(found) + 1),
            chance.choice(("--nope", "-x", "--help", "--", "--version", *VALUES)),
        )
    return found


def _value(chance: random.Random, parameter: click.Parameter, server: str) -> str:
    if isinstance(parameter.type, click.Choice) and chance.random() < 0.7:
        return str(chance.choice(list(parameter.type.choices)))
    if parameter.name == "server" and chance.random() < 0.8:
        return server
    if isinstance(parameter.type, click.types.IntParamType) and chance.random() < 0.6:
        return str(chance.choice((1, 2, 3, number(chance))))
    return chance.choice(VALUES) if chance.random() < 0.9 else text(chance).replace("\0", "")


def _settings(chance: random.Random) -> tuple[list[str], dict[str, str]]:
    """Draw a command that looks at settings from flags, variables and a file."""
    variables = {
        _env(setting): _said(chance, setting)
        for setting in chance.sample(SETTINGS, chance.choice((0, 0, 1, 3)))
    }
    flags = []
    for setting in chance.sample(SETTINGS, chance.choice((0, 0, 1, 3))):
        flags += [f"--{setting.key.replace('.', '-').replace('_', '-')}", _said(chance, setting)]
    Path("made.toml").write_bytes(_toml(chance))
    act = chance.choice(
        (
            ["config", "check"],
            ["config", "show"],
            ["config", "show", "--origin"],
            ["serve", "--show-config"],
        )
    )
    return [*act, "--config", "made.toml", *flags], variables


def _env(setting: Any) -> str:
    return str(setting.env)


def _said(chance: random.Random, setting: Any) -> str:
    return chance.choice(VALUES).replace("\0", "") if chance.random() < 0.8 else str(number(chance))


def _toml(chance: random.Random) -> bytes:
    lines: list[str] = []
    for setting in chance.sample(SETTINGS, chance.randrange(0, 6)):
        drawn = chance.random()
        value = (
            json.dumps(_said(chance, setting))
            if drawn < 0.5
            else str(
                chance.choice(
                    (
                        number(chance),
                        "true",
                        1.5,
                        "[]",
                        "{}",
                        "[1]",
                        "{a=1}",
                        "1979-05-27",
                        "inf",
                        "nan",
                    )
                )
            )
        )
        lines.append(f"{setting.key} = {value}")
    if chance.random() < 0.3:
        key = chance.choice(
            ("id", "node", "listen", "nodes", "ca", "cert", "key", "replicas", "join", "x")
        )
        lines += [
            "[cluster]",
            f"{key} = {chance.choice((number(chance), '[]', json.dumps(chance.choice(VALUES))))}",
        ]
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        lines += [
            "[[cluster.nodes]]",
            f"id = {number(chance)}",
            f"peer = {json.dumps(chance.choice(VALUES))}",
            f"http = {json.dumps(chance.choice(VALUES))}",
        ]
    made = "\n".join(lines).encode("utf-8", "replace")
    return damaged(chance, made) if chance.random() < 0.2 else made


def _say(what: str, content: object) -> None:
    sys.__stdout__.write(json.dumps([what, content]) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def _work(seed: int, rounds: int, seconds: float) -> None:
    server = NonsenseServer(("127.0.0.1", 0), Nonsense)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    commands = [(words, command) for words, command in _commands() if words not in LONG]
    health.WATCH_SECONDS = 0.01
    end, done, counts = time.monotonic() + seconds, 0, Counter[str]()
    while done < rounds or time.monotonic() < end:
        done += 1
        chance = Nonsense.chance = random.Random(f"{seed}-{done}")
        variables: dict[str, str | None] = {"POLYNYA_SERVER": url}
        if chance.random() < 0.5:
            given, more = _settings(chance)
            variables |= more
        else:
            given = _flags(chance, *chance.choice(commands), url)
            Path("made.json").write_bytes(chance.choice((b"[1,2]", b"{}\n", noise(chance))))
        given = [word.encode("utf-8", "replace").decode() for word in given]
        if "--watch" in given and "--server" in given and url not in given:
            given.remove("--watch")  # it waits for a server that does not answer
        variables = {
            name: None
            if value is None
            else value.encode("utf-8", "replace").decode().replace("\0", "")
            for name, value in variables.items()
        }
        description = f"round {done}: {given} with {variables}"
        _say("does", description)
        _judge(description, given, variables, chance, counts)
    _say("counts", dict(counts))


def _judge(
    description: str,
    given: list[str],
    variables: dict[str, str | None],
    chance: random.Random,
    counts: Counter[str],
) -> None:
    words = chance.choice((b"", b"1\n2\n", b"[1]\n", noise(chance), b"y\n"))
    result = CliRunner().invoke(cli, given, prog_name="polynya", env=variables, input=words)
    counts[f"{given[0]}: {result.exit_code}"] += 1
    if result.exception is not None and not isinstance(
        result.exception, SystemExit | KeyboardInterrupt
    ):
        trace = "".join(traceback.format_exception(result.exception))
        _say("wrong", f"{description}: {trace[-2500:]}")
    elif result.exit_code not in CODES:
        _say("wrong", f"{description}: it ended with {result.exit_code}: {result.output[-500:]}")
    elif "Traceback" in result.output:
        _say("wrong", f"{description}: {result.output[-1500:]}")
    elif result.exit_code == 2 and not result.output.strip():
        _say("wrong", f"{description}: it ended with 2, and without a word")


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
