"""Every limit of the product, each with its reason. `docs/limits.md` is generated from this
file."""

KIB = 1024
MIB = 1024 * KIB

# one request body; a client splits larger data (`cold.max_hot_bytes_per_group` may be lower)
APPEND_BYTES_MAX = 32 * MIB
CODED_BODY_RATIO_MAX = 64  # times its bytes in gzip or deflate; JSON becomes 5 to 20 times as long
CODED_BODY_BYTES_LEAST = 1 * MIB  # a small body of equal records may have any ratio
# one catch-up response, which bounds the memory of a reader of a long stream
PAGE_BYTES_DEFAULT = 4 * MIB
PAGE_BYTES_MAX = 8 * MIB  # the largest `max_bytes` of a request
# raw pages may stop inside a record only at multiples of this from its start
RAW_STEP_BYTES = 64 * KIB
JSON_DEPTH_MAX = 128  # nesting of one JSON document: parsers recurse
HEADER_BLOCK_BYTES_MAX = 64 * KIB  # request line and headers together
HEADERS_MAX = 128  # header lines of one request
PATH_BYTES_MAX = 1024  # a stream's canonical name
PRODUCER_ID_BYTES_MAX = 256
STREAM_SEQ_BYTES_MAX = 256
CONTENT_TYPE_BYTES_MAX = 256
PRODUCER_NUMBER_MAX = 2**53 - 1  # epochs and sequences: exact in every client language
PRODUCER_RECEIPTS = 5  # receipts kept for a producer, as Kafka keeps
PRODUCERS_PER_STREAM_MAX = 4096
OPEN_TRANSACTIONS_MAX = 1024  # of a stream: each holds back its readers, and has a producer's state
DECIDED_MAX = 4096  # ranges of a command, and entries of a stream that are looked at at once
MARKED_MAX = 10_000  # streams and consumer groups of a transaction
# how long a stream refuses an ended transaction of a producer of whom it knows nothing else, and a
# consumer group: no pack and no number that a front knows lasts longer
ENDED_MS = 10 * 60 * 1000
PRODUCER_IDLE_MS = 7 * 24 * 3600 * 1000  # 7 days without an append; then a stream drops a producer
# at `PRODUCERS_PER_STREAM_MAX`, a stream drops the longest idle producer if idle for this time
PRODUCER_EVICT_IDLE_MS = 10 * 60 * 1000
TTL_SECONDS_MAX = 100 * 365 * 24 * 3600  # 100 years
RETENTION_SECONDS_MAX = 100 * 365 * 24 * 3600  # 100 years
RETENTION_BYTES_MAX = 2**53 - 1  # exact in every client language
FORK_DEPTH_MAX = 64  # a read walks the chain of sources
GROUPS_MAX = 1024  # user groups; fixed when the cluster is created

HOT_BYTES_PER_GROUP = 64 * MIB
HOT_BYTES_PER_CORE = 256 * MIB
FLUSH_BYTES = 8 * MIB
FLUSH_INTERVAL_MS = 1000
FLUSH_MAX_AGE_MS = 300_000
FLUSH_MAX_CONCURRENCY = 4
# small slices that a core merges into larger ones, in the background
MERGE_BYTES_PER_SECOND = 32 * MIB
MERGE_INTERVAL_MS = 1000  # between two scans for them; longer with very many streams
# Delta commits before a checkpoint: a streaming reader may stop for this long and go on
DELTA_LOG_KEPT_MS = 7 * 24 * 3600 * 1000
# data files in a table's folder that no job wrote: of other writers, whose commits were refused
FOREIGN_DATA_KEPT_MS = 24 * 3600 * 1000
TASK_OBJECTS_AT_ONCE = 8  # plan objects of a table's job that its driver writes in parallel
# tables that a driver syncs at the same time: each has samples and metadata in memory
TABLES_AT_ONCE = 4
# a worker that dies leaves its tables to the others after this time; it extends a lease in time
TABLE_LEASE_MS = 30_000
TABLE_REST_MS_MAX = 3_600_000  # after a worker's sync, before another worker may sync the table
TABLE_SNAPSHOTS_KEPT = 20  # of a table, by default
# of a table: each metadata file lists all of them, and each of them has a metadata file
TABLE_SNAPSHOTS_KEPT_MAX = 500
# the longest time for which a table's snapshots are kept
TABLE_SNAPSHOT_AGE_MS_MAX = 366 * 24 * 3600 * 1000
TABLE_TAGS_MAX = 100  # of a table: they are state of the meta group
WORKER_NAME_CHARACTERS_MAX = 64  # of a worker in a table's lease, which is state of the meta group
DELETE_GRACE_MS = 60_000  # unreferenced objects are kept this long for readers in progress
# payload of one pack slice: the unit of a cold read and of the block cache
SLICE_BYTES_MAX = 4 * MIB
COMPRESSED_PAYLOAD_BYTES_MAX = (
    2 * APPEND_BYTES_MAX
)  # a slice that says more is damaged; larger ones stay raw
CACHE_BYTES = 64 * MIB  # block cache of one core
PAGE_CACHE_BYTES = 8 * MIB  # pages of indexes that a core keeps
PAGE_ENTRIES = 4096  # entries of a page, unless fewer have 4 GiB
# a stream without writes for this long leaves memory, if nothing else needs it there
EVICT_AFTER_MS = 3_600_000
EVICT_BLOCK_STREAMS = 1024  # streams of one group in one object …
EVICT_BLOCK_BYTES = 4 * MIB  # … or fewer, up to this many bytes
# state of one stream; a larger one stays in memory: its return is one log entry
EVICT_STATE_BYTES_MAX = 256 * KIB
# fewer streams than this wait another `EVICT_AFTER_MS`, to avoid an object for each few
EVICT_FEW = 64
EVICT_INTERVAL_MS_MAX = 300_000  # between two scans of all streams
# requests of a core that wait for a stream's state; above it they get 503
RECALL_BYTES_MAX = 32 * MIB
RECALL_STREAMS = 256  # streams that return with one log entry …
# … or fewer, up to this many bytes: an entry must fit into a message between nodes
RECALL_ENTRY_BYTES = 4 * MIB
# … and streams that one command may request, if it works without the rest
RECALL_STREAMS_MAX = 65_536
STATE_CACHE_BYTES = 4 * MIB  # evicted states that a core caches after reading them

# from a pack's intent to its last commit; a later one may name an object that was swept as an orphan
WRITE_MS_MAX = 300_000
# appends of one pack to one group: the group keeps the replies to each writer's last commit …
COMMIT_APPENDS_MAX = 16_384
# … for this long: twice `WRITE_MS_MAX`, so that no commit is repeated later
WRITER_IDLE_MS = 10 * 60 * 1000
PROFILE_WAITING_BYTES_MAX = 32 * MIB  # appends of a core that wait for a change of the profile
# writers of diskless streams that a group remembers: starts of cores that wrote in this time
WRITERS_MAX = 1024

SEGMENT_RECORDS = 1_000_000  # of a leased stream's segment, unless its creation sets a limit …
SEGMENT_BYTES = 1 << 30  # … or this many bytes
SEGMENT_LIMIT_MAX = 2**53  # the maximum of every amount in a command
# closed segments that a stream lists: they are state in memory and in each snapshot
SEGMENTS_KEPT_MAX = 1024
ATTRS_BYTES_MAX = 16 * KIB  # the attributes of a stream, as compact JSON
# the attributes of the streams of a group, which stay in memory; above it they get 507
ATTRS_GROUP_BYTES = 64 * MIB
SNAPSHOT_BYTES_MAX = 1024 * MIB  # the body of a snapshot; on a node without a store one append
SNAPSHOT_PARTS_MAX = 64  # of the body of a snapshot, each of which is one append
SNAPSHOT_STAGED_BYTES = 2048 * MIB  # parts of a stream's snapshots that no snapshot names yet
SNAPSHOT_EMBEDDED_BYTES = 1 * MIB  # a body inside an event or a JSON answer; a larger one is named
SNAPSHOTS_KEPT_MAX = 8  # the newest snapshots of an origin, which are state in memory
SNAPSHOTS_KEPT_MIN = 2  # … and as many at least, unless a retention says more
SNAPSHOT_ORIGINS_MAX = 4  # of the snapshots of a stream: clients, and reducers
SNAPSHOTS_SUPERSEDED_MAX = 64  # of an origin, each for SNAPSHOT_GRACE_MS: state in memory
SNAPSHOT_GRACE_MS = 600_000  # a superseded snapshot can be read: its reader has ten minutes
REDUCERS_MAX = 64  # bindings of a cluster: each publish judges the patterns of all
REDUCER_FAULTS_MAX = 256  # streams on which a reducer is faulted, which the meta group remembers
REDUCER_STATE_BYTES_MAX = 32 * MIB  # the state of a reducer: one append of the companion
REDUCER_BATCH_BYTES = 1 * MIB  # of records that a reducer applies at a time
REDUCER_SECONDS_MIN = 10  # between two publishes: a 64th of the grace of superseded snapshots
REDUCER_MEMORY_BYTES_MAX = 1024 * MIB  # of a module
REDUCER_FUEL_MAX = 10**13  # of a module, for a MiB of records
REDUCER_TAIL_BYTES_MAX = 64 * MIB  # records that a query of a state applies behind the snapshot
REDUCER_KEPT_STATE_BYTES = 8 * MIB  # a state that a core keeps for the next query …
REDUCER_KEPT_BYTES = 32 * MIB  # … and all of them
MODULE_BYTES_MAX = 4 * MIB  # a module of a reducer
BOOTSTRAP_BYTES_MAX = 8 * MIB  # the records behind a snapshot in one answer; reads get the rest
ATTRS_LISTED_MAX = 100  # streams of a page of the list with their attributes
SEGMENT_WAITING_BYTES_MAX = 32 * MIB  # appends of a core that wait for a rollover

# appends to diskless streams that a core holds until they are committed; above it they get 503
DISKLESS_BYTES_PER_CORE = 128 * MIB
DISKLESS_PACK_BYTES = 8 * MIB  # appends of one pack of a core's diskless streams …
DISKLESS_INTERVAL_MS = 250  # … or those of this time, whichever comes first
# commits of diskless streams that a recovery from the object store alone may lack
DISKLESS_COPY_MS = 10_000
DISKLESS_PUTS_MAX = 4  # packs of a core that are being stored; the next ones wait
# names of diskless streams that a core remembers, so that their appends go to its writer at once
DISKLESS_NAMES_MAX = 65_536

JOURNAL_SEGMENT_BYTES = 64 * MIB
INFLIGHT_BYTES_PER_CORE = 64 * MIB  # proposed and not yet durable; above it appends get 503
# responses that clients have not read; each token, else each address, may hold an equal share
RESPONSE_BYTES_PER_CORE = 256 * MIB
# one small page per connection, for callers whose share is used up; above it reads get 503
RESPONSE_RESERVE_BYTES_PER_CORE = 64 * MIB
# lower if a core may open fewer files; above it 503 `CONNECTION_LIMIT`
CONNECTIONS_PER_CORE_MAX = 20_000
PIPELINED_REQUESTS_MAX = 64  # per connection; then it is not read until responses are sent
# unsent bytes of one subscriber; then it is disconnected with a reason
SSE_BACKLOG_BYTES_MAX = 1 * MIB
H2_STREAMS_MAX = 100  # concurrent streams of an HTTP/2 connection, each counted as a connection
# bytes of request bodies on their way: of one stream, and of all streams of a connection
H2_STREAM_WINDOW_BYTES = 256 * KIB
H2_CONNECTION_WINDOW_BYTES = 1 * MIB
# unsent response bytes of all streams of a connection; above it the connection ends
H2_UNSENT_BYTES_MAX = 64 * MIB
# of an HTTP/2 connection in a window of time: streams that either side reset (CVE-2023-44487), frames
# that carry nothing beyond those that a client sends for what it receives, and DATA below 64 bytes
H2_FLOOD_WINDOW_SECONDS = 10
H2_RESETS_MAX = 100
H2_CONTROL_FRAMES_MAX = 1_000
H2_TINY_FRAMES_MAX = 10_000
H2_HEADER_FRAMES_MAX = 8  # of one header block: 64 KiB are four of the smallest frames allowed
LONG_POLL_SECONDS_DEFAULT = 20.0
SSE_RECYCLE_SECONDS = 60.0
SSE_KEEPALIVE_SECONDS = 15.0
BATCH_FRAMES_MAX = 512  # of one `append-batch`, as Ursula
APPENDS_PER_REQUEST_MAX = 1000  # lines of one `POST /v1/append`: each is proposed alone
CHUNK_BYTES = 4 * MIB  # of a stream, in one of its immutable chunks
IMMUTABLE_SECONDS_DEFAULT = 86400.0  # that caches may keep a chunk or a snapshot of a version
LIVE_STREAMS_MAX = 1000  # streams of one list in `/v1/live`: each is attached and read
# streams of one prefix or pattern there, closed ones included: the cursor has the place of each
LIVE_MATCHES_MAX = 10_000
# names that a pattern without a prefix is compared with when a connection opens
LIVE_NAMES_MAX = 200_000
# streams that all readers of `/v1/live` of a core follow, about 1 KiB each; above it 503
LIVE_STREAMS_PER_CORE_MAX = 200_000
LIVE_PAGE_BYTES = 256 * KIB  # of one stream, before the next one has its turn
LIVE_POLL_BYTES = MIB  # events of one long-poll of many streams, and what a page goes beyond it
# a long-poll with news answers after this long, though streams of its list are not read yet
LIVE_POLL_GATHER_SECONDS = 1.0
# the streams of a long-poll stay attached for the next one this many seconds …
LIVE_PARKED_SECONDS = 5
LIVE_PARKED_MAX = 1000  # … and so many readers of a core, oldest out first …
# … with so many streams together, each with up to 1 KiB of memory
LIVE_PARKED_STREAMS_MAX = 20_000
LIVE_READS_MAX = 8  # pages that one reader of many streams reads at the same time
# events that a client may have missed of those that were sent: its cursor goes back this far
LIVE_CURSOR_EVENTS_MAX = 4096
LIVE_CURSOR_SECONDS = 600.0  # a cursor is kept this long after its connection has ended …
LIVE_CURSOR_BYTES_PER_CORE = 64 * MIB  # … and in this much memory, oldest out first
NEW_STREAMS_INTERVAL_MS = 250  # between two questions for new streams, while readers wait for some
# fork attempts and packs that a group must not accept again; older ones are settled
ATTEMPTS_REMEMBERED_MAX = 8192

TOPICS_MAX = 100_000  # Kafka topics of a cluster: the meta group holds them in memory
# names of deleted topics in the changes that readers get; a reader further behind reads all topics
TOPICS_GONE_REMEMBERED_MAX = 10_000
PARTITIONS_MAX = 10_000  # of one topic: it is created as one operation
KAFKA_REQUEST_BYTES_MAX = 64 * MIB  # one request: batches of many partitions; it is held whole
# requests that arrive or are in progress, as far as they came; above it a token or an address with
# an equal share of it is not read
KAFKA_REQUESTS_BYTES_PER_CORE = 256 * MIB
CONSUMER_GROUPS_MAX = 10_000  # Kafka consumer groups of one Raft group: it keeps them in memory
CONSUMER_GROUPS_BYTES_MAX = 64 * MIB  # their members and offsets: each state snapshot has them
GROUP_OFFSETS_MAX = 20_000  # of one group: a delta of the state has all offsets of a changed group
# of one consumer group that have open transactions with offsets of it; Streams has one a thread
GROUP_TRANSACTIONS_MAX = 1024
TRANSACTION_NUMBERS_MAX = 10_000  # of open transactions that a core's Kafka front remembers
TRANSACTION_CONNECTIONS_MAX = 20_000  # transactional ids whose newest connection a core remembers
GROUP_MEMBERS_MAX = 1000  # of one group: each rebalance sends all members to one of them
GROUP_ID_BYTES_MAX = 1 * KIB  # also of a member's id and of an instance id
# subscriptions, and assignments, of all members: one log entry has them
GROUP_MEMBERS_BYTES_MAX = 3 * MIB
GROUP_PROTOCOLS_MAX = 32  # assignors that one member offers; clients offer one to three
PATTERN_CHARACTERS_MAX = 1 * KIB  # of a subscription's regular expression
PATTERN_STATES_MAX = 1000  # of its automaton: a letter of a name may visit each
GROUP_PATTERNS_MAX = 32  # different regular expressions of one group: each keeps its matches
OFFSETS_RETENTION_SECONDS = 7 * 24 * 3600.0  # unless `kafka.offsets_retention` is set; as Kafka's
OFFSET_METADATA_BYTES_MAX = 4 * KIB  # as Kafka's default
GROUP_SESSION_MS_MIN = 1000  # a member that is heard less often is noticed as fast as a failover
GROUP_HEARTBEAT_MS_MIN = 100  # of a group's config: each heartbeat is a request of each member
GROUP_CONFIGS_MAX = 10_000  # groups with configs: the meta group holds them in memory
CLIENT_METRICS_MAX = 100  # subscriptions to clients' metrics: each is matched with each client
CLIENT_METRICS_NAMES_MAX = 32  # of metrics in one: each pushed number is compared with all
CLIENT_METRICS_VALUE_CHARACTERS_MAX = (
    4 * KIB
)  # of a config of one: the meta group holds it in memory
CLIENT_METRICS_INTERVAL_MS_MIN = 100  # as Kafka's
CLIENT_METRICS_INTERVAL_MS_MAX = 3600 * 1000  # as Kafka's
CLIENT_INSTANCES_MAX = 10_000  # Kafka clients that ask for subscriptions, which a core remembers
CLIENT_SERIES_MAX = 10_000  # of the clients of a core: each scrape has a line for each
CLIENT_SERIES_PER_INSTANCE_MAX = 1000  # a Java consumer of some partitions has about 150
CLIENT_POINTS_PER_PUSH_MAX = 2000  # decoded of one push: about 5 microseconds each
CLIENT_PUSH_FIELDS_MAX = 100_000  # of protobuf, of one push: about a microsecond each
CLIENT_ATTRIBUTES_MAX = 8  # of a number that a client pushed; Kafka's clients send at most three
CLIENT_TELEMETRY_BYTES_MAX = 1 * MIB  # of a push, also decompressed; as Kafka's default
CLIENT_LABEL_CHARACTERS_MAX = 256  # of a client's id, software, and each attribute
GROUP_SESSION_MS_MAX = 30 * 60 * 1000  # as Kafka's default
GROUP_REBALANCE_MS_MAX = 24 * 3600 * 1000  # a rebalance waits that long for a slow member
TRANSACTIONAL_IDS_MAX = 10_000  # Kafka transactional ids of one Raft group: it keeps them in memory
TRANSACTION_BYTES_MAX = 64 * MIB  # their ids and participants: each state snapshot has them
TRANSACTION_TIMEOUT_MS_MAX = 15 * 60 * 1000  # as Kafka's default: committed readers wait so long
# of a request that appends to streams of several groups: its streams hold readers back meanwhile
APPEND_ALL_SECONDS = 5.0
APPEND_ALL_TIMEOUT_MS = 6000  # of its transaction, if the node that has begun it dies
APPEND_ALL_IDS = 64  # transactional ids of a core for such requests: as many at a time
TRANSACTIONAL_ID_BYTES_MAX = 1 * KIB  # as of a consumer group: each state snapshot has them
# an id that is idle for as long makes room for another one: no client of it waits for an answer
TRANSACTION_IDLE_MS = 15 * 60 * 1000
# a participant asks for the outcome of what is open for longer: no timeout is as long
ORPHAN_MS = 16 * 60 * 1000
HOLD_MS_MAX = 10_000  # of commits, for a backup; one whose backup dies expires
BACKUP_ROUND_CHARACTERS_MAX = 64  # of its name: each state snapshot has it
TRANSACTIONAL_ID_KEPT_MS = 7 * 24 * 3600 * 1000  # an idle id, as Kafka's default
KAFKA_FORWARD_BYTES_MAX = 1 * MIB  # Produce at the wrong broker: a larger one goes to the leader
KAFKA_SMALL_REQUEST_BYTES_MAX = 4 * MIB  # a request without records: lists of names
# ApiVersions, the SASL requests, and anything before authentication: a JWT fits many times
KAFKA_OPEN_REQUEST_BYTES_MAX = 128 * KIB
# array elements and tagged fields of a Kafka request: each costs about 2 microseconds to decode
# and up to 10 to answer, in which the core does nothing else
KAFKA_ELEMENTS_MAX = 20_000
# elements that a core works on before other connections have a turn: a few milliseconds; a token
# pays for so many as for one more request
KAFKA_ELEMENTS_PER_TURN = 1000
# batches of one request of a mirror: each is a command of its own, about 20 microseconds
MIRROR_BATCHES_MAX = 4096
KAFKA_HEADER_TAGS_MAX = 64  # tagged fields of a request's header; Kafka defines none
# a Fetch that a connection keeps for its repeats, with a response of about twice its size: some
# 500 partitions
KAFKA_REPEATED_FETCH_BYTES_MAX = 16 * KIB
# incremental fetch sessions of Kafka consumers: as many as Kafka keeps for a broker
KAFKA_FETCH_SESSIONS_PER_CORE_MAX = 1000
KAFKA_FETCH_SESSION_PARTITIONS_MAX = 20_000  # of one session: as many as one request may name
# of all sessions: each takes some 400 bytes; consumers beyond it name their partitions each time
KAFKA_FETCH_SESSION_PARTITIONS_PER_CORE = 100_000
# the records of one batch: bounds the memory of the process that decodes it
KAFKA_UNCOMPRESSED_BYTES_MAX = 64 * MIB
KAFKA_UNCOMPRESSED_RATIO_MAX = 64  # times its compressed bytes; text becomes 5 to 20 times as long
KAFKA_UNCOMPRESSED_BYTES_LEAST = 1 * MIB  # a small batch of equal records may have any ratio
# of one append with keys, headers or times: each record is built one by one
RECORD_BATCH_RECORDS_MAX = 100_000
KAFKA_BATCH_RECORDS_MAX = 1_000_000  # decoded of one batch: an empty record of 7 bytes reads as 80
# milliseconds since 1970 of an append or a record: the end of the year 9999, the last date that
# has a text form
TIME_MS_MAX = 253_402_300_799_999

SQL_BODY_BYTES_MAX = 128 * KIB  # one SQL query: text written by a person or program, not data
SQL_ROWS_DEFAULT = 1000  # rows of a response, unless `rows` is given
# Parquet files that a task of a partitioned table writes at once: each has up to 8 MiB in memory
PARTITION_FILES_OPEN_MAX = 32
SQL_ROWS_MAX = 10_000  # read larger results directly from the tables
SQL_ANSWER_BYTES_MAX = 8 * MIB  # one response; bounds the memory of server and browser
SQL_QUESTIONS_PER_CORE_MAX = 2  # each is a process with its own memory

TABLE_RUNS_WAITING_MAX = 16  # of a node; one is running
TABLE_RUNS_KEPT_MAX = 64  # of a node, with their logs: at most 6 MB
TABLE_RUN_LINES_MAX = 200  # the last lines of a run
TABLE_RUN_LINE_CHARACTERS_MAX = 500  # the rest of a longer line is left out

RANGES_PER_ANSWER_MAX = 10_000  # slices of a stream; a reader requests the next ones from their end
RANGES_STREAMS_MAX = 64  # streams of one request: each is a message to the leader of its group

# subscriptions with one owner group: each stream creation checks the patterns that could match
SUBSCRIPTIONS_PER_GROUP_MAX = 1024
# explicit links of one subscription: they are state of its owner group
SUBSCRIPTION_STREAMS_MAX = 1000
# streams in one wake, claim or page of a subscription; the rest follows in the next
SUBSCRIPTION_LINKS_SHOWN = 1000
SUBSCRIPTION_RESETS_MAX = 10_000  # streams of one reset: each is read to find its place
SUBSCRIPTION_ID_BYTES_MAX = 256
SUBSCRIPTION_TEXT_BYTES_MAX = 4 * KIB  # a description or a worker's name; responses contain them
SUBSCRIPTION_ATTEMPTS_MAX = 1000  # the largest `max_attempts`: at a minute each, most of a day
SUBSCRIPTION_PAUSE_MS_MAX = 86_400_000  # before a retry: a day, as the whole subscription waits
# pending streams of a subscription and group that its lag counts: each is a lookup
SUBSCRIPTION_LAGS_MAX = 10_000
SUBSCRIPTION_ROWS_MAX = 100  # of a page of groups: each has up to 64 lanes
SUBSCRIPTION_LANES_MAX = 64  # lanes that workers share: each is a subscription
# workers that share the lanes of a subscription; those beyond the lanes only wait
SUBSCRIPTION_WORKERS_MAX = 256
SUBSCRIPTION_WORKER_BYTES_MAX = 256  # a name there: all of them are in one record of the state
SUBSCRIPTION_BODY_BYTES_MAX = 2 * MIB  # one request: all explicit links at maximum length fit
# default profiles of buckets: every core reads all of them while streams are created
BUCKET_PROFILES_MAX = 10_000
# names of deleted topics: a core reads all of them when topics are created
DELETED_TOPICS_MAX = 10_000
WEBHOOK_URL_BYTES_MAX = 2 * KIB  # the URL of a subscription's webhook
WEBHOOK_RESPONSE_BYTES_MAX = 64 * KIB  # the receiver only reports whether it is done

# per node: every core holds them all, and the file is written whole; use a JWT issuer for more
# callers
TOKENS_MAX = 10_000
TOKEN_NAME_BYTES_MAX = 200
SCRAM_SALT_BYTES_MAX = 256  # of a password that Kafka's tools set
TOKEN_SCOPES_MAX = 16  # per token or JWT: each request may check all of them
# ACLs and quotas of Kafka's tools: as tokens, every core holds them, and the file is written whole
ACLS_MAX = 5_000
ACLS_OF_USER_MAX = 1_000  # one value of the meta group has them
ACL_NAME_BYTES_MAX = 1 * KIB  # of a resource: as of a consumer group
USER_QUOTAS_MAX = 5_000
# ACLs that the filters of one request are compared with, in a thread: some seconds
ACL_COMPARISONS_MAX = 5_000_000
# entries, each kept for a limited time: every core holds them all, beside the tokens
REVOKED_JWTS_MAX = 10_000
REVOKED_JWT_BYTES_MAX = 1 * KIB  # a revoked `jti` or `sub`
CREDENTIAL_BYTES_MAX = 8 * KIB  # a token or JWT; larger ones are rejected unread
# verified credentials that a core caches, so that each is verified once
CREDENTIALS_KEPT_MAX = 4096
# remaining lifetime of a token in `?access_token=`: URLs end up in histories and proxy logs
URL_TOKEN_SECONDS_MAX = 3600
SHORT_TOKEN_SECONDS_MAX = URL_TOKEN_SECONDS_MAX  # the lifetime of a short token, which a page has
JWKS_BYTES_MAX = 1 * MIB  # the key set of an issuer
AUDIT_FILE_BYTES_MAX = 8 * MIB  # then the audit log starts a new file …
AUDIT_FILES_MAX = 8  # … and keeps this many older ones

LOG_RECORD_BYTES_MAX = 64 * MIB  # embedded log: one record, or all records of a batch: one frame
LOG_BATCH_RECORDS_MAX = 65_536  # embedded log: a reader decodes a batch whole
LOG_TOPICS_MAX = 65_536  # embedded log: each segment begins with the state of all topics …
LOG_CURSORS_MAX = 65_536  # … and cursors
LOG_NAME_BYTES_MAX = 255  # embedded log: a topic's or cursor's name in UTF-8
LOG_WRITE_BYTES = 8 * MIB  # embedded log: appends of several threads that share one write
LOG_INDEX_CACHE_BYTES = 32 * MIB  # embedded log: indexes of sealed segments kept in memory

# schema registry: a core that serves it keeps all schemas of the topic `_schemas` in memory
SCHEMA_BYTES_MAX = 1 * MIB  # the text of one schema
SCHEMA_BODY_BYTES_MAX = 4 * MIB  # a request with a schema, whose text JSON escapes
SCHEMA_DEPTH_MAX = 64  # levels of types in types: each is a call of the parser
SCHEMA_REFERENCES_MAX = 100  # of one schema, those of its references included
SUBJECT_BYTES_MAX = 512  # the name of a subject: each key of the topic has it
REGISTRY_BYTES_MAX = 128 * MIB  # names and texts of all schemas, which each core may keep
REGISTRY_VERSIONS_MAX = 200_000  # of all subjects: each takes about 1 KiB beside its text

# --- traces ---------------------------------------------------------------------------------------
# spans of a core that wait for the export (traces.queue); about 1 KiB each
TRACE_SPANS_MAX = 2048
