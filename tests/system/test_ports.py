"""Taking ports: strangers are found, cores share, and restarts are not held up by old
connections."""

import socket

import pytest
from free_ports import free_ports
from missing import left_out

from polynya.base.errors import ConfigError
from polynya.system.ports import shared_listener, spelled, take_port


def test_cores_share_a_port_that_is_taken_and_nobody_else_does():
    (port,) = free_ports(1)
    with take_port("127.0.0.1", port, name="listen"):
        with pytest.raises(ConfigError, match=f"listen: port {port} of 127.0.0.1 is in use"):
            take_port("127.0.0.1", port, name="listen")  # also before the first core listens
        with shared_listener("127.0.0.1", port) as zero, shared_listener("127.0.0.1", port) as one:
            assert zero.getsockname() == one.getsockname()
            with pytest.raises(ConfigError):
                take_port("127.0.0.1", port, name="listen")
            for _ in range(20):  # the placeholder takes no connections: each is accepted by a core
                with socket.create_connection(("127.0.0.1", port), timeout=60):
                    accepted = 0
                    for listener in (zero, one):
                        try:
                            listener.accept()[0].close()
                            accepted += 1
                        except BlockingIOError:
                            continue
                    assert accepted == 1
    # connections in TIME_WAIT are no strangers
    take_port("127.0.0.1", port, name="listen").close()


def test_connections_of_another_program_that_has_gone_do_not_hold_the_port():
    (port,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", port)) as other,
        socket.create_connection(("127.0.0.1", port)),
    ):
        other.accept()[0].close()  # this side closes first: TIME_WAIT is on the port
    take_port("127.0.0.1", port, name="listen").close()


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is not an address of this machine"):
        take_port("192.0.2.1", 4437, name="listen")


def test_ipv6_is_spelled_in_brackets():
    try:
        taken = take_port("::1", 0, name="listen")
    except ConfigError as reason:
        left_out(f"no IPv6 loopback here: {reason}")
    with taken, shared_listener("::1", taken.getsockname()[1]) as listener:
        assert spelled(*listener.getsockname()[:2]) == f"[::1]:{taken.getsockname()[1]}"
