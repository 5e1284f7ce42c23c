"""The worker of reducers: asks what is due, and runs it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from polynya.base.names import canonical_name
from polynya.cli.reducers.making import Maker
from polynya.cli.reducers.runs import Bound, Outcome, Refused, Run, Server, Verified
from polynya.cli.remote.client import stream_path
from polynya.reducers.bindings import Binding
from polynya.reducers.reducer import ReducerFault
from polynya.reducers.wasm.faults import NotInstalled
from polynya.stream.features.subscriptions.globs import compile_pattern

PATH = "/v1/reducers"
FAULT_CHARACTERS_MAX = 500


class RunReport(msgspec.Struct, frozen=True):
    """A run of a round, as it is told."""

    reducer: str
    stream: str
    outcome: Outcome


class Worker:
    """Runs reducers by their due streams. `names`: of these alone; empty: of all."""

    def __init__(
        self,
        server: Server,
        names: Collection[str],
        report: Callable[[RunReport], None],
        now: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
        shuffle: Callable[[list[Any]], None] = random.shuffle,
    ) -> None:
        self._server = server
        self._names = frozenset(names)
        self._on_run = report
        self._now = now
        self.asked_seconds = 0.0  # that the last round took to find what is due
        self._shuffle = shuffle
        self._maker = Maker(self._module_of, folder)
        self._without: set[str] = set()  # reducers whose modules this machine cannot run

    def close(self) -> None:
        """End the processes of modules."""
        self._maker.close()

    def round(self, *, everything: bool = False) -> int:
        """Run all that is due. Return how many runs there were. `everything`: also what passes no
        threshold yet. Raises `Refused`, and what the server's `send` raises."""
        known = self._reducers()
        runs, after, self.asked_seconds = 0, "", 0.0
        while True:
            query: dict[str, str] = {"after": after} if after else {}
            if everything:
                query["all"] = "1"
            if len(self._names) == 1:
                query["reducer"] = next(iter(self._names))
            began = self._now()
            page = self._ask("GET", f"{PATH}/due?{urlencode(query)}").json()
            self.asked_seconds += self._now() - began
            rows = page["due"]
            self._shuffle(rows)  # so that workers seldom do the same at a time
            for due in rows:
                bound = known.get(due["reducer"])
                if bound is not None and bound.name not in self._without:
                    self._run(bound, due["stream"], due["record"])
                    runs += 1
            after = page["after"]
            if not after:
                return runs

    def verify(self, name: str, streams: Collection[str]) -> Iterator[tuple[str, Verified | None]]:
        """Compute the newest snapshots of a reducer again, and yield each stream with the
        comparison. Raises `Refused`, `ReducerFault`."""
        bound = self._reducers().get(name)
        if bound is None:
            raise ReducerFault(f"there is no reducer '{name}'")
        for stream in streams or self._streams_of(bound.binding.pattern):
            run = Run(self._server, bound, stream, self._maker.make, self._now)
            yield stream, run.verify()

    def drop_snapshots(self, name: str, pattern: str) -> tuple[int, int]:
        """Delete the snapshots of a reducer that is removed, in all streams of its pattern. Return
        how many are gone, and how many stay, as records before them are trimmed. Raises
        `Refused`."""
        gone = kept = 0
        for stream in self._streams_of(pattern):
            path = stream_path(stream)
            for each in self._ask("GET", f"{path}/snapshots").json()["snapshots"]:
                if each["origin"].partition("@")[0] == name:
                    query = f"?{urlencode({'origin': name})}"
                    answer = self._server.send("DELETE", f"{path}/snapshot/{each['offset']}{query}")
                    kept += answer.status_code == 409
                    gone += answer.status_code < 300
        return gone, kept

    def _streams_of(self, pattern: str) -> Iterator[str]:
        fits, after = compile_pattern(pattern), ""
        while True:
            page = self._ask("GET", f"/v1/streams?{urlencode({'after': after})}").json()
            for each in page["streams"]:
                if fits(canonical_name(each["name"])):
                    yield each["name"]
            if not page["next"]:
                return
            after = page["next"]

    def _reducers(self) -> dict[str, Bound]:
        listed = self._ask("GET", PATH).json()["reducers"]
        found = {each["name"]: Bound(each["name"], _binding(each)) for each in listed}
        missing = self._names - found.keys()
        if missing:
            raise ReducerFault(f"there is no reducer '{min(missing)}'")
        return {
            name: each for name, each in found.items() if not self._names or name in self._names
        }

    def _run(self, bound: Bound, stream: str, since: int) -> None:
        run = Run(self._server, bound, stream, self._maker.make, self._now)
        try:
            outcome = run.go(since)
        except NotInstalled as missing:  # no fault of the stream: another worker may have it
            self._without.add(bound.name)
            self._on_run(RunReport(bound.name, stream, Outcome(fault=str(missing))))
            return
        except Refused as refused:
            if refused.status in (404, 410):  # deleted since it was due
                return
            if refused.status < 500 and refused.status != 429:
                raise
            outcome = Outcome(waits=str(refused))
        if outcome.fault:
            self._report(bound, stream, outcome.fault)
        self._on_run(RunReport(bound.name, stream, outcome))

    def _report(self, bound: Bound, stream: str, reason: str) -> None:
        body = {
            "stream": stream,
            "revision": bound.binding.revision,
            "reason": reason[:FAULT_CHARACTERS_MAX],
        }
        headers = {"content-type": "application/json"}
        content = msgspec.json.encode(body)
        self._server.send("POST", f"{PATH}/{bound.name}/fault", headers=headers, content=content)

    def _module_of(self, name: str) -> bytes:
        module: bytes = self._ask("GET", f"{PATH}/{name}/module").content
        return module

    def _ask(self, method: str, path: str) -> Any:
        answer = self._server.send(method, path)
        if answer.status_code >= 300:
            raise Refused(answer)
        return answer


def _binding(listed: dict[str, Any]) -> Binding:
    return msgspec.convert(
        {name: value for name, value in listed.items() if name not in ("name", "faults")}, Binding
    )
