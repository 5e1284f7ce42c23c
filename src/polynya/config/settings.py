"""The table of settings: key, environment variable, flag, type, default and meaning of each. The
docs are generated from it."""

from __future__ import annotations

from polynya.config.definitions.access import ACCESS
from polynya.config.definitions.cluster import CLUSTER
from polynya.config.definitions.cold import COLD
from polynya.config.definitions.kafka import KAFKA
from polynya.config.definitions.node import LOG, NODE, STREAMS, TRACES
from polynya.config.definitions.tables import TABLES

CLIENT_VARIABLES = {  # known, but not node settings
    "POLYNYA_SERVER": "the server that the client commands talk to",
    "POLYNYA_CONTEXT": "the context (`polynya context`) that names the server; `POLYNYA_SERVER` takes precedence",
    "POLYNYA_TOKEN": "the access token that they send",
    "POLYNYA_TOKEN_FILE": "a file that holds it",
    "POLYNYA_CA_FILE": "a file of certificates that they trust, such as that of `--tls-self`",
}
SETTINGS = (*NODE, *STREAMS, *ACCESS, *CLUSTER, *KAFKA, *LOG, *TRACES, *TABLES, *COLD)
BY_KEY = {setting.key: setting for setting in SETTINGS}
BY_ENV = {setting.env: setting for setting in SETTINGS}
BY_FLAG = {setting.flag: setting for setting in SETTINGS if setting.flag is not None}
