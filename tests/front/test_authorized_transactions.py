"""Access to transactional ids: to see one, and to abort its transaction."""

from __future__ import annotations

from pathlib import Path

from front.test_authorizer import Gate, guarded
from front_world import World


def test_a_transactional_id_is_shown_to_those_who_may_use_it(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("writer", "append:kafka/mine/")
        gate.token("reader", "read,delete,subscribe:kafka/")
        gate.token("operator", "admin")

    async def story(world: World, gate: Gate) -> None:
        async def asked(method: str, target: str) -> list[int]:
            body = b"" if method == "POST" else None
            return [
                (await world.ask(method, target, body, **gate.bearer(name))).status
                for name in ("writer", "reader", "operator")
            ]

        assert await asked("GET", "/v1/transactions") == [200, 403, 200]
        assert await asked("GET", "/v1/transactions/mine") == [200, 403, 200]
        assert await asked("GET", "/v1/transactions/mine2") == [403, 403, 200]
        assert await asked("POST", "/v1/transactions/mine/abort") == [403, 403, 200]

    guarded(tmp_path, story, setup=setup)
