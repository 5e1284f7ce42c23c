"""Random lives of a subscription against a naive model: cursors are exact, and pending work never
waits for a wake that no group sends.

The groups' logs are real machines; the test plays the shell by hand, one step at a time, in any
order. A crash loses everything outside the machines: updates, the queue of streams to scan,
wakes in delivery."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from long_tests import examples
from subscription_script import GROUPS, check_links, owner_group_of
from worlds.stream import World, raw_batch

from polynya.base.names import group_of, spelled_name
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionEvent,
    SubscriptionPut,
    SubscriptionStreams,
)
from polynya.stream.features.subscriptions.links import oldest_links, pending_watches
from polynya.stream.features.subscriptions.rules import PULL_WAKE, WEBHOOK, Event
from polynya.stream.features.subscriptions.state import LinkInfo, State, Subscription
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply

KEY = "sub"
NAMES = [f"test/s{number}" for number in range(6)] + ["test/other/x"]
LEASE_MS = 1000
names = st.sampled_from(NAMES)


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(GROUPS)
        self.now_ms = 1000
        self.counter = 0
        self.tails: dict[str, int] = {}  # the naive model: what there is …
        self.acked: dict[str, int] = {}  # … and up to where it is acknowledged, of linked streams
        self.explicit: set[str] = set()
        self.look = False  # somebody brought it to idle and has still to look at the links
        self.found_nothing = (0, "")  # the wake whose claim found nothing pending
        self.news: list[str] = []  # news on their way to the home
        self.lossless = True  # nothing was forgotten since the last repair

    @initialize(
        kind=st.sampled_from([WEBHOOK, PULL_WAKE]), before=st.lists(names, max_size=3, unique=True)
    )
    def put(self, kind: int, before: list[str]) -> None:
        for name in before:
            self.create(name, True)
        config = SubscriptionConfig(kind, "test/*", [], "https://h", "test/pool", LEASE_MS)
        self.apply(owner_group_of(KEY), SubscriptionPut(KEY, self.now_ms, config, "http://n"))
        self.tell()
        self.acked = {name: tail for name, tail in self.tails.items() if self.matches(name)}

    @property
    def owned(self) -> Subscription:
        return self.world.machines[owner_group_of(KEY)].subscriptions.owned[KEY]

    def apply(self, group: int, command: Any) -> Reply:
        self.now_ms += 1
        return self.world.apply(group, command)

    def event(self, event: Event, **more: Any) -> Reply:
        subscription = self.owned
        fence = {"generation": subscription.generation, "wake_id": subscription.wake_id}
        return self.apply(
            owner_group_of(KEY),
            SubscriptionEvent(KEY, subscription.uid, event, self.now_ms, **{**fence, **more}),
        )

    def wake(self, name: str) -> None:
        self.counter += 1
        self.event(Event.WAKE, wake_id=f"w{self.counter}", text=name)

    def matches(self, name: str) -> bool:
        return spelled_name(name).count("/") == 1

    def tell(self) -> None:
        for group in range(1, GROUPS + 1):
            here = [name for name in self.owned.streams if group_of(name, GROUPS) == group]
            self.apply(
                group,
                LinkSubscription(
                    KEY, self.owned.uid, self.owned.revision, "test/*", "test/pool", here
                ),
            )

    def links(self) -> list[LinkInfo]:
        return [
            info
            for machine in self.world.machines.values()
            for info in oldest_links(machine, KEY, self.owned.uid, 100)
        ]

    # --- users

    @rule(name=names, body=st.booleans())
    def create(self, name: str, body: bool) -> None:
        batch = raw_batch(b"x") if body else None
        reply = self.apply(
            group_of(name, GROUPS), Create(name, self.now_ms, "text/plain", 0, batch=batch)
        )
        if reply.code == Code.CREATED:
            self.tails[name] = int(body)
            if self.matches(name) or name in self.explicit:
                self.acked[name] = 0

    @rule(name=names)
    def append(self, name: str) -> None:
        if name not in self.tails:
            self.create(name, True)
        elif (
            self.apply(
                group_of(name, GROUPS), Append(name, self.now_ms, "text/plain", raw_batch(b"x"))
            ).code
            == Code.OK
        ):
            self.tails[name] += 1

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.apply(group_of(name, GROUPS), Delete(name, self.now_ms))
        self.tails.pop(name, None)
        self.acked.pop(name, None)

    @rule(name=names, add=st.booleans())
    def change_members(self, name: str, add: bool) -> None:
        change = ([name], []) if add else ([], [name])
        self.apply(owner_group_of(KEY), SubscriptionStreams(KEY, *change, self.now_ms))
        self.tell()
        if add:
            self.explicit.add(name)
            if name in self.tails:
                self.acked.setdefault(name, self.tails[name])
        else:
            self.explicit.discard(name)
            if not self.matches(name):
                self.acked.pop(name, None)

    # --- workers

    @rule(names=st.permutations(NAMES), claims=st.booleans())
    def work_it_off(self, names: list[str], claims: bool) -> None:
        """A worker does some of it and is done."""
        if claims:
            self.claim()
        for name in names[:4]:
            self.acknowledge(name, 0)
        self.finish()

    @rule()
    def claim(self) -> None:
        """Claim as the shell does: ask the links first."""
        if self.owned.config.kind != PULL_WAKE or self.owned.state == State.LEASED:
            return
        if any(info.pending for info in self.links()):
            self.counter += 1
            assert (
                self.event(Event.CLAIM, wake_id=f"w{self.counter}", text="worker").code == Code.OK
            )
        elif self.owned.state == State.WAKING:
            self.found_nothing = (self.owned.generation, self.owned.wake_id)

    @rule(name=names, behind=st.integers(0, 2))
    def acknowledge(self, name: str, behind: int) -> None:
        stream = self.world.machines[group_of(name, GROUPS)].directory.lookup(name)
        if stream is None:
            return
        record = max(0, stream.next_record - behind)
        reply = self.apply(
            group_of(name, GROUPS),
            AckLinks(KEY, self.owned.uid, [(name, stream.uid, record, record)]),
        )
        assert bool(reply.detail) == (name not in self.acked)
        if name in self.acked:
            self.acked[name] = max(self.acked[name], record)

    @rule()
    def finish(self) -> None:
        if self.owned.state != State.IDLE and self.event(Event.DONE).code == Code.OK:
            self.look = True

    # --- the shell

    @rule(does=st.sampled_from(["news", "look", "give up", "deliver", "fail"]))
    def shell(self, does: str) -> None:
        if does == "news":
            self.collect_news()
            self.news_arrive()
        elif does == "look":
            self.look_at_links()
        elif does == "give up":
            self.give_up()
        else:
            self.deliver(does == "deliver")

    def give_up(self) -> None:
        """Release after a pause a claim that found nothing: records in between must be seen."""
        (generation, wake_id), self.found_nothing = self.found_nothing, (0, "")
        if (
            generation
            and self.event(Event.NOTHING, generation=generation, wake_id=wake_id).code == Code.OK
        ):
            self.look = True

    def deliver(self, taken: bool) -> None:
        if self.owned.state == State.WAKING and 0 < self.owned.next_attempt_ms <= self.now_ms:
            later = 0 if taken and self.owned.config.kind == WEBHOOK else self.now_ms + 500
            assert (
                self.event(Event.DELIVERED if taken else Event.FAILED, until_ms=later).code
                == Code.OK
            )

    @rule(passed_ms=st.sampled_from([10, 600, 2000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if (
            0 < self.owned.lease_until_ms <= self.now_ms
            and self.event(Event.EXPIRE).code == Code.OK
        ):
            self.look = True

    def look_at_links(self) -> None:
        if self.look:
            self.look = False
            pending = [info for info in self.links() if info.pending]
            if pending:
                self.wake(pending[0].name)

    @rule()
    def collect_news(self) -> None:
        for machine in self.world.machines.values():
            self.news += [name for _, name in machine.subscriptions.wakes.values()]
            machine.subscriptions.wakes.clear()

    def news_arrive(self) -> None:
        arrived, self.news = self.news, []
        for name in arrived:
            if self.owned.state == State.IDLE:
                self.wake(name)

    @rule()
    def crash(self) -> None:
        for group in self.world.machines:
            self.world.restart(group)
        self.news, self.look, self.found_nothing, self.lossless = [], False, (0, ""), False

    @rule()
    def sweep(self) -> None:
        for machine in self.world.machines.values():
            self.news += [name for _, _, name in pending_watches(machine)]
        self.news_arrive()
        self.lossless = True

    # --- what must hold

    @invariant()
    def cursors_are_those_of_the_model(self) -> None:
        check_links(self.world)
        if KEY in self.world.machines[owner_group_of(KEY)].subscriptions.owned:
            found = {
                info.name: (info.record, info.tail_record)
                for info in self.links()
                if info.stream_uid
            }
            assert found == {name: (acked, self.tails[name]) for name, acked in self.acked.items()}

    @invariant()
    def pending_work_has_somebody_who_comes_back(self) -> None:
        """Check that pending work has a future event, without a crash since the last sweep:
        pending updates, a due scan, or a wake or lease whose end triggers one."""
        if (
            KEY not in self.world.machines[owner_group_of(KEY)].subscriptions.owned
            or not self.lossless
        ):
            return
        if not any(self.tails[name] > acked for name, acked in self.acked.items()):
            return
        subscription = self.owned
        on_the_way = (
            self.news
            or self.look
            or any(machine.subscriptions.wakes for machine in self.world.machines.values())
        )
        assert (
            on_the_way
            or subscription.lease_until_ms
            or (subscription.state == State.WAKING and subscription.next_attempt_ms)
        )


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_machine_that_forgets_to_tell_is_caught(monkeypatch: Any) -> None:
    """Prove that the check can fail: without updates about appends, pending work waits without
    end."""
    lives = Lives()
    lives.put(WEBHOOK, [])
    lives.create(NAMES[0], True)
    lives.pending_work_has_somebody_who_comes_back()
    for machine in lives.world.machines.values():
        assert isinstance(machine, Machine)
        machine.subscriptions.wakes.clear()
    try:
        lives.pending_work_has_somebody_who_comes_back()
    except AssertionError:
        return
    raise RuntimeError("a lost wake went unnoticed")
