"""The subscriptions to clients' metrics for DescribeConfigs, AlterConfigs and
IncrementalAlterConfigs. One without a config does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka.admin.topics import DEFAULT_CONFIG
from polynya.front.kafka.call import Call
from polynya.front.kafka.configs import LIST, list_of
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.telemetry.subscriptions import (
    CONFIGS,
    Configs,
    InvalidClientMetrics,
    checked,
    is_name,
)
from polynya.wire.kafka.generated.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from polynya.wire.kafka.generated.incremental_alter_configs import AlterableConfig

CLIENT_METRICS_CONFIG = 7  # a source of a value: the subscription
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_Found = tuple[Error, str | None]


async def described(
    call: Call, name: str, *, synonyms: bool
) -> tuple[Error, list[DescribeConfigsResourceResult]]:
    """Return the configs of a subscription, which need not exist. Raises PolynyaError."""
    error = _refusal(call, name, Operation.DESCRIBE_CONFIGS)
    if error:
        return error, []
    own = (await call.context.telemetry.subscriptions.all()).get(name, {})
    listed = []
    for each, config in CONFIGS.items():
        same = [DescribeConfigsSynonym(each, config.default, DEFAULT_CONFIG)]
        if each in own:
            same.insert(0, DescribeConfigsSynonym(each, own[each], CLIENT_METRICS_CONFIG))
        listed.append(
            DescribeConfigsResourceResult(
                each,
                own.get(each, config.default),
                config_source=CLIENT_METRICS_CONFIG if each in own else DEFAULT_CONFIG,
                synonyms=same if synonyms else [],
                config_type=config.type,
                documentation=config.documentation,
            )
        )
    return Error.NONE, listed


async def replace(
    call: Call, name: str, pairs: Iterable[tuple[str, str | None]], *, dry: bool
) -> _Found:
    """Replace all configs of a subscription; return the error."""
    given = {each: value for each, value in pairs if value is not None}
    return await _alter(call, name, lambda before: given, dry=dry)


async def step(call: Call, name: str, steps: Iterable[AlterableConfig], *, dry: bool) -> _Found:
    """Set, delete, append to or subtract from single configs of a subscription; return the error."""
    listed = list(steps)

    def change(before: Configs) -> Configs:
        after = dict(before)
        for each in listed:
            _step(after, each)
        return after

    return await _alter(call, name, change, dry=dry)


def _step(configs: Configs, step: AlterableConfig) -> None:
    config = CONFIGS.get(step.name)
    if config is None:
        checked({step.name: ""})  # which refuses the name
        return
    operation = step.config_operation
    if operation == _DELETE:
        configs.pop(step.name, None)
    elif operation == _SET and step.value is not None:
        configs[step.name] = step.value
    elif operation in (_APPEND, _SUBTRACT) and step.value is not None and config.type == LIST:
        before, given = list_of(configs.get(step.name, config.default)), list_of(step.value)
        kept = [each for each in before if each not in given]
        after = list(dict.fromkeys(before + given)) if operation == _APPEND else kept
        configs[step.name] = ",".join(after)
    else:
        raise InvalidClientMetrics(
            f"operation {operation} on {step.name}: 0 sets, 1 deletes, and 2 and 3 change a list"
        )


async def _alter(
    call: Call, name: str, change: Callable[[Configs], Configs], *, dry: bool
) -> _Found:
    error = _refusal(call, name, Operation.ALTER_CONFIGS)
    if error:
        return error, f"the client metrics subscription '{name[:100]}' cannot be changed"
    subscriptions = call.context.telemetry.subscriptions
    try:
        if dry:
            checked(change(dict((await subscriptions.all()).get(name, {}))))
        else:
            await subscriptions.alter(name, change)
    except InvalidClientMetrics as invalid:
        return Error.INVALID_CONFIG, str(invalid)
    except PolynyaError as fault:
        return error_of_fault(fault), str(fault)
    return Error.NONE, None


def _refusal(call: Call, name: str, operation: Operation) -> Error:
    if not call.caller.may_administer(operation):
        return Error.CLUSTER_AUTHORIZATION_FAILED
    return Error.NONE if is_name(name) else Error.INVALID_REQUEST
