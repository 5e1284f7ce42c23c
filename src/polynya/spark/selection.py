"""The streams of a read: those of a name, under a prefix, or of topics of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.base.names import partition_name, topic_folder, unnamed_folders
from polynya.client.calls import call
from polynya.client.errors import AnswerDamaged
from polynya.client.messages import HttpRequest, HttpResponse, Operation, Retry
from polynya.spark.options import SourceOptions, Topics
from polynya.spark.planning import DataLoss
from polynya.spark.server import Server, Tail


class Topic(msgspec.Struct, frozen=True):
    """A topic as `GET /v1/topics` shows it. Its first partitions are the adopted streams."""

    name: str
    partitions: int
    adopted: list[str] = []

    def streams(self) -> dict[str, str]:
        """Return the stream of each partition by the name of a partition's own one."""
        own = [partition_name(self.name, number) for number in range(self.partitions)]
        return dict(zip(own, [*self.adopted, *own[len(self.adopted) :]], strict=True))


class _Topics(msgspec.Struct):
    topics: list[Topic]


class Found(msgspec.Struct, frozen=True):
    """The tails of the streams. `aliases`: the adopted stream in the place of a partition's own."""

    tails: dict[str, Tail]
    aliases: Mapping[str, str] = {}


def find(server: Server, options: SourceOptions) -> Found:
    """Return the streams of a read. Raises DataLoss for a named one that does not exist."""
    if options.topics is None:
        tails = server.tails(options.streams, options.prefix)
        return Found(_without_own(tails, options))
    wanted = _partitions(server.run(topics), options.topics, strict=options.fail_on_data_loss)
    tails = {}
    for topic, streams in wanted.items():
        own = server.tails((), topic_folder(topic))
        adopted = server.tails([name for name in streams.values() if name not in own], None)
        known = own | adopted
        tails |= {name: known[name] for name in streams.values() if name in known}
    aliases = {
        own: stream
        for streams in wanted.values()
        for own, stream in streams.items()
        if own != stream
    }
    return Found(tails, aliases)


def _without_own(tails: dict[str, Tail], options: SourceOptions) -> dict[str, Tail]:
    """Leave out the streams in which readers keep their offsets, to which each batch would add, and
    the product's other own ones, unless the prefix names them."""
    if options.prefix is None:
        return tails
    folder = f"{options.cursors}/"
    own = tuple(unnamed_folders([options.prefix]))
    if not options.prefix.startswith(folder):
        own += (folder,)
    return {name: tail for name, tail in tails.items() if not name.startswith(own)}


def _partitions(
    known: Sequence[Topic], wanted: Topics, *, strict: bool
) -> dict[str, dict[str, str]]:
    """Return the wanted partitions of each topic: own name and stream. Raises DataLoss."""
    found = {topic.name: topic.streams() for topic in known if wanted.has(topic.name)}
    missing = [name for name in wanted.names if name not in found]
    if missing and strict:
        raise DataLoss(
            f"there is no topic '{missing[0]}' to read; create it, or set the option "
            "failOnDataLoss to 'false' to go on without it"
        )
    for topic, numbers in wanted.partitions.items():
        names = [partition_name(topic, number) for number in numbers]
        streams = found.pop(topic, {})
        if strict and (absent := [name for name in names if name not in streams]):
            raise DataLoss(
                f"assign names the partition '{absent[0]}', but topic '{topic}' has {len(streams)} "
                "partitions"
            )
        found[topic] = {name: streams[name] for name in names if name in streams}
    return found


def topics(retry: Retry) -> Operation[list[Topic]]:
    """List the topics that the token may read."""

    def take(answer: HttpResponse) -> list[Topic]:
        try:
            return msgspec.json.decode(answer.body, type=_Topics).topics
        except UNREADABLE:
            raise AnswerDamaged(
                "list of topics: the response is not a list of topics", status=answer.status
            ) from None

    request = HttpRequest("GET", "/v1/topics")
    return (yield from call(request, retry, "list of topics", take, repeatable=True))
