"""The configs of groups and of subscriptions to clients' metrics, for DescribeConfigs, AlterConfigs
and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka.admin.topics import DEFAULT_CONFIG
from polynya.front.kafka.call import Call
from polynya.front.kafka.configs import LIST, list_of
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.service.settings.named_configs import Configs
from polynya.wire.kafka.generated.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from polynya.wire.kafka.generated.incremental_alter_configs import AlterableConfig

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_Found = tuple[Error, str | None]


class KnownConfig(NamedTuple):
    """A config that things of a kind may have. `default_name`: the synonym that has the default."""

    type: int
    default: str
    documentation: str
    default_name: str


class StoredConfigs(Protocol):
    """The configs of a kind, by the names of what has some."""

    async def all(self) -> dict[str, Configs]: ...

    async def alter(self, name: str, change: Callable[[Configs], Configs]) -> object: ...


class ConfigKind(NamedTuple):
    """A kind of named things with configs, which need not exist.

    `source` is that of a value which a thing has. `refusal` returns the error for a caller that may
    not, or for a wrong name. `checked` raises `invalid`. `what` is the beginning of a message, before
    the name; `operations` says which there are."""

    source: int
    configs: Mapping[str, KnownConfig]
    stored: Callable[[Call], StoredConfigs]
    refusal: Callable[[Call, str, Operation], Error]
    checked: Callable[[Configs], Configs]
    invalid: type[PolynyaError]
    what: str
    operations: str

    async def described(
        self, call: Call, name: str, *, synonyms: bool
    ) -> tuple[Error, list[DescribeConfigsResourceResult]]:
        """Return the configs of a thing. Raises PolynyaError."""
        error = self.refusal(call, name, Operation.DESCRIBE_CONFIGS)
        if error:
            return error, []
        own = (await self.stored(call).all()).get(name, {})
        listed = []
        for each, config in self.configs.items():
            same = [DescribeConfigsSynonym(config.default_name, config.default, DEFAULT_CONFIG)]
            if each in own:
                same.insert(0, DescribeConfigsSynonym(each, own[each], self.source))
            listed.append(
                DescribeConfigsResourceResult(
                    each,
                    own.get(each, config.default),
                    config_source=self.source if each in own else DEFAULT_CONFIG,
                    synonyms=same if synonyms else [],
                    config_type=config.type,
                    documentation=config.documentation,
                )
            )
        return Error.NONE, listed

    async def replace(
        self, call: Call, name: str, pairs: Iterable[tuple[str, str | None]], *, dry: bool
    ) -> _Found:
        """Replace all configs of a thing; return the error."""
        given = {each: value for each, value in pairs if value is not None}
        return await self._alter(call, name, lambda before: given, dry=dry)

    async def step(
        self, call: Call, name: str, steps: Iterable[AlterableConfig], *, dry: bool
    ) -> _Found:
        """Set, delete, append to or subtract from single configs of a thing; return the error."""
        listed = list(steps)

        def change(before: Configs) -> Configs:
            after = dict(before)
            for each in listed:
                self._step(after, each)
            return after

        return await self._alter(call, name, change, dry=dry)

    def _step(self, configs: Configs, step: AlterableConfig) -> None:
        config = self.configs.get(step.name)
        if config is None:
            self.checked({step.name: ""})  # which refuses the name
            return
        operation = step.config_operation
        if operation == _DELETE:
            configs.pop(step.name, None)
        elif operation == _SET and step.value is not None:
            configs[step.name] = step.value
        elif operation in (_APPEND, _SUBTRACT) and step.value is not None and config.type == LIST:
            before, given = list_of(configs.get(step.name, config.default)), list_of(step.value)
            kept = [each for each in before if each not in given]
            after = list(dict.fromkeys(before + given)) if operation == _APPEND else kept
            configs[step.name] = ",".join(after)
        else:
            raise self.invalid(f"operation {operation} on {step.name}: {self.operations}")

    async def _alter(
        self, call: Call, name: str, change: Callable[[Configs], Configs], *, dry: bool
    ) -> _Found:
        error = self.refusal(call, name, Operation.ALTER_CONFIGS)
        if error:
            return error, f"{self.what} '{name[:100]}' cannot be changed"
        stored = self.stored(call)
        try:
            if dry:
                self.checked(change(dict((await stored.all()).get(name, {}))))
            else:
                await stored.alter(name, change)
        except self.invalid as invalid:
            return Error.INVALID_CONFIG, str(invalid)
        except PolynyaError as fault:
            return error_of_fault(fault), str(fault)
        return Error.NONE, None
