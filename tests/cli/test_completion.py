"""Completion: scripts that their shells accept, and offers that come from the server, or not at
all."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from product import polynya
from scripted_server import scripted

from polynya.cli.app import VERBS

pytestmark = pytest.mark.process


def offered(*words: str, **variables: str) -> list[str]:
    """Return bash's completions for the last of `words`."""
    ran = polynya(
        COMP_WORDS=" ".join(["polynya", *words]),
        COMP_CWORD=str(len(words)),
        _POLYNYA_COMPLETE="bash_complete",
        **variables,
    )
    assert ran.code == 0 and ran.err == "", ran
    return [line.partition(",")[2] for line in ran.out.splitlines() if line]


def test_groups_are_offered_by_the_server() -> None:
    listing = b'{"groups":[{"group":"readers"},{"group":"retries"},{"group":"a b"}],"next":null}'
    with scripted((200, {}, listing)) as server:
        words = ("group", "reset-offsets", "re")
        assert offered(*words, POLYNYA_SERVER=server.url) == ["readers", "retries"]
        assert server.said[0].path == "/v1/groups?prefix=re"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_its_shell(shell: str) -> None:
    ran = polynya("completion", shell)
    assert ran.code == 0 and "_POLYNYA_COMPLETE" in ran.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=ran.out, text=True, check=True)


def test_fish_shows_help_with_commas_whole() -> None:
    assert 'string split --max 1 "," $completion' in polynya("completion", "fish").out


def test_verbs_and_options_are_offered() -> None:
    assert set(offered("c")) == {verb for verb in VERBS if verb.startswith("c")}
    assert "--content-type" in offered("create", "--con")
    assert offered("completion", "z") == ["zsh"]
    assert offered("context", "u") == ["use"]


def test_streams_are_offered_by_the_server() -> None:
    listing = b'{"streams":[{"name":"flights/UA"},{"name":"flights/US"},{"name":"flights/a b"}]}'
    with scripted((200, {}, listing)) as server:
        assert offered("read", "flights/U", POLYNYA_SERVER=server.url) == [
            "flights/UA",
            "flights/US",
        ]
        assert server.said[0].path == "/v1/streams?prefix=flights%2FU&limit=100"
        # what would need quotes is left out
        assert offered("read", "--server", server.url, "flights/") == [
            "flights/UA",
            "flights/US",
        ]


@pytest.mark.parametrize("answer", [(200, {}, b"<html>"), (404, {}, b""), (200, {}, b"[]")])
def test_a_server_that_knows_no_streams_offers_none(
    answer: tuple[int, dict[str, str], bytes],
) -> None:
    with scripted(answer) as server:
        assert offered("read", "x", POLYNYA_SERVER=server.url) == []


def test_no_server_offers_none() -> None:
    assert offered("read", "x", POLYNYA_SERVER="http://127.0.0.1:1") == []
    assert offered("read", "x", POLYNYA_CONTEXT="nope") == []
