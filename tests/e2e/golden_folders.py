"""Data folders as older releases wrote them, with a bit of everything and what they answered:
`tests/e2e/golden/NAME.tar.xz`.

A new one, of the release whose source is in SRC (a release that landed, laid out by `git archive
REVISION src | tar -x -C FOLDER`):

    PYTHONPATH=tests:src python tests/e2e/golden_folders.py SRC tests/e2e/golden/NAME.tar.xz

NAME is the revision, or what is new in it.

In the archive: `data`, of a node that was killed; `backup`, if the release knows backups;
`answers.json`: what was asked last, what the node said, and the tokens. Golden files are never
changed: when the format gets something new, there is one more.
"""

from __future__ import annotations

import json
import lzma
import sys
import tarfile
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from urllib.parse import quote

import msgspec
from e2e_world import Answer, World
from polling import wait_until
from product import polynya

FLAGS = ("--cores", "1", "--groups", "4", "--auth-required", "--cold-delete-grace-ms", "1s")
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
# of the headers of an answer, with those that begin with `stream-` and `producer-`
KEPT = (
    "content-type",
    "etag",
    "last-modified",
    "location",
)
SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"
LEASE_MS = 600_000


class Said(msgspec.Struct):
    """One request, and how it was answered. `body` in base64."""

    method: str
    target: str
    status: int
    headers: dict[str, str]
    body: str

    def data(self) -> bytes:
        return b64decode(self.body)


class Golden(msgspec.Struct):
    """`root` may do everything; `revoked` nothing any more."""

    release: str
    root: str
    revoked: str
    answers: list[Said]
    evicted: int  # streams that were not in memory
    incarnation: str = ""  # of `gold/again`


def unpack(path: Path, folder: Path) -> Golden:
    """Extract `data`, and `backup` if there is one, into `folder`, and return the answers."""
    with tarfile.open(path, "r:xz") as tar:
        tar.extractall(folder, filter="data")
    return msgspec.json.decode((folder / "answers.json").read_bytes(), type=Golden)


def kept_headers(answer: Answer) -> dict[str, str]:
    return {
        name: value
        for name, value in answer.headers.items()
        if name in KEPT or name.startswith(("stream-", "producer-"))
    }


class Maker:
    """One run of the older release."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.world = World(folder / "data")
        self.root = self.revoked = ""
        self.evicted = 0

    def make(self) -> None:
        self.root = self._token("root", "all,admin")
        self.revoked = self._token("former", "all")
        self._start(
            "--cold-flush-max-age-ms", "100", COLD_FLUSH_INTERVAL_MS="100", **self._evicting()
        )
        self._create()
        self._write_first()
        wait_until(lambda: not self._metric("polynya_hot_bytes"), what="everything in packs")
        if self._evicting():
            wait_until(
                lambda: self._metric("polynya_streams_evicted") >= 15, what="evicted streams"
            )
        self.world.stop()
        self._start("--cold-flush-max-age-ms", "1h")
        self._pull()
        self._write_then()
        self._cli("token", "revoke", "former", "--data", str(self.world.data))
        answers = self._settled()
        self.evicted = int(self._metric("polynya_streams_evicted")) if self._evicting() else 0
        if self._knows("backup"):
            self._cli(
                "backup",
                str(self.folder / "backup"),
                server=self.world.url,
                POLYNYA_TOKEN=self.root,
            )
        release = self._cli("--version").strip()
        incarnation = self._ask("HEAD", "/v1/stream/gold/again").headers["stream-incarnation"]
        self.world.kill_all()
        golden = Golden(release, self.root, self.revoked, answers, self.evicted, incarnation)
        (self.folder / "answers.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(golden), indent=1)
        )

    # --- what is written --------------------------------------------------------------------------

    def _create(self) -> None:
        put = self._put
        put("gold/json", JSON)
        put("gold/text", TEXT)
        put("gold/bytes", {"Content-Type": "application/octet-stream"})
        put("gold/closed", JSON)
        put("gold/lives", JSON | {"Stream-TTL": "315360000"})
        put("gold/expires", JSON | {"Stream-Expires-At": "2126-01-01T00:00:00Z"})
        put(
            "gold/kept",
            JSON | {"Stream-Retention-Age": "315360000", "Stream-Retention-Bytes": "1000000"},
        )
        put("gold/trimmed", JSON)
        put("gold/gone", JSON, b"[1]")
        put("gold/again", JSON, b"[1]")
        put("gold/produced", JSON)
        put("gold/ordered", JSON)
        put("gold/source", JSON)
        put("gold/wakes", JSON)
        put("gold/name%20with%20%C3%BC", JSON, b'["\xc3\xbc"]')
        for number in range(6):
            put(f"gold/idle/{number}", JSON)
        put("iot/short", JSON, b'["a bucket of three characters"]')
        put("Iot/long", JSON, b'["no bucket"]')
        self._ok("PUT", "/v1/buckets/tidy_bucket/retention", b'{"age_seconds": 315360000}', **JSON)
        self._ok("PUT", "/v1/tables/golden", b'{"prefix": "gold/"}', **JSON)
        wake = {
            "type": "pull-wake",
            "pattern": "gold/jobs/*",
            "wake_stream": "gold/wakes",
            "lease_ttl_ms": LEASE_MS,
        }
        self._ok("PUT", f"{SUBSCRIPTIONS}/workers", json.dumps(wake).encode(), **JSON)
        put("later/wakes", JSON)
        self._ok(
            "PUT",
            f"{SUBSCRIPTIONS}/waiting",
            json.dumps(wake | {"wake_stream": "later/wakes"}).encode(),
            **JSON,
        )
        hook = {
            "type": "webhook",
            "pattern": "gold/text",
            "streams": ["other/stream"],
            "webhook": {"url": "https://example.com/hook"},
        }
        self._ok(
            "PUT",
            f"{SUBSCRIPTIONS}/hooks",
            json.dumps(hook | {"pattern": "nobody/*"}).encode(),
            **JSON,
        )

    def _write_first(self) -> None:
        """Write all that comes into packs."""
        post = self._post
        for body in (b'[1.0, 1e3, "\\u00e9"]', b'{"b": 1, "a": [ ]}', b"[12345678901234567890]"):
            post("gold/json", body)
        post("gold/text", "first ÄÖÜ\n".encode(), TEXT)
        post("gold/bytes", bytes(range(256)), {"Content-Type": "application/octet-stream"})
        post("gold/closed", b"[1, 2]")
        post("gold/lives", b'["lives"]')
        post("gold/kept", b"[1]")
        post("gold/trimmed", b"[0, 1, 2, 3]")
        post("gold/source", b"[0, 1, 2, 3]")
        self._ok("DELETE", "/v1/stream/gold/again")
        self._put("gold/again", JSON, b'["again"]')
        self._ok("DELETE", "/v1/stream/gold/gone")
        for sequence in range(3):
            self._produce(3, sequence)
        post("gold/ordered", b'["a"]', JSON | {"Stream-Seq": "a"})
        self._put(
            "gold/fork",
            JSON
            | {"Stream-Forked-From": "/v1/stream/gold/source", "Stream-Fork-Offset": _offset(2, 4)},
        )
        for number in range(6):
            post(f"gold/idle/{number}", b"[%d]" % number, self._producer(0, 0))
        self._ok(
            "POST",
            "/v1/stream/gold/trimmed/retention",
            b'{"before": "%s"}' % _offset(2, 4).encode(),
            **JSON,
        )
        self._put("gold/jobs/1", JSON)
        post("gold/jobs/1", b'["job 1"]')

    def _write_then(self) -> None:
        """Write all that stays in the journal alone."""
        post = self._post
        post("gold/json", b'["hot"]')
        post("gold/text", b"second", TEXT)
        self._ok("POST", "/v1/stream/gold/closed", b"[3]", **JSON, Stream_Closed="true")
        self._produce(3, 3)
        post("gold/ordered", b'["b"]', JSON | {"Stream-Seq": "b"})
        post("gold/fork", b'["own"]')
        self._put("gold/fork/of/fork", JSON | {"Stream-Forked-From": "/v1/stream/gold/fork"})
        self._ok("DELETE", "/v1/stream/gold/source")
        post("gold/idle/5", b"[55]", self._producer(0, 1))
        self._put("gold/new", JSON | {"Stream-TTL": "315360000"}, b"[1]")

    def _pull(self) -> None:
        """Complete the wake of `workers`; leave `waiting` unclaimed."""
        claimed = json.loads(
            self._ok("POST", f"{SUBSCRIPTIONS}/workers/claim", b'{"worker": "w"}', **JSON).body
        )
        done = [
            {"stream": each["path"], "offset": each["tail_offset"]} for each in claimed["streams"]
        ]
        wake = {
            "wake_id": claimed["wake_id"],
            "generation": claimed["generation"],
            "acks": done,
            "done": True,
        }
        self._ok(
            "POST",
            f"{SUBSCRIPTIONS}/workers/ack",
            json.dumps(wake).encode(),
            **JSON,
            Authorization=f"Bearer {claimed['token']}",
        )

    def _settled(self) -> list[Said]:
        """Ask until two rounds give the same answers: a wake may end just now."""
        answers: list[Said] = []

        def same() -> bool:
            before, answers[:] = list(answers), [self._said(*asked) for asked in self._questions()]
            return bool(before) and [_lasting(said) for said in before] == [
                _lasting(said) for said in answers
            ]

        wait_until(same, what="answers that stay", pause=2.0)
        return answers

    def _questions(self) -> list[tuple[str, str]]:
        listed = json.loads(self._ask("GET", "/v1/streams?prefix=gold/").body)["streams"]
        names = [each["name"] for each in listed]
        assert len(names) >= 20, names
        asked = [
            (method, f"/v1/stream/{quote(name)}") for name in names for method in ("HEAD", "GET")
        ]
        asked += [("GET", f"/v1/stream/{quote(name)}/retention") for name in names]
        asked += [
            ("GET", "/v1/streams?prefix=gold/"),
            ("GET", "/v1/streams?prefix=gold/idle/&limit=3"),
            ("GET", "/v1/buckets"),
            ("GET", "/v1/tables"),
        ]
        asked += [
            ("GET", f"{SUBSCRIPTIONS}/workers"),
            ("GET", f"{SUBSCRIPTIONS}/hooks"),
            ("GET", "/v1/stream/__ds/jwks.json"),
        ]
        asked += [
            ("GET", f"/v1/stream/gold/json?offset={_offset(2, 13)}"),
            ("GET", "/v1/stream/gold/json?offset=now"),
        ]
        asked += [
            ("GET", "/v1/stream/gold/closed?offset=-1&live=sse"),
            ("GET", "/v1/stream/gold/json?from_time=2020-01-01"),
        ]
        asked += [
            ("GET", "/v1/streams?prefix=iot/"),
            ("GET", "/iot/short"),
            ("HEAD", "/default/Iot/long"),
        ]
        return [
            *asked,
            ("GET", "/v1/stream/gold/gone"),
            ("GET", "/v1/stream/gold/source"),
            ("GET", "/v1/stream/gold/never"),
        ]

    # --- how --------------------------------------------------------------------------------------

    def _evicting(self) -> dict[str, str]:
        texts = (path.read_text() for path in (self.source / "polynya/config").rglob("*.py"))
        knows = any('"cold.evict_after_ms"' in text for text in texts)
        return {"COLD_EVICT_AFTER_MS": "1000"} if knows else {}

    def _start(self, *flags: str, **variables: str) -> None:
        named = {f"POLYNYA_{name}": value for name, value in variables.items()}
        self.world.start(*FLAGS, *flags, PYTHONPATH=str(self.source), **named)

    def _cli(self, *words: str, server: str = "", **variables: str) -> str:
        ran = polynya(*words, server=server, PYTHONPATH=str(self.source), **variables)
        assert not ran.code, ran
        return ran.out

    def _knows(self, *words: str) -> bool:
        return not polynya(*words, "--help", PYTHONPATH=str(self.source)).code

    def _token(self, name: str, scopes: str) -> str:
        return (
            self._cli("token", "create", name, "--allow", scopes, "--data", str(self.world.data))
            .strip()
            .splitlines()[-1]
        )

    def _metric(self, name: str) -> float:
        lines = self._ask("GET", "/metrics").body.decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((name + " ", name + "{"))
        )

    def _ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.world.ask(
            method, target, body, **({"Authorization": f"Bearer {self.root}"} | named)
        )

    def _ok(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        answer = self._ask(method, target, body, **headers)
        assert answer.status in (200, 201, 204), (method, target, answer)
        return answer

    def _put(self, name: str, headers: dict[str, str], body: bytes | None = None) -> None:
        self._ok("PUT", f"/v1/stream/{name}", body, **headers)

    def _post(self, name: str, body: bytes, headers: dict[str, str] = JSON) -> None:
        self._ok("POST", f"/v1/stream/{name}", body, **(JSON | headers))

    def _produce(self, epoch: int, sequence: int) -> None:
        self._post("gold/produced", b"[%d]" % sequence, self._producer(epoch, sequence))

    def _producer(self, epoch: int, sequence: int) -> dict[str, str]:
        return {"Producer-Id": "p", "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}

    def _said(self, method: str, target: str) -> Said:
        answer = self._ask(method, target)
        return Said(
            method, target, answer.status, kept_headers(answer), b64encode(answer.body).decode()
        )


def _offset(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


def _lasting(said: Said) -> tuple[int, bytes]:
    return said.status, b"" if said.target == "/v1/tables" or said.status >= 400 else said.data()


def pack(folder: Path, path: Path) -> None:
    """Write `folder` as an archive, without what a process leaves beside its data."""
    with (
        lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for name in ("answers.json", "data", "backup"):
            if (folder / name).exists():
                tar.add(folder / name, name, filter=_plain)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if info.name.split("/")[-1] in ("run", "node.pid", "node.lock"):
        return None
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def main(source: str, path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="polynya-golden-") as folder:
        maker = Maker(Path(source).resolve(), Path(folder))
        try:
            maker.make()
        finally:
            maker.world.close()
        pack(Path(folder), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
