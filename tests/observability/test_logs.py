"""Log lines: their two shapes, their fields, and repeats."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.observability import logs


@pytest.fixture
def written(request):
    stream = io.StringIO()
    logs.setup("info", request.param, core=1, stream=stream)
    yield stream
    logging.getLogger("polynya").handlers.clear()
    logging.getLogger("polynya").propagate = True


log = logging.getLogger("polynya.cold")


@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_json_lines_carry_fields_and_tracebacks(written):
    log.debug("unseen")
    log.info("flushed %d", 3, extra={"request_id": "r-1", "bytes": 8, "key": "ä b"})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, written.getvalue().splitlines())
    assert first.pop("ts").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "cold",
        "core": 1,
        "msg": "flushed 3",
        "request_id": "r-1",
        "bytes": 8,
        "key": "ä b",
    }
    assert second["level"] == "error" and "ValueError: why" in second["traceback"]


@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_why_a_process_ends_is_json_as_the_other_lines(written):
    logs.say_end("the port is taken: 100% sure")
    entry = json.loads(written.getvalue())
    assert (entry["level"], entry["logger"], entry["msg"]) == (
        "critical",
        "end",
        "the port is taken: 100% sure",
    )


@pytest.mark.parametrize("written", ["logfmt"], indirect=True)
def test_why_a_process_ends_is_a_sentence_in_plain_logs(written):
    logs.say_end("the port is taken: 100% sure")
    assert written.getvalue() == "polynya: the port is taken: 100% sure\n"


@pytest.mark.parametrize("written", ["logfmt"], indirect=True)
def test_logfmt_lines_are_one_line_whatever_is_in_them(written):
    log.warning('a "b"\nc', extra={"request_id": "r-1", "empty": "", "yes": True, "none": None})
    (line,) = written.getvalue().splitlines()
    assert line.split(" ", 1)[1] == (
        'level=warning logger=cold core=1 msg="a \\"b\\"\\nc" request_id=r-1 empty="" '
        'yes=true none=""'
    )


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text()))
def test_a_logfmt_value_is_plain_or_a_json_string(fields):
    for value in fields.values():
        shown = logs._quoted(value)
        assert "\n" not in shown and "\r" not in shown
        assert (json.loads(shown) if shown.startswith('"') else shown) == value


def test_repeats_are_held_back_and_counted():
    now = [0.0]
    repeats = logs.Repeats(lambda: now[0])

    def record(line: int) -> logging.LogRecord:
        return logging.LogRecord("polynya.x", logging.WARNING, "file.py", line, "m", (), None)

    assert [repeats.filter(record(1)) for _ in range(8)] == [True] * 5 + [False] * 3
    assert repeats.filter(record(2)), "another place is not held back"
    now[0] = 10.0
    later = record(1)
    assert repeats.filter(later) and logs.fields_of(later) == {"suppressed": 3}
    again = record(1)
    assert repeats.filter(again) and logs.fields_of(again) == {}


def test_places_are_bounded(monkeypatch):
    monkeypatch.setattr(logs, "LOCATIONS_MAX", 3)
    repeats = logs.Repeats(lambda: 0.0)
    for line in range(10):
        assert repeats.filter(
            logging.LogRecord("polynya.x", logging.INFO, "f", line, "m", (), None)
        )
    assert len(repeats._locations) == 3
