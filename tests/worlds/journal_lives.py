"""A core's life with a journal on a fake disk, and the check after each death: nothing acknowledged
is lost, nothing refused comes back."""

from pathlib import Path
from random import Random

from worlds.fake_disk import FakeDisk

from polynya.wal import DiskFull, Journal

FOLDER = Path("/journal")
SEGMENT_BYTES = 1024


class Life:
    """`kept` are (position, payload) of what a restart must give back; `in_flight` the payloads
    that it may give back, in this order."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.random = disk.random
        self.kept: list[tuple[int, bytes]] = []
        self.in_flight: list[tuple[int, bytes]] = []
        self.refused: set[bytes] = set()
        self.count = 0
        self.floor = 0  # segments below it were released
        self.journal: Journal

    def begin(self) -> None:
        """Open the journal and compare. Replayed data counts as acknowledged from here on: readers
        may have seen it."""
        self.journal = Journal.open(
            FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=self.disk
        )
        found = [(entry.position, entry.payload) for entry in self.journal.segments.entries()]
        assert not self.refused.intersection(payload for _, payload in found), (
            "a refused entry came back"
        )
        # a release may have been cut short
        found = [(position, payload) for position, payload in found if position >> 32 >= self.floor]
        assert found[: len(self.kept)] == self.kept, "an acknowledged entry is lost"
        assert found[len(self.kept) :] == self.in_flight[: len(found) - len(self.kept)], (
            "what follows is no beginning of the last write"
        )
        self.kept = found
        self.in_flight = []

    def stage(self) -> None:
        self.count += 1
        payload = (
            b"%06d" % self.count * self.random.choice((0, 1, 3, 20, 150)) or b"%d" % self.count
        )
        self.in_flight.append((self.journal.stage(3, 1, self.count, 1, payload), payload))

    def write(self) -> None:
        """Write one turn; a full disk refuses it."""
        batch = self.journal.take()
        if batch is None:
            return
        try:
            self.journal.write(batch)
        except DiskFull:
            self.journal.discard(batch)
            self.refused.update(payload for _, payload in self.in_flight)
            self.in_flight = []
            return
        self.journal.synced(batch)
        for position, payload in self.in_flight:
            assert self.journal.segments.read(position) == payload
        self.kept += self.in_flight
        self.in_flight = []

    def mark(self) -> None:
        batch = self.journal.take_mark()
        if batch is not None:
            try:
                self.journal.write(batch)
            except DiskFull:
                self.journal.discard(batch)
                return
            self.journal.synced(batch)

    def release(self) -> None:
        if self.kept:
            self.floor = self.kept[len(self.kept) // 2][0] >> 32
            self.kept = [
                (position, payload)
                for position, payload in self.kept
                if position >> 32 >= self.floor
            ]
            self.journal.release(self.floor)

    def live(self, turns: int) -> None:
        """Random turns."""
        for _ in range(turns):
            for _ in range(self.random.choice((1, 1, 2, 5, 12))):
                self.stage()
            self.write()
            if self.random.random() < 0.3:
                self.mark()
            if self.random.random() < 0.1:
                self.release()


def lives(random: Random, disk: FakeDisk, *, count: int) -> None:
    """Run several incarnations, each ended by a failing call, a kill or a power cut."""
    life = Life(disk)
    for _ in range(count):
        try:
            if random.random() < 0.7:
                disk.fail_at = disk.calls + random.randint(1, 120)
            life.begin()
            life.live(random.randint(0, 12))
            if random.random() < 0.5:
                life.stage()
            if random.random() < 0.2:
                life.journal.close()
        except OSError:
            pass
        if random.random() < 0.3:
            disk.kill()
        else:
            disk.power_cut(random.choice((0.0, 0.5, 0.9, 1.0)))
    life.begin()
