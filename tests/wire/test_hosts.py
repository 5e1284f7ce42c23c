"""Every spelling of a host that a client may send has one bare form, or none."""

from __future__ import annotations

import pytest

from polynya.wire.http.hosts import address_of, bare_host, is_this_machine, origin_address


@pytest.mark.parametrize(
    ("value", "bare"),
    [
        ("localhost", "localhost"), ("LocalHost:4437", "localhost"), ("localhost.", "localhost"), ("a.LOCALHOST.:1", "a.localhost"),
        ("127.0.0.1:4437", "127.0.0.1"), ("127.0.0.1.", "127.0.0.1"), ("[::1]:80", "::1"), ("[0:0:0:0:0:0:0:1]", "::1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"), ("[FE80::1%25eth0]:1", "fe80::1%25eth0"), ("node-2:", "node-2"), ("XN--bcher-kva.a", "xn--bcher-kva.a"),
        ("", ""), (":80", ""), ("::1", ""), ("[::1", ""), ("[localhost]", ""), ("[127.0.0.1]", ""), ("localhost:80:80", ""), ("localhost:x", ""),
        ("user@localhost", ""), ("localhost/x", ""), ("a..", "a."),
    ],
)  # fmt: skip
def test_a_host_has_one_bare_form(value: str, bare: str) -> None:
    assert bare_host(value) == bare


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
)
def test_loopback_is_this_machine(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost.evil.com",
        "xlocalhost",
        "10.0.0.1",
        "127.0.0.1.evil.com",
        "2130706433",
        "0x7f.1",
        "127.1",
        "::2",
    ],
)
def test_other_hosts_are_not(host: str) -> None:
    assert not is_this_machine(host)


def test_only_whole_addresses_are_addresses() -> None:
    assert address_of("10.0.0.1") and address_of("fe80::1%25eth0")
    assert not any(
        map(address_of, ("2130706433", "127.1", "0x7f000001", "evil.com", "", "127.0.0.01"))
    )


@pytest.mark.parametrize(
    ("origin", "address"),
    [("http://localhost:5173", "localhost:5173"), ("https://[::1]", "[::1]"), ("HTTP://App.Example", "app.example"), ("null", ""), ("", ""),
     ("file://", ""), ("chrome-extension://localhost", ""), ("http://localhost/x", ""), ("http://localhost@evil.com", ""), ("http://", "")],
)  # fmt: skip
def test_the_address_of_an_origin(origin: str, address: str) -> None:
    assert origin_address(origin) == address
