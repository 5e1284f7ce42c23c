"""Encoding of commands as log entries: one msgpack array, the tag first."""

from collections.abc import Callable, Sequence

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.base.limits import APPEND_BYTES_MAX, MIB
from polynya.base.msgpack import array_head
from polynya.stream.command import Command, tag_of
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import APPENDS, AppendAll, Bundle, TxnAppend
from polynya.stream.registry import AnyCommand

# the largest append plus its record lengths; also the limit of messages between nodes
ENTRY_BYTES_MAX = APPEND_BYTES_MAX + 7 * MIB
_BUNDLE_HEAD = bytes((0x92, 99))  # an array of two, and the tag
# of `Bundle`, `AppendAll` and `TxnAppend`, whose first fields are the commands
_HEADS_OF_MANY = (_BUNDLE_HEAD, bytes((0x92, 26)), bytes((0x95, 27)))
_PAYLOAD_TAGS = frozenset(map(tag_of, (*APPENDS, Bundle, AppendAll, TxnAppend)))
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


class _Many(msgspec.Struct, array_like=True, gc=False):
    tag: int
    commands: list[msgspec.Raw]


_many = msgspec.msgpack.Decoder(_Many)


# the bytes written to the journal and sent to peers
encode_command: Callable[[Command], bytes] = _encoder.encode


def check_proposal(command: Command) -> None:
    """Raise InvalidMessage for a command that no member could apply."""
    fault = fault_of(command)
    if fault:
        raise InvalidMessage(f"refused to propose an invalid command: {fault}")


def encode_proposal(command: Command) -> bytes:
    """Encode a command for a proposal. Raises InvalidMessage for one that no member could apply.

    An append was checked where it entered this core: the front's parser bounds its numbers, and the
    handlers of forwarded proposals call `check_proposal`. Engines encode it at once."""
    check_proposal(command)
    return encode_command(command)


def decode_heard(data: bytes) -> Command:
    """Decode an entry received from a leader. Raises as `decode_command`, and InvalidMessage for a
    command that no member could apply."""
    command = decode_command(data)
    fault = fault_of(command)
    if fault:
        raise InvalidMessage(fault)
    return command


def encode_bundle(payloads: Sequence[bytes]) -> bytes:
    """Return what `encode_command` gives for a `Bundle` of these encoded commands."""
    return b"".join((_BUNDLE_HEAD, array_head(len(payloads)), *payloads))


def decode_command(data: bytes) -> Command:
    """Decode an entry. Raises msgspec.ValidationError when this release does not know the
    command."""
    return _decoder.decode(data)


def has_payload(data: bytes) -> bool:
    """Report whether an entry is an append with its payload, or a bundle of such."""
    return data[1] in _PAYLOAD_TAGS and data[0] & 0xF0 == 0x90


def count_of(data: bytes) -> int:
    """Return the number of commands in an entry."""
    if not data.startswith(_HEADS_OF_MANY):
        return 1
    return int.from_bytes(data[3:5], "big") if data[2] == 0xDC else data[2] & 0x0F


def decode_part(data: bytes, number: int) -> Command | None:
    """Return the command of this number in a bundle, an `AppendAll` or a `TxnAppend`, or a single command for
    number 0; else None. Raises msgspec.ValidationError."""
    if data.startswith(_HEADS_OF_MANY):
        parts = _many.decode(data).commands
        return _decoder.decode(parts[number]) if number < len(parts) else None
    return None if number else _decoder.decode(data)
