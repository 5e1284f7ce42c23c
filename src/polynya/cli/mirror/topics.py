"""The topics of a mirror: which of the source's match, and their configs and partitions here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from polynya.cli.mirror.source import Source, SourceConfig, SourceTopic
from polynya.cli.mirror.target import Target
from polynya.cli.terminal import exits, output

MIRROR_FROM = "mirror.from"
_PROFILE = {"profile": "replicated"}  # batches keep their offsets there alone
# kept although the brokers, not the topic, have set them: their defaults differ from ours
_ALWAYS = frozenset(("cleanup.policy", "retention.bytes", "retention.ms"))
# configs that the server refuses, or decides without one
_NEVER = {
    "compression.type": "batches stay as they were compressed",
    "max.message.bytes": "the server takes batches of up to 32 MiB",
    "min.insync.replicas": "a majority of the replicas has each batch on disk",
    "remote.storage.enable": "old data is in the object store of the server",
}
_OURS = frozenset((MIRROR_FROM, *_PROFILE))  # of a source that is a Polynya
_SILENT = ("follower.replication.", "leader.replication.", "confluent.", "redpanda.")


class MirrorTopics:
    """The topics that are mirrored, as the source has them."""

    def __init__(self, source: Source, target: Target, globs: Sequence[str], origin: str) -> None:
        """`origin`: the bootstrap brokers of the source, which the topics here name."""
        self._source, self._target = source, target
        self._globs, self._origin = globs, origin
        self.known: dict[str, SourceTopic] = {}
        self.left_alone: set[str] = set()  # topics here that are no mirror (any more)
        self.deleted: set[str] = set()  # those that the source had when the mirror began
        self._configs: dict[str, dict[str, str]] = {}
        self._logged: set[tuple[str, str]] = set()

    async def refresh(self, *, is_end: bool = False) -> None:
        """Read the source's topics, and make those here the same. `is_end`: at a cut-over a topic
        that is no mirror here is left alone, else refused. Raises BrokerLost and `exits.Ended`."""
        found = {
            name: topic
            for name, topic in (await self._source.topics()).items()
            if any(fnmatchcase(name, glob) for glob in self._globs)
        }
        for name in sorted(self.known.keys() - found.keys()):
            self.deleted.add(name)
            output.notice(f"topic {name} was deleted at the source; its mirror stays as it is")
            del self.known[name]
        configs = await self._source.configs(sorted(found))
        for name, topic in sorted(found.items()):
            if name in self.left_alone:
                continue
            if await self._follow(topic, self._kept(name, configs.get(name, {})), is_end=is_end):
                self.known[name] = topic
            else:
                self.left_alone.add(name)

    async def _follow(self, topic: SourceTopic, wanted: dict[str, str], *, is_end: bool) -> bool:
        """Create the topic here, or give it the configs and partitions of the source's. Return
        False for one that is no mirror."""
        name, count = topic.name, len(topic.partitions)
        known = self.known.get(name)
        if known is not None and len(known.partitions) == count and self._configs[name] == wanted:
            return True
        here = await self._target.topic(name)
        if here is None:
            await self._target.create(
                name, count, {**wanted, **_PROFILE, MIRROR_FROM: self._origin}
            )
        elif MIRROR_FROM not in here["configs"]:
            if not is_end:
                raise _no_mirror(name, self._origin)
            return False
        else:
            if (origin := here["configs"][MIRROR_FROM]) != self._origin and known is None:
                output.notice(
                    f"topic {name} mirrors {origin} so far, and {self._origin} from now on"
                )
            await self._change(name, here, wanted, count)
        self._configs[name] = wanted
        return True

    async def _change(
        self, name: str, here: Mapping[str, Any], wanted: Mapping[str, str], count: int
    ) -> None:
        known = {key: value for key, value in here["configs"].items() if key not in _OURS}
        if here["partitions"] > count:
            raise exits.Refused(
                f"topic {name} has {here['partitions']} partitions here and {count} at the source: "
                "it was deleted and created again there",
                hint=f"'polynya topic rm {name}' deletes the mirror, which then starts over.",
            )
        changed: dict[str, str | None] = dict.fromkeys(known.keys() - wanted.keys())
        changed |= {key: value for key, value in wanted.items() if known.get(key) != value}
        if changed or here["partitions"] < count:
            grown = count if here["partitions"] < count else None
            await self._target.change(name, changed, grown)

    def _kept(self, topic: str, configs: Mapping[str, SourceConfig]) -> dict[str, str]:
        """Return the configs of a topic that the one here gets; tell which it does not."""
        from polynya.front.kafka.configs import CONFIGS, InvalidConfig, check_config

        kept: dict[str, str] = {}
        for name, config in sorted(configs.items()):
            if name in _OURS or not (config.own or name in _ALWAYS):
                continue
            if name in _NEVER:
                self._log_ignored(topic, name, config.value, _NEVER[name])
                continue
            try:
                check_config(name, config.value)
            except InvalidConfig as invalid:
                self._log_ignored(topic, name, config.value, str(invalid))
                continue
            if config.value != CONFIGS[name].default:
                kept[name] = config.value
        return kept

    def _log_ignored(self, topic: str, name: str, value: str, why: str) -> None:
        if (topic, name) not in self._logged and not name.startswith(_SILENT):
            self._logged.add((topic, name))
            output.notice(f"topic {topic}: {name}={value} is not carried over: {why}")


def _no_mirror(name: str, origin: str) -> exits.Refused:
    return exits.Refused(
        f"topic {name} exists here and is no mirror of {origin}: nothing was copied into it",
        hint=(
            f"Delete it ('polynya topic rm {name}'), or leave it out of --topics; after a cut-over "
            "the mirror has ended."
        ),
    )
