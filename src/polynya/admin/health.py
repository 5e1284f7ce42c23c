"""Health: loop lag, readiness with its reasons, and the node's identity.

Each core runs its own checks. The core that answers gathers those of the others, so that one
response covers the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from polynya import __version__
from polynya.admin.recent import NodeRecent
from polynya.config.core_start import ADMIN, REMOTE_ADMIN, CoreStart
from polynya.observability.build import commit
from polynya.observability.metrics import CONTENT_TYPE, Registry, Samples, label, merge, render
from polynya.observability.process import process_samples
from polynya.transport import Reply, Transport

KIND_CHECKS = 1000  # message kinds between cores
KIND_SAMPLES = 1001
GATHER_SECONDS = 2.0  # a core that takes longer counts as down
BEAT_SECONDS = 0.1
STALL_SECONDS = 10.0  # a loop blocked for longer is not live
KAFKA_BROKERS = "kafka brokers"  # the name of a check
Check = Callable[[], str | None]
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class HealthResponse(msgspec.Struct, frozen=True):
    """A response for a front to send; never cached."""

    status: int
    content_type: str
    body: bytes


class Finding(msgspec.Struct, array_like=True, frozen=True):
    """One check's result. `reason` is None if it passed; without `fatal` the node stays ready."""

    core: int
    name: str
    reason: str | None
    fatal: bool = True


class LoopMonitor:
    """Measures the loop's lag with a timer every `BEAT_SECONDS`, and its longest turn in its own
    CPU time: as much of a beat's lag as the loop's thread computed meanwhile. So a busy machine
    does not count, and up to a beat of a turn may be missing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self.lag = 0.0
        self.lag_max = 0.0
        self.turn_max = 0.0
        self._cpu = time.thread_time()
        self._beat()

    def late(self) -> float:
        """Return the seconds by which the next beat is overdue."""
        return max(0.0, self._loop.time() - self._due)

    def stop(self) -> None:
        self._timer.cancel()

    def samples(self) -> Samples:
        return {
            "polynya_loop_lag_seconds": self.lag,
            "polynya_loop_lag_max_seconds": self.lag_max,
            "polynya_loop_turn_max_seconds": self.turn_max,
        }

    def _beat(self) -> None:
        self.lag = self.late()
        self.lag_max = max(self.lag_max, self.lag)
        before, self._cpu = self._cpu, time.thread_time()
        self.turn_max = max(self.turn_max, min(self.lag, self._cpu - before))
        self._due = self._loop.time() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)


class Health:
    """The health of one core. Components add checks (`add`) and metric sources (`registry.add`);
    the admin and public fronts query it.

    A check returns None, or the reason to withhold traffic. Checks run on the loop: they inspect
    state and start no work.
    """

    def __init__(
        self,
        start: CoreStart,
        transport: Transport | None,
        nodes: Callable[[], dict[int, str]] = dict,
    ) -> None:
        """Create the health. `nodes` returns the client URL of each node of the cluster."""
        self._start = start
        self._transport = transport
        self._checks: list[tuple[str, Check, bool]] = []
        self._nodes = nodes
        self.heart = LoopMonitor()
        self.registry = Registry()
        self.recent = NodeRecent(start.core, transport, self.samples)
        self.registry.add(process_samples)
        self.registry.add(self.heart.samples)
        self.registry.add(self._own_samples)
        if transport is not None:
            self.registry.add(lambda: _transport_samples(transport))
            transport.on(KIND_CHECKS, self._on_checks)
            transport.on(KIND_SAMPLES, self._on_samples)

    def add(self, name: str, check: Check) -> None:
        self._checks.append((name, check, True))

    def warn(self, name: str, check: Check) -> None:
        """Add a check that only warns: the node stays ready."""
        self._checks.append((name, check, False))

    def livez(self) -> HealthResponse:
        """Report whether this core's loop runs; a restart helps if not."""
        late = self.heart.late()
        if late > STALL_SECONDS:
            return HealthResponse(
                503,
                TEXT,
                f"the event loop of core {self._start.core} was blocked for {late:.0f} s\n".encode(),
            )
        return HealthResponse(200, TEXT, b"ok\n")

    async def readyz(self, *, verbose: bool) -> HealthResponse:
        """Report whether the node may receive traffic. `verbose` lists every check with its reason,
        and the unsafe settings."""
        findings = await self._findings()
        failed = [finding for finding in findings if finding.reason is not None and finding.fatal]
        shown = [finding for finding in findings if verbose or finding.reason is not None]
        lines = [
            f"[{_mark(finding)}] core {finding.core} {finding.name}: {finding.reason or 'ok'}"
            for finding in shown
        ]
        lines += [f"[!] {line}" for line in self._start.config.unsafe if verbose]
        lines.append("not ready" if failed else "ready")
        return HealthResponse(503 if failed else 200, TEXT, ("\n".join(lines) + "\n").encode())

    async def health(self) -> HealthResponse:
        """Return the findings as one JSON object."""
        findings = await self._findings()
        failed, warned = (
            [
                {"core": each.core, "check": each.name, "reason": each.reason}
                for each in findings
                if each.reason is not None and each.fatal == fatal
            ]
            for fatal in (True, False)
        )
        status = "fail" if failed else "warn" if warned else "pass"
        body = {
            "status": status,
            "version": __version__,
            "failed": failed,
            "warnings": warned,
            "unsafe": self._start.config.unsafe,
        }
        return HealthResponse(503 if failed else 200, JSON, msgspec.json.encode(body))

    def node(self, *, near: bool = False) -> HealthResponse:
        """Answer `/v1/node`: the node's identity and ports.
        `near`: the request came to the loopback admin port, whose number is then returned instead
          of the remote one."""
        start = self._start
        ports = {name: address.port for name, address in start.listeners.items()}
        remote_admin = ports.pop(REMOTE_ADMIN, 0)
        is_far = bool(remote_admin) and not near
        if is_far:
            ports[ADMIN] = remote_admin
        body = {
            "version": __version__,
            "commit": commit(),
            "cluster": start.identity.cluster_id,
            "node": start.identity.node,
            "nodes": {str(number): url for number, url in sorted(self._nodes().items())},
            "history": start.identity.history,
            "start": start.start_id,
            "cores": start.cores,
            "groups": start.groups,
            "ports": ports,
            "kafka": start.kafka_advertised,
            "admin_tls": is_far and start.tls is not None,
            "admin_near": not is_far,  # the admin port listens on loopback only
            "objects": start.config.cold.backend,
            "console": {"acts": start.config.console.acts},
            "unsafe": start.config.unsafe,
        }
        return HealthResponse(200, JSON, msgspec.json.encode(body))

    async def metrics(self) -> HealthResponse:
        """Answer `/metrics` for the whole node."""
        return HealthResponse(200, CONTENT_TYPE, render(await self.samples()))

    async def samples(self) -> Samples:
        """Return the merged samples of the node's cores."""
        others = await self._ask(KIND_SAMPLES)
        scraped = [
            msgspec.msgpack.decode(body, type=Samples)
            for body in others.values()
            if isinstance(body, bytes)
        ]
        return merge([self.registry.read(), *scraped])

    async def _findings(self) -> list[Finding]:
        findings = self._own_findings()
        for core, body in (await self._ask(KIND_CHECKS)).items():
            if isinstance(body, bytes):
                findings += msgspec.msgpack.decode(body, type=list[Finding])
            else:
                findings.append(Finding(core, "answers", str(body) or "no answer"))
        return sorted(findings, key=lambda finding: finding.core)

    def _own_findings(self) -> list[Finding]:
        late = self.heart.late()
        loop = None if late < STALL_SECONDS else f"blocked for {late:.0f} s"
        core = self._start.core
        return [
            Finding(core, "loop", loop),
            *(Finding(core, name, check(), fatal) for name, check, fatal in self._checks),
        ]

    async def _ask(self, kind: int) -> dict[int, bytes | BaseException]:
        """Return every other core's answer, or the error in its place."""
        transport = self._transport
        # a single core of a cluster node has a transport too
        if transport is None or not transport.others:
            return {}
        answers: dict[int, bytes | BaseException] = {}
        whole = asyncio.Event()
        others = transport.others

        def taker(core: int) -> Callable[[bytes | BaseException], None]:
            def take(answer: bytes | BaseException) -> None:
                answers[core] = answer
                if len(answers) == len(others):
                    whole.set()

            return take

        for core in others:
            transport.call_nowait(core, kind, b"", taker(core))
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                await whole.wait()
        except TimeoutError:
            pass
        late = TimeoutError(f"did not answer within {GATHER_SECONDS:g} s")
        return {core: answers.get(core, late) for core in others}

    def _on_checks(self, body: bytes, reply: Reply, core: int) -> None:
        reply(msgspec.msgpack.encode(self._own_findings()))

    def _on_samples(self, body: bytes, reply: Reply, core: int) -> None:
        reply(msgspec.msgpack.encode(self.registry.read()))

    def _own_samples(self) -> Samples:
        return {
            label("polynya_info", version=__version__, commit=commit()): 1,
            "polynya_cores": self._start.cores,
            "polynya_cores_up": 1,
            **{
                label("polynya_check_failing", check=name): int(check() is not None)
                for name, check, _ in self._checks
            },
        }


def _mark(finding: Finding) -> str:
    return "+" if finding.reason is None else "-" if finding.fatal else "!"


def _transport_samples(transport: Transport) -> Samples:
    counters = transport.counters()
    return {
        "polynya_transport_connected": counters["connected"],
        "polynya_transport_outstanding": counters["outstanding"],
        "polynya_transport_refused_total": counters["refused"],
        "polynya_transport_failed_total": counters["failed"],
    }
