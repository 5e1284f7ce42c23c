"""`polynya debug bundle`: collect diagnostics in one file, without stream contents and secrets."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from polynya.cli.node.setting_flags import config_option, loaded_config, with_hidden_settings
from polynya.cli.remote.client import Client
from polynya.cli.remote.targets import SERVER_DEFAULT, find_target, is_loopback
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup

MASK = "***"
KNOWN_LENGTH_LEAST = 4  # shorter secrets would match ordinary words
_LOOKS = (
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(r"(://[^/\s:@\"']*:)[^@/\s\"']+(?=@)"),
    re.compile(
        r"(?i)([\w-]*(?:secret|passw(?:or)?d|token|signature|credential|api[_-]?key|private[_-]?key)[\w-]*[\"']?\s*[=:]\s*[\"']?)"
        r"(?!\*\*\*|null|true|false)[^\s\"',;&{}\[\]]+"
    ),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"),  # a JWT
    re.compile(
        r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
)
LOG_BYTES = 4 << 20  # from the end of each log
LISTED_MAX = 50_000
ANSWER_SECONDS = 10.0
_ABOUT = """Diagnostics collected by 'polynya debug bundle' on {moment} (release {version}):

{members}
The file contains no stream records and no secrets. Secret settings, tokens and passwords are masked.
Environment variables are listed by name only; data files by name, size and time.
It does contain names of folders, tables, buckets and, in logs, of streams and peers.
Check it before you share it: tar -xzf {file}
"""
_MEANING = {
    "config.json": "every setting of the node and its origin",
    "environment.txt": "names of the relevant environment variables, without values",
    "doctor.jsonl": "findings of 'polynya doctor'",
    "node.json": "the server's description of itself",
    "health.json": "the server's health",
    "readyz.txt": "each health check of the server",
    "metrics.txt": "the server's metrics",
    "state.json": "the state of each core: groups, queues, caches and memory",
    "tables.json": "the tables: location and lag",
    "files.txt": "names, sizes and times of the journal, the snapshots and the embedded object store",
}


@click.group("debug", cls=CommandGroup)
def debug_command() -> None:
    """Collect diagnostics for support."""


@debug_command.command("bundle")
@options.value(
    "--output", "-o FILE", "target", help="The file to write. Default: ./polynya-debug-DATE.tar.gz."
)
@options.value(
    "--log FILE",
    "logs",
    multiple=True,
    help="A log file; its end is included. Repeatable. Default: the node's log.",
)
@options.server(f"The node. Default: the current context, else {SERVER_DEFAULT}.")
@config_option
@options.json_flag("Print the file name and a list of its members as JSON.")
@with_hidden_settings
def debug_bundle_command(
    target: str | None,
    logs: tuple[str, ...],
    server: str | None,
    context: str | None,
    file: str | None,
    as_json: bool,
    **values: str | None,
) -> None:
    """Write diagnostics into one tar.gz: settings (secrets masked), versions, checks, health,
    metrics, log tails, and a list of data files. It contains no stream contents and no secrets.

    Run it on the node's machine, with the flags or the file of 'polynya serve'. Whatever is
    unavailable is left out and reported. The node's log is found if it goes to a file or to
    journald.

    \b
    polynya debug bundle
    polynya debug bundle --config /etc/polynya.toml --log /var/log/polynya.log -o /tmp/b.tar.gz
    """
    moment = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    path = Path(target or f"polynya-debug-{moment}.tar.gz")
    gathered = _Gathered(server, context, file, values)
    members = dict(gathered.members(logs))
    members = {"README.txt": _about(members, moment, path.name), **members}
    try:
        size = _write(path, members)
    except OSError as error:
        raise exits.Refused(
            f"{path} cannot be written: {error.strerror}", hint="Pass another file with --output."
        ) from None
    if as_json:
        output.json_line(
            {
                "file": str(path),
                "bytes": size,
                "members": list(members),
                "missing": gathered.missing,
            }
        )
        return
    for name, text in members.items():
        output.notice(f"  {name:<24}{output.size(len(text.encode()))}")
    for line in gathered.missing:
        output.notice(f"  left out: {line}")
    output.notice(
        f"wrote {path} ({output.size(size)}); it contains no records and no secrets, but check it "
        "before you share it"
    )


class _Gathered:
    """Collects the members; `missing` lists what was unavailable."""

    def __init__(
        self,
        server: str | None,
        context: str | None,
        file: str | None,
        values: Mapping[str, str | None],
    ) -> None:
        self.missing: list[str] = []
        self._where = (server, context)
        self._flags = (file, values)
        self._secrets = [
            text
            for name, text in os.environ.items()
            if any(part in name for part in ("SECRET", "TOKEN", "PASSWORD"))
        ]

    def members(self, logs: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of each file, scrubbed."""
        found = [*self._settings(), *self._server(), *self._doctor(), *self._logs(logs)]
        scrub = scrubber(self._secrets)
        for name, text in found:
            yield name, scrub(text)

    def _settings(self) -> Iterator[tuple[str, str]]:
        from polynya.config.loading import show, value_of
        from polynya.config.setting import PREFIX
        from polynya.config.settings import SETTINGS

        names = sorted(
            name
            for name in os.environ
            if name.startswith((PREFIX, "AWS_", "PYTHON", "JAVA_", "SPARK_", "UV_", "SSL_"))
        )
        yield "environment.txt", "".join(f"{name}\n" for name in names)
        self._data: Path | None = None
        try:
            loaded = loaded_config(*self._flags)
        except exits.Misused as wrong:
            yield "config.json", _json({"problems": wrong.message.splitlines()})
            return
        self._secrets += [
            str(value_of(loaded.config, setting.key) or "")
            for setting in SETTINGS
            if setting.secret
        ]
        yield (
            "config.json",
            _json({key: {"value": value, "origin": origin} for key, value, origin in show(loaded)}),
        )
        self._data = Path(loaded.config.data)
        if self._data.is_dir():
            yield "files.txt", "".join(_listed([self._data, loaded.config.objects_path]))
        else:
            self.missing.append(
                f"files.txt: there is no data folder {self._data}; pass it with --data"
            )

    def _doctor(self) -> Iterator[tuple[str, str]]:
        from polynya.cli.diagnostics.doctor import findings

        yield (
            "doctor.jsonl",
            "".join(
                _json(asdict(finding), indent=0) for finding in findings(*self._where, *self._flags)
            ),
        )

    def _server(self) -> Iterator[tuple[str, str]]:
        try:
            target = find_target(*self._where, os.environ)
            self._secrets.append(target.token)
            with Client.of(target) as client:
                for name, path in (
                    ("health.json", "/health"),
                    ("readyz.txt", "/readyz?verbose"),
                    ("tables.json", "/v1/tables"),
                ):
                    yield name, client.send("GET", path).text
                node = client.call("GET", "/v1/node", seconds=ANSWER_SECONDS)
                yield "node.json", node.text
                yield from self._admin(client, int(node.json()["ports"]["admin"]))
        except (click.ClickException, ValueError, KeyError, TypeError) as error:
            self.missing.append(f"server responses: {getattr(error, 'message', error)}")

    def _admin(self, client: Client, admin_port: int) -> Iterator[tuple[str, str]]:
        """Yield the state and the metrics from the admin port if reachable; the base port has
        metrics too."""
        state = metrics = ""
        if is_loopback(client.server):
            with Client(f"http://127.0.0.1:{admin_port}", token=client.token) as admin:
                state, metrics = _text_of(admin, "/debug/state"), _text_of(admin, "/metrics")
        metrics = metrics or _text_of(client, "/metrics")
        for name, text in (("state.json", state), ("metrics.txt", metrics)):
            if text:
                yield name, text
            else:
                self.missing.append(f"{name}: the admin port is unreachable from this machine")

    def _logs(self, named: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for number, name in enumerate(named):
            try:
                yield f"logs/{number}-{Path(name).name}", _end_of(Path(name))
            except OSError as error:
                self.missing.append(f"the log {name}: {error.strerror}")
        if not named:
            text = _own_log(self._data) if self._data is not None else ""
            if text:
                yield "logs/node.log", text
            else:
                self.missing.append("logs: the node's log was not found; pass it with --log")


def _text_of(client: Client, path: str) -> str:
    try:
        return client.call("GET", path).text
    except exits.Ended:
        return ""


def _own_log(data: Path) -> str:
    """Return the end of the running node's log if its stderr is a file or journald."""
    import subprocess

    try:
        pid = int((data / "node.pid").read_text())
        if b"polynya" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return ""
        log_file = Path(os.readlink(f"/proc/{pid}/fd/2"))
        if log_file.is_file():
            return _end_of(log_file)
        units = [
            part
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            for part in line.split("/")
            if part.endswith(".service")
        ]
        if not units:
            return ""
        command = [
            "journalctl",
            "--no-pager",
            "--quiet",
            "--output=cat",
            "--lines=20000",
            f"--unit={units[-1]}",
        ]
        ran = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return ran.stdout[-LOG_BYTES:].decode(errors="replace")


def _end_of(path: Path) -> str:
    """Return the last lines of a file. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        raw = file.read(LOG_BYTES)
    if size > LOG_BYTES:
        raw = raw.partition(b"\n")[2]
    return raw.decode(errors="replace")


def _listed(folders: list[Path]) -> Iterator[str]:
    """Yield size, time and path of each file below the folders; links are not followed."""
    seen: set[str] = set()
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in sorted(names):
                path = os.path.join(parent, name)
                if path in seen:
                    continue
                if len(seen) >= LISTED_MAX:
                    yield f"… only the first {LISTED_MAX:,} are listed\n"
                    return
                seen.add(path)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
                    yield f"{status.st_size:>14} {moment} {path}\n"


def _about(members: Mapping[str, str], moment: str, file: str) -> str:
    import polynya

    lines = "".join(f"  {name:<24}{_MEANING.get(name, 'the end of a log')}\n" for name in members)
    return _ABOUT.format(moment=moment, version=polynya.__version__, members=lines, file=file)


def _write(path: Path, members: Mapping[str, str]) -> int:
    """Write the file with mode 0600 and return its size. Raises OSError, also if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            raw = text.encode(errors="replace")
            info = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            info.size, info.mtime = len(raw), int(time.time())
            archive.addfile(info, io.BytesIO(raw))
    return path.stat().st_size


def _json(value: Any, *, indent: int = 2) -> str:
    import msgspec

    raw = msgspec.json.encode(value)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode() + "\n"


def scrubber(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces known secrets and everything that looks like one with
    `***`."""
    known = sorted(
        {secret for secret in secrets if len(secret) >= KNOWN_LENGTH_LEAST}, key=len, reverse=True
    )
    exact = re.compile("|".join(map(re.escape, known))) if known else None

    def scrub(text: str) -> str:
        if exact is not None:
            text = exact.sub(MASK, text)
        for looks in _LOOKS:
            text = looks.sub(rf"\1{MASK}", text)
        return text

    return scrub
