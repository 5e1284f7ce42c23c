"""The runs of tables from every core of a node: core 0 has them, the others ask it. And their
process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import msgspec

from polynya.admin.workers.lake_worker import check_spark, child_command, lake_environment
from polynya.admin.workers.table_runs import Child, TableRuns
from polynya.base.errors import ConfigError, PolynyaError, Unavailable
from polynya.config.core_start import ADMIN, CoreStart
from polynya.config.model import Config
from polynya.front.http.api.table_runs import Run, Wanted
from polynya.front.http.protocol.errors import Failure
from polynya.service.tables import Tables
from polynya.system.ports import spelled
from polynya.transport import Reply, Transport

KIND_TABLE_RUNS = 1020  # message kind between cores
_COMMANDS = {"sync": "sync", "rebuild": "rebuild", "replay": "replay-dlq"}
_PIECE_BYTES = 4096


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    wanted: Wanted | None = None  # to start
    uid: int = 0
    cancel: str = ""


class _RunsReply(msgspec.Struct, frozen=True, array_like=True):
    runs: list[Run] = []
    refused: str = ""
    message: str = ""


class NodeTableRuns:
    """The runs of the node; a `polynya.front.http.api.table_runs.Runs`."""

    def __init__(
        self,
        config: Config,
        core: int,
        transport: Transport | None,
        runs: TableRuns,
        check: Callable[[Config], None] = check_spark,
    ) -> None:
        """Create the core's part. `check` raises ConfigError where no run can be."""
        self._config = config
        self._core, self._transport = core, transport
        self._runs = runs
        self._check = check
        self._asks: set[asyncio.Task[None]] = set()
        if transport is not None:
            transport.on(KIND_TABLE_RUNS, self._on_ask)

    async def start(self, wanted: Wanted) -> Run:
        await self._check_runs()
        return (await self._ask(_Ask(wanted)))[0]

    async def found(self, uid: int) -> list[Run]:
        return await self._ask(_Ask(uid=uid))

    async def cancel(self, uid: int, run: str) -> Run:
        return (await self._ask(_Ask(uid=uid, cancel=run)))[0]

    async def run(self) -> None:
        """Run what is asked for, on core 0, until cancelled."""
        if self._core == 0:
            await self._runs.run()

    async def _check_runs(self) -> None:
        """Raise `Failure` if the node cannot run the commands of tables."""
        if not self._config.lake.run_timeout:
            raise Failure(
                "TABLE_RUNS_OFF", "runs of tables are disabled here: lake.run_timeout is 0"
            )
        if self._config.cold.backend in ("none", "memory"):
            raise Failure(
                "TABLE_RUNS_OFF",
                "tables need an object store that other processes can read; cold.backend is "
                f"{self._config.cold.backend}",
            )
        try:
            await asyncio.to_thread(self._check, self._config)
        except ConfigError as missing:
            raise Failure("TABLE_RUNS_OFF", f"{missing}; or run the command elsewhere") from None

    async def _ask(self, ask: _Ask) -> list[Run]:
        if self._core == 0 or self._transport is None:
            reply = await self._answer(ask)
        else:
            try:
                found = await self._transport.call(0, KIND_TABLE_RUNS, msgspec.msgpack.encode(ask))
            except PolynyaError as fault:
                raise Unavailable(f"core 0 does not answer: {fault}") from None
            reply = msgspec.msgpack.decode(found, type=_RunsReply)
        if reply.refused:
            raise Failure(reply.refused, reply.message)
        return reply.runs

    async def _answer(self, ask: _Ask) -> _RunsReply:
        try:
            if ask.wanted is not None:
                return _RunsReply([await self._runs.start(ask.wanted)])
            if ask.cancel:
                return _RunsReply([await self._runs.cancel(ask.uid, ask.cancel)])
            return _RunsReply(await self._runs.found(ask.uid))
        except Failure as refused:
            return _RunsReply(refused=refused.code, message=str(refused))

    def _on_ask(self, body: bytes, reply: Reply, core: int) -> None:
        ask = msgspec.msgpack.decode(body, type=_Ask)

        async def answer() -> None:
            reply(msgspec.msgpack.encode(await self._answer(ask)))

        task = asyncio.create_task(answer())
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)


def node_table_runs(
    start: CoreStart, transport: Transport | None, tables: Tables, now_ms: Callable[[], float]
) -> NodeTableRuns:
    """Return the runs of tables of this core's node."""
    # needs no token and no trusted certificate
    url = f"http://{spelled(*start.listeners[ADMIN])}"
    config = start.config

    async def launch(wanted: Wanted) -> Child:
        if (await tables.find(wanted.table)).uid != wanted.uid:
            raise PolynyaError(f"table '{wanted.table}' is another one now")
        command = run_command(config, url, wanted)
        return await launched(command, lake_environment(config, url, os.environ))

    runs = TableRuns(launch, config.lake.run_timeout, now_ms)
    return NodeTableRuns(config, start.core, transport, runs)


def run_command(config: Config, url: str, wanted: Wanted) -> list[str]:
    """Return the command of a run, set up to die with this process."""
    options = ("--server", url, "--master", config.lake.master, *wanted.arguments)
    command = ("table", _COMMANDS[wanted.verb], *options, "--", wanted.table)
    return child_command(os.getpid(), *command)


class Process:
    """The process of a run, and its process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def pieces(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(_PIECE_BYTES):
            yield piece

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        # also after its end: Spark's JVM may outlive it for a moment
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def launched(command: list[str], environment: dict[str, str]) -> Process:
    """Start a command in a process group of its own. Both outputs are one pipe."""
    return Process(
        await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    )
