"""The features that ApiVersions tells: versions of the protocol that need all nodes of a release."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL
from polynya.front.kafka.context import Context
from polynya.wire.kafka.generated.api_versions import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SINCE, _ZERO_SINCE = 3, 4  # versions of ApiVersions


class Feature(msgspec.Struct, frozen=True, gc=False):
    """A feature of Kafka's. `is_told`: the cluster has it."""

    name: str
    version: int  # versions 0 to this are supported, and this one is in use
    is_told: Callable[[Context], bool]


FEATURES = (
    # the consumer protocol
    Feature("group.version", 1, lambda context: context.service.level >= CONSUMER_PROTOCOL_LEVEL),
)


def add_features(response: ApiVersionsResponse, version: int, context: Context) -> None:
    """Tell the features that the cluster has. Their epoch is the feature level, which only grows:
    clients take features of a higher epoch than the one that they know."""
    told = [each for each in FEATURES if each.is_told(context)]
    if version < _SINCE or not told:
        return
    least = 0 if version >= _ZERO_SINCE else 1  # an older client cannot decode 0
    response.supported_features = [
        SupportedFeatureKey(each.name, least, each.version) for each in told
    ]
    response.finalized_features = [
        FinalizedFeatureKey(each.name, each.version, each.version) for each in told
    ]
    response.finalized_features_epoch = context.service.level
