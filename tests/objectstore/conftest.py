"""Every store, for the contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import s3_server  # noqa: F401  (a fixture)

from polynya.objectstore import ObjectStore, StoreSettings, open_store

Opener = Callable[[], ObjectStore]


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.process)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSettings:
    if request.param == "s3":
        return StoreSettings(**request.getfixturevalue("s3_server").settings())
    return StoreSettings(backend=request.param, root=str(tmp_path / "deep" / "root"))


@pytest.fixture
def run(
    settings: StoreSettings,
) -> Iterator[Callable[[Callable[[ObjectStore], Coroutine[Any, Any, None]]], None]]:
    """Play a story against a fresh, empty store."""

    def play(story: Callable[[ObjectStore], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            store = open_store(settings)
            assert store is not None
            try:
                await story(store)
            finally:
                await store.close()

        asyncio.run(main())

    yield play
