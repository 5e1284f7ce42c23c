"""Story scripts of subscriptions: commands in, trace out, over the machines of four groups. A line
is a command, the lines below it its response.

    at 1000                                 set the log's time
    put ID [pull] [pattern=P] [streams=A,B] [wake=W] [lease=MS] [max=N]      in the owner group
    tell ID [GROUP …]                       send the watch to the groups (default: all)
    add ID NAME, remove ID NAME, delete ID, forget ID UID             membership; `tell` sends it to the groups
    create NAME [ttl=S] [body=B] [fork=SOURCE@RECORD_BYTE], append NAME BODY, gone NAME
    news                                    take the groups' pending updates
    event ID EVENT [gen=N] [wake=W] [text=T] [until=MS]
    retry ID NAME TOKEN [gen=N] [wake=W] [until=MS]
    ack ID NAME TOKEN                       in the stream's group
    show ID, links ID [after=NAME] [limit=N], page ID [after=NAME] [limit=N]"""

from __future__ import annotations

from collections.abc import Callable

from stories.scripts import traced
from worlds.stream import World, raw_batch

from polynya.base.names import canonical_name, group_of, spelled_name
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionPut,
    SubscriptionPutLimited,
    SubscriptionRetry,
    SubscriptionStreams,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.links import named_links, oldest_links, page_of_links
from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.features.subscriptions.state import LinkInfo, State, Subscription
from polynya.stream.parts import Fork
from polynya.stream.replies import Code, Reply

GROUPS = 4


def run(text: str) -> str:
    """The script with its trace."""
    story = _Story()

    def step(words: list[str]) -> list[str]:
        verb: Callable[[list[str]], list[str]] = getattr(story, f"do_{words[0]}")
        return verb(words[1:])

    return traced(text, step)


def owner_group_of(key: str) -> int:
    return group_of("__ds/subscriptions/" + key, GROUPS)


def check_links(world: World) -> None:
    """Check the indexes against the streams' links."""
    for machine in world.machines.values():
        state = machine.subscriptions
        for key, watch in state.watches.items():
            linked = {
                uid
                for uid, stream in machine.directory.by_uid.items()
                if key in (stream.links or {})
            }
            assert watch.linked.keys() == linked
            pending = {
                uid
                for uid in linked
                if machine.directory.by_uid[uid].next_record
                > machine.directory.by_uid[uid].links[key].record
            }  # type: ignore[index]
            assert watch.pending.keys() == pending
        for stream in machine.directory.streams.values():
            assert stream.links is None or (
                stream.links and stream.links.keys() <= state.watches.keys()
            )
        assert state.awake.keys() == {
            key for key, subscription in state.owned.items() if subscription.state != State.IDLE
        }


def _named(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


class _Story:
    def __init__(self) -> None:
        self.world = World(GROUPS)
        self.now_ms = 0

    def owned(self, key: str) -> Subscription:
        return self.world.machines[owner_group_of(key)].subscriptions.owned[key]

    def at_owner(self, key: str, command: object) -> Reply:
        return self._apply(owner_group_of(key), command)

    def _apply(self, group: int, command: object) -> Reply:
        reply = self.world.apply(group, command)  # type: ignore[arg-type]
        check_links(self.world)
        return reply

    def do_at(self, words: list[str]) -> list[str]:
        self.now_ms = int(words[0])
        return []

    def do_put(self, words: list[str]) -> list[str]:
        named = _named(words)
        streams = (
            sorted(canonical_name(name) for name in named["streams"].split(","))
            if "streams" in named
            else []
        )
        pull = "pull" in words
        wake = canonical_name(named.get("wake", "wake")) if pull else ""
        config = SubscriptionConfig(
            int(pull),
            named.get("pattern", ""),
            streams,
            "" if pull else "https://h",
            wake,
            int(named.get("lease", "30000")),
        )
        put = (words[0], self.now_ms, config, "http://n")
        command = (
            SubscriptionPutLimited(*put, int(named["max"]), canonical_name("dead"))
            if "max" in named
            else SubscriptionPut(*put)
        )
        return [Code(self.at_owner(words[0], command).code).name]

    def do_tell(self, words: list[str]) -> list[str]:
        subscription = self.owned(words[0])
        replies = []
        for group in [int(word) for word in words[1:]] or range(1, GROUPS + 1):
            names = [name for name in subscription.streams if group_of(name, GROUPS) == group]
            command = LinkSubscription(
                subscription.id,
                subscription.uid,
                subscription.revision,
                subscription.config.pattern,
                subscription.config.wake_stream,
                names,
            )
            replies.append(Code(self._apply(group, command).code).name)
        return [] if set(replies) == {"OK"} else replies

    def do_add(self, words: list[str]) -> list[str]:
        return [
            Code(
                self.at_owner(
                    words[0],
                    SubscriptionStreams(words[0], [canonical_name(words[1])], [], self.now_ms),
                ).code
            ).name
        ]

    def do_remove(self, words: list[str]) -> list[str]:
        return [
            Code(
                self.at_owner(
                    words[0],
                    SubscriptionStreams(words[0], [], [canonical_name(words[1])], self.now_ms),
                ).code
            ).name
        ]

    def do_delete(self, words: list[str]) -> list[str]:
        reply = self.at_owner(words[0], SubscriptionDelete(words[0], self.now_ms))
        for group in range(1, GROUPS + 1) if reply.code == Code.OK and "told" in words else ():
            self._apply(group, UnlinkSubscription(words[0], reply.uid))
        return [Code(reply.code).name]

    def do_create(self, words: list[str]) -> list[str]:
        name, named = canonical_name(words[0]), _named(words)
        fork = None
        if "fork" in named:
            source, _, point = named["fork"].partition("@")
            record, byte = point.split("_")
            fork = Fork("a" * 32, canonical_name(source), 1, int(record), int(byte))
        batch = raw_batch(named["body"].encode()) if "body" in named else None
        ttl = int(named["ttl"]) if "ttl" in named else None
        create = Create(name, self.now_ms, "text/plain", 0, ttl_seconds=ttl, batch=batch, fork=fork)
        return [Code(self._apply(group_of(name, GROUPS), create).code).name]

    def do_append(self, words: list[str]) -> list[str]:
        name = canonical_name(words[0])
        reply = self._apply(
            group_of(name, GROUPS),
            Append(name, self.now_ms, "text/plain", raw_batch(words[1].encode())),
        )
        return [f"{Code(reply.code).name} tail={reply.record}_{reply.byte}"]

    def do_gone(self, words: list[str]) -> list[str]:
        name = canonical_name(words[0])
        return [Code(self._apply(group_of(name, GROUPS), Delete(name, self.now_ms)).code).name]

    def do_news(self, words: list[str]) -> list[str]:
        news = []
        for machine in self.world.machines.values():
            news += [
                f"{key}: {spelled_name(name)}"
                for key, (_, name) in machine.subscriptions.wakes.items()
            ]
            machine.subscriptions.wakes.clear()
        return sorted(news) or ["none"]

    def do_event(self, words: list[str]) -> list[str]:
        key, named = words[0], _named(words)
        command = SubscriptionEvent(
            key,
            0,
            Event[words[1].upper()],
            self.now_ms,
            int(named.get("gen", "0")),
            named.get("wake", ""),
            named.get("text", ""),
            int(named.get("until", "0")),
        )
        reply = self.at_owner(key, command)
        return [Code(reply.code).name, *(self.do_show([key]) if reply.code == Code.OK else [])]

    def do_retry(self, words: list[str]) -> list[str]:
        key, named = words[0], _named(words)
        record, byte = words[2].split("_")
        command = SubscriptionRetry(
            key,
            self.owned(key).uid,
            self.now_ms,
            int(named.get("gen", "0")),
            named.get("wake", ""),
            canonical_name(words[1]),
            int(record),
            int(byte),
            int(named.get("until", "0")),
            "boom",
        )
        reply = self.at_owner(key, command)
        return [Code(reply.code).name, *(self.do_show([key]) if reply.code == Code.OK else [])]

    def do_ack(self, words: list[str]) -> list[str]:
        key, name = words[0], canonical_name(words[1])
        group = group_of(name, GROUPS)
        stream = self.world.machines[group].directory.lookup(name)
        record, byte = words[2].split("_")
        ack = AckLinks(
            key, self.owned(key).uid, [(name, stream.uid if stream else 0, int(record), int(byte))]
        )
        reply = self._apply(group, ack)
        return [
            Code(reply.code).name + (f" refused={','.join(reply.detail)}" if reply.detail else "")
        ]

    def do_show(self, words: list[str]) -> list[str]:
        subscription = self.owned(words[0])
        parts = [State(subscription.state).name.lower(), f"gen={subscription.generation}"]
        parts += [f"wake={subscription.wake_id}"] if subscription.wake_id else []
        parts += [f"holder={subscription.holder}"] if subscription.holder else []
        parts += (
            [f"lease until {subscription.lease_until_ms}"] if subscription.lease_until_ms else []
        )
        parts += [f"failed={subscription.attempts}"] if subscription.attempts else []
        parts += (
            [f"next attempt {subscription.next_attempt_ms}"] if subscription.next_attempt_ms else []
        )
        failures = subscription.failures
        parts += [f"attempts={failures.attempts}"] if failures.attempts else []
        parts += [f"paused until {failures.until_ms}"] if failures.until_ms else []
        return [" ".join(parts)]

    def do_links(self, words: list[str]) -> list[str]:
        subscription, limit = self.owned(words[0]), int(_named(words).get("limit", "100"))
        found = [
            info
            for machine in self.world.machines.values()
            for info in oldest_links(machine, subscription.id, subscription.uid, limit)
        ]
        for info in found:
            again = named_links(
                self.world.machines[group_of(info.name, GROUPS)],
                subscription.id,
                subscription.uid,
                [info.name],
            )
            assert again == [info]
        return sorted(map(_spell, found)) or ["none"]

    def do_page(self, words: list[str]) -> list[str]:
        subscription, named = self.owned(words[0]), _named(words)
        after, limit = named.get("after", ""), int(named.get("limit", "100"))
        found = [
            info
            for machine in self.world.machines.values()
            for info in page_of_links(machine, subscription.id, subscription.uid, after, limit)
        ]
        return [
            _spell(info) for info in sorted(found, key=lambda info: spelled_name(info.name))[:limit]
        ] or ["none"]


def _spell(info: LinkInfo) -> str:
    kinds = {1: "glob", 2: "explicit", 3: "both"}[info.kinds]
    pending = " pending" if info.pending else ""
    return (
        f"{spelled_name(info.name)} {kinds} {info.record}_{info.byte} of "
        f"{info.tail_record}_{info.tail_byte}{pending}"
    )
