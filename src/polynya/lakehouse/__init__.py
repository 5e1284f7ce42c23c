"""Streams into tables: packs become one set of Parquet files that are an Iceberg and a Delta table
at once.

The server makes plans: ranges of packs that it has claimed for a table (`server` has its client).
A driver fixes the schema from samples (`schema`, pure) and cuts the ranges into tasks (`jobs`).
Spark runs the tasks (`jobs.spark`). A task reads ranges (`reading`), decodes them (`decoding`) and
writes Parquet; records never become JVM rows, except in derived tables (`jobs.transform`). No other
file imports Spark. Then the driver commits
(`jobs.commit`, `formats`): one compare-and-swap of the server moves the Iceberg metadata pointers of
the table and of its dead-letter table `NAME__dlq`. The Delta logs follow. `sql` reads tables, and
`machine` has what a driver needs installed. docs/formats/tables.md has the formats.

Invariants:

* Every step is idempotent for any driver, even for two at once: a record is in each table exactly
  once.
* Every record has a row. A value that fits no column leaves it null and adds a row to `NAME__dlq`.
* The column values of a record depend only on its bytes and the job's columns. How a block was
  decoded affects only speed.
* A driver deletes nothing. The server finds the files that a lost attempt left behind.

This package makes no claims on streams, decides no deletions, and never runs inside the server.
"""
