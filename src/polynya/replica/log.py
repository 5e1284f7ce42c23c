"""Commands as entries of the log: one msgpack array, the tag first (F10)."""

from collections.abc import Callable

import msgspec

from polynya.stream.commands import AnyCommand, Command

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


encode_command: Callable[[Command], bytes] = _encoder.encode  # to the bytes that the journal, and later the peers, get


def decode_command(data: bytes) -> Command:
    """Raises msgspec.ValidationError when `data` is no command that this version knows."""
    return _decoder.decode(data)
