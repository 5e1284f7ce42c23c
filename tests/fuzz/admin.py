"""Fuzzing of the admin ports, on loopback and with tokens: malformed requests and the largest
bodies, without and with a token. Keepers append and read at the base port meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

from free_ports import free_ports
from fuzz.bytes import Outcome
from fuzz.http import MAY_FAIL, Keeper, Vandal
from fuzz.play import Cores, play_all
from fuzz.requests import ADMIN_PATHS, body, request, target
from product import polynya, running_node

BODY_BYTES_MAX = 4 << 20
KEEPERS, VANDALS = 1, 3
PARTS = (b"[[[[]]]]", b'"["', b"1", b"{}", b'{"name":"x","allow":["all"]}')


class AdminVandal(Vandal):
    """A misbehaving client of the admin ports. `token`: its token, sent now and then."""

    token = ""

    def requests(self) -> list[bytes]:
        """Make the requests of one connection."""
        return [self._request() for _ in range(self.chance.choice((1, 1, 1, 2, 5)))]

    def _request(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.2:
            return self._known(request(chance, ["x"]))
        content = body(chance)
        if chance.random() < 0.05:
            self.counts["large requests"] += 1
            content = self._large()
        method = chance.choice(("GET", "POST", "POST", "PUT", "DELETE"))
        head = (
            f"{method} {target(chance, ['x'], ADMIN_PATHS)} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return self._known(head.encode("utf-8", "replace") + content)

    def _large(self) -> bytes:
        part = self.chance.choice(PARTS)
        many = b"[" + part + (b"," + part) * ((BODY_BYTES_MAX - 4096) // (len(part) + 1)) + b"]"
        return self.chance.choice((b"%b", b'{"name":%b}', b'{"name":"x","allow":%b}')) % many

    def _known(self, sent: bytes) -> bytes:
        if self.chance.random() < 0.3:
            return sent
        bearer = f"\r\nAuthorization: Bearer {self.token}\r\n".encode()
        return sent.replace(b"\r\n", bearer, 1)


def fuzz_admin(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz the admin ports for a number of actions per client, or for a time."""
    outcome = Outcome()
    data = folder / "data"
    made = polynya("token", "create", "x", "--allow", "all,admin", "--data", str(data))
    remote = f"127.0.0.1:{free_ports(1)[0]}"
    with running_node(data, "--cores", "2", "--admin-listen", remote) as node:
        cores = Cores(node.process.pid)
        clients: list[Keeper | Vandal] = [
            Keeper(random.Random(f"{seed}-{number}"), number, [node.url], MAY_FAIL)
            for number in range(KEEPERS)
        ]
        for number in range(KEEPERS, KEEPERS + VANDALS):
            urls = [node.admin, f"http://{remote}"]
            vandal = AdminVandal(random.Random(f"{seed}-{number}"), number, urls, MAY_FAIL)
            vandal.token = made.out.strip()
            clients.append(vandal)
        play_all(outcome, seed, clients, [node.admin], rounds, seconds)
        outcome.wrong += cores.aftermath(node.log)
    return outcome
