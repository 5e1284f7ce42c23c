"""DescribeConfigs, ListConfigResources, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import structs

from polynya.access.grants import Verb
from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka import configs as known
from polynya.front.kafka.admin.broker_configs import broker_configs, broker_name, refusal_of
from polynya.front.kafka.admin.client_metrics import CLIENT_METRICS_CONFIGS
from polynya.front.kafka.admin.config_texts import documentation_of
from polynya.front.kafka.admin.group_configs import GROUP_CONFIGS, configured
from polynya.front.kafka.admin.topics import DEFAULT_CONFIG, TOPIC_CONFIG
from polynya.front.kafka.call import Call, count, in_turns
from polynya.front.kafka.configs import (
    CONFIGS,
    PROFILE,
    URSA_STORAGE,
    InvalidConfig,
    check_change,
    check_replicas,
    checked,
    list_of,
    normal,
    profile_named,
    with_profile,
)
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.topics.catalog import acks_of
from polynya.front.kafka.topics.steps import TopicRefused
from polynya.stream.features.topics.state import Topic
from polynya.wire.kafka.generated import alter_configs as alter
from polynya.wire.kafka.generated import incremental_alter_configs as incremental
from polynya.wire.kafka.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from polynya.wire.kafka.generated.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = RESOURCES = (2, 4, 8, 16, 32)  # kinds of resources
STATIC_CONFIG = 4  # a source of a value: the configuration file
SET, DELETE, APPEND, SUBTRACT = range(4)
_NAMED = {GROUP: GROUP_CONFIGS, CLIENT_METRICS: CLIENT_METRICS_CONFIGS}
_Found = tuple[Error, str | None]
_TWICE: _Found = (Error.INVALID_REQUEST, "the request names the resource twice; name it once")


# --- describe ---------------------------------------------------------------------------------


async def describe_configs(call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe the configs of topics and of groups, and those of this broker. No others are set
    here.

    A resource is described once: repeats in a small request would make a very large response."""
    response = DescribeConfigsResponse()
    once = {(each.resource_type, each.resource_name): each for each in request.resources}
    async for asked in in_turns(call, once.values()):
        result = DescribeConfigsResult(
            error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        response.results.append(result)
        try:
            await _describe(call, asked, result, request)
        except PolynyaError as fault:
            result.error_code, result.error_message = error_of_fault(fault), str(fault)
        if count(call, len(result.configs)):
            await asyncio.sleep(0)
    return response


async def _describe(
    call: Call,
    asked: DescribeConfigsResource,
    result: DescribeConfigsResult,
    request: DescribeConfigsRequest,
) -> None:
    kind, listed = asked.resource_type, list[DescribeConfigsResourceResult]()
    if kind == TOPIC:
        topic = await _topic(call, asked.resource_name, result)
        if topic is not None:
            listed = list(_of_topic(topic.settings, synonyms=request.include_synonyms))
    elif kind in _NAMED:
        result.error_code, listed = await _NAMED[kind].described(
            call, asked.resource_name, synonyms=request.include_synonyms
        )
    elif kind == BROKER and not call.caller.may_administer(Operation.DESCRIBE_CONFIGS):
        result.error_code = Error.CLUSTER_AUTHORIZATION_FAILED
    elif kind == BROKER and asked.resource_name:  # "" are those of all brokers: none is set
        if asked.resource_name == str(call.context.brokers.own):
            listed = list(_of_broker(call.context, synonyms=request.include_synonyms))
        else:
            result.error_code = Error.INVALID_REQUEST
            result.error_message = (
                f"unexpected broker id, expected {call.context.brokers.own} or an empty string, but "
                f"received {asked.resource_name[:100]}"
            )
    elif kind not in RESOURCES:
        result.error_code = Error.INVALID_REQUEST
        result.error_message = f"unsupported resource type: {kind}"
    wanted = frozenset(asked.configuration_keys or ())  # none: all
    result.configs = [each for each in listed if not wanted or each.name in wanted]
    if not request.include_documentation:
        for each in result.configs:
            each.documentation = None


async def _topic(call: Call, name: str, result: DescribeConfigsResult) -> Topic | None:
    """Return a topic that the caller may describe."""
    if not call.caller.may_describe(name, Operation.DESCRIBE_CONFIGS):
        result.error_code = Error.TOPIC_AUTHORIZATION_FAILED
        return None
    topic = await call.context.topics.find(name)
    if topic is None:
        result.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = f"topic '{name}' does not exist"
    return topic


def _of_topic(
    configs: Mapping[str, str], *, synonyms: bool
) -> Iterable[DescribeConfigsResourceResult]:
    for name, config in CONFIGS.items():
        source = TOPIC_CONFIG if name in configs else DEFAULT_CONFIG
        value = normal(name, configs.get(name, config.default))
        same = [DescribeConfigsSynonym(broker_name(name), config.default, DEFAULT_CONFIG)]
        if name in configs:
            same.insert(0, DescribeConfigsSynonym(name, value, TOPIC_CONFIG))
        yield DescribeConfigsResourceResult(
            name,
            value,
            config_source=source,
            synonyms=same if synonyms else [],
            config_type=config.type,
            documentation=documentation_of(name),
        )


def _of_broker(context: Context, *, synonyms: bool) -> Iterable[DescribeConfigsResourceResult]:
    for each in broker_configs(context):
        source = STATIC_CONFIG if each.has_setting else DEFAULT_CONFIG
        yield DescribeConfigsResourceResult(
            each.name,
            each.value,
            read_only=True,
            config_source=source,
            synonyms=[DescribeConfigsSynonym(each.name, each.value, source)] if synonyms else [],
            config_type=each.type,
            documentation=each.documentation,
        )


async def list_config_resources(
    call: Call, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List what has configs: topics, brokers, groups, subscriptions to clients' metrics. Version 0
    lists the last ones alone."""
    served = RESOURCES if call.version else (CLIENT_METRICS,)
    wanted = set(request.resource_types if call.version else ()) or set(served)
    if not wanted <= set(served):
        return ListConfigResourcesResponse(error_code=Error.UNSUPPORTED_VERSION)
    context = call.context
    named = [
        (str(broker.id), kind)
        for kind in sorted(wanted & {BROKER, LOGGER})
        for broker in context.brokers.all()
    ]
    if TOPIC in wanted:
        await context.topics.refresh()
        named += [(name, TOPIC) for name in context.topics.names if context.topics.known(name)]
    if wanted & {CLIENT_METRICS, GROUP}:
        try:
            if CLIENT_METRICS in wanted:
                subscribed = await context.telemetry.subscriptions.all()
                named += [(name, CLIENT_METRICS) for name in subscribed]
            if GROUP in wanted:
                named += [(name, GROUP) for name in await configured(call)]
        except PolynyaError as fault:
            return ListConfigResourcesResponse(error_code=error_of_fault(fault))
    response = ListConfigResourcesResponse()
    async for name, kind in in_turns(call, named):
        response.config_resources.append(ConfigResource(name, kind))
    return response


# --- alter ------------------------------------------------------------------------------------


async def alter_configs(
    call: Call, request: alter.AlterConfigsRequest
) -> alter.AlterConfigsResponse:
    """Replace all configs of topics."""
    response = alter.AlterConfigsResponse()
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    async for asked in in_turns(call, request.resources):
        pairs = [(each.name, each.value) for each in asked.configs]
        resource = (asked.resource_type, asked.resource_name)
        found = (
            _TWICE
            if times[resource] > 1
            else await _NAMED[resource[0]].replace(
                call, resource[1], pairs, dry=request.validate_only
            )
            if resource[0] in _NAMED
            else await _alter(
                call,
                resource,
                [each.name for each in asked.configs],
                partial(_replaced, pairs),
                dry=request.validate_only,
            )
        )
        response.responses.append(
            alter.AlterConfigsResourceResponse(*found, asked.resource_type, asked.resource_name)
        )
    return response


async def incremental_alter_configs(
    call: Call, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    """Set, delete, append to or subtract from single configs of topics."""
    response = incremental.IncrementalAlterConfigsResponse()
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    async for asked in in_turns(call, request.resources):
        resource = (asked.resource_type, asked.resource_name)
        found = (
            _TWICE
            if times[resource] > 1
            else await _NAMED[resource[0]].step(
                call, resource[1], asked.configs, dry=request.validate_only
            )
            if resource[0] in _NAMED
            else await _alter(
                call,
                resource,
                [each.name for each in asked.configs],
                partial(_stepped, asked.configs),
                dry=request.validate_only,
            )
        )
        response.responses.append(
            incremental.AlterConfigsResourceResponse(
                *found, asked.resource_type, asked.resource_name
            )
        )
    return response


async def _alter(
    call: Call,
    resource: tuple[int, str],
    configs: Iterable[str],
    change: Callable[[dict[str, str]], dict[str, str]],
    *,
    dry: bool,
) -> _Found:
    kind, name = resource
    context = call.context
    if kind == BROKER:
        if not call.caller.may_administer():
            return Error.CLUSTER_AUTHORIZATION_FAILED, "the token does not allow 'admin'"
        return Error.INVALID_REQUEST, refusal_of(configs)
    if kind != TOPIC:
        why = (
            "only topics, groups and client metrics have configs that change here; a node has "
            "settings: see docs/kafka.md"
        )
        return Error.INVALID_REQUEST, why
    if not call.caller.may(Verb.DELETE, name, Operation.ALTER_CONFIGS):
        return Error.TOPIC_AUTHORIZATION_FAILED, f"the token does not allow 'delete' on '{name}'"

    def checked_change(before: dict[str, str]) -> dict[str, str]:
        after = change(before)
        check_change(before, after)
        check_replicas(before, after, acks_of(context.service, name))
        return before if dry else after

    try:
        if await context.topics.find(name) is None:
            return Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist"
        await context.topics.alter(name, checked_change)
    except InvalidConfig as invalid:
        return Error.INVALID_CONFIG, str(invalid)
    except TopicRefused as refused:
        return Error.UNKNOWN_TOPIC_OR_PARTITION, str(refused)
    except PolynyaError as fault:
        return error_of_fault(fault), str(fault)
    return Error.NONE, None


def _replaced(
    wanted: Iterable[tuple[str, str | None]], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the configs of a request that names all. Raises InvalidConfig."""
    return checked(wanted, before)


def _stepped(
    steps: Iterable[incremental.AlterableConfig], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the configs after each step. Raises InvalidConfig."""
    after = dict(before)
    seen: set[str] = set()
    for step in _in_own_names(steps):
        config = CONFIGS.get(step.name)
        if config is None:
            raise InvalidConfig(f"unknown topic config name: {step.name}")
        if step.name in seen:
            raise InvalidConfig(f"config {step.name} is given twice")
        seen.add(step.name)
        if step.config_operation == DELETE:
            after.pop(step.name, None)
            continue
        if step.value is None:
            raise InvalidConfig(f"config {step.name} has no value")
        if step.config_operation == SET:
            after[step.name] = step.value
        elif step.config_operation in (APPEND, SUBTRACT) and config.type == known.LIST:
            after[step.name] = _edited(after.get(step.name, config.default), step)
        else:
            raise InvalidConfig(
                f"operation {step.config_operation} on {step.name}: 0 sets, 1 deletes, and 2 and 3 "
                "change a list"
            )
    return checked(after.items(), before)


def _in_own_names(
    steps: Iterable[incremental.AlterableConfig],
) -> list[incremental.AlterableConfig]:
    """Return the steps with those of `ursa.storage.enable` as ones of the profile. Raises
    InvalidConfig."""
    given = list(steps)
    if not any(step.name == URSA_STORAGE for step in given):
        return given
    with_profile((step.name, step.value) for step in given if step.config_operation != DELETE)
    rest = [step for step in given if step.name != URSA_STORAGE]
    if any(step.name == PROFILE for step in rest):
        return rest  # they agree
    return rest + [
        structs.replace(step, name=PROFILE, value=profile_named(step.value))
        for step in given
        if step.name == URSA_STORAGE
    ]


def _edited(value: str, step: incremental.AlterableConfig) -> str:
    listed, given = list_of(value), list_of(step.value or "")
    if step.config_operation == APPEND:
        listed += [each for each in given if each not in listed]
    else:
        listed = [each for each in listed if each not in given]
    return ",".join(listed)
