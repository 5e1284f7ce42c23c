"""Streams into tables: from packs to one set of Parquet files that are an Iceberg and a Delta table at once.

The server makes plans: ranges of packs that it has claimed for a table. A driver fixes the schema from samples (`schema`, pure), cuts the
ranges into tasks (`plan`, pure), has Spark run them (`spark`, the only file that imports it; a task reads ranges, decodes them with
`decode` and writes Parquet, and records never become JVM rows), and commits (`commit`): the Iceberg metadata pointer of the table and of its
dead-letter table `NAME__dlq` move by one compare-and-swap of the server, the Delta logs follow. docs/formats/tables.md has the formats.

Invariants:

* Every step can be repeated by any driver, also by two at once: a record is in each table exactly once.
* The row is always there: a value that fits no column leaves it null and adds a row to `NAME__dlq`.
* What the columns of a record hold depends on its bytes and the job's columns alone; how a block was decoded is only a matter of speed.
* A driver deletes nothing. What a lost attempt left behind is the server's to find.

What it does not do: it makes no claims on streams, decides no garbage, and never runs inside the server.
"""
