"""Values in Avro, Protobuf and JSON of a schema registry as typed columns.

A framed value begins with a byte 0 and the id of its writer's schema (`framing`). The driver
fetches the schemas of a job's ids (`registry`) and derives the columns from them (`nodes`), so no
sample decides. Tasks decode the bodies by the schema (`avro`, `protobuf`; JSON as other records)
and position the values (`decode`).

Invariants:

* `value` stays the framed bytes.
* An id that the registry does not know fails its range, which is tried again. A body that does not
  decode under its schema is a dead letter.
* A body is never decoded by the bytes of its neighbour: a mark after each proves where it ends.
"""
