"""A short slice of every fuzzer, with a seed of the commit. The long form is `make fuzz`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commit_seed import commit_seed
from fuzz.bytes import Outcome
from fuzz.http import fuzz_http
from fuzz.kafka import fuzz_kafka
from fuzz.peers import fuzz_peers
from fuzz.stored import fuzz_stored
from fuzz.words import fuzz_words
from long_tests import long

pytestmark = pytest.mark.process
FIXED = 20_261_122
SEEDS = [commit_seed(FIXED), *long([FIXED] if commit_seed(FIXED) != FIXED else [])]
SLICES: dict[
    str, tuple[Callable[..., Outcome], int, str]
] = {  # how many rounds, and what must have been done in them
    "http": (fuzz_http, 40, "requests"),
    "kafka": (fuzz_kafka, 20, "batches"),
    "peers": (fuzz_peers, 10, "messages of groups"),
    "stored": (partial(fuzz_stored, verifies=4), 2, "verify: 1"),
    "words": (fuzz_words, 150, "config: 2"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(SLICES))
def test_nonsense_is_borne(name: str, seed: int, tmp_path: Path) -> None:
    fuzz, rounds, done = SLICES[name]
    outcome = fuzz(seed, tmp_path, rounds=rounds)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.counts[done], outcome.told()
