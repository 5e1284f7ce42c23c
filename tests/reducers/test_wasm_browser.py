"""The module for browsers, in Node: it begins at the snapshot of a worker, and follows the stream."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from chromium import Browser, browser
from missing import needed_module
from node_js import environment, node
from product import polynya, running_node
from worlds.wasm_modules import COUNTING, compiled

needed_module("wasmtime")
pytestmark = pytest.mark.process
__all__ = ["browser"]  # the fixture

HERE = Path(__file__).parent
LIBRARY = HERE.parent.parent / "sdk" / "browser" / "reducer.js"
SCRIPT = HERE / "follow_state.mjs"
JSON = {"Content-Type": "application/json"}
RECORDS = [b'{"a":  1.0}', b'"\\u00e9 ]},"', b'{"b": [[1,  2], {}]}', b"12345678901234567890"]


def total(line: str) -> int:
    """Return the sum of value lengths that a state is."""
    return int.from_bytes(base64.b64decode(json.loads(line)["state"]), "little")


def test_it_has_the_state_of_the_server_and_the_records_behind_it(tmp_path: Path) -> None:
    """The state counts the bytes of the values, so each value has the bytes that were appended."""
    with (
        running_node(tmp_path / "data", "--cores", "1") as server,
        httpx.Client(base_url=server.url, timeout=60) as web,
    ):
        digest = web.put("/v1/modules", content=compiled(COUNTING)).json()["sha256"]
        bound = web.put("/v1/reducers/sizes", json={"pattern": "sizes/*", "module": digest})
        assert bound.status_code == 201
        stream = "/v1/stream/sizes/one"
        assert web.put(stream, headers=JSON).status_code == 201
        for record in RECORDS[:2]:
            assert web.post(stream, headers=JSON, content=record).is_success
        ran = polynya("reduce", "run", "sizes", "--once", server=server.url)
        assert ran.code == 0, ran.err
        (mark,) = web.get(f"{stream}/snapshots").json()["snapshots"]
        assert mark["origin"] == "sizes@1"
        command = [node(), SCRIPT, LIBRARY, server.url, "sizes/one", "sizes"]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, text=True
        ) as following:
            assert following.stdout is not None
            try:
                assert total(following.stdout.readline()) == sum(map(len, RECORDS[:2]))
                for record in [*RECORDS[2:], b"null"]:
                    assert web.post(stream, headers=JSON, content=record).is_success
                kept = sum(map(len, RECORDS))
                lines = iter(following.stdout.readline, "")
                assert next(line for line in lines if total(line) == kept)
                assert web.post(stream, headers={"Stream-Closed": "true"}).is_success
                assert "closed\n" in lines
            finally:
                following.kill()
        state = web.get(f"{stream}/snapshot/{mark['offset']}").content
        assert int.from_bytes(state, "little") == sum(map(len, RECORDS[:2]))


@pytest.fixture
def origin() -> Iterator[str]:
    """Yield a page of another origin than the server's, with the files of the library."""
    handler = partial(Files, directory=str(LIBRARY.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{pages.server_port}"
        pages.shutdown()
        thread.join()


class Files(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_message(self, *_: object) -> None: ...


FOLLOW = """
  window.totals = []; window.end = ""
  import("/reducer.js").then(({ follow }) => follow({ server: %r, stream: "sizes/one", reducer: "sizes",
    onState: (reducer) => totals.push(new DataView(reducer.state().buffer).getUint32(0, true)) }))
    .then(() => (end = "closed"), (error) => (end = String(error))); 0
"""


def test_a_page_of_another_origin_follows_a_stream(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with (
        running_node(tmp_path / "data", "--cores", "1", "--cors-origins", origin) as server,
        httpx.Client(base_url=server.url, timeout=60) as web,
    ):
        digest = web.put("/v1/modules", content=compiled(COUNTING)).json()["sha256"]
        web.put("/v1/reducers/sizes", json={"pattern": "sizes/*", "module": digest})
        stream = "/v1/stream/sizes/one"
        assert web.put(stream, headers=JSON).status_code == 201
        assert web.post(stream, headers=JSON, content=b"12345").is_success
        page = browser.open(f"{origin}/README.md")
        page.run(FOLLOW % server.url)
        page.wait("end || totals.includes(5)")
        assert web.post(stream, headers=JSON | {"Stream-Closed": "true"}, content=b"67").is_success
        page.wait("end")
        assert page.run("[end, totals.at(-1)]") == ["closed", 7]


UNITS = """
const { parseRecords, frameOf } = await import(process.argv[1])
const text = '[{"offset": 7, "append_time": 5, "timestamp": null, "key": null, "headers": [["a", "}"]], "value": {"x" : [1.0, "]\\\\""]}},' +
  '{"offset":8,"append_time":null,"timestamp":-6,"key":{"$base64":"AAE="},"value":null},{"offset":9,"append_time":1,"timestamp":2,"key":"é","value":"text"}]'
const records = parseRecords(text, true)
const raw = parseRecords(text.replace(/{"x"[^]*?]}/, '{"$base64":"/w=="}'), false)
console.log(JSON.stringify([Buffer.from(frameOf(records)).toString("hex"), Buffer.from(frameOf(raw)).toString("hex")]))
"""


def test_records_are_framed_as_on_the_server() -> None:
    from polynya.reducers.reducer import Record
    from polynya.reducers.wasm.records import encode

    command = [node(), "--input-type=module", "-e", UNITS, str(LIBRARY.parent / "records.js")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    frames = [bytes.fromhex(each) for each in json.loads(done.stdout)]
    second = Record(8, 0, -6, b"\0\1", None)
    value = b'{"x" : [1.0, "]\\""]}'
    third = Record(9, 1, 2, "é".encode(), b'"text"')
    assert frames[0] == encode([Record(7, 5, 5, None, value), second, third])
    third = Record(9, 1, 2, "é".encode(), b"text")
    assert frames[1] == encode([Record(7, 5, 5, None, b"\xff"), second, third])
