"""Workers of subscriptions: leases and acknowledgements of pull-wake, and a receiver of webhooks.
Announced work is done at least once, in order, by one holder at a time. Acknowledgements are
permanent, and nothing stays pending on a healthy cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.names import canonical_name, spelled_name
from polynya.base.offsets import format_token, parse_token
from polynya.stream.command import Command
from polynya.stream.features.subscriptions.commands import SubscriptionConfig
from polynya.stream.features.subscriptions.rules import PULL_WAKE, WEBHOOK
from polynya.stream.replies import Reply
from polynya.subscriptions.messages import ClaimWork, Get, OperationResult, Put, Work
from polynya.subscriptions.wakes import OWNER_PREFIX
from polynya.subscriptions.webhooks import DeliveryOutcome

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

PULL, HOOK = "pull", "hook"
URL = "https://receiver.example/hook"
WAKE_STREAM = "wakes/w"
PATTERN = "work/*"
STREAMS = ("work/a", "work/b", "work/c")
WORKERS = 2
LEASES_MS = (1000, 3000)  # of all, drawn
BASE = "http://node"


class Held(msgspec.Struct):
    """A wake that was given to a worker. In log time: `given_ms` is not earlier than it was,
    `until_ms` not later than its lease ends."""

    worker: str
    given_ms: int
    until_ms: int
    let_go: bool = False  # perhaps, by the worker itself


class Shift:
    """The leases of one subscription: its holders, and the announced and acknowledged work."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.wakes: dict[int, str] = {}  # generation -> its wake
        self.acked: dict[
            str, tuple[int, int]
        ] = {}  # stream -> up to where an acknowledgement was answered
        self.sent: dict[str, tuple[int, int]] = {}  # … or may have been taken
        self.shown: dict[str, tuple[int, int]] = {}  # the largest tail
        self.held: dict[int, Held] = {}  # by generation

    def wake(self, generation: int, wake_id: str) -> None:
        """Check that each generation is one wake."""
        known = self.wakes.setdefault(generation, wake_id)
        assert known == wake_id, f"{self.key}: generation {generation} is {known} and {wake_id}"

    def give(self, generation: int, wake_id: str, held: Held) -> None:
        """Grant a wake once, without a second holder."""
        assert generation not in self.held, (
            f"{self.key}: {held.worker} and {self.held[generation].worker} got the same wake "
            f"{generation}"
        )
        self.wake(generation, wake_id)
        self.held[generation] = held
        self.check(generation)

    def check(self, generation: int) -> None:
        """Check a lease against its predecessor and its successor."""
        known = sorted(self.held)
        at = known.index(generation)
        for older, newer in zip(
            known[max(0, at - 1) : at + 1], known[max(1, at) : at + 2], strict=False
        ):
            one, other = self.held[older], self.held[newer]
            early = not one.let_go and other.given_ms < one.until_ms
            assert not early, (
                f"{self.key}: {other.worker} got a wake by {other.given_ms}, and {one.worker} has "
                f"it until {one.until_ms}"
            )

    def show(
        self, began: dict[str, tuple[int, int]], links: list[dict[str, Any]]
    ) -> dict[str, tuple[int, int]]:
        """Check that pending work was not acknowledged before (`began`: the cursors at the
        request). Returns the tails."""
        tails = {}
        for link in links:
            name, cursor, tail = (
                link["path"],
                parse_token(link["acked_offset"]),
                parse_token(link["tail_offset"]),
            )
            assert cursor is not None and tail is not None
            assert cursor >= began.get(name, (0, 0)), (
                f"{self.key}: {name} is shown from {cursor}, and {began[name]} was acknowledged"
            )
            assert cursor <= max(self.sent.get(name, (0, 0)), self.acked.get(name, (0, 0))), (
                f"{self.key}: {name} is passed over up to {cursor}"
            )
            assert tail >= cursor, f"{self.key}: the tail of {name} lies before what is done"
            assert link["has_pending"] == (tail[0] > cursor[0])
            tails[name] = self.shown[name] = max(tail, self.shown.get(name, (0, 0)))
            tails[name] = tail
        return tails


class Shop:
    """The subscriptions of one episode, and who works for them."""

    def __init__(self, episode: Episode) -> None:
        self._episode, self._world = episode, episode.world
        self.shifts = {key: Shift(key) for key in (PULL, HOOK)}
        self.counts: Counter[str] = Counter()
        self._random = Random(f"shop {episode.seed}")
        self._lease_ms = self._random.choice(LEASES_MS)
        self._count = 0
        self._calm = False
        self.appended: dict[str, int] = dict.fromkeys(STREAMS, 0)  # records, at least
        self.stamps: Counter[int] = Counter()  # of each group: the latest log time that was applied
        self._world.receivers[URL] = self._receive
        applied = self._world.applied

        def stamped(group: int, index: tuple[int, int], command: Command, reply: Reply) -> None:
            self.stamps[group] = max(self.stamps[group], getattr(command, "now_ms", 0))
            applied(group, index, command, reply)

        self._world.applied = stamped  # type: ignore[method-assign]

    def clients(self) -> list[asyncio.Future[None]]:
        work = [self._work(number) for number in range(WORKERS)]
        return [asyncio.ensure_future(each) for each in (self._put(), self._append(), *work)]

    async def finish(self) -> None:
        """Let both workers complete the pending work on the healthy cluster."""
        self._calm = True
        random, node = Random("shop"), self._world.alive()[0]
        await self._put()
        for name in STREAMS:
            await self._append_once(node, name)
        for _ in range(400):
            for number in range(WORKERS):
                await self._once(random.choice(self._world.alive()), f"worker{number}", random)
            left = await self._left()
            if not left:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"no worker gets what is pending though all is well: {left}")

    async def _left(self) -> list[str]:
        """List unfinished work, as the subscriptions report it and as their workers know it."""
        found = []
        for key, shift in self.shifts.items():
            answer = await self._ask(self._world.alive()[-1], Get(key, BASE))
            if answer is None or answer.value is None or "streams" not in answer.value:
                return [f"{key}: {answer}"]
            cursors = {
                link["path"]: parse_token(link["acked_offset"]) for link in answer.value["streams"]
            }
            for name, count in self.appended.items():
                cursor = cursors.get(spelled_name(name))
                assert cursor is not None, f"{key}: {name} is not watched"
                done = max(
                    shift.sent.get(spelled_name(name), (0, 0)),
                    shift.acked.get(spelled_name(name), (0, 0)),
                )
                assert cursor <= done, (
                    f"{key}: {name} is done up to {cursor}, and no worker was beyond {done}"
                )
                if cursor[0] < count:
                    found.append(f"{key}: {name} is done up to {cursor} of {count}")
        return found

    # --- what is worked on

    async def _put(self) -> None:
        """Create both subscriptions, and the streams: it is tried until they are there."""
        configs = {
            PULL: SubscriptionConfig(PULL_WAKE, PATTERN, [], "", WAKE_STREAM, self._lease_ms),
            HOOK: SubscriptionConfig(WEBHOOK, PATTERN, [], URL, "", self._lease_ms),
        }
        for key, config in configs.items():
            while not self._episode.over or self._calm:
                answer = await self._ask(self._any(), Put(key, BASE, config))
                if answer is not None and answer.status in (200, 201):
                    break
                await asyncio.sleep(0.2)
        for name in STREAMS:  # what is created later is linked at its creation
            while not self._episode.over or self._calm:
                with suppress(Unavailable, OutcomeUnknown):
                    node = self._any()
                    if node is not None and (await node.background.ask(node.create(name))).code in (
                        2,
                        3,
                    ):
                        break
                await asyncio.sleep(0.2)

    async def _append(self) -> None:
        random = Random(f"shop appends {self._episode.seed}")
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / 0.4))
            node = self._any()
            if node is not None:
                await self._append_once(node, random.choice(STREAMS))

    async def _append_once(self, node: Node, name: str) -> None:
        self._count += 1
        with suppress(Unavailable, OutcomeUnknown):
            reply = await node.background.ask(node.append(name, b"w%06d;" % self._count))
            if reply.code == 0:
                self.appended[name] = max(self.appended[name], reply.record)

    # --- workers

    async def _work(self, number: int) -> None:
        random = Random(f"worker {self._episode.seed} {number}")
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / 0.3))
            node = self._any()
            if node is not None:
                await self._once(node, f"worker{number}", random)

    async def _once(self, node: Node, worker: str, random: Random) -> None:
        """Claim; work for a while; acknowledge all that was shown, or some of it; and be done, go
        on, let go, or be forgotten."""
        shift = self.shifts[PULL]
        oldest_ms, acked, appended = self._oldest_ms(), dict(shift.acked), dict(self.appended)
        answer = await self._ask(node, ClaimWork(PULL, BASE, worker))
        if answer is None or answer.value is None:
            return
        value = answer.value
        if answer.status != 200:
            self._refused(shift, value["error"]["code"], appended)
            return
        self.counts["claimed"] += 1
        shift.give(
            value["generation"],
            value["wake_id"],
            Held(worker, self.newest_ms(), oldest_ms + self._lease_ms),
        )
        tails = shift.show(acked, value["streams"])
        assert any(link["has_pending"] for link in value["streams"]), (
            "whoever gets the lease gets work"
        )
        going_on = True
        while going_on:
            if not self._calm:
                await asyncio.sleep(random.choice((0.0, 0.05, 0.5, 2.0)))
            act = 1.0 if self._calm else random.random()
            if act < 0.1:
                return  # it dies
            some = {
                name: tail for name, tail in tails.items() if self._calm or random.random() < 0.8
            }
            verb = "release" if act < 0.2 else "ack"
            work = Work(
                PULL,
                BASE,
                verb,
                value["token"],
                value["generation"],
                value["wake_id"],
                _acks(some),
                done=act > 0.5,
            )
            going_on = await self._say(
                shift, node if random.random() < 0.5 else self._any() or node, work
            )

    def _refused(self, shift: Shift, code: str, appended: dict[str, int]) -> None:
        """Count a refusal of a claim, and check it. `appended`: what surely was, when it was
        asked."""
        self.counts[code] += 1
        if code == "NO_PENDING_WORK":
            for name, count in appended.items():
                done = shift.sent.get(spelled_name(name), (0, 0))[0]
                assert done >= count, (
                    f"{shift.key}: {name} has {count} records, {done} are done, and nothing is "
                    "pending"
                )

    async def _say(self, shift: Shift, node: Node, work: Work) -> bool:
        """Send the acknowledgement and report whether the worker still holds the wake."""
        acks = (
            {name: parse_token(offset) or (0, 0) for name, offset in work.acks}
            if work.verb != "release"
            else {}
        )
        acks = {spelled_name(name): at for name, at in acks.items()}
        for name, at in acks.items():
            shift.sent[name] = max(at, shift.sent.get(name, (0, 0)))
        held, oldest_ms = shift.held.get(work.generation or 0), self._oldest_ms()
        ends = work.done or work.verb == "release"
        if held is not None:
            held.let_go |= ends
        answer = await self._ask(node, work)
        if answer is None:
            self.counts["unknown"] += 1
            return False
        code = "ok" if answer.status in (200, 204) else (answer.value or {})["error"]["code"]
        self.counts[f"{work.verb} {code}"] += 1
        if code != "ok":
            # of an earlier delivery of the same wake
            behind = any(at < shift.sent[name] for name, at in acks.items())
            assert code in ("FENCED", "DISK_FULL") or (code == "INVALID_OFFSET" and behind), (
                f"{shift.key}: {work} is answered {answer}"
            )
            early = held is not None and not held.let_go and self.newest_ms() < held.until_ms
            assert code != "FENCED" or not early, f"{shift.key}: the lease of {held} was taken away"
            return False
        for name, at in acks.items():
            shift.acked[name] = max(at, shift.acked.get(name, (0, 0)))
        if held is not None and not ends:
            held.until_ms = max(held.until_ms, oldest_ms + self._lease_ms)
            shift.check(work.generation or 0)
        return not ends

    async def _receive(self, body: bytes) -> DeliveryOutcome:
        """Receive a webhook: complete its work, fail, or accept it and call back."""
        shift, wake = self.shifts[HOOK], msgspec.json.decode(body)
        shift.wake(wake["generation"], wake["wake_id"])
        tails = shift.show({}, wake["streams"])
        self.counts["webhook"] += 1
        act = 1.0 if self._calm else self._random.random()
        if act < 0.2:
            return DeliveryOutcome(False, reason="500")
        for name, at in tails.items():
            shift.sent[name] = max(at, shift.sent.get(name, (0, 0)))
        if act < 0.5:
            call = Work(
                HOOK,
                BASE,
                "callback",
                wake["callback_token"],
                wake["generation"],
                wake["wake_id"],
                _acks(tails),
                done=True,
            )
            self._episode.tasks.append(asyncio.ensure_future(self._call_back(shift, call)))
            return DeliveryOutcome(True)
        return DeliveryOutcome(True, done=True)

    async def _call_back(self, shift: Shift, work: Work) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.2, 2.0)))
        node = self._any()
        if node is not None:
            await self._say(shift, node, work)

    async def _ask(self, node: Node | None, operation: Any) -> OperationResult | None:
        """Send an operation. None: the outcome is unknown."""
        if node is None:
            return None
        try:
            return await node.background.ask(node.background.subscriptions.operate(operation), 8.0)
        except (Unavailable, OutcomeUnknown):
            return None

    def _any(self) -> Node | None:
        alive = self._world.alive()
        return self._random.choice(alive) if alive else None

    def newest_ms(self) -> int:
        """Log time is not later than this in any group."""
        return max(
            [*self.stamps.values(), *(node.engine.service.now_ms() for node in self._world.alive())]
        )

    def _oldest_ms(self) -> int:
        """Return a lower bound for the time of new records in the owner group of the pull-wake
        subscription."""
        return self.stamps[self._world.group_of(OWNER_PREFIX + PULL)]


def _acks(tails: dict[str, tuple[int, int]]) -> list[tuple[str, str]]:
    return [(canonical_name(name), format_token(*at)) for name, at in tails.items()]
