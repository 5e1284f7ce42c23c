"""DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict

from polynya.access.kafka_users import BadUser, NoCredential, alter_user, checked_verifier
from polynya.access.scram import Verifier
from polynya.access.token_file import AtRest, TokenRecord
from polynya.front.kafka.auth.user_admin import FAULTS, Found, fault_of, now_ms, refusal
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated import alter_user_scram_credentials as altered
from polynya.wire.kafka.generated import describe_user_scram_credentials as described

# org.apache.kafka.clients.admin.ScramMechanism
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_CODES = {name: code for code, name in MECHANISMS.items()}
_Result = described.DescribeUserScramCredentialsResult


async def describe_users(
    call: Call, request: described.DescribeUserScramCredentialsRequest
) -> described.DescribeUserScramCredentialsResponse:
    """Return the mechanisms of the named users and tokens, or of all that have some."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    try:
        if admin is None or refused:
            return described.DescribeUserScramCredentialsResponse(0, *refused or ())
        known = await admin.load()
    except FAULTS as fault:
        return described.DescribeUserScramCredentialsResponse(0, *fault_of(fault))
    at = now_ms()
    records = {
        each.name: each for each in known.tokens if each.scram and each.state(at) == "active"
    }
    times = Counter(each.name for each in request.users or ())
    results = [
        _described(name, records.get(name), times[name])
        async for name in in_turns(call, times or sorted(records))
    ]
    return described.DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(name: str, record: TokenRecord | None, times: int) -> _Result:
    if times > 1:
        return _Result(name, Error.DUPLICATE_RESOURCE, f"the user '{name}' is named {times} times")
    if record is None:
        return _Result(name, Error.RESOURCE_NOT_FOUND, f"no user '{name}' has a password")
    infos = [
        described.CredentialInfo(_CODES[mechanism], verifier.iterations)
        for mechanism, verifier in sorted(record.scram.items())
    ]
    return _Result(name, Error.NONE, None, infos)


async def alter_users(
    call: Call, request: altered.AlterUserScramCredentialsRequest
) -> altered.AlterUserScramCredentialsResponse:
    """Set and delete passwords: for each user all that the request says, or nothing."""
    admin = call.context.user_admin
    refused = refusal(admin, call.context.service.level)
    by_user = defaultdict[str, _Alteration](_Alteration)
    for gone in request.deletions:
        by_user[gone.name].deletions.append(gone.mechanism)
    for put in request.upsertions:
        by_user[put.name].upsertions.append(put)
    results = []
    async for name, wanted in in_turns(call, by_user.items()):
        error, why = refused or await _altered(call, name, wanted)
        results.append(altered.AlterUserScramCredentialsResult(name, error, why))
        if admin is not None:
            by = (call.caller, call.connection.remote)
            admin.record("user.password", name[:_TARGET_MAX], by, error)
    return altered.AlterUserScramCredentialsResponse(results=results)


_TARGET_MAX = 300  # characters of a line of the audit log


class _Alteration:
    """The deletions and upsertions of one user in a request."""

    def __init__(self) -> None:
        self.deletions: list[int] = []
        self.upsertions: list[altered.ScramCredentialUpsertion] = []

    def read(self) -> tuple[list[str], dict[str, Verifier]] | Found:
        """Return the mechanisms to delete, and the new verifiers, or an error."""
        codes = [*self.deletions, *(each.mechanism for each in self.upsertions)]
        unknown = [code for code in codes if code not in MECHANISMS]
        if unknown:
            why = f"mechanism {unknown[0]} is unknown; expected 1 (SHA-256) or 2 (SHA-512)"
            return Error.UNSUPPORTED_SASL_MECHANISM, why
        if len(set(codes)) < len(codes):
            return Error.DUPLICATE_RESOURCE, "the request names a mechanism of the user twice"
        try:
            verifiers = {
                MECHANISMS[each.mechanism]: checked_verifier(
                    MECHANISMS[each.mechanism],
                    bytes(each.salt),
                    bytes(each.salted_password),
                    each.iterations,
                )
                for each in self.upsertions
            }
        except BadUser as bad:
            return Error.UNACCEPTABLE_CREDENTIAL, str(bad)
        return [MECHANISMS[code] for code in self.deletions], verifiers


async def _altered(call: Call, name: str, wanted: _Alteration) -> Found:
    read = wanted.read()
    if isinstance(read[0], Error):
        return read[0], str(read[1])
    gone, put = read
    admin, id_ = call.context.user_admin, secrets.token_hex(6)
    assert admin is not None

    def change(known: AtRest) -> tuple[AtRest, None]:
        after = alter_user(known, name, gone=gone, put=put, new_id=id_, now_ms=now_ms())
        return after, None

    try:
        await admin.change(change)
    except NoCredential as missing:
        return Error.RESOURCE_NOT_FOUND, str(missing)
    except BadUser as bad:
        return Error.UNACCEPTABLE_CREDENTIAL, str(bad)
    except FAULTS as fault:
        return fault_of(fault)
    return Error.NONE, None
