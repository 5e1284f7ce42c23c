"""The tutorial of agent runs in a browser: its site and its worker as processes, a cluster with access
tokens, tabs in headless Chromium; tabs are reloaded, a node is killed, and one call is poisoned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import Page, running_browser
from free_ports import free_ports
from long_tests import long
from missing import needed
from polling import wait_until
from product import environment, polynya
from worlds.dev_cluster import DevCluster, dev_cluster

from polynya.client import Client

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "tutorials" / "agent_run"
RUNS = 10  # of a tab
STEPS = 8
ALIVE = """
new Promise((resolve) => {
  port.addEventListener("message", ({ data }) => data.pong && resolve(data.pong))
  port.postMessage({ ping: 7 })
})
"""


@contextmanager
def script(name: str, *arguments: str, urls: list[str], token: str) -> Iterator[None]:
    """Run a program of the tutorial until `with` ends."""
    variables = environment(POLYNYA_URLS=",".join(urls), POLYNYA_TOKEN=token)
    process = subprocess.Popen([sys.executable, str(EXAMPLE / name), *arguments], env=variables)
    try:
        yield
        assert process.poll() is None, f"{name} ended"
    finally:
        process.kill()
        process.wait()


def accepted(cluster: DevCluster, token: str) -> bool:
    """Report whether all nodes know the token."""
    headers = {"Authorization": f"Bearer {token}"}
    answers = [httpx.get(f"{url}/v1/node", headers=headers, timeout=60) for url in cluster.urls]
    return all(answer.status_code == 200 for answer in answers)


def whole(run: str) -> list[dict[str, Any]]:
    """Return what a tab shows of a finished run."""
    failed = run.startswith("poison")
    answer = {"tool": "measure", **({"failed": True} if failed else {"result": len(run)})}
    steps: list[dict[str, Any]] = [
        {"step": step, "text": f"step {step} of {run}"} for step in range(STEPS)
    ]
    return [*steps[: STEPS // 2 + 1], answer, *steps[STEPS // 2 + 1 :], {"done": True}]


def site_is_up(site: str) -> bool:
    try:
        return httpx.get(site, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("tabs", [3, *long([8])])
def test_runs_stream_to_all_tabs_without_loss_or_repetition(tmp_path: Path, tabs: int) -> None:
    with dev_cluster(tmp_path / "c", "--auth-required") as cluster:
        made = polynya(
            *("token", "create", "site", "--allow", "all"),
            *("--data", str(tmp_path / "c" / "node-1")),
        )
        token = made.out.strip()
        wait_until(lambda: accepted(cluster, token), what="the token at all nodes")
        urls = [cluster.urls[number] for number in (1, 0, 2)]  # the tabs begin at node 2
        (port,) = free_ports(1)
        site = f"http://127.0.0.1:{port}/"
        with (
            needed("browser", running_browser()) as browser,
            script("backend.py", str(port), urls=urls, token=token),
            script("tools.py", urls=urls, token=token),
        ):
            wait_until(lambda: site_is_up(site), what="the site")
            runs = [[f"tab{tab}-{number}" for number in range(RUNS)] for tab in range(tabs)]
            runs[0][0] = "poison"
            pages = [browser.open(f"{site}?runs={','.join(names)}") for names in runs]
            started = httpx.post(f"{site}runs", json=[run for names in runs for run in names])
            assert started.status_code == 202
            pages[0].wait("Object.values(shown).every((values) => values.length > 0)")
            cluster.kill(2)
            for page in pages[::2]:
                page.call("Page.reload")
            for page, names in zip(pages, runs, strict=True):
                page.wait("document.readyState === 'complete' && window.port !== undefined")
                expected = {f"runs/{run}": whole(run) for run in names}
                wait_for_values(page, expected)
                assert page.run(ALIVE) == 7 and not page.log
        with Client(urls[1:], token=token) as client:
            letters = list(client.stream("groups/tools/dead-letters").read())
            assert {(each.value["stream"], each.value["attempts"]) for each in letters} == {
                ("calls/poison", 2)
            }
            assert letters[0].value["error"] == "ValueError('cannot measure poison')"


def wait_for_values(page: Page, expected: dict[str, list[dict[str, Any]]]) -> None:
    try:
        wait_until(lambda: page.run("shown") == expected, what="all values, each once, in order")
    except AssertionError:
        assert page.run("shown") == expected, json.dumps(page.log)
