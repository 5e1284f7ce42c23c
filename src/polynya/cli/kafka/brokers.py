"""The Kafka brokers of the server of a command, and what its clients have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from polynya.base.installation import install_command
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, options

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

INSTALL = install_command("kafka")
ANSWER_SECONDS = 20.0
_TOKEN_SECONDS = 3600.0  # after this long the client presents the token again

brokers_option = options.value(
    "--brokers HOST:PORT,...", help="Kafka brokers.  [default: the server tells its own]"
)


class Failures:
    """The errors that librdkafka reports beside the results of calls; the last one counts."""

    def __init__(self) -> None:
        self.refused: KafkaError | None = None  # a retry would fail too
        self.last: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        """Keep an error that librdkafka reports."""
        from confluent_kafka import KafkaError

        self.last = error
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or error.fatal():
            self.refused = error

    def check(self) -> None:
        """Raise `exits.Refused` for an error that a retry would meet again."""
        if self.refused is not None:
            raise exits.Refused(self.refused.str())


def kafka_config(client: Client, brokers: str | None, failures: Failures) -> dict[str, Any]:
    """Return the settings of a client. Raises `exits.Refused`, `exits.Misused`."""
    require_library()
    servers = brokers or _brokers_of(client)
    tls = client.server.startswith("https://")
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": "polynya",
        "error_cb": failures.hear,
        "log_level": 0,
        "allow.auto.create.topics": False,
    }
    if tls and client.ca_file:
        config["ssl.ca.location"] = client.ca_file
    if client.token:
        config["sasl.mechanisms"] = "OAUTHBEARER"
        config["oauth_cb"] = _presented(client.token)
    if tls or client.token:
        secured = ("SASL_" if client.token else "") + ("SSL" if tls else "PLAINTEXT")
        config["security.protocol"] = secured
    return config


def require_library() -> None:
    """Raise `exits.Misused` where the extra is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ModuleNotFoundError:
        raise exits.Misused("this command needs confluent-kafka", hint=INSTALL) from None


def explained(error: KafkaError, what: str) -> exits.Ended:
    """Return the end of a command for an error of Kafka."""
    from confluent_kafka import KafkaError

    text = f"{what}: {error.str()}"
    if error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):
        return exits.Unknown(text)
    if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        return exits.Unreachable(text)
    return exits.Refused(text, code=error.name())


def _presented(token: str) -> Callable[[str], tuple[str, float]]:
    return lambda _: (token, time.time() + _TOKEN_SECONDS)


def _brokers_of(client: Client) -> str:
    status = client.call("GET", "/v1/node").json()
    found = status.get("kafka", "")
    if not found:
        raise exits.Refused(
            f"{client.server} serves no Kafka clients",
            hint="Start it with --kafka-listen HOST:PORT, or pass --brokers.",
        )
    return str(found)
