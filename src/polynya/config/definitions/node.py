"""The settings of the node itself, of the streams it serves and of its log."""

from __future__ import annotations

from polynya.base import limits
from polynya.base.names import REPLICATED
from polynya.config import setting

NODE = (
    setting.text(
        "listen",
        "127.0.0.1:4437",
        "Address and port of HTTP and health. Port 0 selects a free port. The admin port is the "
        "next one (a free one for port 0).",
    ),
    setting.text(
        "data",
        "./polynya-data",
        "The folder of the journal, the snapshots and the embedded object store.",
    ),
    setting.count(
        "cores",
        None,
        "Processes that share the port. Default: half of the CPUs, at least 1, fixed when the "
        "data folder is created. At most one per group.",
        low=1,
        high=limits.GROUPS_MAX,
    ),
    setting.count(
        "groups",
        None,
        "Groups that streams are hashed to. Default: 16; fixed when the data folder is created.",
        low=1,
        high=limits.GROUPS_MAX,
    ),
    setting.text(
        "scheduling",
        "batch",
        "The Linux scheduling policy of the cores: 'batch' avoids preemption, which saves a tenth "
        "of the CPU; 'normal' has lower latency where other "
        "programs keep all CPUs busy.",
        ("batch", "normal"),
    ),
    setting.seconds(
        "long_poll_timeout",
        limits.LONG_POLL_SECONDS_DEFAULT,
        "The longest wait of a long-poll read for new data before an empty response.",
        low=0.01,
        high=3600,
    ),
    setting.seconds(
        "immutable_max_age",
        limits.IMMUTABLE_SECONDS_DEFAULT,
        "How long caches may keep the parts of a stream that never change (`…/incarnation/…`); at "
        "most as long as the stream lives or keeps its records.",
        low=0,
        high=31_536_000,
    ),
    setting.text(
        "http2",
        "auto",
        "HTTP/2 beside HTTP/1.1: chosen by the TLS handshake (ALPN), and without TLS by clients on "
        "this machine that begin with it (prior knowledge). `auto`: if the extra `polynya[h2]` is "
        "installed; `on` refuses to start without it.",
        ("auto", "on", "off"),
    ),
    setting.switch(
        "strict_parameters",
        True,
        "Refuse a query parameter whose name is close to a known one (`ofset`), with 400 "
        "`UNKNOWN_PARAMETER`. Off: it is ignored, as other unknown ones are.",
    ),
    setting.switch(
        "unsafe_no_auth",
        False,
        "Allow a `listen` address beyond loopback without access control or without TLS; "
        "`/readyz?verbose` then shows a warning.",
    ),
    setting.text(
        "admin_listen",
        "",
        "Open the admin port at this address and port too, for holders of a token with `admin`. "
        "Default: loopback only, without tokens.",
    ),
    setting.text(
        "text_listen",
        "",
        "Serve the text protocol of Walrus at this address and port (docs/walrus.md). `on`: the "
        "host of `listen`, and its port plus 4. "
        "Default: off. Beyond loopback it needs TLS, and callers need a token.",
    ),
    setting.default_profile(
        "default_profile",
        REPLICATED,
        "The profile of streams and Kafka topics whose creation and bucket name none: `replicated`, "
        "or `diskless` for records that are stored in the object store alone (docs/diskless.md).",
    ),
    setting.profile(
        "text_profile",
        REPLICATED,
        "The profile of the topics that `REGISTER` creates: `replicated`, `diskless`, or `leased` "
        "for streams of segments with one writer each.",
    ),
)
STREAMS = (
    setting.millis(
        "diskless.interval",
        limits.DISKLESS_INTERVAL_MS,
        "The time for which a core collects the appends of its diskless streams. A "
        "longer time costs fewer requests to the object store, and appends take longer.",
        low=10,
        high=10_000,
    ),
    setting.size(
        "diskless.pack_size",
        limits.DISKLESS_PACK_BYTES,
        "The bytes of appends to diskless streams that a core stores without waiting for "
        "`diskless.interval`.",
        low=64 * limits.KIB,
        high=32 * limits.MIB,
    ),
    setting.millis(
        "diskless.copy_interval",
        limits.DISKLESS_COPY_MS,
        "The interval at which a group copies new commits of diskless streams to the object store. "
        "After the loss of all disks, commits of about this time are lost. A longer time costs "
        "fewer requests.",
        low=1000,
        high=60_000,
    ),
    setting.count(
        "segments.records",
        limits.SEGMENT_RECORDS,
        "The records of a segment of a leased stream, unless its creation names a limit.",
        low=1,
    ),
    setting.size(
        "segments.bytes",
        limits.SEGMENT_BYTES,
        "The bytes of a segment of a leased stream, unless its creation names a limit.",
        low=1,
    ),
)
LOG = (
    setting.text(
        "log.level",
        "info",
        "The minimum severity of log lines.",
        ("debug", "info", "warning", "error"),
    ),
    setting.text("log.format", "logfmt", "The format of log lines on stderr.", ("logfmt", "json")),
)
TRACES = (
    setting.ratio(
        "traces.ratio",
        0.0,
        "The part of the requests that are traced, from 0 to 1, if a variable of OpenTelemetry names "
        "a collector (docs/traces.md). With `traces.follow_clients` it is for those whose client "
        "names no trace.",
        low=0,
        high=1,
    ),
    setting.switch(
        "traces.follow_clients",
        True,
        "Trace a request with the header `traceparent` if its client traces it, and else not. Off: "
        "`traces.ratio` decides about all, by the id of the trace.",
    ),
    setting.count(
        "traces.queue",
        limits.TRACE_SPANS_MAX,
        "The spans of a core that wait for the export. More are dropped, and counted.",
        low=16,
        high=1_000_000,
    ),
)
