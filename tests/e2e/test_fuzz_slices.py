"""A short slice of every fuzzer, with one seed. The long form is `make fuzz`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fuzz import play
from fuzz.admin import fuzz_admin
from fuzz.bytes import Outcome
from fuzz.http import fuzz_http
from fuzz.http2 import fuzz_http2
from fuzz.kafka import fuzz_kafka
from fuzz.peers import fuzz_peers
from fuzz.stored import fuzz_stored
from fuzz.text import fuzz_text
from fuzz.words import fuzz_words
from long_tests import long

pytestmark = pytest.mark.process
SEED = 20_261_122  # `make hunt` draws others
SLICES: dict[
    str, tuple[Callable[..., Outcome], int, str]
] = {  # how many rounds, and what must have been done in them
    "http": (fuzz_http, 40, "requests"),
    "http2": (fuzz_http2, 20, "floods of requests"),
    "admin": (fuzz_admin, 40, "large requests"),
    "kafka": (fuzz_kafka, 20, "batches"),
    "peers": (fuzz_peers, 10, "messages of groups"),
    "stored": (partial(fuzz_stored, verifies=4), 2, "verify: 1"),
    "text": (fuzz_text, 20, "puts"),
    "words": (fuzz_words, 150, "config: 2"),
}


@pytest.mark.parametrize("name", list(SLICES))
def test_nonsense_is_borne(name: str, tmp_path: Path) -> None:
    fuzz, rounds, done = SLICES[name]
    outcome = fuzz(SEED, tmp_path, rounds=rounds)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.counts[done], outcome.summary()


@pytest.mark.parametrize("name", ["http", *long(["admin", "text"])])
def test_a_long_turn_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a limit that every turn exceeds, so that the fuzzer must report it."""
    monkeypatch.setattr(play, "TURN_SECONDS_MAX", 0.0)
    outcome = SLICES[name][0](SEED, tmp_path, rounds=play.EVERY_ACTS)
    assert any("a turn of the loop took" in line for line in outcome.wrong), outcome.wrong
