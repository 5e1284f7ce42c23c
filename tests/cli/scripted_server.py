"""A server that answers a script: what a client does when answers are lost, late or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from http_threads import QuietHandler, serving

DROP = "drop"  # the connection breaks after the request was read


class Said(msgspec.Struct):
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Scripted:
    """A scripted server. `said` lists the requests. It gives the answers in turn and repeats the
    last one. An answer is `DROP`, or (status, headers, body)."""

    def __init__(self, answers: Sequence[object]) -> None:
        self.answers = list(answers)
        self.said: list[Said] = []
        self.url = ""

    def next(self) -> object:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def scripted(*answers: object) -> Iterator[Scripted]:
    """Run the server in threads of this process, on a free port, until `with` ends."""
    script = Scripted(answers)

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            said = Said(
                self.command,
                self.path,
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(length),
            )
            script.said.append(said)
            answer = script.next()
            if answer == DROP:
                self.close_connection = True
                return
            assert isinstance(answer, tuple)
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "text/event-stream" not in headers.values():
                self.send_header("content-length", str(len(body)))
            else:
                self.close_connection = True
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_PATCH = do_HEAD = do_DELETE = handle_any  # noqa: N815 (names of the base class)

    with serving(Handler) as script.url:
        yield script
