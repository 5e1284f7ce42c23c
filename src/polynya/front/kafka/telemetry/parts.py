"""The parts of a core that the requests of this folder share."""

from __future__ import annotations

from polynya.front.kafka.telemetry.instances import ClientInstances
from polynya.front.kafka.telemetry.subscriptions import ClientMetricsSubscriptions
from polynya.service.settings.bucket_profiles import MetaSettings


class Telemetry:
    """The subscriptions as a core knows them, and its clients."""

    def __init__(self, meta_group: MetaSettings) -> None:
        self.subscriptions = ClientMetricsSubscriptions(meta_group)
        self.clients = ClientInstances()
