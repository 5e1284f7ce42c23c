"""The metrics of a whole node, as scraped."""

from __future__ import annotations

import httpx
import pytest
from e2e_world import World

from polynya.observability.metrics import METRICS

pytestmark = pytest.mark.process
OF_A_CLUSTER = {
    *(
        "polynya_groups_led",
        "polynya_leads_followed_total",
        "polynya_peers_connected",
        "polynya_peer_messages_dropped_total",
    ),
    *(
        "polynya_nodes_down",
        "polynya_zone_bytes_total",
        "polynya_map_epoch",
        "polynya_groups_moving",
        "polynya_placement_steps_total",
        "polynya_replicas_lost",
    ),
    *("polynya_forwarded_total", "polynya_forward_retries_total", "polynya_forward_refused_total"),
}
OF_FAULTS = {"polynya_stream_faulted"}  # of streams that are set aside
# with a table as their label
OF_TABLES = {metric.name for metric in METRICS if metric.name.startswith("polynya_table_")}
# with a reducer as their label
OF_REDUCERS = {"polynya_reducer_faults", "polynya_reducer_stopped"}
OF_GROUPS = {"polynya_group_lag"}  # of Kafka's consumer groups that have committed
# with a Kafka client as their label
OF_CLIENTS = {"polynya_kafka_client_gauge", "polynya_kafka_client_counter_total"}
# with a subscription as their label
OF_WORK = {metric.name for metric in METRICS if metric.name.startswith("polynya_work_")}
# of a cluster that has some
OF_READERS = {
    "polynya_reader_lag_entries",
    "polynya_reader_lag_seconds",
}


def test_every_metric_of_the_table_is_in_a_real_scrape(world: World) -> None:
    node = world.start("--cores", "2", "--text-listen", "on")
    httpx.put(
        f"{node.url}/v1/stream/scraped",
        headers={"Content-Type": "text/plain"},
        content=b"x",
        timeout=60,
    ).raise_for_status()
    text = httpx.get(f"{node.url}/metrics", timeout=60).text
    missing = {
        metric.name for metric in METRICS if f"\n{metric.name}" not in text.replace("\r", "")
    }
    assert (
        missing
        == OF_A_CLUSTER
        | OF_READERS
        | OF_FAULTS
        | OF_TABLES
        | OF_GROUPS
        | OF_WORK
        | OF_REDUCERS
        | OF_CLIENTS
    ), "those of a cluster, which this node is no part of, and of faults"
