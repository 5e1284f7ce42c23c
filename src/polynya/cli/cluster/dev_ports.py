"""The addresses of `polynya cluster dev` that flags or the environment set for all nodes: each node
gets its own ports, as far from those of the first node as its port for HTTP is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from polynya.cli.terminal import exits
from polynya.config.model import split_listen
from polynya.config.settings import BY_KEY

STEP = 10  # ports from one node to the next
PORT_MAX = 65_535
# settings of an address or a port; `listen` and those of the cluster are in each node's file
SPREAD = ("admin_listen", "text_listen", "kafka.listen", "kafka.direct", "kafka.advertised")
Values = Mapping[str, str | None]


def with_addresses(values: Values, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the flags with the addresses of the environment among them: a variable is the same
    for all nodes."""
    found = {key: environment.get(BY_KEY[key].env) for key in SPREAD}
    return {
        **values,
        **{
            _variable(key): text
            for key, text in found.items()
            if text and not values[_variable(key)]
        },
    }


def addresses_of(values: Values, number: int) -> dict[str, str | None]:
    """Return the flags with the addresses that node `number` gets. Raises `exits.Misused`."""
    own = {_variable(key): _moved(key, values[_variable(key)], number) for key in SPREAD}
    return {**values, **own}


def flags_of(flags: Collection[str], number: int) -> list[str]:
    """Return the flags of `polynya serve` with the addresses that node `number` gets. Raises
    `exits.Misused`."""
    keys = {BY_KEY[key].flag: key for key in SPREAD}
    found = []
    for flag in flags:
        name, equals, text = flag.partition("=")
        moved = _moved(keys[name], text, number) if name in keys else text
        found.append(f"{name}{equals}{moved}")
    return found


def ports_of(values: Values, number: int) -> list[tuple[str, str, int]]:
    """Return key, host and port of each address that node `number` gets and listens on."""
    found = []
    for key in ("admin_listen", "text_listen", "kafka.listen"):
        address = _address(_moved(key, values[_variable(key)], number))
        if address is not None and address[1]:
            found.append((key, *address))
    return found


def _moved(key: str, text: str | None, number: int) -> str | None:
    """Return an address as node `number` gets it; unchanged if it names no port, or a free one. An
    invalid one is refused where settings are loaded."""
    if text is None:
        return None
    if text.isdecimal() and int(text):
        return str(_port(key, text, int(text), number))
    address = _address(text)
    if address is None or not address[1]:
        return text
    return f"{text.rpartition(':')[0]}:{_port(key, text, address[1], number)}"


def _port(key: str, text: str, first: int, number: int) -> int:
    port = first + STEP * (number - 1)
    if port > PORT_MAX:
        raise exits.Misused(
            f"{key} {text}: each node gets a port {STEP} above the previous one, and node {number} "
            f"would get {port}; choose a lower one"
        )
    return port


def _address(text: str | None) -> tuple[str, int] | None:
    try:
        return split_listen(text) if text else None
    except ValueError:
        return None


def _variable(key: str) -> str:
    return key.replace(".", "_")
