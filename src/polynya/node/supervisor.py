"""The supervisor: locks the data folder, reserves the ports, runs one process per core, and stops
them all when it stops.

It holds no data and serves no requests. If it is killed, the kernel ends the cores. A dead core is
restarted with increasing delay, unless its exit code says that a restart cannot help
(`polynya.config.core_start`). It never makes decisions about data.

What only some starts need is imported there: a supervisor is small, and starts fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import msgspec

from polynya.admin.audit import AuditFile, act
from polynya.admin.reducers.child import reduce_command, reduce_environment
from polynya.admin.workers.lake_worker import lake_command, lake_environment
from polynya.base.errors import ConfigError, CorruptData
from polynya.config.core_start import (
    ADMIN,
    EXIT_CLEAN,
    EXIT_CONFIG,
    EXIT_CORRUPT,
    EXIT_REMOVED,
    EXIT_STORAGE,
    FATAL,
    HTTP,
    OTHERS_HAVE_IT,
    READY,
    REMOTE_ADMIN,
    TEXT,
    CoreStart,
)
from polynya.config.model import Config
from polynya.config.node_identity import (
    FILE,
    NodeIdentity,
    removed_text,
    write_json,
)
from polynya.files import is_full
from polynya.node.preparation import Prepared, prepare
from polynya.observability import logs
from polynya.observability.build import described
from polynya.system.ports import spelled

ENTRY = "polynya.node.core_process"
# a core drains and closes its journal in this time, or is killed (which loses nothing acknowledged)
STOP_SECONDS = 20.0
# a killed process exits in this time or hangs in the kernel on a dead disk, and is then abandoned
KILL_SECONDS = 5.0
QUICK_SECONDS = 10.0  # a core that dies sooner counts as a quick death
QUICK_DEATHS_MAX = 10  # consecutive quick deaths that stop the node …
FIRST_DEATHS_MAX = 3  # … and before the node first served
BACKOFF_SECONDS = 0.1  # before the first restart; doubled at each quick death
BACKOFF_SECONDS_MAX = 5.0
LAKE_RESTART_SECONDS = 10.0
log = logging.getLogger("polynya.supervisor")


def serve(config: Config, *, entry: str = ENTRY) -> int:
    """Run a node until it is told to stop, and return the exit code. `entry` is the module that a
    core process runs.

    It prints the addresses on stdout once all cores serve. Configuration errors go to stderr."""
    logs.setup(config.log.level, config.log.format)
    try:
        while True:
            with contextlib.ExitStack() as held:
                node = _Node(prepare(config, held), entry)
                code = asyncio.run(node.run())
            if not node.begins_anew:
                return code
    except ConfigError as error:
        logs.say_end(str(error))
        return EXIT_CONFIG
    except CorruptData as error:
        logs.say_end(str(error))
        return EXIT_CORRUPT
    except OSError as error:  # of the folder: errors of ports and other files were reported above
        full = is_full(error)
        what = (
            "has no room; free space"
            if full
            else f"cannot be written or read ({error}): {FATAL[EXIT_STORAGE]}"
        )
        logs.say_end(f"data: {config.data} {what}")
        return EXIT_CONFIG if full else EXIT_STORAGE


class _Node:
    """The processes of a running node. All tasks belong to the task group of `run`."""

    def __init__(self, prepared: Prepared, entry: str) -> None:
        self._start = prepared.start
        self._lock_fd = prepared.lock_fd
        self._notice = prepared.notice
        self._groups_wanted = prepared.groups
        self._has_terminal = _terminal_is_there()
        self._entry = entry
        self._ready: set[int] = set()  # cores that serve now
        self._served = asyncio.Event()  # set once all cores have served
        self._stopping = asyncio.Event()
        self._processes: dict[str, Process] = {}
        self._exit_code = EXIT_CLEAN
        # the data folder does not match the cluster: start over after the end
        self.begins_anew = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        async with asyncio.TaskGroup() as tasks:
            keepers = [
                tasks.create_task(self._keep_core(core)) for core in range(self._start.cores)
            ]
            if self._start.config.lake.interval > 0:
                keepers.append(tasks.create_task(self._keep_lake()))
            keepers += [
                tasks.create_task(self._keep_reducers(number))
                for number in range(self._start.config.reduce.workers)
            ]
            if self._start.identity.provisional:
                keepers.append(tasks.create_task(self._hear_all()))
            tasks.create_task(self._take_down(keepers))
        log.info("stopped", extra={"exit_code": self._exit_code})
        return self._exit_code

    def _signalled(self, number: signal.Signals) -> None:
        self.begins_anew = False
        if self._stopping.is_set():
            log.warning("second signal: stopping at once", extra={"signal": number.name})
            self._kill()
        else:
            log.info("stopping", extra={"signal": number.name})
            self._stopping.set()

    def _hung_up(self) -> None:
        """Reload what may change; but stop when the terminal that started this node is gone."""
        if self._has_terminal and not _terminal_is_there():
            self._signalled(signal.SIGHUP)
            return
        log.info("reading certificates, tokens and keys again")
        for core in self._ready:
            _send(self._processes[f"core {core}"], signal.SIGHUP)
        try:
            AuditFile(self._start.config.data).write(
                act("config.reload", "certificates, tokens, keys", "SIGHUP")
            )
        except OSError as error:
            log.error("the audit log cannot be written", extra={"error": str(error)})

    async def _hear_all(self) -> None:
        """Wait until all other nodes confirm this node's history, or one reports another
        history."""
        from polynya.cluster.discovery import ASK_SECONDS, ASK_SECONDS_MAX, differs

        config, identity = self._start.config, self._start.identity
        config = msgspec.structs.replace(config, groups=self._groups_wanted)
        unheard = {node.id for node in config.cluster.others}
        pause = ASK_SECONDS
        while not self._stopping.is_set():
            if await differs(config, identity, unheard):
                self.begins_anew = True
                self._stopping.set()
            elif not unheard and self._settle():
                return
            await self._pause(pause)
            pause = min(2 * pause, ASK_SECONDS_MAX)

    def _settle(self) -> bool:
        """Record that all nodes have confirmed. Return False while the disk is full; other disk
        errors stop the node."""
        from polynya.cluster.discovery import settled

        try:
            write_json(Path(self._start.config.data) / FILE, settled(self._start.identity))
        except OSError as error:
            if is_full(error):
                return False
            self._fail(
                EXIT_STORAGE, f"{FILE} cannot be written ({error.strerror}): {FATAL[EXIT_STORAGE]}"
            )
        return True

    def _fail(self, code: int, reason: str) -> None:
        if not self._stopping.is_set():
            self._exit_code = code
            logs.say_end(reason)
            self._stopping.set()

    async def _take_down(self, keepers: list[asyncio.Task[None]]) -> None:
        """Stop all processes when the node stops, and kill those that do not exit. A process in
        creation gets its signal in `_wait`."""
        await self._stopping.wait()
        for process in self._processes.values():
            _send(process, signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=STOP_SECONDS)
        if not late:
            return
        log.warning(
            "processes did not stop in time: killed",
            extra={"processes": ", ".join(self._processes)},
        )
        self._exit_code = self._exit_code or 1
        self._kill()
        _, late = await asyncio.wait(late, timeout=KILL_SECONDS)
        if late:
            log.error(
                "killed processes have not exited: the folder stays locked until the kernel "
                "releases it",
                extra={"processes": ", ".join(self._processes)},
            )
        for keeper in late:
            keeper.cancel()

    def _kill(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but wake at a stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _keep_core(self, core: int) -> None:
        loop = asyncio.get_running_loop()
        quick = 0
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run_core(core)
            if self._stopping.is_set():
                self._ended(core, code)
                return
            lived = loop.time() - began
            quick = quick + 1 if lived < QUICK_SECONDS else 1
            if code == EXIT_REMOVED:
                self._fail(EXIT_CONFIG, removed_text(self._start.config))
            elif code in FATAL and not (
                code == EXIT_CONFIG and self._served.is_set()
            ):  # settings that worked once are not the cause
                reason = (
                    OTHERS_HAVE_IT
                    if code == EXIT_CORRUPT and self._start.identity.node
                    else FATAL[code]
                )
                self._fail(code, f"core {core} stopped: {reason}")
            elif quick >= (QUICK_DEATHS_MAX if self._served.is_set() else FIRST_DEATHS_MAX):
                self._fail(
                    1,
                    f"core {core} died {quick} times in a row ({how_it_ended(code)}); see the "
                    "lines above for the reason",
                )
            else:
                pause = min(BACKOFF_SECONDS * 2 ** (quick - 1), BACKOFF_SECONDS_MAX)
                log.error(
                    "a core died: restarting it",
                    extra={"died": core, "how": how_it_ended(code), "lived_s": round(lived, 1)},
                )
                await self._pause(pause)

    def _ended(self, core: int, code: int) -> None:
        """Include an unclean end during a stop in the node's exit code."""
        # a removed core ends before the node stops and reports it itself
        if code > EXIT_CLEAN and code != EXIT_REMOVED:
            log.error(
                "a core did not end cleanly", extra={"ended": core, "how": how_it_ended(code)}
            )
            self._exit_code = self._exit_code or 1

    async def _run_core(self, core: int) -> int:
        """Start the process of a core, wait for its end, and return the exit code, negative for a
        signal."""
        report, report_fd = os.pipe()
        try:
            start = msgspec.structs.replace(self._start, core=core, report_fd=report_fd)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._entry),
                stdin=PIPE,
                stdout=sys.stderr.fileno(),  # stdout is for the banner alone
                pass_fds=(report_fd, self._lock_fd),
                start_new_session=True,  # the supervisor handles Ctrl-C
            )
        finally:
            os.close(report_fd)
        loop = asyncio.get_running_loop()
        loop.add_reader(report, self._reported, core, report)
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            return await self._wait(f"core {core}", process)
        finally:
            loop.remove_reader(report)
            os.close(report)
            self._ready.discard(core)

    async def _wait(self, name: str, process: Process) -> int:
        """Wait for the end of a new process and return its exit code. If the node is already
        stopping, send the signal here."""
        self._processes[name] = process
        try:
            if self._stopping.is_set():
                _send(process, signal.SIGTERM)
            return await process.wait()
        finally:
            self._processes.pop(name)

    def _reported(self, core: int, report: int) -> None:
        asyncio.get_running_loop().remove_reader(report)
        if os.read(report, 1) != READY:
            return
        self._ready.add(core)
        log.info("a core serves", extra={"number": core, "of": self._start.cores})
        if len(self._ready) == self._start.cores and not self._served.is_set():
            self._served.set()
            print(banner(self._start, self._notice), end="", flush=True)

    async def _keep_lake(self) -> None:
        """Keep the lake worker running, which keeps the tables fresh."""
        # needs no token and no trusted certificate
        url = f"http://{spelled(*self._start.listeners[ADMIN])}"
        command = lake_command(self._start.config, url, os.getpid())
        await self._keep_worker(
            "lake", command, lake_environment(self._start.config, url, os.environ)
        )

    async def _keep_reducers(self, number: int) -> None:
        """Keep a worker of reducers running, which publishes their states."""
        environment = reduce_environment(self._start, self._start.listeners[HTTP], os.environ)
        await self._keep_worker(f"reduce {number}", reduce_command(os.getpid()), environment)

    async def _keep_worker(
        self, name: str, command: list[str], environment: dict[str, str]
    ) -> None:
        """Keep a worker running once the node serves. Its death never stops the node."""
        served, stopping = (
            asyncio.ensure_future(event.wait()) for event in (self._served, self._stopping)
        )
        await asyncio.wait((served, stopping), return_when=asyncio.FIRST_COMPLETED)
        served.cancel()
        stopping.cancel()
        while not self._stopping.is_set():
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=sys.stderr.fileno(),
                env=environment,
                start_new_session=True,
            )
            code = await self._wait(name, process)
            if not self._stopping.is_set():
                log.error(
                    f"the {name.split(maxsplit=1)[0]} worker ended: restarting it",
                    extra={"how": how_it_ended(code)},
                )
                await self._pause(LAKE_RESTART_SECONDS)


def banner(start: CoreStart, notice: str = "") -> str:
    """Return the start banner, with commands to paste. Scripts read the two lines that end in a
    URL: their text must not change."""
    scheme = "https" if start.tls else "http"
    url = f"{scheme}://{spelled(*start.listeners[HTTP])}"
    stream = f"{url}/v1/stream/hello"
    json_type = "-H 'Content-Type: application/json'"
    lines = [
        f"polynya {described()}",
        f"listening on {url}",
        f"admin on http://{spelled(*start.listeners[ADMIN])}",
    ]
    if remote_admin := start.listeners.get(REMOTE_ADMIN):
        lines.append(f"admin, with a token, on {scheme}://{spelled(*remote_admin)}")
    if text := start.listeners.get(TEXT):
        lines.append(f"text protocol on {spelled(*text)}")
    if start.peer_port:
        others = ", ".join(f"{node.id} at {node.peer}" for node in start.config.cluster.others)
        lines.append(
            f"node {start.identity.node} of a cluster, peers on "
            f"{spelled(start.peer_host, start.peer_port)}; others: {others or 'none'}"
        )
    if start.kafka_advertised:
        lines.append(f"Kafka on {start.kafka_advertised}")
    if start.kafka_direct:
        first, last = start.kafka_direct[0].port, start.kafka_direct[-1].port
        lines.append(f"Kafka brokers, one for each core, on ports {first} to {last}")
    lines.append(
        f"data in {start.config.data} ({_counted(start.identity)}, objects: "
        f"{start.config.cold.backend})"
    )
    options = ""
    if start.tls is not None and start.tls.fingerprint:
        lines += [f"certificate of its own: {start.tls.cert}", f"SHA-256 {start.tls.fingerprint}"]
        options += f" --cacert {start.tls.cert}"
    if start.config.needs_token:
        options += ' -H "Authorization: Bearer $POLYNYA_TOKEN"'
    lines += [f"NOTE {notice}"] if notice else []
    lines += [f"WARNING {line}" for line in start.config.unsafe]
    lines += [
        "",
        f"  create  curl{options} -X PUT {json_type} {stream}",
        f'  append  curl{options} {json_type} -d \'{{"hello": "world"}}\' {stream}',
        f"  read    curl{options} '{stream}?offset=-1'",
        f"  tail    curl{options} -N '{stream}?offset=-1&live=sse'",
        f"  look    {url}/console/",
        "",
    ]
    return "\n".join(lines) + "\n"


def _terminal_is_there() -> bool:
    """Return True if this process has a terminal that can still be opened."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _counted(identity: NodeIdentity) -> str:
    return f"{identity.cores} core{'s' if identity.cores > 1 else ''}, {identity.groups} groups"


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def how_it_ended(code: int) -> str:
    """Describe a process's exit code, negative for a signal."""
    if code == -signal.SIGKILL:
        return (
            "killed by SIGKILL, perhaps by the kernel's OOM killer: see dmesg, and the memory "
            "limit of the container"
        )
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
