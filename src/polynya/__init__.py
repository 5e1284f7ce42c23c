"""Polynya: append and tail streams over HTTP, and find every stream again as an Iceberg and a Delta
table.

Every folder here is a room. From the top, each imports from lower lines only
(`tests/test_layers.py` has the exact list):

* `cli`: the command line. `client`: the Python client, which imports `base` and nothing else.
* `spark`: the data source `polynya` of Spark, which reads and writes streams.
* `embedded`: a write-ahead log as a library, on `wal`.
* `node`: the composition root: supervisor, core process, assembly, shutdown.
* `recovery`: restore from a backup or from the object store, and reshard.
* `admin`: listeners, health, metric sources, audit. `cluster`: membership, placement, certificates.
* `front`: the protocols that clients speak.
* `subscriptions`: webhooks and workers that wake. `tiering`: old data moves to the object store.
* `service`: what a front may ask of streams, tables, segments and consumer groups.
* `routing`: where a request is answered: groups, leaders, cores and nodes.
* `local`: the streams of this core: propose, read, tail and maintain.
* `engine`: the turn loop of a core, its journal writer, leadership and snapshots.
* `diskless`: appends of diskless streams, to the object store and then to the log.
* `backup`, `cold` (packs), `console` (web), `lakehouse` (tables), `reducers` (states of streams).
* `replica` (a group's log joined to its state), `wire` (formats), `config`, `system`.
* `registry`: schemas: subjects, versions, ids and their compatibility.
* `raft`, `stream` (the state machine), `transport`, `wal`, `objectstore`, `access`, `cost`.
* `base`, `files` (durable small files), `jobs` (the loop of background work), `observability`.

An append walks down: `front`, `service`, `local`, `engine`, `replica`, `wal`.
"""

__version__ = "0.1.0"
