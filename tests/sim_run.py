"""The simulated cluster from a shell: `make sim SEED=7`, or `make sim SEED=100 SEEDS=50`; exits with 1 when a seed fails."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from time import perf_counter

from sim_chaos import Episode
from sim_loop import run_simulated
from sim_moves import Moves

SHOWN = 25  # of the last events of an episode that failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that one on")
    parser.add_argument("--moves", action="store_true", help="more nodes than replicas; groups move, nodes come and are lost")
    parser.add_argument("--mishaps", type=int, default=25, help="in each episode, before all heals")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        episode = (Moves if options.moves else Episode)(seed, options.mishaps)
        began = perf_counter()
        try:
            checksum = run_simulated(episode.run())
        except Exception:
            failed += 1
            print("".join(f"  {event}\n" for event in episode.events[-SHOWN:]), end="")
            traceback.print_exc()
            print(f"seed {seed} FAILED; again: make sim SEED={seed}{' ARGS=--moves' if options.moves else ''}", flush=True)
        else:
            print(f"seed {seed}: {episode.told()} in {perf_counter() - began:.1f} s; {checksum[:16]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
