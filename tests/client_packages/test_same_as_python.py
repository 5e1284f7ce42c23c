"""The clients in TypeScript and Rust have the tests of the Python client, as far as those apply;
their pages name every error."""

from __future__ import annotations

import re
from functools import cache

import pytest
from client_pages import blocks, page_of, words_of
from package_cache import ROOT

CLIENTS = ROOT / "clients"
# a test of the Python client -> the test of the TypeScript client, and of the Rust client; "": none
SAME = {
    # what is sent again, and what is not
    "test_an_append_is_sent_again_while_nothing_can_have_been_applied": (
        "an append is sent again while nothing can have been applied",
        "an_append_is_sent_again_while_nothing_can_have_been_applied",
    ),
    "test_retry_after_is_honoured": (
        "Retry-After is waited for, and given up on when it is too long",
        "retry_after_is_given_up_on_when_it_is_too_long",
    ),
    "test_an_append_whose_outcome_is_unknown_is_not_sent_again": (
        "an append whose outcome is unknown is not sent again, unless it has a producer",
        "an_append_whose_outcome_is_unknown_is_not_sent_again_unless_it_has_a_producer",
    ),
    "test_a_success_that_does_not_say_what_it_should_was_applied_all_the_same": (
        "another server than a node, a wrong URL and a missing server are said",
        "another_server_and_a_damaged_answer_are_said",
    ),
    # errors
    "test_refusals_have_types": (
        "refusals have types, codes and the fields of their headers",
        "refusals_have_kinds_codes_and_offsets",
    ),
    "test_refusals_have_their_types": (
        "refusals have types, and say what came and what to do",
        "refusals_have_kinds_codes_and_offsets",
    ),
    "test_a_server_that_is_not_there_is_named": (
        "tokens that are wrong, missing or too weak are refused, and a wrong URL is said",
        "tokens_that_are_wrong_and_a_wrong_url_are_said",
    ),
    "test_what_the_token_does_not_allow_is_denied": (
        "tokens that are wrong, missing or too weak are refused, and a wrong URL is said",
        "tokens_that_are_wrong_and_a_wrong_url_are_said",
    ),
    "test_a_certificate_that_is_not_trusted_is_said": (
        "a certificate that is not trusted is said",
        "tokens_that_are_wrong_and_a_wrong_url_are_said",
    ),
    "test_what_is_no_record_is_refused_before_it_is_sent": (
        "what is no record is refused before it is sent",
        "",  # types refuse it
    ),
    "test_dot_segments_reach_the_server_instead_of_another_stream": (
        "what is no record is refused before it is sent",
        "names_are_percent_encoded",
    ),
    # records
    "test_keys_headers_and_times_come_back_with_whole_records": (
        "values come back as they went in, with keys and headers if they are wanted",
        "values_come_back_with_keys_and_headers",
    ),
    "test_a_body_of_whole_records_carries_any_bytes": (
        "records have keys and headers of any bytes",
        "whole_records_have_keys_of_any_bytes",
    ),
    "test_bytes_and_text_come_back_as_they_went_in": (
        "bytes and text come back through every way of reading",
        "bytes_and_text_come_back",
    ),
    "test_each_record_knows_the_offset_after_it": (
        "each record knows the offset behind it, and its exact text",
        "each_record_knows_the_offset_behind_it_and_its_exact_bytes",
    ),
    "test_an_append_may_name_the_tail": (
        "refusals have types, and say what came and what to do",
        "refusals_have_kinds_codes_and_offsets",
    ),
    "test_each_append_is_a_line": (
        "appends to many streams have an outcome each, and are repeated only with producers",
        "appends_to_many_streams_have_an_outcome_each",
    ),
    # tails
    "test_a_tail_reads_up_and_then_follows_events_over_any_number_of_connections": (
        "a tail reads up, follows events over connections, and gives each record once",
        "a_tail_reads_up_follows_events_over_connections_and_gives_each_record_once",
    ),
    "test_a_tail_from_now_that_is_left_early_goes_on_where_it_was": (
        "a reader that is left in the middle of a batch goes on there",
        "a_tail_goes_on_in_the_middle_of_a_batch",
    ),
    "test_what_a_cancelled_caller_waited_for_is_given_to_the_next": (
        "a signal or close() ends a tail that waits",
        "a_tail_goes_on_in_the_middle_of_a_batch",
    ),
    "test_an_error_event_ends_the_tail_or_resumes_it": (
        "an error event ends a tail or resumes it",
        "an_error_event_ends_a_tail_or_resumes_it",
    ),
    "test_a_recreated_stream_and_a_trimmed_offset_are_told": (
        "refusals have types, and say what came and what to do",
        "refusals_have_kinds_codes_and_offsets",
    ),
    "test_text_is_followed_by_long_polls_because_events_cannot_carry_it": (
        "bytes come in base64 events, text by long polls",
        "bytes_and_text_come_back",
    ),
    "test_where_events_do_not_get_through_long_polls_are_tried": (
        "where events do not get through, long polls are tried",
        "where_events_do_not_get_through_long_polls_are_tried",
    ),
    "test_events_do_not_depend_on_how_the_bytes_are_cut": (
        "events do not depend on how their bytes are cut",
        "events_do_not_depend_on_how_their_bytes_are_cut",
    ),
    # many streams
    "test_records_have_their_stream_and_a_break_resumes_with_the_cursor": (
        "many streams resume with the cursor, and without it with the offset of each stream",
        "many_streams_resume_with_the_cursor_and_without_it_with_their_offsets",
    ),
    "test_a_list_ends_with_its_streams_and_other_types_are_text_and_bytes": (
        "many streams come on one connection, new ones join, and offsets go on",
        "many_streams_come_on_one_connection",
    ),
    # producers
    "test_a_refusal_ends_it_with_exact_counts": (
        "a producer sends batches again until they are stored, and ends with exact counts",
        "a_producer_sends_batches_again_until_they_are_stored_and_ends_with_exact_counts",
    ),
    "test_a_named_producer_takes_the_next_epoch_and_fences_the_run_before": (
        "a named producer takes the next epoch and is told when it is fenced",
        "a_named_producer_fences_its_earlier_run_and_closes_its_stream",
    ),
    "test_producers_fence_and_fail_with_their_types": (
        "a named producer fences its earlier run, and closes its stream",
        "a_named_producer_fences_its_earlier_run_and_closes_its_stream",
    ),
    "test_a_repeat_with_another_body_is_refused": (
        "an append with a producer's numbers is stored once",
        "an_append_with_a_producers_numbers_is_stored_once",
    ),
    # workers, tokens and states
    "test_a_job_that_is_given_back_ends_the_turn_and_comes_again_until_its_last_attempt": (
        "a worker claims, gives back, acknowledges and releases, and a poisoned record becomes a "
        "dead letter",
        "",
    ),
    "test_everything_works_with_the_token_that_allows_it": (
        "a short token is for what it names, and a client fetches another in time",
        "a_short_token_is_for_what_it_names",
    ),
    "test_a_bootstrap_is_a_snapshot_and_records": ("attributes, snapshots, forks and lists", ""),
    # the death of a node; the suites under faults are `make long`
    "test_a_server_that_is_killed_and_comes_back_loses_and_repeats_nothing": (
        "nothing lost, nothing twice",
        "survive",
    ),
}


@cache
def text_of(folder: str, kind: str) -> str:
    files = (CLIENTS / folder).rglob(f"*.{kind}")
    built = ("node_modules", "target")
    return "".join(file.read_text() for file in files if not set(built) & set(file.parts))


@pytest.mark.parametrize("name", SAME)
def test_a_test_of_the_python_client_has_its_counterparts(name: str) -> None:
    python = "".join(file.read_text() for file in (ROOT / "tests" / "client").glob("*.py"))
    typescript, rust = SAME[name]
    assert f"def {name}(" in python
    assert f'"{typescript}"' in text_of("typescript", "mjs")
    assert not rust or f"fn {rust}(" in text_of("rust", "rs")


def test_every_error_is_on_the_pages() -> None:
    source = (CLIENTS / "typescript" / "src" / "errors.ts").read_text()
    errors = re.findall(r"^export class (\w+)", source, re.MULTILINE)
    assert len(errors) > 15
    assert not [name for name in errors if f"`{name}`" not in page_of("typescript")]
    kinds = (CLIENTS / "rust" / "src" / "error.rs").read_text()
    listed = re.search(r"pub enum ErrorKind \{(.*?)\n\}", kinds, re.DOTALL)
    assert listed
    names = re.findall(r"^    (\w+),", listed[1], re.MULTILINE)
    assert len(names) > 15
    assert not [name for name in names if f"`{name}`" not in page_of("rust")]


def test_the_code_of_the_rust_page_is_that_of_a_test() -> None:
    tested = words_of((CLIENTS / "rust" / "tests" / "node.rs").read_text())
    examples = blocks("rust", "rust")
    assert len(examples) > 4
    assert not [each for each in examples if words_of(each) not in tested]
