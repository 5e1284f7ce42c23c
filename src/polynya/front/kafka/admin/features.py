"""The features that ApiVersions tells: versions of the protocol that need all nodes of a
release."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL, TRANSACTION_LEVEL
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
    # epochs that grow with each transaction, and partitions that Produce adds
    Feature("transaction.version", 2, TRANSACTION_LEVEL),
)
_SINCE, _ZERO_SINCE = 3, 4  # versions of ApiVersions


def add_features(response: ApiVersionsResponse, version: int, level: int) -> None:
    """Tell the features that a cluster at a feature level has, to a request of a version. The level
    is their epoch: it only grows, and is equal on all nodes. Clients take features of a higher
    epoch than the one that they know."""
    announced = list(_announced(level)) if version >= _SINCE else []
    if announced:
        least = 0 if version >= _ZERO_SINCE else 1  # a client of before cannot decode 0
        response.supported_features = [
            SupportedFeatureKey(each.name, least, each.version) for each in announced
        ]
        response.finalized_features = [
            FinalizedFeatureKey(each.name, each.version, each.version) for each in announced
        ]
        response.finalized_features_epoch = level


def _announced(level: int) -> Iterator[Feature]:
    return (each for each in FEATURES if level >= each.level)
