"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from polynya.access.kafka_acls import (
    EVERYBODY,
    Acl,
    AclFilter,
    BadAcl,
    Permission,
    RefusedAcl,
    check_filter,
    made_acl,
)
from polynya.access.kafka_rules import with_acls, without_acls
from polynya.access.scope_acls import acls_of_tokens
from polynya.access.token_file import AtRest
from polynya.base.limits import ACL_COMPARISONS_MAX
from polynya.front.kafka.auth.user_admin import (
    FAULTS,
    Found,
    fault_of,
    now_ms,
    refusal,
    with_rules,
)
from polynya.front.kafka.call import Call, count, in_thread, in_turns
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated import create_acls as created
from polynya.wire.kafka.generated import delete_acls as deleted
from polynya.wire.kafka.generated import describe_acls as described

_OF_A_SCOPE: Found = (
    Error.POLICY_VIOLATION,
    "this is a scope of a token, not an ACL: revoke the token with 'polynya token revoke'",
)


async def describe_acls(
    call: Call, request: described.DescribeAclsRequest
) -> described.DescribeAclsResponse:
    """Return the ACLs that a filter matches, and those that the scopes of tokens stand for."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    if admin is None or refused:
        error, why = refused or (Error.SECURITY_DISABLED, None)
        return described.DescribeAclsResponse(error_code=error, error_message=why)
    try:
        wanted = _filter(request)
        known = await admin.load()
    except BadAcl as bad:
        return described.DescribeAclsResponse(
            error_code=Error.INVALID_REQUEST, error_message=str(bad)
        )
    except FAULTS as fault:
        error, why = fault_of(fault)
        return described.DescribeAclsResponse(error_code=error, error_message=why)
    (matching,) = await in_thread(call.context.turns.coding, partial(_matching_of, known, [wanted]))
    found = dict[tuple[int, str, int], described.DescribeAclsResource]()
    async for acl, _ in in_turns(call, matching):
        pattern = (acl.kind, acl.name, acl.pattern)
        resource = found.setdefault(pattern, described.DescribeAclsResource(*pattern, []))
        resource.acls.append(
            described.AclDescription(acl.principal, EVERYBODY, acl.operation, Permission.ALLOW)
        )
    return described.DescribeAclsResponse(error_message=None, resources=list(found.values()))


async def create_acls(call: Call, request: created.CreateAclsRequest) -> created.CreateAclsResponse:
    """Store the valid ACLs of a request, together."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    if admin is None or refused:
        results = [created.AclCreationResult(*refused or ()) for _ in request.creations]
        return created.CreateAclsResponse(results=results)
    checked = [_checked(each) async for each in in_turns(call, request.creations)]
    outcome = await _stored(call, {each for each in checked if isinstance(each, Acl)})
    results = []
    for asked, acl in zip(request.creations, checked, strict=True):
        error, why = outcome if isinstance(acl, Acl) else acl
        results.append(created.AclCreationResult(error, why))
        target = (
            str(acl)
            if isinstance(acl, Acl)
            else f"{asked.principal} on {asked.resource_name}"[:_TARGET_MAX]
        )
        admin.record("acl.create", target, (call.caller, call.connection.remote), error)
    return created.CreateAclsResponse(results=results)


_TARGET_MAX = 300  # characters of a line of the audit log


def _checked(asked: created.AclCreation) -> Acl | Found:
    try:
        return made_acl(
            kind=asked.resource_type,
            name=asked.resource_name,
            pattern=asked.resource_pattern_type,
            principal=asked.principal,
            host=asked.host,
            operation=asked.operation,
            permission=asked.permission_type,
        )
    except RefusedAcl as refused:
        return Error.POLICY_VIOLATION, str(refused)
    except BadAcl as bad:
        return Error.INVALID_REQUEST, str(bad)


async def _stored(call: Call, more: set[Acl]) -> Found:
    admin = call.context.user_admin
    if not more or admin is None:
        return Error.NONE, None

    def change(known: AtRest) -> tuple[AtRest, None]:
        return with_rules(known, with_acls(known.kafka, more, now_ms())), None

    try:
        await admin.change(change)
    except BadAcl as bad:  # too many
        return Error.POLICY_VIOLATION, str(bad)
    except FAULTS as fault:
        return fault_of(fault)
    return Error.NONE, None


async def delete_acls(call: Call, request: deleted.DeleteAclsRequest) -> deleted.DeleteAclsResponse:
    """Delete the ACLs that filters match. What the scope of a token stands for stays, and is
    answered with an error."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    if admin is None or refused:
        return _all_refused(request, *refused or (Error.SECURITY_DISABLED, None))
    filters = list[AclFilter | None]()
    results = []
    for asked in request.filters:
        result = deleted.DeleteAclsFilterResult(Error.NONE, None)
        results.append(result)
        try:
            filters.append(_filter(asked))
        except BadAcl as bad:
            filters.append(None)
            result.error_code, result.error_message = Error.INVALID_REQUEST, str(bad)

    try:
        known = await admin.load()
        matching = await in_thread(call.context.turns.coding, partial(_matching_of, known, filters))
        gone = {acl for each in matching for acl, _ in each}

        def change(now: AtRest) -> tuple[AtRest, None]:
            return with_rules(now, without_acls(now.kafka, gone, now_ms())), None

        await admin.change(change)
    except BadAcl as bad:  # too many
        return _all_refused(request, Error.POLICY_VIOLATION, str(bad))
    except FAULTS as fault:
        return _all_refused(request, *fault_of(fault))
    by = (call.caller, call.connection.remote)
    async for result, found in in_turns(call, zip(results, matching, strict=True)):
        for acl, is_of_scope in found:
            each = _matching(acl, is_of_scope)
            result.matching_acls.append(each)
            admin.record("acl.delete", str(acl), by, Error(each.error_code))
        if count(call, len(found)):
            await asyncio.sleep(0)
    return deleted.DeleteAclsResponse(filter_results=results)


def _all_refused(
    request: deleted.DeleteAclsRequest, error: Error, why: str | None
) -> deleted.DeleteAclsResponse:
    results = [deleted.DeleteAclsFilterResult(error, why) for _ in request.filters]
    return deleted.DeleteAclsResponse(filter_results=results)


def _matching_of(
    known: AtRest, filters: Sequence[AclFilter | None]
) -> list[list[tuple[Acl, bool]]]:
    """Return what each filter matches, and of each ACL whether the scope of a token stands for it.
    Raises BadAcl if that takes too long."""
    of_scopes = acls_of_tokens(known.tokens, now_ms())
    every = sorted({*known.kafka.acls, *of_scopes})
    if len(filters) * len(every) > ACL_COMPARISONS_MAX and len(filters) > 1:
        raise BadAcl(
            f"{len(filters)} filters and {len(every)} ACLs are too many for one request: send "
            "fewer filters"
        )
    return [
        [] if wanted is None else [(acl, acl in of_scopes) for acl in every if wanted.matches(acl)]
        for wanted in filters
    ]


def _matching(acl: Acl, is_of_scope: bool) -> deleted.DeleteAclsMatchingAcl:
    error, why = _OF_A_SCOPE if is_of_scope else (Error.NONE, None)
    return deleted.DeleteAclsMatchingAcl(
        error,
        why,
        acl.kind,
        acl.name,
        acl.pattern,
        acl.principal,
        EVERYBODY,
        acl.operation,
        Permission.ALLOW,
    )


def _filter(asked: described.DescribeAclsRequest | deleted.DeleteAclsFilter) -> AclFilter:
    return check_filter(
        AclFilter(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )
    )
