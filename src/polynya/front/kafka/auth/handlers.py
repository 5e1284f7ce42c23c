"""SaslHandshake and SaslAuthenticate, and the admission of every other request."""

from __future__ import annotations

from polynya.base.limits import KAFKA_ELEMENTS_PER_TURN
from polynya.front.kafka.auth.caller import (
    ADMINISTRATIVE,
    CHECKED,
    CONSUMER_RATE,
    OPEN,
    PRODUCER_RATE,
    TokenCaller,
    TooManyConnections,
)
from polynya.front.kafka.auth.sasl import MECHANISMS, Exchange, SaslFailed
from polynya.front.kafka.call import FETCH, PRODUCE, Call, Connection
from polynya.front.kafka.errors import Error
from polynya.front.kafka.request_memory import Holding
from polynya.wire.kafka.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from polynya.wire.kafka.generated.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_RAW_VERSION = 0  # after this version of SaslHandshake, SASL messages come without a header
_LENGTH = 4
_QUOTAS = {PRODUCE: PRODUCER_RATE, FETCH: CONSUMER_RATE}


async def sasl_handshake(call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin an authentication, or the re-authentication of a connection."""
    connection, caller = call.connection, call.caller
    if not isinstance(caller, TokenCaller):
        return SaslHandshakeResponse(Error.ILLEGAL_SASL_STATE)
    if request.mechanism not in MECHANISMS:
        connection.stop()
        return SaslHandshakeResponse(Error.UNSUPPORTED_SASL_MECHANISM, list(MECHANISMS))
    call.session.sasl = Exchange(caller.access, request.mechanism)
    call.session.is_sasl_raw = call.version == _RAW_VERSION
    return SaslHandshakeResponse(Error.NONE, list(MECHANISMS))


async def sasl_authenticate(
    call: Call, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Take the client's next SASL message. A failed authentication ends the connection."""
    if call.session.sasl is None:
        call.connection.stop()
        why = "SaslHandshake with a mechanism must come first, on a node with access control"
        return SaslAuthenticateResponse(Error.ILLEGAL_SASL_STATE, why)
    try:
        answer = await _step(call.connection, request.auth_bytes)
    except SaslFailed as failed:
        call.connection.stop()
        return SaslAuthenticateResponse(Error.SASL_AUTHENTICATION_FAILED, str(failed))
    return SaslAuthenticateResponse(
        Error.NONE, None, answer, session_lifetime_ms=_lifetime_ms(call.connection)
    )


async def authenticate_raw(
    connection: Connection, number: int, data: memoryview, holding: Holding | None
) -> None:
    """Take a SASL message without a header, and answer likewise. A failure closes the
    connection."""
    try:
        answer = await _step(connection, bytes(data))
    except SaslFailed:
        connection.close()
        return
    finally:
        if holding is not None:
            holding.release()
    connection.responses.send(number, [len(answer).to_bytes(_LENGTH), answer])


async def _step(connection: Connection, message: bytes) -> bytes:
    """Return the next message for the client; bind the connection to a proven principal. Raises
    `SaslFailed`."""
    exchange, caller = connection.session.sasl, connection.caller
    assert exchange is not None
    assert isinstance(caller, TokenCaller)
    try:
        answer = await exchange.step(message)
        if exchange.principal is None:
            return answer
        if caller.principal is not None and caller.principal.id != exchange.principal.id:
            raise SaslFailed("a connection is authenticated again for the same token only")
        if connection.responses.transport is not None:
            caller.bind(exchange.principal)
            connection.authenticated()
    except (SaslFailed, TooManyConnections) as failed:
        connection.complain("closed a Kafka connection: authentication failed", failed)
        raise SaslFailed(str(failed)) from None
    connection.session.sasl, connection.session.is_sasl_raw = None, False
    return answer


def _lifetime_ms(connection: Connection) -> int:
    """Return the time until the client has to authenticate again; 0 for none."""
    caller = connection.caller
    if not isinstance(caller, TokenCaller) or caller.principal is None:
        return 0
    expires_ms = caller.principal.expires_ms
    return 0 if expires_ms is None else max(1, expires_ms - caller.access.wall_ms())


def admit(call: Call, caller: TokenCaller) -> bool:
    """Admit a request of a connection that has to authenticate, and charge its limits. Otherwise
    close the connection and return False."""
    connection, key = call.connection, call.header.key
    if key in OPEN:
        return True
    why = ""
    if not caller.is_known:
        why = "closed a Kafka connection: a request came without authentication"
        caller.access.counters.denied += 1
    elif key not in CHECKED and key not in ADMINISTRATIVE and not caller.may_administer():
        why = "closed a Kafka connection: its request needs a token with 'admin'"
    if why:
        call.drop()
        connection.complain(why)
        connection.close()
        return False
    now, wait = caller.access.now(), 0.0
    if caller.meter is not None:
        wait = caller.meter.admit(now, len(call.data))
    if key in _QUOTAS and (quota := caller.quota_of(_QUOTAS[key])) is not None:
        # the bytes of a Fetch are those of its answer
        wait = max(wait, quota.admit(now, len(call.data) if key == PRODUCE else 0))
    _charge(call, caller, wait)
    return True


def charge_elements(call: Call, count: int) -> None:
    """Charge a request of many elements as several requests."""
    caller = call.caller
    if isinstance(caller, TokenCaller) and caller.meter is not None:
        more = count // KAFKA_ELEMENTS_PER_TURN
        _charge(call, caller, caller.meter.admit(caller.access.now(), 0, requests=more))


def _charge(call: Call, caller: TokenCaller, wait: float) -> None:
    """Delay the connection's next requests by the seconds that its caller owes."""
    if wait > 0:
        caller.access.counters.limited += not call.throttle_ms
        call.throttle_ms = call.connection.mute(wait)
