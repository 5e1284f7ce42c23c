"""The configs of subscriptions to clients' metrics. A subscription without a config does not
exist."""

from __future__ import annotations

from polynya.access.kafka_acls import Operation
from polynya.front.kafka.admin.named_configs import ConfigKind, KnownConfig
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.telemetry.subscriptions import (
    CONFIGS,
    InvalidClientMetrics,
    checked,
    is_name,
)

CLIENT_METRICS_CONFIG = 7  # a source of a value: the subscription


def _refusal(call: Call, name: str, operation: Operation) -> Error:
    if not call.caller.may_administer(operation):
        return Error.CLUSTER_AUTHORIZATION_FAILED
    return Error.NONE if is_name(name) else Error.INVALID_REQUEST


CLIENT_METRICS_CONFIGS = ConfigKind(
    source=CLIENT_METRICS_CONFIG,
    configs={
        name: KnownConfig(each.type, each.default, each.documentation, name)
        for name, each in CONFIGS.items()
    },
    stored=lambda call: call.context.telemetry.subscriptions,
    refusal=_refusal,
    checked=checked,
    invalid=InvalidClientMetrics,
    what="the client metrics subscription",
    operations="0 sets, 1 deletes, and 2 and 3 change a list",
)
