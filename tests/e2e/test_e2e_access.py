"""Access control of the real server: TLS, tokens on every core, reload, limits, the audit log, and
hostile clients at the door."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import signal
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from e2e_world import Answer, World, address, raw, read_until, resident
from long_tests import long
from polling import wait_until
from product import Ran, polynya

pytestmark = pytest.mark.process
KEY = ed25519.Ed25519PrivateKey.generate()
JSON = {"Content_Type": "application/json"}


class Guarded:
    """A node of two cores with access control and TLS, and the credentials of its clients."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.ca = self.data / "tls" / "self.crt"
        self.world = World(self.data)
        self.root = self.token("root", "--allow", "all,admin")
        keys = folder / "keys.json"
        public = json.loads(jwt.get_algorithm_by_name("EdDSA").to_jwk(KEY.public_key()))
        keys.write_text(json.dumps({"keys": [{**public, "kid": "1"}]}))
        issuer = {
            "JWT_ISSUER": "https://i.example",
            "JWT_AUDIENCE": "streams",
            "JWT_KEYS": str(keys),
        }
        self.world.start(
            *(
                "--cores",
                "2",
                "--auth-required",
                "--tls-self",
                "--admin-listen",
                "127.0.0.1:0",
                "--long-poll-timeout",
                "0.5",
            ),
            **{f"POLYNYA_AUTH_{name}": value for name, value in issuer.items()},
        )

    def token(self, name: str, *options: str) -> str:
        """Create a token in the data folder, and return it when the cores know it."""
        ran = polynya("token", "create", name, *options, "--data", str(self.data))
        assert ran.code == 0, ran.err
        text = ran.out.strip()
        if self.world.node is not None:
            self.wait_known(text)
        return text

    def wait_known(self, token: str) -> None:
        """Wait until all cores know it. A dozen connections reach both cores, but for one time in
        two thousand."""
        wait_until(
            lambda: all(self.ask("GET", "/v1/node", token=token).status == 200 for _ in range(12)),
            what="the cores to know the token",
        )

    def revoke(self, name: str) -> None:
        assert polynya("token", "revoke", name, "--data", str(self.data)).code == 0

    def connect(self) -> http.client.HTTPSConnection:
        parts = urlsplit(self.world.url)
        assert parts.scheme == "https" and parts.hostname is not None
        return http.client.HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=60,
            context=ssl.create_default_context(cafile=self.ca),
        )

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, token: str = "", **headers: str
    ) -> Answer:
        with contextlib.closing(self.connect()) as connection:
            return ask_on(connection, method, path, body, token=token, **headers)

    def cli(self, *arguments: str, token: str, **variables: str) -> Ran:
        return polynya(
            *arguments,
            server=self.world.url,
            POLYNYA_TOKEN=token,
            POLYNYA_CA_FILE=str(self.ca),
            **variables,
        )

    def acts(self) -> list[dict[str, str]]:
        """Return the actions of the complete lines of the audit log."""
        whole = (self.data / "access" / "audit.jsonl").read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]


def ask_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    token: str = "",
    **headers: str,
) -> Answer:
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        spelled["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body, spelled)
    response = connection.getresponse()
    return Answer(response.status, dict(response.getheaders()), response.read())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(Path(tmp_path_factory.mktemp("guarded")))
    try:
        yield made
        assert made.world.stop() == 0
        assert "Traceback" not in made.world.log, made.world.log
        assert "polynya_" not in made.world.log, "no token in the log"
    finally:
        made.world.close()


def test_the_health_of_the_cluster_is_told_to_anybody_and_its_details_to_those_with_a_token(
    guarded: Guarded,
) -> None:
    token = guarded.token("looker", "--allow", "read")
    stranger = guarded.ask("GET", "/v1/cluster/health")
    assert (stranger.status, json.loads(stranger.body)) == (200, {"healthy": True})
    stale = guarded.ask("GET", "/v1/cluster/health", token="polynya_0123_x")
    assert (stale.status, json.loads(stale.body)) == (200, {"healthy": True})
    known = guarded.ask("GET", "/v1/cluster/health", token=token)
    assert (
        known.status == 200
        and {"healthy", "nodes", "problems", "notes"} <= json.loads(known.body).keys()
    )


def test_a_token_made_while_the_node_runs_is_known_to_all_cores_and_a_revoked_one_to_none(
    guarded: Guarded,
) -> None:
    token = guarded.token("brief", "--allow", "create,append,read:orders/")
    connections = [guarded.connect() for _ in range(16)]  # the kernel spreads them over the cores
    try:
        assert guarded.ask("PUT", "/v1/stream/orders/brief", token=token, **JSON).status == 201
        for connection in connections:
            for _ in range(4):  # the later ones go the short way
                assert (
                    ask_on(
                        connection, "POST", "/v1/stream/orders/brief", b"1", token=token, **JSON
                    ).status
                    == 204
                )
        guarded.revoke("brief")
        late = datetime.now(UTC) + timedelta(seconds=2)
        wait_until(
            lambda: all(
                ask_on(each, "POST", "/v1/stream/orders/brief", b"2", token=token, **JSON).status
                == 401
                for each in connections
            ),
            what="every core to refuse the token",
        )
        page = guarded.ask("GET", "/v1/stream/orders/brief?offset=-1", token=guarded.root)
        assert json.loads(page.body).count(1) == 64
        late_page = guarded.ask(
            "GET",
            f"/v1/stream/orders/brief?from_time={quote(late.isoformat())}",
            token=guarded.root,
        )
        assert (late_page.status, late_page.body) == (200, b"[]"), (
            "by the server's clock, however slow this client is"
        )
    finally:
        for connection in connections:
            connection.close()


def jwt_of(subject: str, **claims: object) -> str:
    full = {
        "iss": "https://i.example",
        "aud": "streams",
        "sub": subject,
        "exp": int(time.time()) + 600,
        "scope": "read,append,create",
    }
    return jwt.encode({**full, **claims}, KEY, algorithm="EdDSA", headers={"kid": "1"})


@pytest.mark.parametrize("far", [True, *long([False])])
def test_a_revoked_jwt_is_refused_by_all_cores_and_what_follows_with_it_ends(
    guarded: Guarded, far: bool
) -> None:
    where = ("--server", guarded.world.url) if far else ("--data", str(guarded.data))
    name = f"jwt-{far}".lower()
    stolen, kept = jwt_of(name, jti=f"{name}-1"), jwt_of(name, jti=f"{name}-2")
    assert guarded.ask("PUT", f"/v1/stream/{name}", token=kept).status == 201
    with contextlib.closing(guarded.connect()) as live:
        live.request(
            "GET",
            f"/v1/stream/{name}?live=sse&offset=-1",
            headers={"Authorization": f"Bearer {stolen}"},
        )
        answer = live.getresponse()
        assert answer.status == 200
        assert (
            guarded.cli("token", "revoke", "--jti", f"{name}-1", *where, token=guarded.root).code
            == 0
        )
        assert b"upToDate" in answer.read(), "the answer has ended"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(guarded.connect())) for _ in range(12)
        ]
        wait_until(
            lambda: all(
                ask_on(each, "GET", "/v1/streams", token=stolen).status == 401
                for each in connections
            ),
            what="all cores to know",
        )
        assert {ask_on(each, "GET", "/v1/streams", token=kept).status for each in connections} == {
            200
        }
        assert (
            guarded.cli(
                "token", "revoke", "--sub", name, "--keep", "1h", *where, token=guarded.root
            ).code
            == 0
        )
        wait_until(
            lambda: all(
                ask_on(each, "GET", "/v1/streams", token=kept).status == 401 for each in connections
            ),
            what="all cores to know",
        )
    listed = guarded.cli("token", "ls", "--jwts", "--json", *where, token=guarded.root)
    assert {(entry.get("jti"), entry.get("sub")) for entry in json.loads(listed.out)} >= {
        (f"{name}-1", None),
        (None, name),
    }
    wait_until(
        lambda: (
            [act.get("outcome", "ok") for act in guarded.acts() if act["act"] == "jwt.revoke"][-2:]
            == ["200" if far else "ok"] * 2
        ),
        what="the audit log to have both",
    )
    assert guarded.cli("token", "revoke", "--sub", name, "x", *where, token=guarded.root).code == 2


def test_the_command_line_sends_the_token(guarded: Guarded) -> None:
    # not a bucket's name: it is in the default bucket
    reader = guarded.token("cli-reader", "--allow", "read:cli/")
    assert guarded.cli("create", "cli/a", token=guarded.root).code == 0
    assert guarded.cli("append", "cli/a", '{"a":1}', token=guarded.root).code == 0
    assert guarded.cli("read", "cli/a", token=reader).out == '{"a":1}\n'
    assert "FORBIDDEN" in guarded.cli("append", "cli/a", "1", token=reader).err
    assert guarded.cli("read", "cli/a", token="").code == 1
    flagged = polynya(
        "read",
        "cli/a",
        "--token",
        reader,
        server=guarded.world.url,
        POLYNYA_CA_FILE=str(guarded.ca),
    )
    assert flagged.out == '{"a":1}\n'
    untrusting = polynya("read", "cli/a", server=guarded.world.url, POLYNYA_TOKEN=reader)
    assert untrusting.code == 3 and "certificate" in untrusting.err.lower()


def test_tokens_are_made_over_the_admin_port_by_admins(guarded: Guarded) -> None:
    made = guarded.cli(
        "token",
        "create",
        "remote",
        "--allow",
        "read",
        "--expires",
        "1h",
        "--server",
        guarded.world.url,
        token=guarded.root,
    )
    assert made.code == 0, made.err
    secret = made.out.strip()
    guarded.wait_known(secret)
    listed = guarded.cli("token", "ls", "--json", "--server", guarded.world.url, token=guarded.root)
    assert secret.rsplit("_", 1)[1] not in listed.out and "remote" in listed.out
    refused = guarded.cli("token", "ls", "--server", guarded.world.url, token=secret)
    assert "FORBIDDEN" in refused.err
    verified = guarded.cli("store", "verify", "--server", guarded.world.url, token=guarded.root)
    assert verified.code == 0 and "no damage" in verified.err, (
        "what asks the admin port finds it, with TLS and token"
    )
    assert (
        guarded.cli(
            "token", "revoke", "remote", "--server", guarded.world.url, token=guarded.root
        ).code
        == 0
    )
    wait_until(
        lambda: guarded.ask("GET", "/v1/streams", token=secret).status == 401,
        what="the token to be refused",
    )
    near = http.client.HTTPConnection(*address(guarded.world.admin), timeout=60)
    assert ask_on(near, "GET", "/v1/admin/tokens").status == 401, (
        "on loopback the admin port gives no tokens away either"
    )
    assert ask_on(near, "POST", "/v1/admin/flush").status == 200
    near.close()


def test_the_audit_log_says_whose_token_made_a_token_on_the_loopback_too(guarded: Guarded) -> None:
    body = b'{"name": "audited-token", "scopes": ["read"]}'
    with contextlib.closing(
        http.client.HTTPConnection(*address(guarded.world.admin), timeout=60)
    ) as near:
        assert ask_on(near, "POST", "/v1/admin/tokens", body, token=guarded.root).status == 201
        assert ask_on(near, "POST", "/v1/admin/tokens", body).status == 401
    target = "/v1/admin/tokens/audited-token"
    wait_until(
        lambda: sum(act["target"] == target for act in guarded.acts()) == 2,
        what="both acts to be noted",
    )
    notes = [
        (act["outcome"], act["who"].partition(" ")[2] or act["who"])
        for act in guarded.acts()
        if act["target"] == target
    ]
    assert sorted(notes) == [("201", "root"), ("UNAUTHORIZED", "anybody")]


def test_the_machine_s_own_worker_needs_neither_token_nor_trust_and_others_are_told_another_port(
    guarded: Guarded,
) -> None:
    near = http.client.HTTPConnection(*address(guarded.world.admin), timeout=60)
    body = json.loads(ask_on(near, "GET", "/v1/node").body)
    assert (body["ports"]["admin"], body["admin_tls"]) == (address(guarded.world.admin)[1], False)
    assert ask_on(near, "GET", "/v1/tables").status == 200
    assert ask_on(near, "GET", "/v1/tables", Host="evil.example").status == 421
    near.close()
    far = json.loads(guarded.ask("GET", "/v1/node", token=guarded.root).body)
    assert far["admin_tls"] and far["ports"]["admin"] != body["ports"]["admin"]
    connection = http.client.HTTPSConnection(
        "127.0.0.1", far["ports"]["admin"], context=ssl.create_default_context(cafile=guarded.ca)
    )
    scraper = guarded.token("scraper", "--allow", "metrics")
    for path, token, status in (
        ("/metrics", scraper, 200),
        ("/v1/node", scraper, 403),
        ("/v1/admin/tokens", "", 401),
        ("/livez", "", 200),
        ("/v1/tables", guarded.root, 200),
    ):
        assert ask_on(connection, "GET", path, token=token).status == status, path
    assert ask_on(connection, "POST", "/v1/admin/flush", token=scraper).status == 403
    assert ask_on(connection, "POST", "/v1/admin/flush", token=guarded.root).status == 200
    connection.close()


def test_with_access_control_the_base_port_takes_acts_of_admins_under_any_host_and_not_of_foreign_pages(
    guarded: Guarded,
) -> None:
    reader = guarded.token("no-admin", "--allow", "read")
    for path in ("/v1/admin/flush", "/v1/cluster/rebalance"):
        assert guarded.ask("POST", path, b"{}").status == 401
        assert guarded.ask("POST", path, b"{}", token=reader).status == 403
        assert (
            guarded.ask("POST", path, b"{}", token=guarded.root, Origin="http://evil.com").status
            == 403
        )
    assert (
        guarded.ask("POST", "/v1/admin/flush", token=guarded.root, Host="events.example").status
        == 200
    )
    own_page = {"Host": "events.example", "Origin": "https://events.example"}
    assert guarded.ask("POST", "/v1/admin/flush", token=guarded.root, **own_page).status == 200
    refused = guarded.ask(
        "POST", "/v1/cluster/rebalance", b"{}", token=guarded.root, Content_Type="application/json"
    )
    assert refused.status == 409 and b"CLUSTER_REFUSED" in refused.body, "it is a node by itself"
    assert guarded.ask("POST", "/v1/admin/tokens", b"{}", token=guarded.root).status == 400, (
        "the console of an admin makes tokens"
    )
    reader = guarded.token("audit-reader", "--allow", "read")
    for path in ("/v1/admin/tokens", "/v1/admin/jwts", "/v1/admin/audit"):
        assert guarded.ask("GET", path, token=guarded.root).status == 200
        assert guarded.ask("GET", path, token=reader).status == 403


def test_acts_are_in_the_audit_log(guarded: Guarded) -> None:
    assert guarded.ask("PUT", "/v1/stream/audited", token=guarded.root).status == 201
    assert (
        guarded.ask(
            "PUT", "/v1/tables/audited", b'{"prefix": "audited"}', token=guarded.root
        ).status
        == 201
    )
    assert guarded.ask("DELETE", "/v1/stream/audited", token=guarded.root).status == 204
    # of different cores, perhaps: each writes its own lines
    expected = {
        ("stream.delete", "204"),
        ("table.create", "201"),
    }
    wait_until(
        lambda: {(line["act"], line["outcome"]) for line in audited(guarded)} >= expected,
        what="the lines of the audit log",
    )
    assert all(
        line["from"] == "127.0.0.1" and line["who"].endswith(" root") and line["request_id"]
        for line in audited(guarded)
    )
    assert "token.create" in {line["act"] for line in guarded.acts()}


def audited(guarded: Guarded) -> list[dict[str, str]]:
    return [line for line in guarded.acts() if line["target"] in ("audited", "/v1/tables/audited")]


def test_hangup_reads_certificates_again_and_open_connections_go_on(guarded: Guarded) -> None:
    assert guarded.world.node is not None
    connection = guarded.connect()
    assert ask_on(connection, "GET", "/v1/streams", token=guarded.root).status == 200
    before = len(guarded.acts())
    guarded.world.node.process.send_signal(signal.SIGHUP)
    # the supervisor's line and that of the first core, in either order
    expected = {
        "config.reload",
        "tls.reload",
    }
    wait_until(
        lambda: {line["act"] for line in guarded.acts()[before:]} >= expected,
        what="the certificate to be read again",
    )
    assert ask_on(connection, "GET", "/v1/streams", token=guarded.root).status == 200
    connection.close()
    assert guarded.ask("GET", "/v1/streams", token=guarded.root).status == 200
    assert len(guarded.world.cores()) == 2


def test_a_limit_holds_over_both_cores(guarded: Guarded) -> None:
    token = guarded.token("slow", "--allow", "read", "--requests", "40")
    counts = {200: 0, 429: 0}
    waits: set[str] = set()
    guard = threading.Lock()
    began = time.monotonic()

    def goes_on() -> bool:
        passed = time.monotonic() - began
        return passed < 4 or (counts[429] <= 50 and passed < 60)

    def flood() -> None:
        with contextlib.closing(guarded.connect()) as connection:
            while goes_on():
                answer = ask_on(connection, "GET", "/v1/streams", token=token)
                with guard:
                    counts[answer.status] += 1
                    waits.add(answer.headers.get("retry-after", ""))

    threads = [threading.Thread(target=flood) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts[429] > 50 and "1" in waits
    assert 100 <= counts[200] <= 40 * (time.monotonic() - began) * 1.7 + 80, (
        "once for the node, but for what passes between two reports"
    )


def test_tls_hostilities(guarded: Guarded) -> None:
    """Send plain HTTP, garbage, half a handshake and old protocols to the TLS port: they are
    closed, and others are served."""
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"x" * 5000,
        b"\0" * 100_000,
        b"\x16\x03\x01",
    ):
        with raw(guarded.world.url) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            if len(data) > 3:
                connection.settimeout(60)
                assert b"HTTP/1.1 2" not in read_until(connection, b"never")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with raw(guarded.world.url) as connection, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(connection)
    with contextlib.ExitStack() as idle:
        for _ in range(200):  # handshakes that never begin
            idle.enter_context(raw(guarded.world.url))
        assert guarded.ask("GET", "/v1/streams", token=guarded.root).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stream/orders/../cli/a",
        "/v1/stream/orders/%2e%2e/cli/a",
        "/v1/stream/orders%2fa",
        "/v1/stream/orders/%00",
        "/v1/stream/orders//a",
        "//v1/stream/orders/a",
        "/v1/stream/orders/a%0d%0aX-Evil:%201",
        "/v1/stream/" + "a" * 3000,
        "/v1/stream/orders/\xff",
        "http://evil.example/v1/stream/orders/a",
    ],
)
def test_path_tricks_lead_nowhere(guarded: Guarded, target: str) -> None:
    token = guarded.root
    with contextlib.closing(guarded.connect()) as connection:
        connection.putrequest("GET", "/", skip_host=True)
        connection._buffer[0] = f"GET {target} HTTP/1.1".encode("latin-1")  # type: ignore[attr-defined]
        connection.putheader("Host", "x")
        connection.putheader("Authorization", f"Bearer {token}")
        connection.endheaders()
        answer = connection.getresponse()
        assert 400 <= answer.status < 500, answer.status
        assert "x-evil" not in {name.lower() for name, _ in answer.getheaders()}
        assert b"Traceback" not in answer.read()


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\0"])
@pytest.mark.parametrize(
    "name",
    [
        "X-Request-Id",
        "Content-Type",
        "Stream-Seq",
        "Origin",
        "Producer-Id",
        "Authorization",
        "Last-Event-ID",
    ],
)
def test_no_header_can_be_put_into_an_answer(guarded: Guarded, name: str, value: str) -> None:
    with contextlib.closing(guarded.connect()) as connection:
        connection.connect()
        head = (
            f"POST /v1/stream/orders/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n{name}: "
            f"{value}\r\n\r\n1"
        )
        connection.sock.sendall(head.encode("latin-1"))
        answer = read_until(connection.sock, b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 4") and b"\r\nX-Evil" not in answer


def test_a_bomb_costs_a_multiple_of_its_size(guarded: Guarded) -> None:
    """A bomb is stored where it is bytes; where it is JSON, or to be decoded, it is refused."""
    bomb = gzip.compress(b"[" + b"0," * (64 << 20) + b"0]")
    assert len(bomb) < 1 << 20
    for name, kind in (
        ("bombs/json", "application/json"),
        ("bombs/raw", "application/octet-stream"),
    ):
        assert (
            guarded.ask("PUT", f"/v1/stream/{name}", token=guarded.root, Content_Type=kind).status
            == 201
        )
    before = resident(guarded.world.cores())
    kind = "application/octet-stream"
    for name in ("json", "raw"):
        given = {
            "Content_Encoding": "gzip",
            "Content_Type": kind if name == "raw" else "application/json",
        }
        refused = guarded.ask("POST", f"/v1/stream/bombs/{name}", bomb, token=guarded.root, **given)
        assert (refused.status, refused.code) == (413, "BODY_TOO_LARGE")
    assert (
        guarded.ask("POST", "/v1/stream/bombs/json", bomb, token=guarded.root, **JSON).code
        == "INVALID_JSON"
    )
    assert (
        guarded.ask(
            "POST", "/v1/stream/bombs/raw", bomb, token=guarded.root, Content_Type=kind
        ).status
        == 204
    )
    assert guarded.ask("GET", "/v1/stream/bombs/raw?offset=-1", token=guarded.root).body == bomb
    assert resident(guarded.world.cores()) - before < 32 << 20


def test_bodies_of_strangers_are_not_read(guarded: Guarded) -> None:
    before = resident(guarded.world.cores())
    connections = []
    for _ in range(30):
        connection = guarded.connect()
        connection.connect()
        connection.sock.sendall(
            b"POST /v1/stream/orders/x HTTP/1.1\r\nHost: x\r\nContent-Length: 33000000\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            connection.sock.sendall(b"x" * (1 << 20))
        connections.append(connection)
    for connection in connections:
        with contextlib.suppress(OSError):
            assert read_until(connection.sock, b"\r\n\r\n").startswith(b"HTTP/1.1 401")
        connection.close()
    assert resident(guarded.world.cores()) - before < 32 << 20
    assert guarded.ask("GET", "/v1/streams", token=guarded.root).status == 200


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "--tls-self"),
        ({"POLYNYA_AUTH_REQUIRED": "true"}, "--tls-self"),
        ({"POLYNYA_TLS_SELF": "true", "POLYNYA_AUTH_REQUIRED": "false"}, "auth.required is false"),
        ({"POLYNYA_TLS_SELF": "true", "POLYNYA_ADMIN_LISTEN": "nowhere"}, "admin_listen"),
    ],
)
def test_beyond_loopback_nothing_is_served_without_both(
    world: World, variables: dict[str, str], said: str
) -> None:
    code, output = world.refused("--listen", "0.0.0.0:0", **variables)
    assert code == 2 and said in output, output
    assert not (world.data / "node.json").exists()


def test_what_is_unsafe_by_choice_is_said(world: World) -> None:
    world.start("--listen", "0.0.0.0:0", "--cores", "1", "--unsafe-no-auth")
    verbose = world.ask("GET", "/readyz?verbose").body
    assert b"[!] unsafe-no-auth: anybody" in verbose and b"[!] unsafe-no-tls" in verbose
    assert "WARNING unsafe-no-auth" in world.log


def test_without_a_token_the_start_says_how_to_make_one(world: World) -> None:
    world.start("--cores", "1", "--auth-required")
    assert (
        "NOTE no valid token exists: run polynya token create admin --allow all,admin --data "
        f"{world.data}" in world.log
    )
    assert world.ask("GET", "/v1/streams").status == 401
    assert world.ask("GET", "/readyz").status == 200
    assert world.stop() == 0
