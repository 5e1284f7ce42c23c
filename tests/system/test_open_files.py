"""Open files: the limit for clients, and the journal's reserve beyond it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from polynya.base.errors import ConfigError
from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.system.open_files import CLIENTS_LEAST, shares


def test_clients_get_what_a_core_does_not_need_itself():
    few = shares(256, cores=1, nodes=3)
    assert CLIENTS_LEAST <= few.base + 2 * few.admin < 256 - 96
    many = shares(1 << 20, cores=4, nodes=9)
    assert many.base == CONNECTIONS_PER_CORE_MAX
    for limit in range(140, 2000, 7):
        some = shares(limit, cores=1, nodes=1)
        assert 0 < some.admin < some.base and some.base + 2 * some.admin <= limit - 96


def test_too_few_are_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"a core may open 128 files.*LimitNOFILE"):
        shares(128, cores=1, nodes=3)


CROWDED = """
import errno, os, resource, sys
from pathlib import Path
from polynya.wal import Journal
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
journal = Journal.open(Path(sys.argv[1]), journal_id=1, segment_bytes=4096)
crowd = []
try:
    while True:
        crowd.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
places = []
for number in range(40):
    places.append(journal.stage(1, 1, number + 1, 1, bytes(1000)))
    batch = journal.take()
    journal.write(batch)
    journal.synced(batch)
    assert journal.segments.read(places[number // 2]) == bytes(1000)
assert len(journal.segments.sizes()) > 8
for fd in crowd:
    os.close(fd)
journal.close()
assert len(list(Journal.open(Path(sys.argv[1]), journal_id=1, segment_bytes=4096).segments.entries())) == 40
"""


@pytest.mark.process
def test_a_journal_goes_on_when_clients_have_taken_all_descriptors(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CROWDED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
