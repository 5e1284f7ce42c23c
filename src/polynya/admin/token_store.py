"""Changes to a node's tokens: in its own file, or in a cluster's meta group, which each node's file
copies. Cores always read the file: it exists before the cluster does. A user with write access to
the data folder may add tokens to it. Core 0 merges both ways: from the meta group into the file,
and new tokens of the file into the meta group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from polynya.access import shared_tokens
from polynya.access.revocations import RevokedJwt, UnwantedJwt
from polynya.access.token_file import (
    AtRest,
    Stamp,
    TokenFile,
    TokenRecord,
    Wanted,
    added,
    jwt_revoked,
    marked,
    merged,
    tidied,
)
from polynya.base.errors import ConfigError, PolynyaError, Unavailable
from polynya.routing.answers import MetaGroup
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code

ATTEMPTS = 8  # optimistic retries against concurrent changes
AGAIN_SECONDS = 2.0  # pause after a failure
Made = TypeVar("Made")
Change = Callable[[AtRest], tuple[AtRest, Made]]
log = logging.getLogger("polynya.access")


class FileTokens:
    """The tokens of a standalone node."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file

    async def load(self) -> AtRest:
        return await asyncio.to_thread(self._file.load)

    async def change(self, change: Change[Made], now_ms: int) -> Made:
        return await asyncio.to_thread(self._file.change, change, now_ms)

    async def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
        return await asyncio.to_thread(self._file.add, wanted, now_ms)

    async def revoke(self, which: str, now_ms: int) -> TokenRecord:
        return await asyncio.to_thread(self._file.revoke, which, now_ms)

    async def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt:
        return await asyncio.to_thread(self._file.revoke_jwt, unwanted, now_ms)


class SharedTokens:
    """The tokens of a cluster: a change is made once a majority has it.
    Raises the errors of `FileTokens`, Unavailable and OutcomeUnknown."""

    def __init__(self, file: TokenFile, meta_group: MetaGroup) -> None:
        self._file = file
        self._meta_group = meta_group

    async def load(self) -> AtRest:
        known, _ = await self._known()
        return shared_tokens.decode(known)

    async def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
        return await self.change(lambda known: added(known, wanted, now_ms), now_ms)

    async def revoke(self, which: str, now_ms: int) -> TokenRecord:
        return await self.change(lambda known: marked(known, which, now_ms), now_ms)

    async def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt:
        return await self.change(lambda known: jwt_revoked(known, unwanted, now_ms), now_ms)

    async def give(self, known: AtRest, now_ms: int) -> None:
        """Merge a file's tokens into those of the cluster."""
        await self.change(lambda before: (merged(before, known), None), now_ms)

    async def change(self, change: Change[Made], now_ms: int) -> Made:
        """Apply a pure change, again if another one was first."""
        for _ in range(ATTEMPTS):
            known, version = await self._known()
            after, made = change(tidied(shared_tokens.decode(known), now_ms))
            changes = shared_tokens.difference(known, shared_tokens.encode(after))
            if changes:
                reply = await self._meta_group.call(
                    MetaChange(shared_tokens.SCOPE, version, changes)
                )
                if reply.code != Code.OK:
                    continue
            # effective on this node at once
            await asyncio.to_thread(self._file.take, after, now_ms)
            return made
        raise Unavailable("concurrent changes to the tokens; retry")

    async def _known(self) -> tuple[dict[str, bytes], int]:
        meta = await self._meta_group.entries(shared_tokens.SCOPE)
        return values_of(meta, shared_tokens.SCOPE), version_of(meta, shared_tokens.SCOPE)


class TokenCopy:
    """Keeps the token file and the meta group's tokens equal, on core 0 of a cluster node. `look`
    is called a few times a second."""

    def __init__(
        self, file: TokenFile, tokens: SharedTokens, meta: Callable[[], dict[str, bytes] | None]
    ) -> None:
        """`meta` returns the state that the local meta group replica has applied, or None without a
        replica."""
        self._file = file
        self._tokens = tokens
        self._meta = meta
        self._seen: tuple[int, Stamp | None] | None = None
        self._again = 0.0

    async def look(self) -> None:
        meta = self._meta()
        if meta is None or time.monotonic() < self._again:
            return
        version = version_of(meta, shared_tokens.SCOPE)
        if self._seen == (version, self._file.stamp()):
            return
        now_ms = int(time.time() * 1000)
        known = tidied(shared_tokens.decode(values_of(meta, shared_tokens.SCOPE)), now_ms)
        try:
            both = await asyncio.to_thread(self._file.take, known, now_ms)
            if shared_tokens.encode(both) != shared_tokens.encode(known):
                await self._tokens.give(both, now_ms)
            self._seen = (version, self._file.stamp())
        except (
            PolynyaError,
            ConfigError,
        ) as fault:  # no leader, or a damaged file: the known tokens stay valid
            self._again = time.monotonic() + AGAIN_SECONDS
            log.warning(
                "cannot share tokens with the other nodes; retrying", extra={"error": str(fault)}
            )
