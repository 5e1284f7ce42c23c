"""Tokens at rest, and the effect of their changes on principals."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from worlds.several_writers import write_at_once

from polynya.access import Access, BadScope, Denied, Limits
from polynya.access import authenticator as guard_module
from polynya.access.token_file import NoToken, TokenFile, Wanted
from polynya.base.errors import ConfigError
from polynya.base.limits import CREDENTIALS_KEPT_MAX

NOW = 1_700_000_000_000


class Clock:
    """Wall time in seconds."""

    def __init__(self) -> None:
        self.now = NOW / 1000

    def __call__(self) -> float:
        return self.now


def wanted(
    name: str = "shop", *scopes: str, seconds: float | None = None, **limits: float
) -> Wanted:
    return Wanted(
        name=name,
        scopes=list(scopes or ("read:orders/",)),
        expires_in_seconds=seconds,
        limits=Limits(**limits),
    )


def access_of(tokens: TokenFile, clock: Clock, **limits: float) -> Access:
    return Access(tokens, wall=clock, clock=clock, defaults=Limits(**limits))


def test_the_secret_is_nowhere_in_the_data_folder(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    record, text = tokens.add(wanted(), NOW)
    key, secret = text.removeprefix("polynya_").split("_", 1)
    assert key == record.id and len(secret) == 43
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.folder.stat().st_mode) == 0o700


def test_a_token_is_what_was_wanted_and_another_is_nothing(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    _, text = tokens.add(wanted(), NOW)
    access = access_of(tokens, clock)
    caller = access.identify(text)
    assert (caller.name, caller.may("read", "orders/a"), caller.may("read", "jobs/a")) == (
        "shop",
        True,
        False,
    )
    assert access.identify(text) is caller
    for other in (
        text[:-1],
        text + "x",
        text.replace("polynya_", "polynya_0"),
        "polynya__",
        "polynya_x",
        "",
        "a.b.c",
        "\udcff" * 20,
        "x" * 9000,
    ):
        with pytest.raises(Denied) as denied:
            access.identify(other)
        assert "polynya_" not in str(denied.value), "a refusal does not repeat what it refuses"


def test_a_revoked_token_dies_at_the_next_look(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    _, text = tokens.add(wanted(), NOW)
    _, other = tokens.add(wanted("other"), NOW)
    access = access_of(tokens, clock)
    deaths: list[int] = []
    access.on_deaths.append(lambda: deaths.append(1))
    caller, bystander = access.identify(text), access.identify(other)
    access.tick()
    assert not deaths
    tokens.revoke("shop", NOW)
    access.tick()
    assert deaths == [1] and not caller.alive and bystander.alive
    with pytest.raises(Denied, match="revoked"):
        access.identify(text)
    assert access.identify(other) is bystander


def test_an_expired_token_is_refused_at_once_and_dies_at_the_next_look(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    _, text = tokens.add(wanted(seconds=60), NOW)
    access = access_of(tokens, clock)
    deaths: list[int] = []
    access.on_deaths.append(lambda: deaths.append(1))
    caller = access.identify(text)
    clock.now += 59.9
    access.tick()
    assert access.identify(text) is caller
    clock.now += 0.1
    with pytest.raises(Denied, match="expired"):
        access.identify(text)
    access.tick()
    assert deaths == [1] and not caller.alive


def test_a_principal_that_is_not_remembered_any_more_still_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "CREDENTIALS_KEPT_MAX", 2)
    assert CREDENTIALS_KEPT_MAX > 2
    tokens, clock = TokenFile(tmp_path), Clock()
    texts = [tokens.add(wanted(f"t{number}"), NOW)[1] for number in range(5)]
    access = access_of(tokens, clock)
    callers = [access.identify(text) for text in texts]
    tokens.revoke("t0", NOW)
    access.tick()
    assert [caller.alive for caller in callers] == [False, True, True, True, True]


def test_a_token_can_be_made_while_the_node_runs(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    access = access_of(tokens, clock)
    assert access.is_empty
    _, text = tokens.add(wanted(), NOW)
    access.tick()
    assert not access.is_empty and access.identify(text).name == "shop"


def test_a_token_that_was_just_created_is_known_before_the_next_look(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    access = access_of(tokens, clock)
    _, text = tokens.add(wanted(), NOW)
    assert access.identify(text).name == "shop"


def test_a_damaged_file_is_not_read_for_each_unknown_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    access = access_of(tokens, clock)
    _, text = tokens.add(wanted(), NOW)
    tokens.path.write_bytes(b"{")
    for _ in range(3):
        with pytest.raises(Denied, match="not known here"):
            access.identify(text)
    assert len(caplog.records) == 1


def test_a_damaged_file_changes_nothing_and_is_looked_at_again(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    _, text = tokens.add(wanted(), NOW)
    access = access_of(tokens, clock)
    whole = tokens.path.read_bytes()
    caller = access.identify(text)
    replaced = (
        (b'"version": 2', b'"version": 1'),
        (b"read:orders/", b"fly:orders/"),
        (b"read:orders/", b"read:\xff/"),
    )
    for damage in (whole[:-20], b"", *(whole.replace(old, new) for old, new in replaced)):
        tokens.path.write_bytes(damage)
        access.tick()
        assert access.identify(text) is caller
        with pytest.raises(ConfigError):
            access_of(tokens, clock)
    tokens.path.write_bytes(whole.replace(b"read:orders/", b"read:jobs/"))
    access.tick()
    assert not caller.alive and access.identify(text).may("read", "jobs/a")


def test_names_limits_and_times_are_checked(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    for bad in (
        wanted(""),
        wanted("a\nb"),
        wanted("x" * 201),
        wanted(seconds=0),
        wanted(seconds=-5),
        wanted(streams=-1),
        wanted("a", "fly"),
    ):
        with pytest.raises(BadScope):
            tokens.add(bad, NOW)
    tokens.add(wanted("a"), NOW)
    with pytest.raises(BadScope, match="active token named"):
        tokens.add(wanted("a"), NOW)
    tokens.revoke("a", NOW)
    tokens.add(wanted("a"), NOW)
    for which in ("nobody", ""):
        with pytest.raises(NoToken):
            tokens.revoke(which, NOW)


def test_a_revoked_token_is_listed_for_a_month(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    tokens.add(wanted("old"), NOW)
    tokens.revoke("old", NOW)
    tokens.add(wanted("b"), NOW + 29 * 86_400_000)
    assert [record.name for record in tokens.read()] == ["old", "b"]
    tokens.add(wanted("c"), NOW + 31 * 86_400_000)
    assert [record.name for record in tokens.read()] == ["b", "c"]


def _add_many(folder: str, process: int) -> None:
    tokens = TokenFile(folder)
    for number in range(10):
        tokens.add(Wanted(name=f"{process}-{number}", scopes=["read"]), NOW)


@pytest.mark.process
def test_writers_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    write_at_once(_add_many, tmp_path)
    assert len(json.loads((tmp_path / "access" / "tokens.json").read_bytes())["tokens"]) == 30
    assert not [name for name in os.listdir(tmp_path / "access") if name.endswith(".new")]


def test_tokens_share_the_default_limits_unless_they_have_their_own(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    _, plain = tokens.add(wanted("plain"), NOW)
    _, own = tokens.add(wanted("own", requests_per_second=7), NOW)
    access = access_of(tokens, clock, requests_per_second=5, streams=3)
    assert access.identify(plain).limits == Limits(requests_per_second=5, streams=3)
    assert access.identify(own).limits == Limits(requests_per_second=7, streams=3)
    assert access.identify(own).meter is not None
    assert access_of(tokens, clock).identify(plain).meter is None, (
        "without limits nothing is counted"
    )


def test_reports_of_other_cores_use_up_a_limit(tmp_path: Path) -> None:
    tokens, clock = TokenFile(tmp_path), Clock()
    record, text = tokens.add(wanted(requests_per_second=10, connections=5), NOW)
    here, there = access_of(tokens, clock), access_of(tokens, clock)
    mine, theirs = here.identify(text).meter, there.identify(text).meter
    assert mine is not None and theirs is not None
    for _ in range(10):
        assert theirs.take(clock(), 1) == 0.0
    theirs.connections = 4
    here.hear(1, there.report())
    assert mine.take(clock(), 1) > 0 and mine.connections_everywhere == 4
    here.hear(1, {})
    assert mine.connections_everywhere == 0, f"{record.id}: a core that started again holds none"
