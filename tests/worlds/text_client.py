"""A client of the text protocol with nothing between it and the wire."""

from __future__ import annotations

import re
import socket
import ssl
from struct import Struct
from types import TracebackType
from typing import Self

from polling import wait_until
from product import CommandProcess

_LENGTH = Struct("<I")


class TextClient:
    """One connection. `send` and `receive` are apart, for pipelining."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), 60)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *lines: str | bytes) -> None:
        bodies = [line if isinstance(line, bytes) else line.encode() for line in lines]
        self.socket.sendall(b"".join(_LENGTH.pack(len(body)) + body for body in bodies))

    def receive(self) -> str:
        return self._exactly(_LENGTH.unpack(self._exactly(4))[0]).decode()

    def ask(self, line: str | bytes) -> str:
        self.send(line)
        return self.receive()

    def ended(self) -> bool:
        return self.socket.recv(1) == b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data


def text_address(node: CommandProcess) -> str:
    """Return host and port of a node's text protocol, by its banner."""
    found = wait_until(
        lambda: re.search(r"text protocol on (\S+)", "".join(node.log)),
        what="the place of the text protocol",
    )
    return found[1]
