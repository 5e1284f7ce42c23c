"""The command line of a benchmark of this server alone: its options, its rounds, its results."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench import _results
from bench._nodes import machine
from bench._rounds import Figures, in_turn, table


def parser_of(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that each such benchmark has. `rounds`: the default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    return parser


def run_rounds(
    benchmark: str,
    arguments: argparse.Namespace,
    run_once: Callable[[argparse.Namespace], Figures],
) -> None:
    """Run the rounds, print their table, and save it if the command line says so."""
    print(machine())
    runs = in_turn(["polynya"], arguments.rounds, lambda _: run_once(arguments))
    print(table("server", runs))
    if arguments.save:
        _results.save(benchmark, runs)
