"""Every limit of the product, each with its reason. The docs page of limits is generated from this file."""

KIB = 1024
MIB = 1024 * KIB

APPEND_BYTES_MAX = 32 * MIB  # one request body; above it a client should split (`cold.max_hot_bytes_per_group` may be less)
PAGE_BYTES_DEFAULT = 4 * MIB  # one catch-up answer, so that a reader of a long stream never holds more
PAGE_BYTES_MAX = 8 * MIB  # what `max_bytes` may ask for
RAW_STEP_BYTES = 64 * KIB  # raw pages may stop inside a record at multiples of this from its start only (F2)
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
PRODUCER_IDLE_MS = 7 * 24 * 3600 * 1000
PRODUCER_EVICT_IDLE_MS = 10 * 60 * 1000  # at the cap the longest idle goes if idle for this long
TTL_SECONDS_MAX = 100 * 365 * 24 * 3600
RETENTION_SECONDS_MAX = 100 * 365 * 24 * 3600
RETENTION_BYTES_MAX = 2**53 - 1  # exact in every client language
FORK_DEPTH_MAX = 64  # a read walks the chain of sources
GROUPS_MAX = 1024  # user groups at birth of a cluster (F5)

HOT_BYTES_PER_GROUP = 64 * MIB  # F21
HOT_BYTES_PER_CORE = 256 * MIB
FLUSH_BYTES = 8 * MIB
FLUSH_INTERVAL_MS = 1000
FLUSH_MAX_AGE_MS = 300_000
FLUSH_MAX_CONCURRENCY = 4
MERGE_BYTES_PER_SECOND = 32 * MIB  # of small slices that a core makes larger ones of, beside everything else
MERGE_INTERVAL_MS = 1000  # between two looks for them, or more where there are very many streams
DELETE_GRACE_MS = 60_000  # objects that nobody needs stay so long, for readers that are at them
SLICE_BYTES_MAX = 4 * MIB  # payload of one pack slice: the unit of a cold read and of the block cache
CACHE_BYTES = 64 * MIB  # block cache of one core
EVICT_AFTER_MS = 3_600_000  # a stream that was not written to for so long leaves the memory, if nothing else needs it there
EVICT_BLOCK_STREAMS = 1024  # of one group in one object …
EVICT_BLOCK_BYTES = 4 * MIB  # … or fewer, with so many bytes
EVICT_STATE_BYTES_MAX = 256 * KIB  # of one stream; a larger one stays: coming back it is one entry of the log
EVICT_FEW = 64  # fewer than these wait as long again, so that a group does not write an object for each of them
EVICT_INTERVAL_MS_MAX = 300_000  # between two looks at all streams
RECALL_BYTES_MAX = 32 * MIB  # of requests of a core that wait for a stream's state; over it they get 503
RECALL_STREAMS = 256  # that come back with one entry of the log …
RECALL_ENTRY_BYTES = 4 * MIB  # … or fewer, with so many bytes: an entry must fit into a message to the other nodes
RECALL_STREAMS_MAX = 65_536  # … and that one command may ask for, where it can do with some
STATE_CACHE_BYTES = 4 * MIB  # states of evicted streams that a core has read and keeps

JOURNAL_SEGMENT_BYTES = 64 * MIB
INFLIGHT_BYTES_PER_CORE = 64 * MIB  # proposed and not yet durable; over it appends get 503
RESPONSE_BYTES_PER_CORE = 256 * MIB  # of responses that clients do not read: each token, else each address, may hold an equal share
RESPONSE_RESERVE_BYTES_PER_CORE = 64 * MIB  # of one small page per connection, for callers whose share is used up; over it reads get 503
CONNECTIONS_PER_CORE_MAX = 20_000  # fewer where a core may not open so many files; over it 503 `CONNECTION_LIMIT`
PIPELINED_REQUESTS_MAX = 64  # of one connection; then it is not read until answers left
SSE_BACKLOG_BYTES_MAX = 1 * MIB  # unsent bytes of one subscriber before it is cut with a reason
LONG_POLL_SECONDS_DEFAULT = 20.0
SSE_RECYCLE_SECONDS = 60.0
SSE_KEEPALIVE_SECONDS = 15.0
ATTEMPTS_REMEMBERED_MAX = 8192  # fork attempts, and packs, that a group must not take up again; older ones have long been settled

SQL_BODY_BYTES_MAX = 128 * KIB  # one question to tables: what a person or a program writes, not data
SQL_ROWS_DEFAULT = 1000  # rows of an answer, unless `rows` asks for others
SQL_ROWS_MAX = 10_000  # more than that is read from the tables themselves
SQL_ANSWER_BYTES_MAX = 8 * MIB  # one answer, so that neither the server nor a browser holds more
SQL_QUESTIONS_PER_CORE_MAX = 2  # each is a process with memory of its own

SUBSCRIPTIONS_PER_GROUP_MAX = 1024  # with a home in one group: each creation of a stream asks the patterns that could match
SUBSCRIPTION_STREAMS_MAX = 1000  # explicit links of one subscription: they are state of its home group
SUBSCRIPTION_LINKS_SHOWN = 1000  # streams in one wake, claim or page of a subscription; the others come with the next
SUBSCRIPTION_ID_BYTES_MAX = 256
SUBSCRIPTION_TEXT_BYTES_MAX = 4 * KIB  # a description, a worker's name: they come back in answers
SUBSCRIPTION_BODY_BYTES_MAX = 2 * MIB  # one request: all explicit links at their longest fit
WEBHOOK_URL_BYTES_MAX = 2 * KIB
WEBHOOK_RESPONSE_BYTES_MAX = 64 * KIB  # all that a receiver may say is whether it is done

TOKENS_MAX = 10_000  # of a node: every core holds them all, and the file is written whole; more callers take an issuer of JWTs
TOKEN_NAME_BYTES_MAX = 200
TOKEN_SCOPES_MAX = 16  # of one token or JWT: each request may look at all of them
REVOKED_JWTS_MAX = 10_000  # entries, each for some time: every core holds them all, beside the tokens
REVOKED_JWT_BYTES_MAX = 1 * KIB  # a `jti` or `sub` that is revoked
CREDENTIAL_BYTES_MAX = 8 * KIB  # a token or JWT; larger ones are refused unread
CREDENTIALS_KEPT_MAX = 4096  # proven ones that a core remembers, so that each is proven once
URL_TOKEN_SECONDS_MAX = 3600  # what is left of the life of a token in `?access_token=`: URLs end up in histories and in logs of proxies
JWKS_BYTES_MAX = 1 * MIB  # the key set of an issuer
AUDIT_FILE_BYTES_MAX = 8 * MIB  # then a new file of the audit log begins …
AUDIT_FILES_MAX = 8  # … and so many older ones are kept
