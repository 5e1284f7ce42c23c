"""HTTP/2 and short tokens on a node with TLS and access control, with foreign clients."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from missing import needed_program
from polling import wait_until
from product import RunningNode, polynya, running_node

from polynya.client import AccessDenied, Client

pytestmark = pytest.mark.process

JSON = {"Content-Type": "application/json"}


class Site:
    """A node, and the token of a site's server."""

    def __init__(self, node: RunningNode, data: Path, token: str) -> None:
        self.node, self.data, self.token = node, data, token
        self.authority = data / "tls" / "self.crt"
        self.trusted = ssl.create_default_context(cafile=self.authority)

    def web(self, token: str, *, http1: bool = False) -> httpx.Client:
        return httpx.Client(
            base_url=self.node.url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=self.authority),
            http1=http1,
            http2=not http1,
            timeout=60,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("site") / "data"
    ran = polynya("token", "create", "site", "--allow", "all:runs/", "--data", str(data))
    assert ran.code == 0, ran
    with running_node(data, "--cores", "1", "--auth-required", "--tls-self") as node:
        yield Site(node, data, ran.out.strip())


def test_the_handshake_chooses_and_both_protocols_see_the_same_stream(site: Site) -> None:
    with site.web(site.token) as new, site.web(site.token, http1=True) as old:
        made = new.put("/v1/stream/runs/a", headers=JSON)
        assert (made.status_code, made.http_version) == (201, "HTTP/2")
        assert old.post("/v1/stream/runs/a", json=[1], headers=JSON).status_code == 204
        assert new.post("/v1/stream/runs/a", json=[2], headers=JSON).status_code == 204
        for web, version in ((new, "HTTP/2"), (old, "HTTP/1.1")):
            read = web.get("/v1/stream/runs/a?offset=-1")
            assert (read.http_version, read.json()) == (version, [1, 2])


def test_curl_speaks_it(site: Site) -> None:
    curl = needed_program("curl", "curl")
    if (
        curl is None
        or "HTTP2"
        not in subprocess.run(
            [curl, "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
    ):
        return  # a curl without it chooses HTTP/1.1, which other tests speak
    ran = subprocess.run(
        [
            *(curl, "-s", "--cacert", str(site.authority), "-w", "%{http_version}"),
            *("-H", f"Authorization: Bearer {site.token}", f"{site.node.url}/v1/streams"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.endswith("2"), ran.stdout


def test_a_short_token_from_the_command_line_and_from_python(site: Site) -> None:
    env = {"POLYNYA_TOKEN": site.token, "POLYNYA_CA_FILE": str(site.authority)}
    with Client(site.node.url, token=site.token, verify=site.trusted) as client:
        client.stream("runs/b").create()
        minted = client.mint_token(stream="runs/b", verbs=["read", "append"])
        assert minted.token not in repr(minted)
        with pytest.raises(AccessDenied, match="does not allow 'read' on other"):
            client.mint_token(stream="other")
        with pytest.raises(ValueError, match="either stream or prefix"):
            client.mint_token()
    with Client(site.node.url, token=minted.token, verify=site.trusted) as page:
        page.stream("runs/b").append(1)
        with pytest.raises(AccessDenied):
            page.stream("runs/bb").create()
        with pytest.raises(AccessDenied):
            page.mint_token(stream="runs/b")
    for scope in (("--stream", "runs/b"), ("--prefix", "runs/")):
        ran = polynya(*("token", "mint", *scope, "--json"), server=site.node.url, **env)
        assert ran.code == 0, ran
        with site.web(json.loads(ran.out)["token"]) as web:
            assert web.get("/v1/stream/runs/b?offset=-1").json() == [1]
    refused = polynya("token", "mint", "--stream", "other", server=site.node.url, **env)
    assert refused.code and "does not allow 'read' on other" in refused.err


def test_revoking_the_server_ends_the_pages_events(site: Site) -> None:
    ran = polynya("token", "create", "brief", "--allow", "read:runs/", "--data", str(site.data))
    with Client(site.node.url, token=site.token, verify=site.trusted) as client:
        client.stream("runs/c").create()
    with Client(site.node.url, token=ran.out.strip(), verify=site.trusted) as client:
        short = client.mint_token(prefix="runs/").token
    with (
        site.web(short) as web,
        web.stream("GET", "/v1/stream/runs/c?offset=-1&live=sse") as events,
    ):
        pieces = events.iter_bytes()
        assert b"upToDate" in next(pieces)
        assert polynya("token", "revoke", "brief", "--data", str(site.data)).code == 0
        assert b"".join(pieces) == b""  # the response ends
        wait_until(
            lambda: web.get("/v1/stream/runs/c?offset=-1").status_code == 401, what="a refusal"
        )
