"""A test has the mark `process` if it, or a fixture of it, starts a process, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers.planted import START, plant, run_python

pytestmark = pytest.mark.process

TESTS = f"""
@pytest.fixture(scope="module")
def server():
    {START}

@pytest.fixture
def client(server):
    return 1

def test_quiet():
    pass

def test_starts_unmarked():
    {START}

@pytest.mark.process
def test_starts_marked():
    {START}

def test_spawns_unmarked():
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()

@pytest.mark.process
def test_quiet_marked():
    pass

@pytest.mark.process
def test_first_of_a_shared_server_marked(client):
    pass

@pytest.mark.spark
def test_second_of_a_shared_server_marked(client):
    pass

def test_third_of_a_shared_server_unmarked(request):
    request.getfixturevalue("client")

@pytest.mark.process
def test_skipped():
    pytest.skip("")

@pytest.mark.process
def test_of_a_running_process():
    from tiers.process_starts import note_process
    note_process()
"""
EXPECTED = {
    "test_starts_unmarked": "this test starts a process: give it the mark `process`",
    "test_spawns_unmarked": "this test starts a process: give it the mark `process`",
    "test_quiet_marked": "this test starts no process: take its mark away",
    "test_third_of_a_shared_server_unmarked": (
        "this test starts a process: give it the mark `process`"
    ),
}


def test_marks_are_checked_against_what_tests_and_fixtures_start(tmp_path: Path) -> None:
    plant(tmp_path, TESTS)
    done = run_python(tmp_path, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider")
    assert "9 passed, 1 skipped, 4 errors" in done.stdout, done.stdout
    for test, complaint in EXPECTED.items():
        assert f"ERROR test_planted.py::{test} - {complaint}" in done.stdout, done.stdout
    assert "mark `process` (subprocess.Popen ['" in done.stdout, "the command is named"
