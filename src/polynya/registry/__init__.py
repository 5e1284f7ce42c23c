"""The schema registry: subjects, versions and ids of schemas, as Confluent's API has them.

The state is the compacted Kafka topic `_schemas`, in Confluent's own keys and values. This room is
pure: `View` is the state after a part of the topic; `plans` decides what a request appends to it;
`schemas` parses texts and compares them. There is no leader: a node reads to the tail, decides, and
appends on the condition that the tail is still there. So two nodes cannot give one id twice.

Ids count up and are never used again: what the newest id was before a permanent deletion, and in
which history of the cluster it was given, is in the value of the NOOP record. After a restore from
a backup the next id is 2^20 higher, because ids that were given after the backup may be in records
elsewhere.

The room does not read the topic (`front/http/registry` does), and keeps no contexts.
"""
