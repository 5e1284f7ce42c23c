"""Where a node's tokens are changed: in its own file, or, in a cluster, in the meta group, of which each node's file is then a copy.

The file stays what every core reads: it is there before the cluster is, and whoever may write to a data folder makes tokens there as on a
node by itself. Core 0 brings both together: what the meta group has goes into the file, and what the file alone has into the meta group.
"""

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
from polynya.service.routing.service import NodeService
from polynya.stream.commands import MetaChange
from polynya.stream.placement import META_GROUP
from polynya.stream.replies import Code
from polynya.stream.rules.meta import values_of, version_of

ATTEMPTS = 8  # others may change them at the same time
AGAIN_SECONDS = 2.0  # after a failure
Made = TypeVar("Made")
log = logging.getLogger("polynya.access")


class FileTokens:
    """Of a node by itself."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file

    async def load(self) -> AtRest:
        return await asyncio.to_thread(self._file.load)

    async def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
        return await asyncio.to_thread(self._file.add, wanted, now_ms)

    async def revoke(self, which: str, now_ms: int) -> TokenRecord:
        return await asyncio.to_thread(self._file.revoke, which, now_ms)

    async def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt:
        return await asyncio.to_thread(self._file.revoke_jwt, unwanted, now_ms)


class SharedTokens:
    """Of a cluster: a change is made when a majority has it. Raises what `FileTokens` does, and Unavailable, OutcomeUnknown."""

    def __init__(self, file: TokenFile, service: NodeService) -> None:
        self._file = file
        self._service = service

    async def load(self) -> AtRest:
        known, _ = await self._known()
        return shared_tokens.decode(known)

    async def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
        return await self._change(lambda known: added(known, wanted, now_ms), now_ms)

    async def revoke(self, which: str, now_ms: int) -> TokenRecord:
        return await self._change(lambda known: marked(known, which, now_ms), now_ms)

    async def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt:
        return await self._change(lambda known: jwt_revoked(known, unwanted, now_ms), now_ms)

    async def give(self, known: AtRest, now_ms: int) -> None:
        """What a node's file knows beside what all know."""
        await self._change(lambda before: (merged(before, known), None), now_ms)

    async def _change(self, change: Callable[[AtRest], tuple[AtRest, Made]], now_ms: int) -> Made:
        for _ in range(ATTEMPTS):
            known, version = await self._known()
            after, made = change(tidied(shared_tokens.decode(known), now_ms))
            changes = shared_tokens.difference(known, shared_tokens.encode(after))
            if changes:
                reply = await self._service.call(META_GROUP, MetaChange(shared_tokens.SCOPE, version, changes))
                if reply.code != Code.OK:
                    continue
            await asyncio.to_thread(self._file.take, after, now_ms)  # this node knows at once
            return made
        raise Unavailable("others change the tokens at the same time; retry")

    async def _known(self) -> tuple[dict[str, bytes], int]:
        meta = await self._service.meta(shared_tokens.SCOPE)
        return values_of(meta, shared_tokens.SCOPE), version_of(meta, shared_tokens.SCOPE)


class TokenCopy:
    """Of core 0 of a member: keeps the file and the meta group's state the same. `look` is called a few times a second."""

    def __init__(self, file: TokenFile, tokens: SharedTokens, meta: Callable[[], dict[str, bytes] | None]) -> None:
        """`meta`: what this node's replica of the meta group has applied; None while there is none."""
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
        except (PolynyaError, ConfigError) as fault:  # the leader is away, or somebody broke the file: what was known holds
            self._again = time.monotonic() + AGAIN_SECONDS
            log.warning("tokens are shared with the other nodes later", extra={"error": str(fault)})
