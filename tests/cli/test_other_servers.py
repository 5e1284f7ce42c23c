"""Something else answers at the address: that is said in words, whatever it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from polynya.cli.app import cli


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """A server whose every answer is this, with 200."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *what: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "content", [b"<html>It works!</html>", b"\xfa\xfb", b"", b"{}", b'{"streams": 7}']
)
@pytest.mark.parametrize(
    "command", ["ls", "sub ls", "table ls", "cluster status", "store verify", "token ls"]
)
def test_what_is_no_polynya_node_is_called_that(command: str, content: bytes) -> None:
    with answering(content) as url:
        result = CliRunner().invoke(
            cli,
            [*command.split(), "--server", url],
            prog_name="polynya",
            env={"XDG_CONFIG_HOME": "/nowhere"},
        )
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert result.output.startswith("polynya: ") and (
        url in result.output or "Polynya node" in result.output
    ), result.output


@pytest.mark.parametrize(
    "server",
    ["\U0001f43b\U0001f43b", "http://127.0.0.1:1,http://a^b\u2c31", "http://" + "x" * 70_000],
)
def test_what_is_no_address_is_a_wrong_command_line(server: str) -> None:
    result = CliRunner().invoke(
        cli, ["ls", "--server", server], prog_name="polynya", env={"XDG_CONFIG_HOME": "/nowhere"}
    )
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    assert "--server" in result.output
