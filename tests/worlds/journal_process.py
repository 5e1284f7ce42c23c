"""A process that appends without end and prints its acknowledged records, until it is killed."""

import os
import subprocess
import sys
from pathlib import Path

SEGMENT_BYTES = 65536
WRITER = f"""
import sys
from pathlib import Path
from polynya.wal import Journal
journal = Journal.open(Path(sys.argv[1]), journal_id=7, segment_bytes={SEGMENT_BYTES})
last = max((entry.index for entry in journal.segments.entries()), default=0)
print("open", last, flush=True)
while True:
    for _ in range(5):
        last += 1
        journal.stage(1, 1, last, 1, b"%09d" % last * (last % 40))
    batch = journal.take()
    journal.write(batch)
    journal.synced(batch)
    print(last, flush=True)
"""


def start_writer(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the process; return it, and the index of the last entry that it found."""
    source = str(Path(__file__).parents[2] / "src")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert writer.stdout is not None
    return writer, int(writer.stdout.readline().split()[1])


def kill_writer(writer: subprocess.Popen[str], acknowledged: int) -> int:
    """Kill the process, and return the last index that it acknowledged before it died."""
    writer.kill()
    assert writer.stdout is not None
    whole_lines = writer.stdout.read().split("\n")[:-1]
    writer.stdout.close()
    writer.wait()
    return int(whole_lines[-1]) if whole_lines else acknowledged
