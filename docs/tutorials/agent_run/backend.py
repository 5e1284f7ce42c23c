"""The server of the site: it serves the page, gives it tokens, and runs the agents.

POLYNYA_URLS=http://127.0.0.1:4437 POLYNYA_TOKEN=... python backend.py [PORT]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from polynya.client import AsyncClient, Client

NODES = os.environ["POLYNYA_URLS"].split(",")
TOKEN = os.environ["POLYNYA_TOKEN"]
FOLDER = Path(__file__).parent
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/live-worker.js": ("live-worker.js", "text/javascript; charset=utf-8"),
}
STEPS = 8
STEP_SECONDS = 0.25


async def agent(client: AsyncClient, run: str) -> None:
    """Stream the steps of a run. In the middle it calls a tool, and waits for the answer."""
    stream = client.stream(f"runs/{run}")
    await stream.create()
    async with stream.producer(f"agent-{run}") as steps:
        for step in range(STEPS):
            await steps.append({"step": step, "text": f"step {step} of {run}"})
            if step == STEPS // 2:
                await steps.flush()
                await call_tool(client, run, steps.offset)
            await asyncio.sleep(STEP_SECONDS)
        await steps.append({"done": True})


async def call_tool(client: AsyncClient, run: str, offset: str) -> None:
    """Put a call into the queue, and wait until a worker has put the answer into the run."""
    calls = client.stream(f"calls/{run}")
    await calls.create()
    async with calls.producer(f"agent-{run}") as queue:
        await queue.append({"run": run, "tool": "measure", "argument": run})
    async with client.stream(f"runs/{run}").tail(offset) as answers:
        async for record in answers:
            if "tool" in record.value:
                return


class Agents:
    """The loop on which the agents run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(NODES, token=TOKEN)
        self._running: set[asyncio.Task[None]] = set()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def start(self, run: str) -> None:
        self.loop.call_soon_threadsafe(self._start, run)

    def _start(self, run: str) -> None:
        task = self.loop.create_task(agent(self.client, run))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"an agent failed: {error!r}", file=sys.stderr, flush=True)


class Site(BaseHTTPRequestHandler):
    """Here a real site would first ask who is there: its session decides which runs they may see."""

    agents: Agents
    client: Client

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in FILES:
            name, kind = FILES[path]
            self._answer(200, (FOLDER / name).read_bytes(), kind)
        elif path == "/session":
            minted = self.client.mint_token(prefix="runs/", expires_in_seconds=600)
            self._json(200, {"nodes": NODES, "token": minted.token, "expires": minted.expires_ms})
        else:
            self._json(404, {"error": f"there is no {path}"})

    def do_POST(self) -> None:
        if self.path != "/runs":
            self._json(404, {"error": f"there is no {self.path}"})
            return
        names = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for name in names:
            self.agents.start(name)
        self._json(202, {"started": len(names)})

    def _json(self, status: int, value: Any) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    Site.agents = Agents()
    Site.client = Client(NODES, token=TOKEN)
    # the group begins with the calls that come after it exists
    with Site.client.share("tools", "calls/*", by="stream", max_attempts=2):
        pass
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with ThreadingHTTPServer(("127.0.0.1", port), Site) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
