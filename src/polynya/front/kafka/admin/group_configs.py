"""The configs of consumer groups, which need not exist to have some."""

from __future__ import annotations

from polynya.access.kafka_acls import Operation
from polynya.front.kafka.admin.named_configs import ConfigKind, KnownConfig
from polynya.front.kafka.call import Call
from polynya.front.kafka.configs import INT
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.coordinators import is_group_id
from polynya.service.consumer_groups.configs import (
    CONFIGS,
    GroupConfigs,
    InvalidGroupConfig,
    checked,
)

GROUP_CONFIG = 8  # a source of a value: the group


async def configured(call: Call) -> list[str]:
    """Return the groups with configs that the caller may use. Raises PolynyaError."""
    return [
        each
        for each in await _configs(call).all()
        if call.caller.may_use_group(each, Operation.DESCRIBE_CONFIGS)
    ]


def _refusal(call: Call, group: str, operation: Operation) -> Error:
    if not is_group_id(group):
        return Error.INVALID_GROUP_ID
    may_use = call.caller.may_use_group(group, operation)
    return Error.NONE if may_use else Error.GROUP_AUTHORIZATION_FAILED


def _configs(call: Call) -> GroupConfigs:
    return GroupConfigs(call.context.service.meta_group)


GROUP_CONFIGS = ConfigKind(
    source=GROUP_CONFIG,
    configs={
        name: KnownConfig(INT, str(each.default), each.documentation, f"group.{name}")
        for name, each in CONFIGS.items()
    },
    stored=_configs,
    refusal=_refusal,
    checked=checked,
    invalid=InvalidGroupConfig,
    what="the configs of group",
    operations="0 sets, and 1 deletes",
)
