"""Story scripts of a coordinator: commands in, trace out. A line is a command; the lines under it,
indented, are what it answered, and the id as it is then.

    at 1000                          the log's time from here on
    init ID [PAIR] [timeout=MS] [owner=N]
    add ID PAIR [GROUP:NAME …] [GROUP:@CONSUMERS …] [v1]
    commit ID PAIR [v1]; abort ID PAIR [v1]
    expire ID NUMBER [force]; ask PRODUCER NUMBER; forget ID
    ack [COUNT]                      the oldest markers arrive, all or so many
    epoch ID N                       let the id have this epoch

A pair is PRODUCER/EPOCH, a producer GROUP.COUNTER. Markers are listed when they are sent.
"""

from __future__ import annotations

from stories.scripts import traced

from polynya.stream.command import Command
from polynya.stream.features.forks.commands import AcknowledgeAll
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.transactions.commands import (
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnForget,
    TxnInit,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code

_COUNTER = (1 << 47) - 1


def run(text: str) -> str:
    """The script with its trace."""
    return traced(text, _Story().step)


def _show(producer: int) -> str:
    return "-" if producer < 0 else f"{producer >> 47}.{producer & _COUNTER}"


def _producer(text: str) -> int:
    group, counter = text.split(".")
    return int(group) << 47 | int(counter)


def _pair(text: str) -> tuple[int, int]:
    producer, epoch = text.split("/")
    return _producer(producer), int(epoch)


class _Story:
    def __init__(self) -> None:
        self.machine = Machine(1, 4)
        self.now_ms = 0
        self.sent = 0

    def step(self, words: list[str]) -> list[str]:
        kind, *rest = words
        lines: list[str] = getattr(self, f"do_{kind}")(rest)
        return lines

    def do_at(self, words: list[str]) -> list[str]:
        self.now_ms = int(words[0])
        return []

    def do_init(self, words: list[str]) -> list[str]:
        named = dict(word.split("=") for word in words if "=" in word)
        id_, *pairs = (word for word in words if "=" not in word)
        pair = _pair(pairs[0]) if pairs else (-1, -1)
        timeout, owner = int(named.get("timeout", 1000)), int(named.get("owner", 0))
        return self.outcome(id_, TxnInit(id_, self.now_ms, timeout, *pair, owner))

    def do_add(self, words: list[str]) -> list[str]:
        id_, pair, *added = words
        streams, groups = [], []
        for group, name in (word.split(":") for word in added if word != "v1"):
            if name.startswith("@"):
                groups.append((int(group), name[1:]))
            else:
                streams.append((int(group), int(group) << 48 | ord(name[0]), name))
        command = TxnAdd(id_, *_pair(pair), self.now_ms, streams, groups, version(words))
        return self.outcome(id_, command)

    def do_commit(self, words: list[str]) -> list[str]:
        command = TxnEnd(words[0], *_pair(words[1]), True, version(words), self.now_ms)
        return self.outcome(words[0], command)

    def do_abort(self, words: list[str]) -> list[str]:
        command = TxnEnd(words[0], *_pair(words[1]), False, version(words), self.now_ms)
        return self.outcome(words[0], command)

    def do_expire(self, words: list[str]) -> list[str]:
        command = TxnExpire(words[0], int(words[1]), self.now_ms, "force" in words)
        return self.outcome(words[0], command)

    def do_ask(self, words: list[str]) -> list[str]:
        reply = self.machine.apply(TxnAsk(_producer(words[0]), int(words[1]), self.now_ms))
        if reply.detail is None:
            return ["open"]
        commit, epoch, decided_ms = reply.detail
        return [f"{'commit' if commit else 'abort'} epoch={epoch} decided={decided_ms}"]

    def do_forget(self, words: list[str]) -> list[str]:
        known = self.machine.transactions.get(words[0])
        used_ms = 0 if known is None else known.used_ms
        return self.outcome(words[0], TxnForget(words[0], used_ms))

    def do_ack(self, words: list[str]) -> list[str]:
        messages = [*self.machine.outbox.messages][: int(words[0]) if words else None]
        ids = {self.machine.transactions.by_message[message].id for message in messages}
        self.machine.apply(AcknowledgeAll(messages))
        return [self.state(id_) for id_ in sorted(ids)]

    def do_epoch(self, words: list[str]) -> list[str]:
        transaction = self.machine.transactions.get(words[0])
        assert transaction is not None
        transaction.epoch = int(words[1])
        return [self.state(words[0])]

    def outcome(self, id_: str, command: Command) -> list[str]:
        reply = self.machine.apply(command)
        detail = reply.detail
        if isinstance(detail, tuple):
            detail = f"{_show(detail[0])}/{detail[1]}"
        line = Code(reply.code).name + ("" if detail is None else f" {detail}")
        return [line, self.state(id_), *self.markers()]

    def state(self, id_: str) -> str:
        found = self.machine.transactions.get(id_)
        if found is None:
            return f"{id_} is unknown"
        previous = "" if found.previous[0] < 0 else f" previous={show(found.previous)}"
        return f"{id_} {found.state.name} {show(found.pair)} number={found.number}{previous}"

    def markers(self) -> list[str]:
        lines = []
        for message, (group, command) in self.machine.outbox.messages.items():
            if message <= self.sent:
                continue
            self.sent = message
            assert isinstance(command, TxnMarkers)
            what = "commit" if command.commit else "abort"
            names = [*(name for _, name in command.uids), *(f"@{id_}" for id_ in command.groups)]
            pair = show((command.producer, command.epoch))
            lines.append(f"to {group}: {what} {pair} number={command.number} {' '.join(names)}")
        return lines


def version(words: list[str]) -> int:
    return 1 if "v1" in words else 2


def show(pair: tuple[int, int]) -> str:
    return f"{_show(pair[0])}/{pair[1]}"
