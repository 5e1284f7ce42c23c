"""Produce: the batches of a request become commands, in the order in which requests came."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import KAFKA_ELEMENTS_PER_TURN, KAFKA_FORWARD_BYTES_MAX
from polynya.front.kafka.batch_checks import AT_ONCE_BYTES, SentBatch, check_all
from polynya.front.kafka.brokers import sent_away, zone_tag
from polynya.front.kafka.call import Call, count, in_thread
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.leaders import add_leaders_to_produce, is_elsewhere_led
from polynya.front.kafka.topics.catalog import OpenTopic
from polynya.front.kafka.transactions.known import Key, KnownTransaction
from polynya.front.kafka.transactions.numbers import known_now, number_of_streams
from polynya.front.kafka.transactions.refusals import NotAnswered, error_of_batch, refusal_of_id
from polynya.routing.handle import StreamHandle
from polynya.stream.features.appends.commands import Produce, TxnProduce
from polynya.stream.parts import Batch, Producer
from polynya.stream.replies import Code, Reply
from polynya.wire.kafka.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ADDS_SINCE = 12  # the first version of Produce that adds its partitions to the transaction
_IDS_SINCE = 13  # the first version of Produce that names topics by id
_BEHIND = "an earlier batch of the partition failed; retry both in order"
_OVERTOOK = "the batch was not judged behind an earlier one of the partition; retry in order"
GAP_SECONDS = 5.0  # a missing batch may still be on its way, from another connection, for this time
_ACKS = (-1, 0, 1)  # 1 is answered as -1: when the batch is durable on a majority


def _mirrors(topic: str, source: str) -> str:
    return (
        f"topic {topic} mirrors that of {source} (mirror.from): write there, or end the mirror with "
        "'polynya mirror --cut-over'"
    )


def start(call: Call, request: ProduceRequest, *, in_slices: bool = False) -> None:
    """Propose the batches of a request. Requests of one connection are proposed in their order.
    `in_slices`: it has so many that other connections need turns between them."""
    session = call.session
    work = _Produce(call, request)
    may_start = session.producing is None and not in_slices
    topics = _known(call, request) if may_start else None
    if topics is not None:
        work.judge(topics)
        if work.bytes <= AT_ONCE_BYTES and (
            request.transactional_id is None or work.enter_known_transaction()
        ):
            work.propose()
            return
    task = call.context.spawn(_start_late(work, session.producing))
    session.producing = task
    task.add_done_callback(partial(_no_longer, call))


def _no_longer(call: Call, task: asyncio.Task[None]) -> None:
    if call.session.producing is task:
        call.session.producing = None


async def _start_late(work: _Produce, before: asyncio.Task[None] | None) -> None:
    """Propose after an earlier request, after asking for topics that this core does not know, and
    after checks that take long."""
    if before is not None:
        await asyncio.wait([before])
    if not work.is_judged:
        await work.find_and_judge()
    if work.bytes > AT_ONCE_BYTES:  # the loop would wait for them
        await work.check()
    if work.is_transactional:
        await work.enter_transaction()
    await work.propose_in_slices()


def _known(call: Call, request: ProduceRequest) -> list[OpenTopic | None] | None:
    """Return the topics of a request if this core knows all of them. A mirror may have ended."""
    ready, by_id = call.context.topics.ready, call.version >= _IDS_SINCE
    found: list[OpenTopic | None] = []
    for each in request.topic_data:
        topic = ready(each.topic_id if by_id else each.name)
        if topic is None or topic.rules.mirror_from:
            return None
        found.append(topic)
    return found


class _Produce:
    """A request in work: the answer that its outcomes fill in."""

    def __init__(self, call: Call, request: ProduceRequest) -> None:
        self._call = call
        self._request = request
        self._left = 1  # outcomes that are missing, and one until all are proposed
        self._response = ProduceResponse()
        self._zone = zone_tag(call.header.client_id)
        self._is_misled = False  # the client is to learn of another leader
        self._waiting: list[SentBatch] = []
        self._key: Key | None = None  # of the transaction that the batches are of
        self._known: KnownTransaction | None = None
        self.bytes = 0  # those that their checks look at one by one
        self.is_judged = False

    async def find_and_judge(self) -> None:
        """Judge the batches after asking for the topics that this core does not know."""
        topics: list[OpenTopic | None] = []
        open_, by_id = self._call.context.topics.open, self._call.version >= _IDS_SINCE
        for number, each in enumerate(self._request.topic_data):
            if number and not number % KAFKA_ELEMENTS_PER_TURN:
                await asyncio.sleep(0)
            key = each.topic_id if by_id else each.name
            try:
                topic = await open_(key)
                if topic is not None and topic.rules.mirror_from:
                    await self._call.context.topics.refresh()
                    topic = await open_(key)
                topics.append(topic)
            except PolynyaError:
                topics.append(None)  # retriable for the client: it asks for metadata
        self.is_judged = True
        for data, topic in zip(self._request.topic_data, topics, strict=True):
            answers = TopicProduceResponse(data.name, data.topic_id)
            self._response.responses.append(answers)
            for first in range(0, len(data.partition_data) or 1, KAFKA_ELEMENTS_PER_TURN):
                some = data.partition_data[first : first + KAFKA_ELEMENTS_PER_TURN]
                self._judge(data, topic, some, answers.partition_responses)
                if count(self._call, 1 + len(some)):
                    await asyncio.sleep(0)

    def judge(self, topics: list[OpenTopic | None]) -> None:
        """Refuse the batches of unknown partitions, and those that the caller may not append. The
        others wait for their checks."""
        self.is_judged = True
        for data, topic in zip(self._request.topic_data, topics, strict=True):
            answers = TopicProduceResponse(data.name, data.topic_id)
            self._response.responses.append(answers)
            self._judge(data, topic, data.partition_data, answers.partition_responses)

    def _judge(
        self,
        data: TopicProduceData,
        topic: OpenTopic | None,
        parts: list[PartitionProduceData],
        answers: list[PartitionProduceResponse],
    ) -> None:
        """Judge some partitions of a topic."""
        by_id = self._call.version >= _IDS_SINCE
        missing = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
        name = data.name if topic is None else topic.topic.name
        allowed = self._call.caller.may(Verb.APPEND, name)
        for part in parts:
            answer = PartitionProduceResponse(part.index, base_offset=-1)
            answers.append(answer)
            if self._request.acks not in _ACKS:
                answer.error_code = Error.INVALID_REQUIRED_ACKS
            elif topic is None and by_id:
                answer.error_code = missing
            elif not allowed:
                answer.error_code = Error.TOPIC_AUTHORIZATION_FAILED
            elif topic is None:
                answer.error_code = missing
            elif topic.rules.mirror_from:
                answer.error_code = Error.POLICY_VIOLATION
                answer.error_message = _mirrors(name, topic.rules.mirror_from)
            elif (stream := topic.partition(part.index)) is None:
                answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
            else:
                batch = SentBatch(part.records, topic, stream, answer)
                self._waiting.append(batch)
                self.bytes += batch.work

    # --- transactions -----------------------------------------------------------------------------

    @property
    def is_transactional(self) -> bool:
        """Report whether the producer has a transactional id."""
        return self._request.transactional_id is not None

    def enter_known_transaction(self) -> bool:
        """Report whether the number of the transaction is known here."""
        handles = self._judge_pairs()
        if self._key is not None:
            self._known = known_now(self._call, self._key, handles)
        return self._key is None or self._known is not None

    async def enter_transaction(self) -> None:
        """Get the number of the transaction. The request in which a partition is first used adds it
        to the transaction, if the client speaks the newer protocol."""
        handles = self._judge_pairs()
        if self._key is None:
            return
        try:
            self._known = await self._number(handles)
        except NotAnswered as refused:
            error = error_of_batch(refused.error)
            for sent in self._waiting:
                if sent.transactional_pair() is not None:
                    self._refuse(sent, error)
            self._waiting = [each for each in self._waiting if not each.answer.error_code]

    async def _number(self, handles: list[StreamHandle]) -> KnownTransaction:
        assert self._key is not None
        is_new = self._call.version >= _ADDS_SINCE
        return await number_of_streams(self._call, self._key, handles, is_new=is_new)

    def _judge_pairs(self) -> list[StreamHandle]:
        """Refuse batches that are of no transaction of the request's id; return the streams of the
        others. A request has batches of one producer."""
        id_ = self._request.transactional_id or ""
        handles: list[StreamHandle] = []
        refused = Error.NONE
        for sent in self._waiting:
            pair = sent.transactional_pair()
            if pair is None:
                continue
            if not handles and not refused:
                self._key = (id_, *pair)
                refused = refusal_of_id(self._call, id_)
            if refused:
                self._refuse(sent, error_of_batch(refused))
            elif (id_, *pair) != self._key:
                self._refuse(sent, Error.INVALID_PRODUCER_ID_MAPPING)
            else:
                handles.append(sent.stream)
        if not handles:
            self._key = None
        self._waiting = [each for each in self._waiting if not each.answer.error_code]
        return handles

    def _refuse(self, sent: SentBatch, error: Error) -> None:
        sent.answer.error_code = error
        self._call.fail(sent.stream.name)

    def _in_transaction(
        self, sent: SentBatch, batch: Batch, producer: Producer | None
    ) -> TxnProduce | None:
        """Return a batch of a transaction as a command, or None: the answer has the refusal."""
        if producer is None:
            sent.answer.error_code = Error.INVALID_RECORD
            sent.answer.error_message = "a batch of a transaction has no producer"
            return None
        known, name = self._known, sent.stream.name
        if known is None or name not in known.streams:
            sent.answer.error_code = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            sent.answer.error_message = "a batch of a transaction came without a transactional id"
            return None
        return TxnProduce(
            name,
            self._call.context.service.now_ms(),
            batch,
            producer,
            uid=known.streams[name],
            txn=known.number,
            owner=self._call.caller.owner,
        )

    def _done_in_transaction(
        self,
        command: TxnProduce,
        sent: SentBatch,
        is_pipelined: bool,
        outcome: Reply | BaseException,
    ) -> None:
        """Fill in an outcome. The number was stale if it has ended there: ask for the present one,
        once, and propose the batch again in order. A client that has closed the connection gave the
        batch up: it must not get the number of the next transaction."""
        call, key = self._call, self._key
        if isinstance(outcome, Reply) and key is not None:
            if outcome.code == Code.NOT_YET and outcome.detail:
                call.context.spawn(self._ask_soon(sent.stream.group, key[1], outcome.detail))
            if outcome.code in (Code.TXN_ENDED, Code.INCARNATION):
                call.context.numbers.forget(key)
            if (
                outcome.code == Code.TXN_ENDED
                and not sent.is_again
                and not call.connection.is_ending
            ):
                sent.is_again = True
                call.session.concluded(command.name)
                task = call.context.spawn(self._propose_again(sent, call.session.producing))
                call.session.producing = task
                task.add_done_callback(partial(_no_longer, call))
                return
        self._done(command, sent.answer, is_pipelined, outcome)

    async def _ask_soon(self, group: int, producer: int, number: int) -> None:
        """Let the stream's leader ask for an earlier transaction that is in the way: it is one
        whose end was lost. The client repeats the batch."""
        with contextlib.suppress(PolynyaError):
            await self._call.context.transaction_parts.jobs.ask_soon(group, producer, number)

    async def _propose_again(self, sent: SentBatch, before: asyncio.Task[None] | None) -> None:
        """Propose a batch again with the present number."""
        if before is not None:
            await asyncio.wait([before])
        try:
            if self._call.connection.is_ending:
                raise NotAnswered(Error.INVALID_TXN_STATE)
            self._known = await self._number([sent.stream])
        except NotAnswered as refused:
            self._refuse(sent, error_of_batch(refused.error))
        else:
            self._propose_one(sent)
        self._finished_one()

    # --- proposals --------------------------------------------------------------------------------

    def propose(self) -> None:
        """Propose each batch that waits and has no fault."""
        waiting, self._waiting = self._waiting, []  # which holds the batches twice
        for batch in waiting:
            self._propose_one(batch)
        self._finished_one()

    async def propose_in_slices(self) -> None:
        """Propose them with turns for other connections between slices. A client that has closed
        the connection meanwhile sends the batches again on another one, and those without a
        producer would be stored twice. One that wants no answers closes without waiting for
        them."""
        waiting, self._waiting = self._waiting, []
        wants_answers = self._request.acks != 0
        for number, batch in enumerate(waiting):
            if number and not number % KAFKA_ELEMENTS_PER_TURN:
                await asyncio.sleep(0)
            if wants_answers and self._call.connection.is_ending:
                self._refuse(batch, Error.NOT_ENOUGH_REPLICAS)
            else:
                self._propose_one(batch)
        self._finished_one()

    async def check(self) -> None:
        """Check the batches in a thread, one request of this core at a time."""
        async with self._call.context.turns.checking:
            await asyncio.to_thread(check_all, self._waiting)

    def _propose_one(self, sent: SentBatch) -> None:
        call = self._call
        context, session = call.context, call.session
        service, answer, stream = context.service, sent.answer, sent.stream
        checked = sent.stored(service.now_ms)
        if checked is None:
            return
        batch, producer = checked
        name, is_diskless = stream.name, sent.rules.diskless
        if is_diskless:
            is_elsewhere = bool(self._zone) and sent_away(context.brokers, stream, self._zone)
        else:
            is_elsewhere = len(call.data) > KAFKA_FORWARD_BYTES_MAX and is_elsewhere_led(
                context.brokers, stream.group
            )
        if is_elsewhere:
            answer.error_code, self._is_misled = Error.NOT_LEADER, True
            if producer is not None:
                call.fail(name)
            return
        if producer is not None and name in session.failed:
            answer.error_code = Error.NOT_ENOUGH_REPLICAS
            answer.error_message = _BEHIND
            return
        transactional = None
        if batch.flags:
            transactional = self._in_transaction(sent, batch, producer)
            if transactional is None:
                call.fail(name)
                return
        if is_diskless:
            service.expect_diskless(name)
        size, counters = len(batch.payload), context.counters
        self._left += 1
        counters.batches += 1
        counters.bytes_in += size
        if self._zone:
            context.clients.receive(self._zone, size)
        before = session.proposed.get(name, 0)
        session.proposed[name] = before + 1
        if transactional is not None:
            done = partial(self._done_in_transaction, transactional, sent, before > 0)
            stream.append(transactional, done)
            return
        command = Produce(name, service.now_ms(), batch, producer)
        stream.append(command, partial(self._done, command, answer, before > 0))

    def _done(
        self,
        command: Produce,
        answer: PartitionProduceResponse,
        is_pipelined: bool,
        outcome: Reply | BaseException,
    ) -> None:
        """Fill in an outcome. `is_pipelined`: when the batch was proposed, an earlier one of its
        partition had no outcome yet."""
        session = self._call.session
        session.concluded(command.name)
        if isinstance(outcome, BaseException):
            answer.error_code = error_of_fault(outcome)
            self._is_misled |= answer.error_code == Error.NOT_LEADER
        elif outcome.code == Code.OK or error_of(outcome.code) == Error.NONE:
            answer.base_offset = outcome.first_record
            session.gaps.pop(command.name, None)
        else:
            answer.error_code, answer.log_append_time_ms = error_of(outcome.code), -1
            if answer.error_code == Error.OUT_OF_ORDER_SEQUENCE and (
                is_pipelined or self._may_close(command.name)
            ):
                # The earlier batch has failed, or was judged after this one. The client would
                # take the code for a loss if that batch was accepted.
                answer.error_code = Error.NOT_ENOUGH_REPLICAS
                answer.error_message = _OVERTOOK
        if answer.error_code != Error.NONE and command.producer is not None:
            self._call.fail(command.name)
        self._finished_one()

    def _may_close(self, name: str) -> bool:
        """Report whether the gap before a batch is new. While a client moves to another broker, the
        earlier batch may arrive through its former one. For this code librdkafka begins a new
        epoch, and may then store batches of other partitions twice (its issue 4953)."""
        now, gaps = asyncio.get_running_loop().time(), self._call.session.gaps
        since, seen = gaps.get(name, (now, now))
        if now - seen > GAP_SECONDS:  # that one closed, through another connection
            since = now
        gaps[name] = since, now
        return now - since < GAP_SECONDS

    def _finished_one(self) -> None:
        """Count an outcome, or that all batches are proposed; answer after the last one."""
        self._left -= 1
        if self._left:
            return
        if self._request.acks == 0:
            self._answer_nothing()
        else:
            if self._is_misled:
                add_leaders_to_produce(self._call, self._response)
            if self._call.worked < KAFKA_ELEMENTS_PER_TURN:
                self._call.send(self._call.encoded(self._response))
            else:
                self._call.context.spawn(self._answer_later())

    async def _answer_later(self) -> None:
        """Answer for very many partitions."""
        coding, response = self._call.context.turns.coding, self._response
        self._call.send(await in_thread(coding, lambda: self._call.encoded(response)))

    def _answer_nothing(self) -> None:
        """Say nothing, or close: a client that asked for no answer learns of an error only so."""
        failed = any(
            answer.error_code
            for topic in self._response.responses
            for answer in topic.partition_responses
        )
        self._call.send([])
        if failed:
            self._call.connection.stop()
