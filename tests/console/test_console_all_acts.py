"""Every act of the console: its dialog shows the same command, a token without the right is refused,
and both the refusal and the act are lines of the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import httpx
import pytest
from chromium import Browser, browser
from confluent_kafka import Producer
from polling import wait_until
from worlds.console_acts import fill, go, open_act, perform, wait_text
from worlds.console_pages import JSON, Guarded, guarded_node, open_console

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
__all__ = ["browser"]  # the fixture

SUBSCRIPTION = "/v1/stream/__ds/subscriptions/mailer"
OPEN = (
    "(() => { const button = [...document.querySelectorAll('tbody tr')]"
    ".find((row) => row.textContent.includes({row}))?.querySelector('.acts:not(.waiting) button');"
    " button?.click(); return !!button; })()"
)


class Act(NamedTuple):
    """An act: the page, the word of its button and the fields of its dialog; the verb and the words
    of the command that it shows; its line in the audit log. `row`: its button is in the row with this text."""

    path: str
    word: str
    fields: dict[str, Any]
    command: str
    name: str
    target: str
    done: str = "2"  # the outcome begins so
    row: str = ""


ACTS = (
    Act("streams", "Create", {"name": "acts/a"}, "create acts/a", "stream.create", "acts/a"),
    Act("stream/acts/a", "Append", {"text": "[1, 2, 3]"}, "append acts/a", "stream.append", "acts/a"),
    Act("stream/acts/a", "Retention", {"mode": "limit", "age": "7d"}, "retention set acts/a --keep-age 7d", "stream.retention", "acts/a"),
    Act("stream/acts/a", "Attributes", {"attrs": '{"owner": "me"}'}, "attrs set acts/a", "stream.attrs", "acts/a"),
    Act("snapshots/acts/a", "Publish", {"text": "{}"}, "snapshot publish acts/a", "stream.snapshot", "acts/a"),
    Act("snapshots/acts/a", "Delete", {"typed": "3"}, "snapshot rm acts/a", "stream.snapshot", "acts/a"),
    Act("stream/acts/a", "Trim", {"place": "1"}, "trim acts/a --before", "stream.trim", "acts/a"),
    Act("stream/acts/a", "Fork", {"fork": "acts/b"}, "fork acts/b --from acts/a", "stream.fork", "acts/b"),
    Act("stream/acts/b", "Close", {}, "close acts/b", "stream.close", "acts/b"),
    Act("stream/acts/b", "Delete", {"typed": "acts/b"}, "rm acts/b", "stream.delete", "acts/b"),
    Act("kafka", "Create", {"name": "till"}, "topic create till", "topic.create", "/v1/topics/till"),
    Act("topic/till", "Produce", {"text": "1"}, "produce till", "topic.produce", "/v1/topics/till/records"),
    Act("topic/till", "Configs", {"configs": "retention.ms=86400000"}, "topic alter till", "topic.change", "/v1/topics/till"),
    Act("group/shops", "Reset", {"dry": False}, "group reset-offsets shops", "group.reset", "/v1/groups/shops/offsets"),
    Act("group/shops", "Delete", {"typed": "shops"}, "group rm shops", "group.delete", "/v1/groups/shops"),
    Act("topic/till", "Delete", {"typed": "till"}, "topic rm till", "topic.delete", "/v1/topics/till"),
    Act("transaction/none", "Abort", {"typed": "none"}, "txn abort none", "transaction.abort", "/v1/transactions/none/abort", done="TRANSACTION"),
    Act("schemas", "Level", {"level": "NONE"}, "schema config --level none", "schema.config", "/registry/config"),
    Act("schemas", "Register", {"subject": "orders-value"}, "schema register --type avro", "schema.register", "/registry/subjects/orders-value/versions"),
    Act("schema/orders-value", "Register", {"text": '"long"'}, "schema register --type avro", "schema.register", "/registry/subjects/orders-value/versions"),
    Act("schema/orders-value", "Level", {"level": "FULL"}, "schema config orders-value --level full", "schema.config", "/registry/config/orders-value"),
    Act("schema/orders-value", "Delete", {"typed": "orders-value"}, "schema delete orders-value", "schema.delete", "/registry/subjects/orders-value"),
    Act("reducers", "Add", {"name": "sums", "pattern": "sums/*"}, "reduce add sums", "reducer.put", "/v1/reducers/sums"),
    Act("reducers", "Change", {"records": "9"}, "reduce add sums", "reducer.put", "/v1/reducers/sums"),
    Act("reducers", "Verify", {"stream": "sums/a"}, "reduce verify sums sums/a", "reducer.verify", "/v1/reducers/sums/verify", done="NO"),
    Act("reducers", "Remove", {"typed": "sums"}, "reduce rm sums", "reducer.delete", "/v1/reducers/sums"),
    Act("subscriptions", "Create", {"id": "mailer", "pattern": "acts/*", "type": "pull-wake", "wakes": "wakes"}, "sub create mailer", "subscription.create", SUBSCRIPTION),
    Act("subscription/mailer", "Reset", {"dry": False}, "sub reset mailer --to earliest", "subscription.reset", f"{SUBSCRIPTION}/reset"),
    Act("subscription/mailer", "Delete", {"typed": "mailer"}, "sub rm mailer", "subscription.delete", SUBSCRIPTION),
    Act("tables", "Create", {"name": "sales", "prefix": "acts/"}, "table create sales", "table.create", "/v1/tables/sales"),
    Act("table/sales", "Alter", {"hold": True}, "table alter sales --hold", "table.alter", "/v1/tables/sales/alter"),
    Act("table/sales", "Retry", {}, "table retry sales", "table.retry", "/v1/tables/sales/retry"),
    Act("table/sales", "Sync", {}, "table sync sales", "table.sync", "/v1/tables/sales/sync", done="TABLE_RUNS_OFF"),
    Act("table/sales", "Rebuild", {"partitions": "day(timestamp)", "typed": "sales"}, "table rebuild sales --partition", "table.rebuild", "/v1/tables/sales/rebuild", done="TABLE_RUNS_OFF"),
    Act("table/sales", "Replay", {}, "table replay-dlq sales", "table.replay", "/v1/tables/sales/replay", done="TABLE_RUNS_OFF"),
    Act("table/sales", "Drop", {"typed": "sales"}, "table drop sales", "table.drop", "/v1/tables/sales"),
    Act("access", "Create", {"name": "guest", "scopes": "read"}, "token create guest", "token.create", "/v1/admin/tokens"),
    Act("access", "Revoke", {"typed": "guest"}, "token revoke", "token.revoke", "/v1/admin/tokens/", row="guest"),
)  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_node(tmp_path_factory.mktemp("all-acts"), "--lake-run-timeout", "0") as node:
        yield node


def prepare(web: httpx.Client, node: Guarded) -> None:
    """Make what the acts need and none of them makes: streams, and a transactional id."""
    for stream in ("wakes", "sums/a"):
        web.put(f"/v1/stream/{stream}", headers=JSON).raise_for_status()
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "root",
        "sasl.password": node.root,
    }
    known = {"bootstrap.servers": node.node.kafka, "transactional.id": "none", **login}
    Producer(known).init_transactions(60)


def before(web: httpx.Client, act: Act) -> None:
    """Make what one act needs beside those before it."""
    if act.path == "group/shops" and act.word == "Reset":
        web.post("/v1/groups/shops/offsets", json={"to": "latest", "topics": ["till"]})


def unknown_acts() -> int:
    """The number of dialogs in the console's source that the table does not have."""
    folder = files("polynya.console") / "static"
    sources = [file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".js")]
    asked = sum(source.count("askAct(shell, {") for source in sources)
    twice = {("schema/orders-value", "Register"), ("schema/orders-value", "Level"), ("reducers", "Change")}  # fmt: skip
    runs = {"Sync", "Rebuild", "Replay"}  # of a table, all by one dialog
    needs_a_run = 1  # its cancellation: test_console_table_runs
    known = sum((act.path, act.word) not in twice and act.word not in runs for act in ACTS)
    return asked - 1 - needs_a_run - known


def test_every_act_is_refused_without_the_right_and_audited(
    browser: Browser, node: Guarded
) -> None:
    assert unknown_acts() == 0, "add the act to the table"
    reader = node.token("reader", "read", "subscribe:other/")
    page = open_console(browser, node)
    page.size(1280, 900)
    with node.web() as web:
        prepare(web, node)
        for act in ACTS:
            before(web, act)
            page.run("document.querySelector('dialog.act-dialog')?.close()")
            go(page, "health")
            page.wait("document.querySelector('.verdict') !== null")
            go(page, act.path)
            if act.row:
                page.wait(OPEN.replace("{row}", json.dumps(act.row)))
                page.wait("document.querySelector('dialog.act-dialog')?.open")
            else:
                open_act(page, act.word)
            fill(page, **act.fields)
            shown = page.run("document.querySelector('.act-dialog .same code').textContent")
            assert f"polynya {act.command}" in shown, act
            _attempt(page, node, act, reader, "reader")
            wait_text(page, ".act-dialog .wrong", "Refused: ")
            _attempt(page, node, act, node.root, "root")
            if act.done == "2":  # its dialog is closed, or shows what came of it
                page.wait("document.querySelector('.act-dialog form') === null")
    page.call("Page.close")


def _attempt(page: Any, node: Guarded, act: Act, token: str, who: str) -> None:
    """Perform the act with a token, until the audit log has its line."""
    known = len(node.acts())
    page.run(f"sessionStorage.setItem('polynya.token', {json.dumps(token)})")
    page.wait("!document.querySelector('.act-dialog [type=submit]').disabled")
    perform(page)

    def is_audited() -> bool:
        lines = [line for line in node.acts()[known:] if line[2] == who]
        outcomes = ("403", "FORBIDDEN") if who == "reader" else (act.done,)
        return any(
            line[0] == act.name and line[1].startswith(act.target) and line[3].startswith(outcomes)
            for line in lines
        )

    try:
        wait_until(is_audited, what=f"{act.name} of {act.target} by {who}", seconds=30)
    except AssertionError as error:
        said = page.run("document.querySelector('.act-dialog .wrong')?.textContent")
        raise AssertionError(f"{error}; {node.acts()[known:]}; the page says {said}") from None
