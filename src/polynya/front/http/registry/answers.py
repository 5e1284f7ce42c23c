"""Bodies, parameters and responses of Confluent's API."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from polynya.base.limits import SCHEMA_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.front.http.protocol.extension import NO_STORE, Request, Response
from polynya.registry import refused
from polynya.registry.records import AVRO
from polynya.registry.refused import Refused

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_BAD_BODY = 422
Shape = TypeVar("Shape")
Item = TypeVar("Item")


class SchemaBody(msgspec.Struct):
    """A schema in a request. Members that are not named here are ignored, as Confluent's clients
    expect."""

    schema: str | None = None
    schemaType: str | None = None  # noqa: N815 (the name on the wire)
    references: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    ruleSet: dict[str, Any] | None = None  # noqa: N815
    id: int | None = None
    version: int | None = None

    @property
    def type(self) -> str:
        """The type; Avro need not be named."""
        return self.schemaType or AVRO

    @property
    def wanted_id(self) -> int | None:
        """The id that a new version is to get; clients write -1 for none."""
        return None if self.id is None or self.id < 0 else self.id


class ConfigBody(msgspec.Struct):
    """A config in a request."""

    compatibility: str | None = None
    compatibilityLevel: str | None = None  # noqa: N815
    normalize: bool | None = None
    # what Confluent's registry has and this one refuses
    alias: Any = None
    compatibilityGroup: Any = None  # noqa: N815
    compatibilityPolicy: Any = None  # noqa: N815
    defaultMetadata: Any = None  # noqa: N815
    overrideMetadata: Any = None  # noqa: N815
    defaultRuleSet: Any = None  # noqa: N815
    overrideRuleSet: Any = None  # noqa: N815
    validateFields: Any = None  # noqa: N815
    validateNames: Any = None  # noqa: N815
    validateRules: Any = None  # noqa: N815

    @property
    def refused(self) -> list[str]:
        """The settings that the registry does not have."""
        return [
            name
            for name in self.__struct_fields__[3:]
            if getattr(self, name) not in (None, False, "")
        ]


class ModeBody(msgspec.Struct):
    """A mode in a request."""

    mode: str


def read_body(request: Request, shape: type[Shape]) -> Shape:
    """Decode a body. Raises Refused."""
    try:
        return msgspec.json.decode(request.body or b"{}", type=shape)
    except RecursionError:
        raise Refused(_BAD_BODY, "the body is nested too deeply") from None
    except UNREADABLE as error:
        raise Refused(_BAD_BODY, f"the body is not valid for this path: {error}") from None


def read_schema(request: Request) -> SchemaBody:
    """Decode a body with a schema. Raises Refused."""
    body = read_body(request, SchemaBody)
    if not body.schema or not body.schema.strip():
        raise Refused(refused.INVALID_SCHEMA, "Invalid schema: 'schema' is missing or empty")
    size = len(body.schema.encode())
    if size > SCHEMA_BYTES_MAX:
        raise Refused(
            refused.INVALID_SCHEMA,
            f"Invalid schema: it has {size:,} bytes; at most {SCHEMA_BYTES_MAX:,} are accepted",
        )
    return body


def flag(request: Request, name: str) -> bool:
    """Return a parameter that is true or false, by default false. Raises Refused."""
    text = request.query.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise Refused(_BAD_BODY, f"the parameter '{name}' is '{text[:32]}'; expected true or false")
    return text == "true"


def part(request: Request, items: list[Item]) -> list[Item]:
    """Return the items that the parameters `offset` and `limit` select; -1 is no limit."""
    offset, limit = _number(request, "offset", 0), _number(request, "limit", -1)
    return items[max(0, offset) :][: limit if limit >= 0 else None]


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    try:
        return int(text[:20])
    except ValueError:
        raise Refused(
            _BAD_BODY, f"the parameter '{name}' is '{text[:32]}'; expected a number"
        ) from None


def shown(value: Any) -> Response:
    """Return a response with JSON."""
    return Response(200, msgspec.json.encode(value), CONTENT_TYPE, NO_STORE)


def shown_text(text: str) -> Response:
    """Return a response with the bare text of a schema."""
    return Response(200, text.encode(), CONTENT_TYPE, NO_STORE)


def refusal(failed: Refused) -> Response:
    """Return the response to a refusal."""
    body = msgspec.json.encode({"error_code": failed.code, "message": failed.message})
    return Response(failed.status, body, CONTENT_TYPE, NO_STORE)
