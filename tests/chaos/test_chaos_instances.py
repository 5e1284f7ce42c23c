"""An instance of a transactional client of the chaos run ends when it is told that it is fenced."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.transaction_clients import Instance, Over  # noqa: E402  (not a part of the package)
from chaos.transaction_history import FENCED, TransactionHistory  # noqa: E402

RETRIABLE = KafkaError(KafkaError._TIMED_OUT, "again", retriable=True)
IS_FENCED = KafkaError(KafkaError._FENCED, "a newer instance", fatal=True)


def raising(error: Any) -> Any:
    def call(*about: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize("first", [KafkaException(RETRIABLE), BufferError()], ids=["again", "full"])
def test_a_fatal_error_of_a_poll_between_two_tries_ends_it(first: Exception) -> None:
    client = SimpleNamespace(init_transactions=raising(first))
    kafka = SimpleNamespace(
        now=lambda: 1.0,
        transactional_producer=lambda id_, **settings: client,
        served=raising(KafkaException(IS_FENCED)),
    )
    clients: Any = SimpleNamespace(clients=kafka, history=TransactionHistory(), errors=Counter())
    instance = Instance(clients, "id", "id-a1")
    with pytest.raises(Over):
        instance.init()
    (init,) = clients.history.inits
    assert init.error == FENCED and clients.errors == {"init: _FENCED": 1}
