"""The configs of consumer groups for DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka.admin.topics import DEFAULT_CONFIG
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.groups.coordinators import is_group_id
from polynya.service.consumer_groups.configs import (
    CONFIGS,
    Configs,
    GroupConfigs,
    InvalidGroupConfig,
    checked,
)
from polynya.wire.kafka.generated.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from polynya.wire.kafka.generated.incremental_alter_configs import AlterableConfig

GROUP_CONFIG = 8  # a source of a value: the group
_INT = 3  # a type of configs
_SET, _DELETE = 0, 1
_Found = tuple[Error, str | None]


async def described(
    call: Call, group: str, *, synonyms: bool
) -> tuple[Error, list[DescribeConfigsResourceResult]]:
    """Return the configs of a group, which need not exist. Raises PolynyaError."""
    error = _refusal(call, group, Operation.DESCRIBE_CONFIGS)
    if error:
        return error, []
    own = (await _configs(call).all()).get(group, {})
    listed = []
    for name, config in CONFIGS.items():
        default = str(config.default)
        same = [DescribeConfigsSynonym(f"group.{name}", default, DEFAULT_CONFIG)]
        if name in own:
            same.insert(0, DescribeConfigsSynonym(name, own[name], GROUP_CONFIG))
        listed.append(
            DescribeConfigsResourceResult(
                name,
                own.get(name, default),
                config_source=GROUP_CONFIG if name in own else DEFAULT_CONFIG,
                synonyms=same if synonyms else [],
                config_type=_INT,
                documentation=config.documentation,
            )
        )
    return Error.NONE, listed


async def configured(call: Call) -> list[str]:
    """Return the groups with configs that the caller may use. Raises PolynyaError."""
    return [
        each
        for each in await _configs(call).all()
        if call.caller.may_use_group(each, Operation.DESCRIBE_CONFIGS)
    ]


async def replace(
    call: Call, group: str, pairs: Iterable[tuple[str, str | None]], *, dry: bool
) -> _Found:
    """Replace all configs of a group; return the error."""
    given = {name: value for name, value in pairs if value is not None}
    return await _alter(call, group, lambda before: given, dry=dry)


async def step(call: Call, group: str, steps: Iterable[AlterableConfig], *, dry: bool) -> _Found:
    """Set and delete single configs of a group; return the error."""
    listed = list(steps)

    def change(before: Configs) -> Configs:
        after = dict(before)
        for each in listed:
            if each.name not in CONFIGS:
                checked({each.name: ""})
            if each.config_operation == _DELETE:
                after.pop(each.name, None)
            elif each.config_operation == _SET and each.value is not None:
                after[each.name] = each.value
            else:
                why = f"operation {each.config_operation} on {each.name}: 0 sets, and 1 deletes"
                raise InvalidGroupConfig(why)
        return after

    return await _alter(call, group, change, dry=dry)


async def _alter(
    call: Call, group: str, change: Callable[[Configs], Configs], *, dry: bool
) -> _Found:
    error = _refusal(call, group, Operation.ALTER_CONFIGS)
    if error:
        return error, f"the configs of group '{group[:100]}' cannot be changed"
    configs = _configs(call)
    try:
        if dry:
            checked(change((await configs.all()).get(group, {})))
        else:
            await configs.alter(group, change)
    except InvalidGroupConfig as invalid:
        return Error.INVALID_CONFIG, str(invalid)
    except PolynyaError as fault:
        return error_of_fault(fault), str(fault)
    return Error.NONE, None


def _refusal(call: Call, group: str, operation: Operation) -> Error:
    if not is_group_id(group):
        return Error.INVALID_GROUP_ID
    may_use = call.caller.may_use_group(group, operation)
    return Error.NONE if may_use else Error.GROUP_AUTHORIZATION_FAILED


def _configs(call: Call) -> GroupConfigs:
    return GroupConfigs(call.context.service.meta_group)
