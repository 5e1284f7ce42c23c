"""Run both tiers at once: `python -m tiers.both COMMAND-OF-THE-GATE [ARGUMENTS OF PYTEST]`.

The tests of processes wait more than they compute. The gate computes, and its tests measure no time:
it runs beside them at a low priority and takes what they leave. Its output is kept in
`.build/gate.txt` and printed when both have ended; the last lines name the flaky tests and say how
each tier ended. A test of processes that failed is repeated when the gate has ended, so with nothing
beside it.

The gate leads a session: Linux shares the cores among sessions first (sched(7), autogroup), and the
nodes of the tests lead theirs. So the session has the priority, and is ended as a whole.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tiers import processes

OUTPUT = Path(".build/gate.txt")
SUMMARY = "short test summary"  # pytest's heading above what was skipped or failed
NICENESS = 5  # a third of the share of what runs beside it


class Gate:
    """The gate in a process beside this one, until `with` ends."""

    def __init__(self, command: list[str]) -> None:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        with OUTPUT.open("wb") as output:
            self._process = subprocess.Popen(
                ["nice", "-n", str(NICENESS), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with suppress(OSError):  # a kernel without groups of sessions
            Path(f"/proc/{self._process.pid}/autogroup").write_text(f"{NICENESS}\n")
        self._watch = threading.Thread(target=self._tell_failure, daemon=True)
        self._watch.start()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        self.wait()

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        code = self._process.wait()
        self._watch.join()
        return code

    def tell(self) -> None:
        """Print its output when it has ended."""
        failed = bool(self.wait())
        print(
            f"\nGATE ({OUTPUT}):\n{report_of(OUTPUT.read_text(errors='replace'), failed=failed)}\n"
        )

    def _tell_failure(self) -> None:
        """Say at once that it failed: who waits may stop the rest."""
        if self._process.wait():
            print(f"\nTHE GATE FAILED: see {OUTPUT}, which follows at the end", flush=True)


def report_of(text: str, *, failed: bool) -> str:
    """Return what to print of the gate's output: all, or what stands below the tests' dots."""
    lines = text.rstrip().splitlines()
    first = next((number for number, line in enumerate(lines) if SUMMARY in line), len(lines) - 1)
    return "\n".join(lines if failed else lines[max(0, first) :])


def main() -> int:
    command, *arguments = sys.argv[1:]
    with Gate(shlex.split(command)) as gate:
        status = processes.run(arguments, gate.wait, gate.tell)
        gate_status = gate.wait()
    for name, code in (("gate", gate_status), ("processes", status)):
        print(f"{name}: {f'FAILED ({code})' if code else 'passed'}", flush=True)
    return 1 if gate_status or status else 0


if __name__ == "__main__":
    sys.exit(main())
