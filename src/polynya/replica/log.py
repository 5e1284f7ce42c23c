"""Commands as entries of the log: one msgpack array, the tag first (F10)."""

from collections.abc import Callable, Sequence

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.base.limits import APPEND_BYTES_MAX, MIB
from polynya.base.msgpack import array_head
from polynya.stream.commands import AnyCommand, Command
from polynya.stream.sense import fault_of

ENTRY_BYTES_MAX = (
    APPEND_BYTES_MAX + 7 * MIB
)  # the largest append, with the lengths of its records; more is carried by no message between nodes
_BUNDLE_HEAD = bytes((0x92, 99))  # an array of two, and the tag
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)
_parts: msgspec.msgpack.Decoder[tuple[int, list[msgspec.Raw]]] = msgspec.msgpack.Decoder(tuple[int, list[msgspec.Raw]])


encode_command: Callable[[Command], bytes] = _encoder.encode  # to the bytes that the journal, and later the peers, get


def encode_proposal(command: Command) -> bytes:
    """Encode a command that is to be proposed. Raises Senseless for one that no member could apply."""
    fault = fault_of(command)
    if fault:
        raise InvalidMessage(f"a command that makes no sense is not proposed: {fault}")
    return encode_command(command)


def decode_heard(data: bytes) -> Command:
    """Decode an entry that a leader sent. Raises what `decode_command` raises, and Senseless for a command that no member could apply."""
    command = decode_command(data)
    fault = fault_of(command)
    if fault:
        raise InvalidMessage(fault)
    return command


def encode_bundle(payloads: Sequence[bytes]) -> bytes:
    """What `encode_command` gives for a `Bundle` of the commands that these are."""
    return b"".join((_BUNDLE_HEAD, array_head(len(payloads)), *payloads))


def decode_command(data: bytes) -> Command:
    """Raises msgspec.ValidationError when `data` is no command that this version knows."""
    return _decoder.decode(data)


def count_of(data: bytes) -> int:
    """How many commands an entry has."""
    if not data.startswith(_BUNDLE_HEAD):
        return 1
    return int.from_bytes(data[3:5], "big") if data[2] == 0xDC else data[2] & 0x0F


def decode_part(data: bytes, number: int) -> Command | None:
    """The command of this number in a bundle, the command itself for number 0; None when there is none. Raises msgspec.ValidationError."""
    if data.startswith(_BUNDLE_HEAD):
        parts = _parts.decode(data)[1]
        return _decoder.decode(parts[number]) if number < len(parts) else None
    return None if number else _decoder.decode(data)
