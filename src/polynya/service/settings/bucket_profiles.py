"""The default profile of each bucket, for streams whose creation names none.

The meta group has them, as the scope `bucket-profile` of its settings. A core reads them while
streams are created, at most once a second.
"""

from __future__ import annotations

from typing import Protocol

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.limits import BUCKET_PROFILES_MAX
from polynya.service.settings.fresh_reads import FreshReads
from polynya.stream.command import Command
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code, Reply

SCOPE = "bucket-profile"
_ATTEMPTS = 5


class TooManyBuckets(PolynyaError):
    """No more buckets may have a default profile."""


class MetaSettings(Protocol):
    """The settings of the meta group."""

    async def entries(self, scope: str) -> dict[str, bytes]: ...

    async def call(self, command: Command) -> Reply: ...


class BucketProfiles:
    """The default profiles, as one core knows them."""

    def __init__(self, meta_group: MetaSettings) -> None:
        self._meta_group = meta_group
        self._known: dict[str, str] = {}
        self._reads = FreshReads(self._read)

    @property
    def is_fresh(self) -> bool:
        """Report whether `known` may be used now."""
        return self._reads.is_fresh

    def known(self, bucket: str) -> str | None:
        """Return the profile of a bucket's new streams; None: the bucket has none."""
        return self._known.get(bucket)

    async def current(self, bucket: str) -> str | None:
        """Return the same, of the last second."""
        await self.refresh()
        return self.known(bucket)

    async def refresh(self) -> None:
        """Read the profiles unless they are of the last second. While the meta group does not
        answer, the last ones stay in use."""
        await self._reads.refresh()

    async def all(self) -> dict[str, str]:
        """Return the profile of each bucket that has one. Raises Unavailable."""
        await self._reads.now()
        return dict(self._known)

    async def set(self, bucket: str, profile: str | None) -> None:
        """Set the profile of a bucket's new streams; None removes it. Raises Unavailable,
        TooManyBuckets."""
        for _ in range(_ATTEMPTS):
            version = await self._reads.now()
            known = self._known
            if profile is not None and len({*known, bucket}) > BUCKET_PROFILES_MAX:
                raise TooManyBuckets(
                    f"{BUCKET_PROFILES_MAX:,} buckets have a default profile; remove one"
                )
            change = [(bucket, None if profile is None else profile.encode())]
            reply = await self._meta_group.call(MetaChange(SCOPE, version, change))
            if reply.code == Code.OK:
                await self._reads.now()
                return
        raise Unavailable("concurrent changes to the profiles of buckets; retry")

    async def _read(self) -> int:
        """Read the profiles, and return the number of their last change."""
        meta = await self._meta_group.entries(SCOPE)
        found = values_of(meta, SCOPE)
        self._known = {bucket: value.decode() for bucket, value in found.items()}
        return version_of(meta, SCOPE)
