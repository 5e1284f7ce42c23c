"""Find the core and the node that answer a request, and forward it there.

`directory` has who leads a group, `group_locations` where its replicas are, `send` which core to
send to. `proposals` route commands to the log of their group: in a cluster by `forwarding`, with
`in_flight` and `bundles`; appends of diskless streams by `diskless`. `rpc` sends requests to cores,
which `answers` and `tails` answer, in the forms of `messages`. `handle` is what fronts keep of a
stream. A single node has a directory and targets of its own, so nothing asks for a cluster."""
