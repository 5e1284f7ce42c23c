"""Runs benchmarks, each in a process of its own: `python -m bench` all that need nothing but this
package, `python -m bench NAME OPTIONS…` one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# other servers and a load generator, which its first lines name
NEEDS_PEERS = {
    "bulk",
    "clusters",
    "compare",
    "kafka",
    "kafka_idle",
    "nats",
    "page",
    "wrk",
}


def benchmarks() -> dict[str, str]:
    """Name -> the first line of its docstring."""
    files = sorted(file for file in FOLDER.glob("*.py") if not file.name.startswith("_"))
    return {
        file.stem: (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
        for file in files
    }


def main(arguments: list[str]) -> int:
    known = benchmarks()
    if arguments and arguments[0] not in known:
        print(
            "there is no such benchmark; there are:",
            *(f"  {name:<12}{text}" for name, text in known.items()),
            sep="\n",
            file=sys.stderr,
        )
        return 2
    failed = 0
    for name in arguments[:1] or [name for name in known if name not in NEEDS_PEERS]:
        print(f"== {name}: {known[name]}", flush=True)
        failed |= subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *arguments[1:]], cwd=FOLDER.parent, check=False
        ).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
