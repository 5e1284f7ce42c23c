"""The settings of a cluster and of this node in it."""

from __future__ import annotations

from polynya.config import setting
from polynya.config.cluster_settings import NODE_MAX

CLUSTER = (
    setting.cluster_id(
        "cluster.id",
        "",
        "The id of the cluster: 32 hexadecimal digits, the same on every node, fixed when a data "
        "folder is created.",
    ),
    setting.count(
        "cluster.node",
        0,
        "The id of this node in `cluster.nodes`; fixed when the data folder is created. 0 is a "
        "standalone node.",
        high=NODE_MAX,
    ),
    setting.nodes(
        "cluster.nodes",
        (),
        "The initial nodes of the cluster, with this one; the same on every node. In TOML each is a "
        "`[[cluster.nodes]]` with `id` (a number), `peer` (HOST:PORT, for the other nodes) and "
        "`http` (the URL for clients). `zone` is optional; "
        '`role = "reader"` makes it a read replica. Elsewhere the nodes are '
        "`ID=PEER=HTTP`, `ID=PEER=HTTP=ZONE` or `ID=PEER=HTTP=ZONE=reader` separated by commas. "
        "Later, a node uses the list only to find the others: the cluster map holds the members.",
    ),
    setting.count(
        "cluster.replicas",
        3,
        "The number of replicas of each group: 1, 3 or 5. Fixed when the cluster is created; "
        "`polynya cluster rebalance --replicas` "
        "changes it.",
    ),
    setting.count(
        "cluster.history",
        1,
        "The minimum history of a node without data in a restored cluster: the number that "
        "`polynya restore` printed. It is needed where "
        "the node reaches neither the other nodes nor the object store, from which it otherwise "
        "reads the history. "
        "A node with data keeps its own.",
    ),
    setting.switch(
        "cluster.join",
        False,
        "Join this node to an existing cluster (`polynya cluster add` registers it and prints the "
        "settings). Applies only to an "
        "empty data folder.",
    ),
    setting.seconds(
        "cluster.replace_after",
        0.0,
        "Replace the replicas of a node that is down for this long, on nodes with room. 0 "
        "disables this: an operator "
        "decides with `polynya cluster remove`. The same on every node.",
        low=0,
    ),
    setting.switch(
        "cluster.leader_follows_writers",
        True,
        "Move the leadership of a group to the node through which nearly all its appends arrive. "
        "Otherwise, and when this is off, leaderships stay "
        "evenly spread over the nodes.",
    ),
    setting.address(
        "cluster.listen",
        "",
        "The address of this node's peer port. Default: its `peer` in `cluster.nodes`.",
    ),
    setting.text(
        "cluster.ca",
        "",
        "A file with the certificate of the cluster's authority (PEM); nodes authenticate each "
        "other with certificates signed by it.",
    ),
    setting.text(
        "cluster.cert",
        "",
        "A file with this node's certificate, for the name `node-ID.polynya.internal` (PEM).",
    ),
    setting.text("cluster.key", "", "A file with its private key (PEM), without a passphrase."),
    setting.switch(
        "cluster.unsafe_no_tls",
        False,
        "Allow a peer port beyond loopback without certificates: any host that reaches it may "
        "then read and write everything.",
    ),
)
