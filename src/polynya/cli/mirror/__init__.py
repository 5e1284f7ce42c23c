"""`polynya mirror`: copy topics of another Kafka cluster with their offsets, and take them over.

Only whole record batches keep offsets, and client libraries give records. So the mirror speaks the
protocol itself, with the codecs of kio, in versions that every broker since Kafka 2.1 serves
(`connection`, `source`). It reads committed batches (`committed`), and the server appends each at its
own offset (`target`), where repeats change nothing: a mirror that was killed goes on from the server's
ends and has no state of its own. `copying` moves the batches, `topics` their configs and partitions,
`positions` the offsets of consumer groups, and `cut_over` ends the mirror.
"""
