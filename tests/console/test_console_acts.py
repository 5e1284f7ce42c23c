"""The acts of the console in a headless Chromium, with the rights of a token, and the
lines that they leave in the audit log."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from chromium import Browser, Page, browser
from polling import wait_until
from product import polynya, running_node
from worlds.console_acts import act, fill, go, open_act, perform, use_token, wait_text

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

JSON = {"Content-Type": "application/json"}


class Guarded(NamedTuple):
    """A node with access control: its URL, its data folder, and two tokens."""

    url: str
    data: Path
    root: str
    reader: str

    def web(self) -> httpx.Client:
        known = {"Authorization": f"Bearer {self.root}"}
        return httpx.Client(base_url=self.url, headers=known, timeout=60)

    def acts(self) -> list[tuple[str, str, str, str]]:
        """The lines of the audit log: act, target, name of the token, outcome."""
        lines = (self.data / "access" / "audit.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [
            (each["act"], each["target"], each["who"].split()[-1], each.get("outcome", "ok"))
            for each in found
        ]

    def wait_act(self, *line: str) -> None:
        wait_until(lambda: line in self.acts(), what=f"{line} in the audit log")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("acts") / "data"
    flags = ("--cores", "1", "--auth-required", "--kafka-listen", "127.0.0.1:0")
    with running_node(data, *flags) as node:
        root, reader = (
            polynya("token", "create", name, "--allow", scope, "--data", str(data)).out.strip()
            for name, scope in (("root", "all,admin"), ("reader", "read,subscribe"))
        )
        guarded = Guarded(node.url, data, root, reader)
        for token in (root, reader):
            known = {"Authorization": f"Bearer {token}"}
            wait_until(
                lambda known=known: (
                    httpx.get(  # type: ignore[misc]
                        f"{node.url}/v1/streams", headers=known, timeout=60
                    ).is_success
                ),
                what="the tokens to be known",
            )
        yield guarded


@pytest.fixture
def page(browser: Browser, node: Guarded) -> Iterator[Page]:
    """Yield a page of the console, with the token of an admin."""
    page = browser.open(f"{node.url}/console/")
    page.size(1200, 800)
    use_token(page, node.root)
    yield page
    page.call("Page.close")


def test_a_stream_is_created_written_trimmed_forked_closed_and_deleted(
    page: Page, node: Guarded
) -> None:
    go(page, "streams")
    command = act(page, "Create", name="shop/orders", age="30d", type="application/json")
    assert command == f"polynya create shop/orders --keep-age 30d --server {node.url}"
    page.wait("location.hash.startsWith('#/stream/shop/orders')")
    open_act(page, "Append")
    fill(page, text='[{"n": 1.50},')
    wait_text(page, ".act-dialog .wrong", "No valid JSON: line 1, column 14")
    fill(page, text='[{"n": 1.50}, {"n": 2}]', keyed=True, key="a", headers="source=web")
    wait_text(page, ".act-note", "Valid JSON: 2 records")
    perform(page)
    page.wait("document.querySelectorAll('.record').length === 2")
    assert page.run("document.querySelector('.record .preview').textContent") == '{"n": 1.50}'
    assert page.run("document.querySelector('.record .key').textContent") == "a"
    act(page, "Retention", mode="limit", age="7d", bytes="1GiB")
    command = act(page, "Trim", way="before", place="1")
    assert "trim shop/orders --before 0000000000000001_" in command
    act(page, "Fork", fork="shop/fork")
    page.wait("location.hash.startsWith('#/stream/shop/fork')")
    act(page, "Close")
    wait_text(page, ".chips", "closed")
    open_act(page, "Delete")
    assert page.run("document.querySelector('.act-dialog [type=submit]').disabled")
    fill(page, typed="shop/fork")
    perform(page)
    page.wait("location.hash === '#/streams'")
    with node.web() as web:
        assert web.get("/v1/stream/shop/orders/retention").json()["age_seconds"] == 604_800
        assert web.get("/v1/stream/shop/fork").status_code == 404
    for name, target in (
        ("stream.create", "shop/orders"),
        ("stream.append", "shop/orders"),
        ("stream.retention", "shop/orders"),
        ("stream.fork", "shop/fork"),
        ("stream.close", "shop/fork"),
        ("stream.delete", "shop/fork"),
    ):
        wait_until(
            lambda name=name, target=target: any(  # type: ignore[misc]
                line[:3] == (name, target, "root") and line[3].startswith("2")
                for line in node.acts()
            ),
            what=f"{name} in the audit log",
        )


def test_the_command_of_an_act_does_the_same(page: Page, node: Guarded) -> None:
    go(page, "streams")
    open_act(page, "Create")
    fill(page, name="typed/it's", type="text/plain", ttl="1d")
    shown = page.run("document.querySelector('.act-dialog .same code').textContent")
    done = polynya(*shlex.split(shown)[1:], "--token", node.root)
    assert done.code == 0, done
    perform(page)
    wait_text(page, "#said", "exists already, with these settings")


def test_a_token_without_the_right_is_refused_in_words(page: Page, node: Guarded) -> None:
    with node.web() as web:
        web.put("/v1/stream/kept", headers=JSON)
    use_token(page, node.reader)
    go(page, "stream/kept")
    open_act(page, "Append")
    perform(page)
    wait_text(page, ".act-dialog .wrong", "Refused: the token does not allow 'append' on kept")
    node.wait_act("stream.append", "kept", "reader", "403")


def test_a_topic_is_created_written_changed_and_its_group_is_reset(
    page: Page, node: Guarded
) -> None:
    go(page, "kafka")
    command = act(
        page, "Create", name="till", partitions="2", configs="content.type=application/json"
    )
    assert command == (
        f"polynya topic create till --partitions 2 --config content.type=application/json --server {node.url}"
    )
    page.wait("location.hash === '#/topic/till'")
    for number in (0, 1):
        command = act(
            page,
            "Produce",
            text=f'{{"n": {number}}}',
            key="k",
            headers="source=web",
            partition=str(number),
        )
        assert f"--key k --header source=web --partition {number}" in command
        page.wait(f"document.querySelectorAll('.record').length === {number + 1}")
    positions = page.run(
        "[...document.querySelectorAll('.record .at')].map((each) => each.textContent)"
    )
    assert positions == ["0:0", "1:0"]
    assert page.run("document.querySelector('.record .preview').textContent") == '{"n": 0}'
    lines = ("content.type=application/json", "retention.ms=172800000", "max.message.bytes=1000000")
    act(page, "Configs", configs="\n".join(lines))
    with node.web() as web:
        configs = web.get("/v1/topics/till").json()["configs"]
        assert configs == dict(line.split("=") for line in lines)
        web.post(
            "/v1/groups/shops/offsets", json={"to": "latest", "topics": ["till"]}
        ).raise_for_status()
        web.post("/v1/groups/slow/offsets", json={"to": "earliest", "topics": ["till"]})
    go(page, "kafka")
    lag = "document.querySelector('a[href=\"#/topic/till\"]')?.closest('tr').children[3]"
    page.wait(f"{lag}?.textContent === '2'")
    assert page.run(f"{lag}.firstChild.title") == "The group slow is the furthest behind"
    go(page, "group/shops")
    page.wait("document.querySelectorAll('.tables tbody tr').length === 2")
    open_act(page, "Reset")
    perform(page)
    wait_text(
        page, ".act-dialog", "Nothing was changed. These would be the new offsets of 2 partitions"
    )
    page.run("document.querySelector('.act-dialog .primary').click()")
    open_act(page, "Reset")
    fill(page, dry=False)
    perform(page)
    wait_text(page, ".act-dialog", "These are the new offsets of 2 partitions")
    page.run("document.querySelector('.act-dialog .primary').click()")
    act(page, "Delete", typed="shops")
    page.wait("location.hash === '#/kafka'")
    for line in (
        ("topic.create", "/v1/topics/till", "root", "201"),
        ("topic.produce", "/v1/topics/till/records", "root", "200"),
        ("topic.change", "/v1/topics/till", "root", "200"),
        ("group.reset", "/v1/groups/shops/offsets", "root", "200"),
        ("group.delete", "/v1/groups/shops", "root", "204"),
    ):
        node.wait_act(*line)
    use_token(page, node.reader)
    go(page, "topic/till")
    open_act(page, "Delete")
    fill(page, typed="till")
    perform(page)
    wait_text(
        page, ".act-dialog .wrong", "Refused: the token does not allow 'delete' on kafka/till/"
    )
    node.wait_act("topic.delete", "/v1/topics/till", "reader", "FORBIDDEN")


def test_a_viewer_has_no_buttons_and_its_requests_are_refused(
    browser: Browser, tmp_path: Path
) -> None:
    with running_node(tmp_path / "data", "--cores", "1", POLYNYA_CONSOLE_ACTS="false") as one:
        page = browser.open(f"{one.url}/console/")
        page.wait("document.querySelector('.acts')?.hidden")
        stale = {**JSON, "Polynya-Console": "1"}
        refused = httpx.put(f"{one.url}/v1/stream/a", headers=stale, timeout=60)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "CONSOLE_READ_ONLY"
        assert httpx.put(f"{one.url}/v1/stream/a", headers=JSON, timeout=60).status_code == 201
        page.call("Page.close")


def test_tokens_are_made_and_revoked_and_the_audit_log_is_shown(page: Page, node: Guarded) -> None:
    go(page, "access")
    open_act(page, "Create")
    fill(page, name="shop", scopes="read,append:shop/", expires="30d")
    perform(page)
    wait_text(page, ".act-dialog", "The secret of shop")
    secret = page.run("document.querySelector('#secret').textContent")
    page.run("document.querySelector('.act-dialog .primary').click()")
    known = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{node.url}/v1/streams", headers=known, timeout=60).status_code == 200
    button = "[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.startsWith('shop'))?.querySelector('.acts:not(.waiting) button')"
    page.wait(f"!!{button}")
    page.run(f"{button}.click()")
    fill(page, typed="shop")
    perform(page)
    page.wait(f"document.querySelector('.act-dialog') === null && !{button}")
    page.wait("document.querySelector('#content').textContent.includes('token.revoke')")
    node.wait_act("token.create", "/v1/admin/tokens/shop", "root", "201")
    page.size(390, 844, mobile=True)
    wait_text(page, ".list.tokens", "shop")
    wide = "[...document.querySelectorAll('.panel')].filter((each) => each.scrollWidth > each.clientWidth)"
    assert page.run(f"{wide}.map((each) => each.textContent)") == []
    page.size(1200, 800)
    use_token(page, node.reader)
    go(page, "access")
    wait_text(page, "#content", "No access to the tokens: the token does not allow 'admin'")


def test_a_subscription_is_made_shown_with_its_lag_and_deleted(page: Page, node: Guarded) -> None:
    with node.web() as web:
        web.put("/v1/stream/work/a", headers=JSON)
        web.put("/v1/stream/wakes", headers=JSON)
    go(page, "subscriptions")
    act(page, "Create", id="mailer", pattern="work/*", type="pull-wake", wakes="wakes")
    page.wait("location.hash === '#/subscription/mailer'")
    wait_text(page, "tbody", "work/a")
    with node.web() as web:
        web.post("/v1/stream/work/a", json=[1, 2], headers=JSON)
    page.wait("document.querySelector('tbody td:last-child')?.textContent === '2'")
    act(page, "Delete", typed="mailer")
    page.wait("location.hash === '#/subscriptions'")
    target = "/v1/stream/__ds/subscriptions/mailer"
    node.wait_act("subscription.create", target, "root", "201")
    node.wait_act("subscription.delete", target, "root", "204")


def test_a_group_of_workers_is_one_row_with_its_lanes_below(page: Page, node: Guarded) -> None:
    lane = {"type": "pull-wake", "pattern": "posts/*", "wake_stream": "groups/crew"}
    with node.web() as web:
        for stream in ("posts/a", "groups/crew"):
            web.put(f"/v1/stream/{stream}", headers=JSON)
        for number in range(2):
            web.put(f"/v1/stream/__ds/subscriptions/crew.{number}", json=lane)
        web.post("/v1/stream/posts/a", json=[1, 2, 3], headers=JSON)
        report = {"worker": "w1", "lanes": 2}
        web.post("/v1/stream/__ds/subscriptions/crew.0/workers", json=report)
        go(page, "subscriptions")
        cells = "[...document.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
        page.wait(
            f"{cells}.some((row) => row[0] === 'crew' && row[5] === '3' && row[6] === '2' && row[7] === 'w1')"
        )
        page.run("location.hash = '#/subscription/crew'")
        page.wait(
            f"{cells}.map((row) => [row[0], row[3], row[4]].join()).join(' ') === 'crew.0,w1,3 crew.1,w1,3'"
        )
        wait_text(page, "#content h2", "Lanes")
        for number in range(2):
            web.delete(f"/v1/stream/__ds/subscriptions/crew.{number}")


def test_a_table_is_made_altered_and_dropped(page: Page, node: Guarded) -> None:
    go(page, "tables")
    act(page, "Create", name="tills", prefix="tills/", columns="price:double")
    page.wait("location.hash === '#/table/tills'")
    act(page, "Alter", hold=True, columns="n:long")
    with node.web() as web:
        table = web.get("/v1/tables/tills").json()["table"]
    assert (table["hold"], sorted(name for name, _ in table["columns"])) == (True, ["n", "price"])
    open_act(page, "Rebuild")
    fill(page, partitions="day(timestamp)")
    shown = page.run("document.querySelector('.act-dialog .same code').textContent")
    assert shown == (
        f"polynya table rebuild tills --partition 'day(timestamp)' --server {node.url}"
    )
    page.run("document.querySelector('.act-dialog').close()")
    wait_text(page, "#content", "The table has had no job yet")
    act(page, "Drop", typed="tills")
    page.wait("location.hash === '#/tables'")
    for line in (
        ("table.create", "/v1/tables/tills", "root", "201"),
        ("table.alter", "/v1/tables/tills/alter", "root", "200"),
        ("table.drop", "/v1/tables/tills", "root", "200"),
    ):
        node.wait_act(*line)
