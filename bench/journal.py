"""What the journal costs: staging a frame, writing and syncing a turn, replaying. `python
bench/journal.py [--folder F] [--seconds S]`."""

import argparse
import shutil
import statistics
import tempfile
import threading
from pathlib import Path
from time import perf_counter

from polynya.wal import Journal, WriteBatch

MIB = 1 << 20


def stage_cost(folder: Path, payload_bytes: int) -> float:
    """Microseconds per frame of `stage` alone, the best of five runs; nothing is written."""
    journal = Journal.open(folder, journal_id=1)
    stage, payload = journal.stage, bytes(payload_bytes)
    runs = []
    for _ in range(5):
        begin = perf_counter()
        for index in range(20_000):
            stage(1, 1, index, 1, payload)
        runs.append(perf_counter() - begin)
        assert journal.take() is not None
        journal._inflight = None  # given up on purpose: this measures memory alone
    journal.close()
    return min(runs) / 20_000 * 1e6


def turns(folder: Path, *, payload_bytes: int, frames: int, seconds: float) -> dict[str, float]:
    """A closed loop: stage the next turn while a thread writes and syncs the last one, as a core
    does."""
    journal = Journal.open(folder, journal_id=1)
    payload, times, count, written = bytes(payload_bytes), [], 0, 0
    begin = perf_counter()

    def write(batch: WriteBatch) -> None:
        started = perf_counter()
        journal.write(batch)
        times.append(perf_counter() - started)

    def stage() -> None:
        for index in range(frames):
            journal.stage(1, 1, index, 1, payload)

    stage()
    while perf_counter() - begin < seconds:
        batch = journal.take()
        assert batch is not None
        thread = threading.Thread(target=write, args=(batch,))
        thread.start()
        stage()
        thread.join()
        journal.synced(batch)
        count += frames
        written += batch.bytes
        if len(journal.segments.sizes()) > 4:
            journal.release(journal.segments.sizes()[-1][0])
    elapsed = perf_counter() - begin
    journal.close()
    return {
        "frames/s": count / elapsed,
        "MB/s": written / elapsed / 1e6,
        "write+sync p50 us": statistics.median(times) * 1e6,
        "p99 us": sorted(times)[len(times) * 99 // 100] * 1e6,
    }


def replay(folder: Path, payload_bytes: int) -> tuple[float, float, int]:
    """Seconds of `open` and of `entries` over two full segments of small entries, and how many
    there were."""
    journal = Journal.open(folder, journal_id=1)
    for index in range(2 * 60 * MIB // (payload_bytes + 32) // 1000):
        for _ in range(1000):
            journal.stage(1, 1, index, 1, bytes(payload_bytes))
        batch = journal.take()
        assert batch is not None
        journal.write(batch)
        journal.synced(batch)
    journal.close()
    begin = perf_counter()
    journal = Journal.open(folder, journal_id=1)
    opened = perf_counter()
    count = sum(1 for _ in journal.segments.entries())
    done = perf_counter()
    journal.close()
    return opened - begin, done - opened, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("."), help="where the disk to measure is"
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="journal-bench-", dir=options.folder))
    try:
        for payload_bytes in (100, 350, 4096):
            print(
                f"stage {payload_bytes:5} B: "
                f"{stage_cost(root / f's{payload_bytes}', payload_bytes):.2f} us a frame"
            )
        for payload_bytes, frames in ((350, 1), (350, 40), (350, 500), (65_536, 8), (4 * MIB, 2)):
            found = turns(
                root / f"t{payload_bytes}-{frames}",
                payload_bytes=payload_bytes,
                frames=frames,
                seconds=options.seconds,
            )
            print(
                f"turns of {frames:3} x {payload_bytes:7} B: "
                + ", ".join(f"{name} {value:,.0f}" for name, value in found.items())
            )
        opening, replaying, count = replay(root / "r", 350)
        print(
            f"replay: open {opening:.2f} s, {count:,} entries in {replaying:.2f} s: "
            f"{replaying / count * 1e6:.2f} us an entry"
        )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
