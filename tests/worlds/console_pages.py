"""A node with something to show on every page of its console, and the list of these pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from chromium import Browser, Page
from polling import wait_until
from product import RunningNode, polynya, running_node
from worlds.console_acts import use_token

JSON = {"Content-Type": "application/json"}
CITIES = ("Oslo", "Nuuk", "Tromsø", "Reykjavík", "Murmansk")
VIEWPORTS = {"desktop": (1280, 900, False), "phone": (390, 844, True)}


class Shown(NamedTuple):
    """A page: its name, its address, and an expression that holds once its data is shown."""

    name: str
    address: str
    shown: str


def _has(selector: str, words: str = "") -> str:
    found = f"document.querySelector({json.dumps(selector)})"
    return f"{found}?.textContent.includes({json.dumps(words)})"


OPEN_RECORD = (
    "(document.querySelector('.pane:not([hidden])') !== null || "
    "document.querySelector('.record')?.click())"
)
OPEN_SNAPSHOT = OPEN_RECORD.replace(".record'", ".link'")
PAGES = (
    Shown("overview", "overview", _has(".trend-lines") + " !== undefined"),
    Shown("streams", "streams", _has("tbody", "shop/orders")),
    Shown("stream", "stream/shop/orders", OPEN_RECORD),
    Shown("records", "records?of=shop/", OPEN_RECORD),
    Shown("live", "records?of=shop/&live=1", _has(".state", "Live: 2 streams")),
    Shown("snapshots", "snapshots/shop/orders", OPEN_SNAPSHOT),
    Shown("tables", "tables", _has("tbody", "orders")),
    Shown("table", "table/orders", _has("#content", "The table has had no job yet")),
    Shown("kafka", "kafka", _has("#content", "billing")),
    Shown("topic", "topic/clicks", OPEN_RECORD),
    Shown("group", "group/billing", _has("tbody", "clicks")),
    Shown("transaction", "transaction/nobody", _has("#content", "nobody")),
    Shown("schemas", "schemas", _has("tbody", "orders-value")),
    Shown("schema", "schema/orders-value", _has(".schema-text", "price")),
    Shown("reducers", "reducers", _has("tbody", "carts")),
    Shown("subscriptions", "subscriptions", _has("tbody", "mailer")),
    Shown("subscription", "subscription/mailer", _has("tbody", "shop/orders")),
    Shown("sql", "sql?q=select%201%20as%20one", _has("#result", "one")),
    Shown("costs", "costs", _has(".lines") + " !== undefined"),
    Shown("access", "access", _has("#content", "token.create")),
    Shown("health", "health", _has(".verdict", "eady")),
    Shown("missing", "stream/no/such", _has(".state", "does not exist")),
)


class Guarded(NamedTuple):
    """A node with access control, its data folder, and the token of an admin."""

    node: RunningNode
    data: Path
    root: str

    def acts(self) -> list[tuple[str, str, str, str]]:
        """Return the lines of the audit log: act, target, name of the token, outcome."""
        lines = (self.data / "access" / "audit.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [
            (each["act"], each["target"], each["who"].split()[-1], each.get("outcome", "ok"))
            for each in found
        ]

    @property
    def url(self) -> str:
        return self.node.url

    def web(self, token: str = "") -> httpx.Client:
        known = {"Authorization": f"Bearer {token or self.root}"}
        return httpx.Client(base_url=self.url, headers=known, timeout=60)

    def token(self, name: str, *scopes: str) -> str:
        """Create a token, and return its secret once the node knows it."""
        made = polynya(
            "token", "create", name, "--allow", ",".join(scopes), "--data", str(self.data)
        )
        secret = made.out.strip()
        with self.web(secret) as web:
            wait_until(
                lambda: web.get("/v1/streams").status_code != 401,
                what=f"the token {name} to be known",
            )
        return secret


@contextmanager
def guarded_node(folder: Path, *more: str) -> Iterator[Guarded]:
    """Run a node that requires tokens, with more flags, until `with` ends."""
    data = folder / "data"
    flags = ("--cores", "1", "--auth-required", "--kafka-listen", "127.0.0.1:0", *more)
    with running_node(data, *flags) as node:
        bare = Guarded(node, data, "")
        yield bare._replace(root=bare.token("root", "all", "admin"))


def fill(web: httpx.Client) -> None:
    """Give every page something to show."""
    _fill_streams(web)
    _fill_kafka(web)
    web.put("/v1/tables/orders", json={"prefix": "shop/"}).raise_for_status()
    for names in (("price",), ("price", "note")):
        properties = {name: {"type": "string"} for name in names}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if len(names) == 1:
            web.put("/registry/config", json={"compatibility": "NONE"}).raise_for_status()
        body = {"schema": json.dumps(schema), "schemaType": "JSON"}
        web.post("/registry/subjects/orders-value/versions", json=body).raise_for_status()
    snapshot = {"orders": 20, "paid": 13}
    for record, count in ((10, 10), (20, 20)):
        path = f"/v1/stream/shop/orders/snapshot?record={record}"
        web.put(path, json=snapshot | {"orders": count}).raise_for_status()
    web.put("/v1/stream/shop/orders/attrs", json={"owner": "shop"}).raise_for_status()
    reducer = {"pattern": "carts/*", "builtin": "latest", "key": "/item"}
    web.put("/v1/reducers/carts", json=reducer).raise_for_status()
    work = {"type": "pull-wake", "pattern": "shop/*", "wake_stream": "wakes"}
    web.put("/v1/stream/__ds/subscriptions/mailer", json=work).raise_for_status()


def _fill_streams(web: httpx.Client) -> None:
    for name in ("shop/orders", "shop/returns", "sensors/arctic", "wakes"):
        web.put(f"/v1/stream/{name}", headers=JSON).raise_for_status()
    orders = [
        {
            "order": number,
            "city": CITIES[number % 5],
            "price": 12.5 * (number % 7 + 1),
            "paid": number % 3 > 0,
        }
        for number in range(40)
    ]
    keyed = {"Record-Key": "customer-9", "Record-Header": "source=web"}
    web.post("/v1/stream/shop/orders", json=orders, headers=JSON).raise_for_status()
    web.post(
        "/v1/stream/shop/orders", json={"order": 40, "note": "gift"}, headers=JSON | keyed
    ).raise_for_status()
    web.post(
        "/v1/stream/shop/returns", json=[{"order": 3, "why": "too small"}], headers=JSON
    ).raise_for_status()
    web.post(
        "/v1/stream/sensors/arctic", json=[{"ice": 0.93}, {"ice": 0.91}], headers=JSON
    ).raise_for_status()
    web.put("/v1/stream/logs/web", headers={"Content-Type": "text/plain"}).raise_for_status()


def _fill_kafka(web: httpx.Client) -> None:
    web.put("/v1/topics/clicks", json={"partitions": 2}).raise_for_status()
    for number in range(6):
        record = {"value": json.dumps({"page": f"/item/{number}"}), "key": f"visitor-{number % 3}"}
        body = {"records": [record], "partition": number % 2}
        web.post("/v1/topics/clicks/records", json=body).raise_for_status()
    reset = {"to": "earliest", "topics": ["clicks"]}
    web.post("/v1/groups/billing/offsets", json=reset).raise_for_status()


def open_console(browser: Browser, node: Guarded, token: str = "") -> Page:
    """Open a tab with the console, and this token or the admin's."""
    page = browser.open(f"{node.url}/console/")
    use_token(page, token or node.root)
    return page


def show(page: Page, shown: Shown) -> None:
    """Open a page and wait for its data."""
    page.run(f"location.hash = {json.dumps('#/' + shown.address)}")
    page.wait(shown.shown)
