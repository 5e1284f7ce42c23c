"""The features that ApiVersions tells: versions of the protocol that need all nodes of a release."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL
from polynya.wire.kafka.generated.api_versions import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)


class Feature(msgspec.Struct, frozen=True, gc=False):
    """A feature of Kafka's, and the feature level here from which on it is told."""

    name: str
    version: int  # versions 0 to this are supported, and this one is in use
    level: int


FEATURES = (
    # the consumer protocol
    Feature("group.version", 1, CONSUMER_PROTOCOL_LEVEL),
)


def add_features(response: ApiVersionsResponse, level: int) -> None:
    """Tell the features that a cluster at a feature level has. The level is their epoch: it only
    grows, and is equal on all nodes."""
    told = list(_told(level))
    if told:
        response.supported_features = [
            SupportedFeatureKey(each.name, 0, each.version) for each in told
        ]
        response.finalized_features = [
            FinalizedFeatureKey(each.name, each.version, each.version) for each in told
        ]
        response.finalized_features_epoch = level


def _told(level: int) -> Iterator[Feature]:
    return (each for each in FEATURES if level >= each.level)
