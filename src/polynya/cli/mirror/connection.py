"""Connections to the brokers of the source: frames, TLS and SASL."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import importlib
import io
import secrets
import ssl
from dataclasses import dataclass
from typing import Any

from polynya.base.installation import install_command
from polynya.cli.terminal import exits

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
_FRAME_BYTES_MAX = 256 << 20  # of an answer: a batch is as large as its topic allows
_CLIENT = b"polynya-mirror"
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MINIMUM_ITERATIONS = 4096  # RFC 7677
MECHANISMS = ("PLAIN", *_HASHES)

Address = tuple[str, int]


class BrokerLost(Exception):
    """A broker does not answer, or closed the connection; the message says which and why."""


def require_codecs() -> None:
    """Raise `exits.Misused` where the extra is not installed."""
    try:
        import kio  # noqa: F401
    except ModuleNotFoundError:
        hint = install_command("kafka")
        raise exits.Misused("this command needs kio, Kafka's codecs", hint=hint) from None


def schema(api: str, version: int, kind: str) -> Any:
    """Return kio's module of a request or response, such as ("fetch", 10, "request")."""
    return importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")


@dataclass(frozen=True)
class Login:
    """The name and password of a SASL mechanism."""

    mechanism: str
    user: str
    password: str


@dataclass(frozen=True)
class Security:
    """The TLS context and the login of connections to the brokers. `tls` None: without TLS."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


class Connection:
    """An open connection to one broker. One request is in flight at a time."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self._reader, self._writer = reader, writer
        self._lock = asyncio.Lock()
        self._asked = 0

    @classmethod
    async def open(cls, address: Address, security: Security) -> Connection:
        """Connect and authenticate. Raises BrokerLost, and `exits.Refused` for a refused login."""
        host, port = address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, ssl=security.tls)
        except TimeoutError:
            raise BrokerLost(
                f"{_spelled(address)}: no connection in {CONNECT_SECONDS:g} s"
            ) from None
        except ssl.SSLError as error:
            raise BrokerLost(f"{_spelled(address)}: TLS failed: {_why(error)}") from None
        except OSError as error:
            raise BrokerLost(f"{_spelled(address)}: {_why(error)}") from None
        connection = cls(address, reader, writer)
        try:
            if security.login is not None:
                await _authenticate(connection, security.login)
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask(
        self, api: str, version: int, seconds: float = ANSWER_SECONDS, **fields: Any
    ) -> Any:
        """Send a request of kio's fields, and return kio's response. Raises BrokerLost."""
        from kio.serial import entity_reader, entity_writer

        name = f"{_camel(api)}Request"
        request = getattr(schema(api, version, "request"), name)(**fields)
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        self._asked += 1
        head = request.__api_key__.to_bytes(2) + version.to_bytes(2) + self._asked.to_bytes(4)
        head += len(_CLIENT).to_bytes(2) + _CLIENT + (b"\0" if request.__flexible__ else b"")
        async with self._lock:
            answer = await self._exchange(head + body.getvalue(), seconds)
        kind = getattr(schema(api, version, "response"), f"{_camel(api)}Response")
        at = 5 if kind.__flexible__ else 4
        try:
            return entity_reader(kind)(answer, at)[0]
        except Exception as error:
            raise BrokerLost(f"{_spelled(self.address)}: unreadable {api}: {error}") from None

    async def _exchange(self, data: bytes, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(len(data).to_bytes(4) + data)
                await self._writer.drain()
                size = int.from_bytes(await self._reader.readexactly(4))
                if not 4 <= size <= _FRAME_BYTES_MAX:
                    raise BrokerLost(f"{_spelled(self.address)} does not speak Kafka's protocol")
                return await self._reader.readexactly(size)
        except TimeoutError:
            self.close()
            raise BrokerLost(f"{_spelled(self.address)}: no answer in {seconds:g} s") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            self.close()
            why = "closed the connection" if isinstance(error, EOFError) else _why(error)
            raise BrokerLost(f"{_spelled(self.address)}: {why}") from None
        except BaseException:  # the answer would be taken for that of the next request
            self.close()
            raise

    def close(self) -> None:
        """Close at once."""
        transport = self._writer.transport
        if transport is not None:
            transport.abort()


def _camel(api: str) -> str:
    return "".join(part.capitalize() for part in api.split("_"))


def _why(error: OSError) -> str:
    return error.strerror or str(error) or "the connection was closed"


def _spelled(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


# --- SASL -----------------------------------------------------------------------------------------


async def _authenticate(connection: Connection, login: Login) -> None:
    """Log in. Raises BrokerLost and `exits.Refused`."""
    shaken = await connection.ask("sasl_handshake", 1, mechanism=login.mechanism)
    if shaken.error_code.value:
        offered = ", ".join(shaken.mechanisms) or "none"
        raise exits.Refused(
            f"the source does not offer SASL {login.mechanism}; it offers {offered}",
            hint=f"--from-sasl takes {', '.join(MECHANISMS)}.",
        )
    if login.mechanism == "PLAIN":
        await _answer(connection, login, f"\0{login.user}\0{login.password}".encode())
    else:
        await _scram(connection, login)


async def _answer(connection: Connection, login: Login, data: bytes) -> bytes:
    try:
        answer = await connection.ask("sasl_authenticate", 0, auth_bytes=data)
    except BrokerLost as lost:
        raise _refused(login, f"the connection was closed ({lost})") from None
    if answer.error_code.value:
        raise _refused(login, answer.error_message or answer.error_code.name)
    return bytes(answer.auth_bytes)


def _refused(login: Login, why: str) -> exits.Refused:
    return exits.Refused(
        f"the source refused the login of '{login.user}' by SASL {login.mechanism}: {why}",
        hint="Check --from-user, the password, and --from-tls: a broker may want both.",
    )


async def _scram(connection: Connection, login: Login) -> None:
    """Log in by SCRAM (RFC 5802), and check that the source knows the password too."""
    hash_name = _HASHES[login.mechanism]
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = base64.b64encode(secrets.token_bytes(18)).decode()
    first = f"n={user},r={nonce}"
    challenge = (await _answer(connection, login, f"n,,{first}".encode())).decode()
    fields = dict(part.partition("=")[::2] for part in challenge.split(","))
    try:
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        together = fields["r"]
    except (KeyError, ValueError):
        raise _refused(login, f"an unreadable challenge: {challenge[:100]}") from None
    if not together.startswith(nonce) or iterations < _MINIMUM_ITERATIONS:
        raise _refused(login, "its challenge is not safe: another nonce, or too few iterations")
    salted = await asyncio.to_thread(
        hashlib.pbkdf2_hmac, hash_name, login.password.encode(), salt, iterations
    )
    key = hmac.digest(salted, b"Client Key", hash_name)
    last = f"c=biws,r={together}"
    said = f"{first},{challenge},{last}".encode()
    signature = hmac.digest(hashlib.new(hash_name, key).digest(), said, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    final = (await _answer(connection, login, f"{last},p={proof}".encode())).decode()
    server = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), said, hash_name)
    if final != f"v={base64.b64encode(server).decode()}":
        raise _refused(login, "it does not know the password: its last message is not signed by it")
