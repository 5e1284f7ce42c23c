"""Batching of appends on their way to the core that leads their group.

Appends that one pass of the loop sends to one group share a request and a response. The leader
writes them together and sends one message to each follower, so they commit together and none waits
for another's response. A command that may take longer than its turn (anything but an append or a
produce) travels alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import force_setattr

from polynya.base.errors import NotLeader, OutcomeUnknown
from polynya.base.histogram import Histogram
from polynya.base.limits import MIB
from polynya.base.msgpack import array_head
from polynya.base.spans import ACTIVE, Span
from polynya.replica.log import check_proposal
from polynya.routing import messages, requests, send
from polynya.routing.requests import Answer
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import APPEND_BASES, AnyAppend, Append, Produce
from polynya.stream.replies import Done, Reply
from polynya.transport.errors import decode_error, encode_error

BUNDLE_BYTES_MAX = 1 * MIB  # a bundle is sent once it exceeds this; a larger append travels alone
PROTOCOL = 2  # peer protocol version that introduced PROPOSE_ALL


class BundleTransport(Protocol):
    """The part of `polynya.transport` that bundles need."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None: ...

    def protocol(self, core: int) -> int: ...


class _Answers(msgspec.Struct, array_like=True):
    """The replies to a bundle, in its order. A None marks a fault, which is in `faults` as (error
    number, text)."""

    replies: list[Reply | None]
    faults: dict[int, tuple[int, bytes]] = {}


class _RawAnswers(msgspec.Struct, array_like=True):
    """The same, with replies that are not decoded."""

    replies: list[msgspec.Raw]
    faults: dict[int, tuple[int, bytes]] = {}


_raw_answers: msgspec.msgpack.Decoder[_RawAnswers] = msgspec.msgpack.Decoder(_RawAnswers)
_reply: msgspec.msgpack.Decoder[Reply | None] = msgspec.msgpack.Decoder(Reply | None)
_answers: msgspec.msgpack.Decoder[_Answers] = msgspec.msgpack.Decoder(_Answers)
_append: msgspec.msgpack.Decoder[AnyAppend] = msgspec.msgpack.Decoder(AnyAppend)
_appends: msgspec.msgpack.Decoder[list[AnyAppend]] = msgspec.msgpack.Decoder(list[AnyAppend])
_raws: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


class AppendBundle:
    """Appends for one group in the order of their proposals, each with its `done` callback."""

    __slots__ = (
        "bodies",
        "commands",
        "deadline",
        "dones",
        "group",
        "number",
        "sent",
        "size",
        "target",
        "traced",
        "tried",
    )

    def __init__(self, target: int, group: int) -> None:
        self.target = target
        self.group = group
        self.commands: list[Append | Produce] = []
        self.bodies: list[bytes] = []  # the commands, encoded
        self.dones: list[Done] = []
        self.traced: list[Span] = []  # of those that are traced
        self.size = 0
        self.sent = 0.0  # by the loop
        self.number = 0  # this and the next two are set by `polynya.routing.forwarding`
        self.deadline = 0.0
        self.tried: dict[int, Any] = {}


OnResult = Callable[[AppendBundle, list[Reply | BaseException]], None]


class Bundles:
    """The sending side. `done` receives the errors of `call_nowait`: Unavailable (not applied),
    OutcomeUnknown, or NotLeader from the receiver. `on_result` receives the results of a whole bundle,
    in its order, and replaces the `done` of each.

    Invariant: a bundle in `open` accepts appends until the end of this pass of the loop."""

    def __init__(self, transport: BundleTransport, on_result: OnResult | None = None) -> None:
        self.open: dict[int, AppendBundle] = {}  # by group
        self.payload: defaultdict[int, int] = defaultdict(int)  # bytes sent, by core
        self.seconds = Histogram()  # from a request to its answer
        self._transport = transport
        self._on_result = on_result or _hand_out
        self._loop = asyncio.get_running_loop()

    def propose(self, target: int, group: int, command: Command, body: bytes, done: Done) -> None:
        """Send a command, in the order of the calls. `body`: the encoded command."""
        if isinstance(command, APPEND_BASES):
            self.add(self.bundle(target, group), command, body, done)
            return
        bundle = self.open.pop(group, None)
        if bundle is not None:
            self._send(bundle)
        span = None if ACTIVE.get() is None else requests.span_of("forward", target, group)
        requests.ask(
            self._transport,
            target,
            group,
            messages.PROPOSE,
            group.to_bytes(2, "little") + body,
            partial(self._on_one_response, done, self._loop.time(), span),
            span,
        )

    def bundle(self, target: int, group: int, *, grows: bool = True) -> AppendBundle:
        """Return the bundle that accepts an append to this core. With `grows` False it is sent with
        its first append."""
        bundle = self.open.get(group)
        if bundle is not None and bundle.target == target and grows:
            return bundle
        if bundle is not None:
            del self.open[group]
            self._send(bundle)
        bundle = AppendBundle(target, group)
        if grows and (target >= send.THROUGH or self._transport.protocol(target) >= PROTOCOL):
            if not self.open:
                self._loop.call_soon(self._send_all)
            self.open[group] = bundle
        return bundle

    def add(self, bundle: AppendBundle, command: Append | Produce, body: bytes, done: Done) -> None:
        bundle.commands.append(command)
        bundle.bodies.append(body)
        bundle.dones.append(done)
        if ACTIVE.get() is not None and (
            span := requests.span_of("forward", bundle.target, bundle.group)
        ):
            bundle.traced.append(span)
        bundle.size += len(body)
        if bundle.size > BUNDLE_BYTES_MAX or bundle.group not in self.open:
            self.open.pop(bundle.group, None)
            self._send(bundle)

    def _send_all(self) -> None:
        bundles = list(self.open.values())
        self.open.clear()
        for bundle in bundles:
            self._send(bundle)

    def _send(self, bundle: AppendBundle) -> None:
        self.payload[bundle.target % send.THROUGH] += bundle.size
        bundle.sent = self._loop.time()
        group, bodies, come = (
            bundle.group.to_bytes(2, "little"),
            bundle.bodies,
            partial(self._on_response, bundle),
        )
        kind, body = messages.PROPOSE, group + bodies[0]
        if len(bodies) > 1:
            kind = messages.PROPOSE_ALL
            body = b"".join((group, array_head(len(bodies)), *bodies))
        span = bundle.traced[0] if bundle.traced else None
        requests.ask(self._transport, bundle.target, bundle.group, kind, body, come, span)

    def _on_one_response(
        self, done: Done, sent: float, span: Span | None, body: bytes | BaseException
    ) -> None:
        seconds = self._loop.time() - sent
        self.seconds.observe(seconds)
        if span is not None:
            self._arrived(span, seconds, body)
        done(body if isinstance(body, BaseException) else messages.decode(messages.PROPOSE, body))

    def _on_response(self, bundle: AppendBundle, body: bytes | BaseException) -> None:
        count, seconds = len(bundle.dones), self._loop.time() - bundle.sent
        self.seconds.observe(seconds)
        for span in bundle.traced:
            self._arrived(span, seconds, body)
        if isinstance(body, BaseException):
            self._on_result(bundle, [body] * count)
        elif count == 1:
            self._on_result(bundle, [messages.decode(messages.PROPOSE, body)])
        else:
            self._on_result(bundle, _outcomes(body, count))

    def _arrived(self, span: Span, seconds: float, body: bytes | BaseException) -> None:
        """End the span of a request that was answered."""
        requests.end(span, body)
        self.seconds.remember(seconds, "trace_id", span.trace_id)


def _hand_out(bundle: AppendBundle, outcomes: list[Reply | BaseException]) -> None:
    for done, outcome in zip(bundle.dones, outcomes, strict=True):
        done(outcome)


def _outcomes(body: bytes, count: int) -> list[Reply | BaseException]:
    answers = _answers_of(body)
    replies, faults = answers.replies, answers.faults
    if not faults and len(replies) == count and None not in replies:
        return cast("list[Reply | BaseException]", replies)
    replies += [None] * (count - len(replies))
    return [
        decode_error(*faults.get(i, _MISSING)) if reply is None else reply
        for i, reply in enumerate(replies[:count])
    ]


def _answers_of(body: bytes) -> _Answers:
    """Decode the replies to a bundle. One that this release cannot decode is None."""
    try:
        return _answers.decode(body)
    except msgspec.ValidationError:
        raw = _raw_answers.decode(body)
        return _Answers([_reply_of(each) for each in raw.replies], raw.faults)


def _reply_of(raw: msgspec.Raw) -> Reply | None:
    try:
        return _reply.decode(raw)
    except msgspec.ValidationError:
        return None


_MISSING = encode_error(OutcomeUnknown("the group's leader sent no readable reply for this append"))


# --- the receiving side ---------------------------------------------------------------------------


class Collected:
    """The replies of one bundle, sent when the last one is known."""

    __slots__ = ("_faults", "_left", "_replies", "_reply")

    def __init__(self, count: int, reply: Answer) -> None:
        self._replies: list[Reply | None] = [None] * count
        self._faults: dict[int, tuple[int, bytes]] = {}
        self._left = count
        self._reply = reply

    def done(self, index: int, outcome: Reply | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._faults[index] = encode_error(outcome)
        else:
            self._replies[index] = outcome
        self._left -= 1
        if not self._left:
            self._reply(_encode((self._replies, self._faults)))


def handler_of(
    leads: Callable[[int], bool],
    leader_of: Callable[[int], int],
    propose: Callable[[int, Append | Produce, Done], None],
    now_ms: Callable[[], int],
    came: Callable[[int, int, int], None],
) -> Callable[[bytes, Answer, int], None]:
    """Return the handler of PROPOSE_ALL. `propose` gets appends stamped with this core's log time.
    `came` gets the group, the sender and the number of appends."""

    def handle(body: bytes, reply: Answer, sender: int) -> None:
        group = int.from_bytes(body[:2], "little")
        if not leads(group):
            reply(NotLeader(leader_of(group)))
            return
        appends = _appends_of(body)
        came(group, sender, len(appends))
        collected, stamp = Collected(len(appends), reply), now_ms()
        for index, append in enumerate(appends):
            done = partial(collected.done, index)
            try:
                if isinstance(append, Exception):
                    raise append
                force_setattr(append, "now_ms", stamp)  # the struct is not shared yet
                check_proposal(append)  # the engine trusts appends
                propose(group, append, done)
            except Exception as fault:  # the other appends of the bundle still need their replies
                done(fault)

    return handle


def _appends_of(body: bytes) -> list[Append | Produce] | list[Append | Produce | Exception]:
    """Decode the appends of a bundle. An append that this release cannot decode fails alone."""
    rest = memoryview(body)[2:]
    try:
        return _appends.decode(rest)
    except msgspec.ValidationError:
        return [_decoded(raw) for raw in _raws.decode(rest)]


def _decoded(raw: msgspec.Raw) -> Append | Produce | Exception:
    try:
        return _append.decode(raw)
    except msgspec.ValidationError as fault:
        return fault
