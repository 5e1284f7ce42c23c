"""The payload of a table from a schema file, for values without a schema's id."""

from __future__ import annotations

from polynya.base.errors import ConfigError
from polynya.base.payloads import AVRO, CHARACTERS_MAX, PROTOBUF, Payload
from polynya.lakehouse.jobs.plan import Writer
from polynya.lakehouse.payloads.decode import decoder_of
from polynya.lakehouse.payloads.nodes import BadSchema
from polynya.lakehouse.schema.protobuf import Messages


def payload_in(kind: str, data: bytes, message: str) -> Payload:
    """Return the payload of Avro or Protobuf values with this schema. Raises ConfigError."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the schema is not UTF-8 text; expected one of {kind}") from None
    if kind == AVRO and message:
        raise ConfigError(f"only Protobuf schemas have messages, but '#{message}' names one")
    if kind == PROTOBUF:
        message = Messages(data).root(message)
    found = Payload(kind, message=message, schema=text)
    if len(str(found)) > CHARACTERS_MAX:
        raise ConfigError(
            f"the schema has {len(text)} characters; at most {CHARACTERS_MAX} with its name"
        )
    try:
        decoder_of(Writer(kind.upper(), text, message=message))
    except BadSchema as bad:
        raise ConfigError(str(bad)) from None
    return found
