"""`/v1/topics` and `/v1/topics/NAME`: Kafka topics, as `polynya topic` manages them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import PARTITIONS_MAX
from polynya.base.names import KAFKA_BUCKET, BadName, canonical_name, partition_name, spelled_name
from polynya.front.http.api.kafka.topic_records import produce
from polynya.front.http.compaction import shown as shown_compaction
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json
from polynya.front.kafka.configs import (
    CONFIGS,
    CONTENT_TYPE,
    MIRROR_FROM,
    PROFILE,
    InvalidConfig,
    NodeProfiles,
    check_change,
    check_config,
    check_replicas,
    is_compacted,
    notes_of,
    with_profile,
)
from polynya.front.kafka.topics.catalog import (
    NAME_RULE,
    Adoption,
    TopicCatalog,
    acks_of,
    is_topic_name,
)
from polynya.front.kafka.topics.steps import TopicRefused, TopicService
from polynya.local.api import StreamInfo
from polynya.service.stream_compaction import StreamCompaction
from polynya.stream.features.topics.state import Topic
from polynya.stream.replies import Code
from polynya.wire.headers import format_instant

PATH = "/v1/topics"
RECORDS = "records"  # below a topic: POST produces
PARTITIONS_SHOWN_MAX = 1000  # in the facts of one topic: each costs a look at its stream
_ADOPTING = (Verb.READ, Verb.APPEND, Verb.DELETE)  # verbs that a topic's users get by adoption
_DEFAULTS = {name: config.default for name, config in CONFIGS.items() if config.effect}


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to create, or what to change of one: null removes a config.

    `streams`: of a new topic, streams that become its first partitions."""

    partitions: int | None = None
    configs: dict[str, str | None] = {}
    streams: list[str] = []


def prefix_of(topic: str) -> str:
    """Return the canonical prefix of the streams of a topic, which a token must cover."""
    return partition_name(topic, 0).removesuffix("0")


class TopicRoutes:
    """The handler for `PATH`, and the mount below it."""

    def __init__(
        self,
        service: TopicService,
        new_id: Callable[[], bytes],
        *,
        partitions: int,
        profiles: NodeProfiles = NodeProfiles(),  # noqa: B008 (frozen)
        compaction: Callable[[str], Awaitable[StreamCompaction | None]] | None = None,
    ) -> None:
        """`partitions`, `profiles`: of a topic whose creator leaves them open. `compaction` finds how
        far that of a stream is."""
        self._service = service
        self.topics = TopicCatalog(service, new_id)
        self._partitions = partitions
        self._profiles = profiles
        self._compaction = compaction

    async def list(self, request: Request) -> Response:
        """List the topics that the caller may read, by name. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        await self.topics.refresh()
        names = [name for name in sorted(self.topics.names) if _may_read(name, request.principal)]
        known = [topic for name in names if (topic := self.topics.known(name)) is not None]
        return json_response({"topics": [self._shown(topic) for topic in known]})

    async def handle(self, request: Request) -> Response:
        """Get, create, change or delete a topic. Raises `Failure`."""
        if len(request.segments) == 2 and request.segments[1] == RECORDS:
            return await self._produce(request)
        if len(request.segments) != 1:
            raise Failure("NO_ROUTE")
        (name,) = request.segments
        if not is_topic_name(name):
            raise Failure("TOPIC_INVALID", NAME_RULE)
        try:
            match request.method:
                case "PUT":
                    wanted = read_json(request.body, _Wanted)
                    await self._check_name(name)
                    if wanted.streams:
                        return await self._adopt(name, wanted, request.principal)
                    return await self._create(name, wanted)
                case "PATCH":
                    return await self._change(name, read_json(request.body, _Wanted))
                case "DELETE":
                    await self.topics.drop(await self._found(name))
                    return Response(204)
                case "GET" | "HEAD":
                    return json_response(await self._described(await self._found(name)))
        except InvalidConfig as invalid:
            raise Failure("TOPIC_INVALID", str(invalid)) from None
        except TopicRefused as refused:
            raise Failure("TOPIC_CONFLICT", str(refused)) from None
        allowed = "GET, HEAD, PUT, PATCH, DELETE"
        raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", allowed),))

    async def _produce(self, request: Request) -> Response:
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        topic = await self._found(request.segments[0])
        return json_response(await produce(self._service, topic, request))

    async def _check_name(self, name: str) -> None:
        """Check that a topic has this name, or may get it. Raises InvalidConfig."""
        await self.topics.refresh()
        if name not in self.topics.names and (why := self.topics.refusal_of(name)):
            raise InvalidConfig(why)

    async def _found(self, name: str) -> Topic:
        await self.topics.refresh()
        topic = await self.topics.find(name)
        if topic is None:
            raise Failure("TOPIC_NOT_FOUND", f"topic '{name}' does not exist")
        return topic

    async def _create(self, name: str, wanted: _Wanted) -> Response:
        partitions = _counted(wanted.partitions or self._partitions)
        of_bucket = await self._service.bucket_profiles.current(KAFKA_BUCKET)
        given = _changed({}, wanted.configs)
        configs = self._profiles.completed(given, of_bucket)
        check_replicas({}, given, acks_of(self._service, name))
        code = await self.topics.create(name, partitions, sorted(configs.items()))
        topic = self.topics.known(name)
        if topic is None:
            raise TopicRefused(
                f"topic '{name}' cannot be created: streams under {prefix_of(name)} exist and are "
                "no partitions, it is being deleted, or a limit is reached"
            )
        if PROFILE not in given:  # the default is for new topics
            configs = _with_profile_of(topic, configs)
        if code != Code.CREATED and (topic.partitions, topic.settings) != (
            partitions,
            configs,
        ):
            raise TopicRefused(
                f"topic '{name}' exists with {topic.partitions} partitions and "
                f"{_spelled(topic.settings)}; {partitions} partitions and "
                f"{_spelled(configs)} were requested"
            )
        return json_response(self._shown(topic), 201 if code == Code.CREATED else 200)

    async def _adopt(self, name: str, wanted: _Wanted, principal: Principal | None) -> Response:
        streams = _named(wanted.streams)
        for stream in streams:
            for verb in _ADOPTING:
                if principal is not None and not principal.may(verb, stream):
                    where = spelled_name(stream)
                    raise Failure("FORBIDDEN", f"the token does not allow '{verb}' on {where}")
        if MIRROR_FROM in wanted.configs:
            raise InvalidConfig(
                f"a topic over streams that exist is no mirror: leave {MIRROR_FROM} out"
            )
        count = _counted(max(wanted.partitions or 0, len(streams)))
        await self.topics.refresh()
        configs = _changed({}, wanted.configs)
        check_replicas({}, configs, acks_of(self._service, name))
        code = await self.topics.adopt(name, Adoption(streams, count, configs))
        topic = self.topics.known(name)
        if topic is None:
            raise TopicRefused(
                f"topic '{name}' cannot be created: it is being deleted, streams under "
                f"{prefix_of(name)} exist and are no partitions, or a limit is reached"
            )
        if code != Code.CREATED and topic.streams != streams:
            held = ", ".join(map(spelled_name, topic.streams)) or "streams of its own"
            raise TopicRefused(f"topic '{name}' exists, with {held}")
        return json_response(self._shown(topic), 201 if code == Code.CREATED else 200)

    async def _change(self, name: str, wanted: _Wanted) -> Response:
        if wanted.streams:
            raise InvalidConfig("a topic adopts streams when it is created: use PUT")
        topic = await self._found(name)
        if wanted.configs:

            def change(before: dict[str, str]) -> dict[str, str]:
                after = _changed(before, wanted.configs)
                check_change(before, after)
                check_replicas(before, after, acks_of(self._service, name))
                return after

            await self.topics.alter(name, change)
        if wanted.partitions is not None and wanted.partitions != topic.partitions:
            await self.topics.grow(name, _counted(wanted.partitions))
        return json_response(self._shown(await self._found(name)))

    async def _described(self, topic: Topic) -> dict[str, Any]:
        partitions = []
        for number in range(min(topic.partitions, PARTITIONS_SHOWN_MAX)):
            name = topic.stream(number)
            info = await self._service.open(name).info()
            if isinstance(info, StreamInfo):
                partitions.append(
                    {
                        "partition": number,
                        "stream": spelled_name(name),
                        "first_offset": info.first_record,
                        "next_offset": info.record,
                        "bytes": info.byte - info.first_byte,
                        **await self._compacted(topic, name),
                    }
                )
        return {**self._shown(topic), "defaults": _DEFAULTS, "details": partitions}

    async def _compacted(self, topic: Topic, name: str) -> dict[str, Any]:
        """Return how far the compaction of a partition is, if its topic has the policy."""
        if self._compaction is None or not self._profiles.object_store:
            return {}
        if not is_compacted(topic.settings):
            return {}
        found = await self._compaction(name)
        return {"compaction": None if found is None else shown_compaction(found)}

    def _shown(self, topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "id": topic.id.hex(),
            "partitions": topic.partitions,
            "adopted": [spelled_name(stream) for stream in topic.streams],
            "content_type": topic.settings.get(CONTENT_TYPE),
            "configs": topic.settings,
            "notes": notes_of(topic.settings, object_store=self._profiles.object_store),
            "created_at": format_instant(topic.created_ms),
        }


def _named(streams: list[str]) -> list[str]:
    """Return the canonical names. Raises InvalidConfig."""
    try:
        names = [canonical_name(stream) for stream in streams]
    except BadName as bad:
        raise InvalidConfig(f"'streams': {bad}") from None
    if len(set(names)) < len(names):
        raise InvalidConfig("'streams' names one stream twice; each partition is another stream")
    return names


def _with_profile_of(topic: Topic, configs: Mapping[str, str]) -> dict[str, str]:
    """Return configs with the profile of a topic in place of their own."""
    kept = {name: value for name, value in configs.items() if name != PROFILE}
    return kept | {name: value for name, value in topic.configs if name == PROFILE}


def _counted(partitions: int) -> int:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidConfig(
            f"{partitions} partitions were requested; a topic has 1 to {PARTITIONS_MAX}"
        )
    return partitions


def _changed(before: Mapping[str, str], steps: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configs with these set, or removed where null. Raises InvalidConfig."""
    after = dict(before)
    for name, value in with_profile(steps.items()):
        if value is None:
            after.pop(name, None)
        else:
            check_config(name, value)
            after[name] = value
    return after


def _spelled(configs: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(configs.items())) or "no configs"


def _may_read(name: str, principal: Principal | None) -> bool:
    return principal is None or principal.may(Verb.READ, prefix_of(name))
