"""A process that appends to an embedded log without end and prints its acknowledged records, until
it is killed."""

import subprocess
import sys
from pathlib import Path

from product import environment

SEGMENT_BYTES = 65536
WRITER = f"""
import sys
from polynya.embedded import Log
log = Log(sys.argv[1], sync=sys.argv[2], segment_bytes={SEGMENT_BYTES})
log.create("t")
last = log.end("t")
print("open", last, flush=True)
while True:
    log.append("t", b"%09d" % last * (last % 40))
    log.append_batch("t", [b"%09d" % n * (n % 40) for n in range(last + 1, last + 5)])
    last += 5
    if last > 20000:
        log.trim("t", last - 20000)
    print(last, flush=True)
"""


def start_log_writer(folder: Path, sync: str = "each") -> tuple[subprocess.Popen[str], int]:
    """Start the process; return it, and the end of the topic that it found."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), sync],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert writer.stdout is not None
    return writer, int(writer.stdout.readline().split()[1])
