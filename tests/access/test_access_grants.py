"""Scopes, limits and meters: what a principal may do, and how much of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.access.grants import VERBS, BadScope, Principal, parse_scope, parse_scopes
from polynya.access.rate_limits import Meter
from polynya.base.names import BadName, canonical_name


def principal(*scopes: str) -> Principal:
    return Principal(id="1", name="test", grants=parse_scopes(scopes))


def test_a_scope_is_verbs_and_a_prefix() -> None:
    grant = parse_scope("read, append:orders/eu")
    assert (grant.verbs, grant.prefix) == ({"read", "append"}, "orders/eu")
    assert parse_scope("read").prefix == ""
    assert parse_scope("read:jobs").prefix == "default/jobs"
    assert parse_scope("all").verbs == set(VERBS) - {"admin", "metrics", "snapshot"}
    assert parse_scope("all,admin").verbs == set(VERBS) - {"metrics", "snapshot"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":orders/",
        "write",
        "read,fly:orders/",
        "admin:orders/",
        "metrics,read:x",
        "read:",
        "read:a//b",
        "read:../x",
    ],
)
def test_what_is_no_scope_says_why(text: str) -> None:
    with pytest.raises(BadScope):
        parse_scope(text)


def test_scopes_are_bounded() -> None:
    with pytest.raises(BadScope, match="at least one"):
        parse_scopes([])
    with pytest.raises(BadScope, match="at most 16"):
        parse_scopes(["read"] * 17)


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        (
            "read:orders/",
            ["orders/a", "orders/a/b", "/orders/a"],
            ["orders", "orders-eu/a", "default/orders/x", "jobs"],
        ),
        (
            "read:orders",
            ["orders", "orders-eu", "default/orders"],
            ["orders/a", "order", "orders-eu/a", "ordersx/y"],
        ),
        ("read:orders/eu", ["orders/eu", "orders/eu/1", "orders/europe"], ["orders/us", "orders"]),
        ("read:default/", ["x", "default/x", "default/orders/x", "A/b/c"], ["orders/x", "a/b/c"]),
        ("read:de", ["de", "demo"], ["x", "jobs", "demo/x"]),
        ("read", ["x", "orders/a", "default/orders/x"], []),
    ],
)
def test_no_spelling_leads_around_a_prefix(
    scope: str, inside: list[str], outside: list[str]
) -> None:
    caller = principal(scope)
    for spelled in inside:
        assert caller.may("read", canonical_name(spelled.strip("/"))), spelled
    for spelled in outside:
        assert not caller.may("read", canonical_name(spelled)), spelled
    assert not caller.may("append", canonical_name("orders/a"))


def test_admin_is_everything_everywhere() -> None:
    caller = principal("admin")
    assert caller.is_admin and all(caller.may(verb, "orders/a") for verb in VERBS)
    assert caller.prefixes("read") == [""]
    assert not principal("all").is_admin and not principal("all").may("metrics", "")


def test_prefixes_leave_out_those_within_others() -> None:
    assert principal("read:orders/", "read,append:orders/eu", "append:jobs/", "read:abc/").prefixes(
        "read"
    ) == ["abc/", "orders/"]
    assert principal("append:jobs/").prefixes("read") == []


@given(
    st.text(st.sampled_from("ab/de.f-"), min_size=1, max_size=12),
    st.text(st.sampled_from("ab/de.f-"), max_size=12),
)
def test_a_name_that_begins_with_a_granted_name_s_prefix_is_judged_as_its_canonical_form(
    prefix: str, rest: str
) -> None:
    try:
        grant = parse_scope(f"read:{prefix}")
        name = canonical_name(prefix + rest)
    except (BadScope, BadName):
        return
    caller = Principal(id="1", name="t", grants=(grant,))
    assert caller.may("read", name) == name.startswith(grant.prefix)


def test_a_meter_lets_its_rate_through() -> None:
    meter = Meter(10, 0, 0.0)
    let = sum(meter.take(step / 100, 5) == 0.0 for step in range(1000))
    assert 105 <= let <= 110  # ten seconds, and the burst of the first
    wait = next(wait for step in range(100) if (wait := meter.take(10.0, 5)))
    assert 0 < wait <= 0.1
    assert meter.take(10.0 + wait + 0.001, 5) == 0.0


def test_a_meter_of_bytes_takes_one_large_body_and_then_waits_for_it() -> None:
    meter = Meter(0, 1000, 0.0)
    assert meter.take(0.0, 5000) == 0.0
    assert meter.take(0.0, 1) == pytest.approx(4.0, abs=0.01)
    assert meter.take(3.9, 1) > 0
    assert meter.take(4.1, 1) == 0.0
    meter.charge(1000)
    assert meter.take(4.2, 1) > 0


def test_what_other_cores_let_through_counts() -> None:
    meter = Meter(10, 0, 0.0)
    for _ in range(4):
        assert meter.take(0.0, 7) == 0.0
    assert meter.drain() == (4, 28)
    assert meter.drain() == (0, 0)
    meter.spend(6, 0)
    assert meter.take(0.0, 0) > 0
    meter.spend(10_000, 0)
    assert meter.take(2.2, 0) == 0.0, "the debt of another core is bounded"


def test_connections_are_counted_over_all_cores() -> None:
    meter = Meter(0, 0, 0.0)
    meter.connections = 2
    meter.elsewhere = {1: 3, 2: 1}
    assert meter.connections_everywhere == 6
