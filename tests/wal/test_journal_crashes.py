"""Crashes on a disk that loses, tears and reorders unsynced data; and proof that the check can
fail."""

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.fake_disk import FakeDisk
from worlds.journal_lives import Life, lives

from polynya.base.errors import CorruptData
from polynya.wal import Journal
from polynya.wal.writer import SegmentWriter


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_no_crash_loses_what_was_acknowledged(seed: int) -> None:
    random = Random(seed)
    lives(random, FakeDisk(random), count=5)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_a_full_disk_refuses_and_goes_on(seed: int) -> None:
    random = Random(seed)
    disk = FakeDisk(random, capacity=random.randint(1100, 9000))
    lives(random, disk, count=4)


def nothing(*_: object) -> None:
    return None


def no_sync(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "sync", nothing)


def no_folder_sync(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "sync_folder", nothing)


def no_forget(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "forget", nothing)


def no_cut(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "truncate", nothing)


def no_sync_before_next_segment(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    whole = SegmentWriter._write_part

    def lazy(self: SegmentWriter, part: object) -> None:
        sync, self._sync = self._sync, nothing  # type: ignore[method-assign]
        try:
            whole(self, part)  # type: ignore[arg-type]
        finally:
            self._sync = sync  # type: ignore[method-assign]

    patch.setattr(SegmentWriter, "_write_part", lazy)


def boastful_mark(disk: FakeDisk, patch: pytest.MonkeyPatch) -> None:
    hand_over = Journal._hand_over

    def boast(self: Journal, *, durable: bool) -> object:
        self._synced = self.position
        return hand_over(self, durable=durable)

    patch.setattr(Journal, "_hand_over", boast)


MUTATIONS = [no_sync, no_folder_sync, no_forget, no_cut, no_sync_before_next_segment, boastful_mark]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_check_catches_a_journal_that_is_wrong(
    mutation: Callable[[FakeDisk, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught = 0
    for seed in range(400):
        random = Random(seed)
        disk = FakeDisk(random, capacity=9000 if seed % 2 else 1 << 40)
        with monkeypatch.context() as patch:
            mutation(disk, patch)
            try:
                lives(random, disk, count=5)
            except (AssertionError, CorruptData):
                caught += 1
                break
    assert caught, "400 seeds did not find it"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("some", [0.0, 0.5, 1.0])
def test_fail_the_nth_call_until_it_passes(error: int, some: float) -> None:
    failed_calls = set()
    for n in range(1, 10_000):
        disk = FakeDisk(Random(n))
        disk.fail_at, disk.error = n, error
        life = Life(disk)
        try:
            life.begin()
            life.live(8)
            life.journal.close()
            life.begin()
            life.live(4)
        except OSError:
            pass
        if not disk.failed_call:
            break
        failed_calls.add(disk.failed_call)
        disk.power_cut(some)
        life.begin()
        life.live(3)
    assert n > 80 and failed_calls >= {
        "create",
        "allocate",
        "write",
        "sync",
        "sync_folder",
        "truncate",
        "unlink",
        "read",
        "open",
    }


def test_after_a_failed_sync_nothing_is_written_any_more_and_the_restart_believes_only_the_disk() -> (
    None
):
    for seed in range(30):
        disk = FakeDisk(Random(seed))
        life = Life(disk)
        life.begin()
        life.stage()
        life.write()
        life.stage()
        disk.fail_at = disk.calls + 2  # write, then sync
        with pytest.raises(OSError, match="Input/output"):
            life.write()
        assert disk.failed_call == "sync"
        for _ in range(2):
            with pytest.raises(Exception, match="restart the node"):
                life.journal.take()
        disk.kill()
        life.begin()
        disk.power_cut(0)
        life.begin()
