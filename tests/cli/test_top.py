"""`polynya top`: the figures between two scrapes, several nodes, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
from click.testing import CliRunner, Result
from scripted_server import DROP, scripted

from polynya.base.histogram import Histogram
from polynya.cli.app import cli
from polynya.cli.observability import top
from polynya.cli.observability.figures import Scrape, latencies, node_figures, quantile
from polynya.observability.metrics import Registry, label, render

UNAUTHORIZED = (401, {}, b'{"error": {"code": "UNAUTHORIZED", "message": "a token is needed"}}')


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later, and no pause takes time."""
    seconds = count(1)
    monkeypatch.setattr(top, "clock", lambda: float(next(seconds)))
    monkeypatch.setattr(top, "sleep", lambda _: None)


def registry_of(appends: int, *, seconds: tuple[float, ...] = (), **more: float) -> Registry:
    registry, histogram = Registry(), Histogram()
    for each in seconds:
        histogram.observe(each)
    registry.add_histogram("polynya_http_append_seconds", histogram)
    samples = {"polynya_cores": 2.0, "polynya_cores_up": 2.0, "polynya_streams": 7.0}
    samples |= {"polynya_http_appends_total": appends, "polynya_process_cpu_seconds_total": 0.0}
    samples |= {f"polynya_{name}": value for name, value in more.items()}
    registry.add(lambda: samples)
    return registry


def metrics(appends: int, **more: float) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, render(registry_of(appends, **more).read())


def node(**nodes: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps({"cluster": "c", "nodes": nodes, "version": "1"}).encode()


def ran(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(cli, ["top", *arguments], env={"POLYNYA_SERVER": url})


def scrape(at: float, registry: Registry | None, name: str = "1") -> Scrape:
    if registry is None:
        return Scrape(name, "http://x", at, reason="no response")
    return Scrape(name, "http://x", at, registry.read())


# --- figures --------------------------------------------------------------------------------------


def test_rates_and_quantiles_are_of_the_time_between_two_scrapes() -> None:
    before = scrape(10.0, registry_of(100, seconds=(0.2, 0.2)))
    after = scrape(15.0, registry_of(150, seconds=(0.2, 0.2, *[0.002] * 9, 0.04)))
    found = node_figures(before, after)
    assert found["appends_per_second"] == 10.0
    assert found["append_p50_seconds"] == pytest.approx(0.001 + 0.0015 * 5 / 9)
    assert 0.025 < found["append_p99_seconds"] <= 0.05
    (append,) = latencies([(before, after)])
    assert (append.name, append.rate) == ("append", 2.0)


def test_a_node_that_restarted_or_came_back_has_no_negative_rates() -> None:
    restarted = node_figures(scrape(0.0, registry_of(100)), scrape(2.0, registry_of(10)))
    assert restarted["appends_per_second"] == 5.0, "since its start"
    returned = node_figures(scrape(0.0, None), scrape(2.0, registry_of(100)))
    assert returned["up"] and returned["appends_per_second"] == 0.0
    down = node_figures(scrape(0.0, registry_of(100)), scrape(2.0, None))
    assert down == {
        "node": "1",
        "url": "http://x",
        "up": False,
        "reason": "no response",
    }


def test_the_latencies_of_several_nodes_are_one_and_those_of_verbs_are_apart() -> None:
    def observed(*times: tuple[str, float]) -> Registry:
        registry = Registry()
        histograms = {"put": Histogram(), "get": Histogram()}
        for verb, seconds in times:
            histograms[verb].observe(seconds)
        for verb, histogram in histograms.items():
            registry.add_histogram("polynya_store_request_seconds", histogram, request=verb)
        return registry

    pairs = [
        (scrape(0.0, observed(), name), scrape(2.0, observed(*times), name))
        for name, times in (("1", [("put", 0.2)]), ("2", [("put", 0.2), ("get", 0.002)]))
    ]
    assert [(each.name, each.rate) for each in latencies(pairs)] == [
        ("store get", 0.5),
        ("store put", 1.0),
    ]


def test_a_quantile_ends_at_the_last_bound_and_needs_observations() -> None:
    assert quantile({}, 0.5) is None and quantile({1.0: 0.0, float("inf"): 0.0}, 0.5) is None
    assert quantile({1.0: 1.0, float("inf"): 9.0}, 0.99) == 1.0
    assert quantile({1.0: 2.0, 2.0: 2.0, float("inf"): 0.0}, 0.75) == 1.5


# --- the command ----------------------------------------------------------------------------------


def test_once_shows_a_node_alone() -> None:
    failing = {label("check_failing", check="disk"): 1.0, label("check_failing", check="x"): 0.0}
    with scripted(node(), metrics(10), metrics(30, **failing)) as server:
        result = ran("--once", url=server.url)
    assert result.exit_code == 0, result.output
    assert [each.path for each in server.said] == ["/v1/node", "/metrics", "/metrics"]
    lines = result.stdout.splitlines()
    assert lines[0] == "polynya top  1 of 1 node up, 2 cores, every 2 s"
    assert lines[1].startswith("20.0 appends/s, 0 B/s in")
    assert "! node 1: /readyz reports disk" in lines
    assert max(map(len, lines)) <= 80


def test_json_has_every_node_of_a_cluster_and_why_one_is_down() -> None:
    with scripted(metrics(5), metrics(6)) as other, scripted() as given, scripted(DROP) as lost:
        given.answers = [
            node(**{"10": lost.url, "2": other.url, "1": given.url, "3": "https://else:1"}),
            metrics(1),
            metrics(2),
        ]
        result = ran("--once", "--json", url=given.url)
    assert result.exit_code == 0, result.output
    look = json.loads(result.stdout)
    assert [(each["node"], each["up"]) for each in look["nodes"]] == [
        ("1", True),
        ("2", True),
        ("10", False),
    ]
    assert [each["appends_per_second"] > 0 for each in look["nodes"][:2]] == [True, True]
    assert "no response" in look["nodes"][2]["reason"]
    assert look["skipped"] == ["https://else:1"] and look["cluster"] == "c"
    text = "\n".join(top.lines_of(look | {"latencies": []}))
    assert "2 of 3 nodes up" in text and "! node 10: no response" in text
    assert "https://else:1 is left out" in text


@pytest.fixture
def refusing() -> Iterator[str]:
    with scripted(UNAUTHORIZED) as server:
        yield server.url


def test_without_a_token_the_command_says_that_one_is_needed(refusing: str) -> None:
    result = ran("--once", url=refusing)
    assert result.exit_code == 1
    assert "a token is needed" in result.stderr and "POLYNYA_TOKEN" in result.stderr


def test_a_token_without_the_right_is_told() -> None:
    body = b'{"error": {"code": "FORBIDDEN", "message": "the token does not allow \'metrics\'"}}'
    with scripted(node(), (403, {}, body)) as server:
        result = CliRunner().invoke(
            cli, ["top", "--once"], env={"POLYNYA_SERVER": server.url, "POLYNYA_TOKEN": "t"}
        )
    assert result.exit_code == 1 and "does not allow 'metrics'" in result.stderr


def test_another_server_and_no_server_are_told() -> None:
    with scripted((200, {}, b"<html>")) as server:
        result = ran("--once", url=server.url)
        assert result.exit_code == 1 and "is not a Polynya node" in result.stderr
        url = server.url
    result = ran("--once", url=url)
    assert result.exit_code == 3 and "no response from" in result.stderr


def test_wrong_options_are_refused_before_a_request() -> None:
    with scripted(node()) as server:
        for arguments, words in (
            (("--interval", "1ms", "--once"), "the least is 0.1 s"),
            (("--interval", "soon"), "not a duration"),
            ((), "no terminal"),
        ):
            result = ran(*arguments, url=server.url)
            assert result.exit_code == 2 and words in result.output, result.output
        assert not server.said
