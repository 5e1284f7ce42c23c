"""DescribeClientQuotas and AlterClientQuotas: the byte rates of users."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.access.grants import BadScope, check_name
from polynya.access.kafka_rules import (
    DEFAULT_USER,
    BadQuota,
    KafkaRules,
    Quota,
    with_quota,
)
from polynya.access.token_file import AtRest
from polynya.front.kafka.auth.user_admin import (
    FAULTS,
    Found,
    fault_of,
    now_ms,
    refusal,
    with_rules,
)
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated import alter_client_quotas as altered
from polynya.wire.kafka.generated import describe_client_quotas as described

USER, CLIENT, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _ANY = 0, 1, 2  # match types of a filter
_RATES = Quota.__struct_fields__
_RATE_MAX = 1 << 53  # a whole number in a float
_REFUSED = {
    "request_percentage": "set the requests a second of a token: 'polynya token create --requests'",
    "controller_mutation_rate": "set the streams of a token: 'polynya token create --streams'",
    "connection_creation_rate": "set the connections of a token: 'polynya token create --connections'",
}
_USERS_ALONE = (
    "only quotas of a user are supported, not of {}: a client chooses its client id, and a firewall "
    "has addresses"
)


class _Refused(Exception):
    """A quota that is not stored."""

    def __init__(self, error: Error, why: str) -> None:
        super().__init__(why)
        self.found: Found = (error, why)


async def describe_quotas(
    call: Call, request: described.DescribeClientQuotasRequest
) -> described.DescribeClientQuotasResponse:
    """Return the quotas that a filter matches."""
    admin = call.context.user_admin
    if admin is None:  # as a Kafka without quotas
        return described.DescribeClientQuotasResponse(error_message=None)
    refused = refusal(admin, call.context.service.level)
    try:
        _check_filter(request.components)
        known = AtRest() if refused else await admin.load()
    except _Refused as invalid:
        refused = invalid.found
    except FAULTS as fault:
        refused = fault_of(fault)
    if refused:
        return described.DescribeClientQuotasResponse(0, *refused, entries=None)
    entries = [
        described.EntryData(
            [described.EntityData(USER, None if user == DEFAULT_USER else user)],
            [
                described.ValueData(rate, float(getattr(quota, rate)))
                for rate in _RATES
                if getattr(quota, rate)
            ],
        )
        for user, quota in known.kafka.quotas.items()
        if _matches(request, user)
    ]
    return described.DescribeClientQuotasResponse(error_message=None, entries=entries)


def _check_filter(components: Iterable[described.ComponentData]) -> None:
    kinds = [each.entity_type for each in components]
    for each in components:
        if each.entity_type not in (USER, CLIENT, IP):
            why = f"entity type '{each.entity_type[:100]}'; expected user, client-id or ip"
            raise _Refused(Error.UNSUPPORTED_VERSION, why)
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            why = f"match type {each.match_type}; expected exact (0), default (1) or specified (2)"
            raise _Refused(Error.INVALID_REQUEST, why)
        if each.match_type == _EXACT and each.match is None:
            raise _Refused(Error.INVALID_REQUEST, "an exact match needs a name")
    if len(set(kinds)) < len(kinds):
        raise _Refused(Error.INVALID_REQUEST, "the filter has an entity type twice")
    if IP in kinds and len(kinds) > 1:
        raise _Refused(Error.INVALID_REQUEST, "an ip has no user and no client-id")


def _matches(request: described.DescribeClientQuotasRequest, user: str) -> bool:
    """Report whether a filter has a quota of a user, which has no other entity."""
    for each in request.components:
        if each.entity_type != USER:
            return False
        if each.match_type == _EXACT and each.match != user:
            return False
        if each.match_type == _DEFAULT and user != DEFAULT_USER:
            return False
    return bool(request.components) or not request.strict


async def alter_quotas(
    call: Call, request: altered.AlterClientQuotasRequest
) -> altered.AlterClientQuotasResponse:
    """Set and delete quotas of users; each entry apart, as in Kafka."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    response = altered.AlterClientQuotasResponse()
    async for asked in in_turns(call, request.entries):
        error, why = refused or await _altered(call, asked, dry=request.validate_only)
        response.entries.append(altered.EntryDataResponse(error, why, asked.entity))
        if admin is not None and not request.validate_only:
            target = ", ".join(f"{each.entity_type} {each.entity_name}" for each in asked.entity)
            by = (call.caller, call.connection.remote)
            admin.record("user.quota", target[:_TARGET_MAX], by, error)
    return response


_TARGET_MAX = 300  # characters of a line of the audit log


async def _altered(call: Call, asked: altered.EntryData, *, dry: bool) -> Found:
    admin = call.context.user_admin
    assert admin is not None
    try:
        user, rates = _user(asked.entity), _rates(asked.ops)

        def change(known: AtRest) -> tuple[AtRest, None]:
            after = _with_rates(known.kafka, user, rates)
            return known if dry else with_rules(known, after), None

        await admin.change(change)
    except _Refused as invalid:
        return invalid.found
    except BadQuota as bad:
        return Error.POLICY_VIOLATION, str(bad)
    except FAULTS as fault:
        return fault_of(fault)
    return Error.NONE, None


def _user(entity: list[altered.EntityData]) -> str:
    kinds = [each.entity_type for each in entity]
    if not kinds or len(set(kinds)) < len(kinds):
        raise _Refused(Error.INVALID_REQUEST, "an entity has at least one type, and none twice")
    other = next((each for each in kinds if each != USER), None)
    if other in (CLIENT, IP):
        raise _Refused(Error.POLICY_VIOLATION, _USERS_ALONE.format(other))
    if other is not None:
        why = f"entity type '{other[:100]}'; expected user, client-id or ip"
        raise _Refused(Error.INVALID_REQUEST, why)
    name = entity[0].entity_name
    try:
        return DEFAULT_USER if name is None else check_name(name)
    except BadScope as bad:
        raise _Refused(Error.INVALID_REQUEST, str(bad)) from None


def _rates(ops: list[altered.OpData]) -> dict[str, int]:
    """Return the rates that change; 0 deletes one."""
    found = dict[str, int]()
    for each in ops:
        if each.key in _REFUSED:
            raise _Refused(
                Error.POLICY_VIOLATION, f"{each.key} is not supported; {_REFUSED[each.key]}"
            )
        if each.key not in _RATES:
            why = f"quota '{each.key[:100]}' is unknown; expected {' or '.join(_RATES)}"
            raise _Refused(Error.INVALID_REQUEST, why)
        if each.key in found:
            raise _Refused(Error.INVALID_REQUEST, f"{each.key} is given twice")
        is_rate = each.value == each.value // 1 and 1 <= each.value <= _RATE_MAX
        if not each.remove and not is_rate:
            why = (
                f"{each.key} is {each.value}; expected a whole number of bytes a second, 1 or more"
            )
            raise _Refused(Error.INVALID_REQUEST, why)
        found[each.key] = 0 if each.remove else int(each.value)
    return found


def _with_rates(rules: KafkaRules, user: str, rates: dict[str, int]) -> KafkaRules:
    quota = msgspec.structs.replace(rules.quotas.get(user, Quota()), **rates)
    return with_quota(rules, user, quota, now_ms())
