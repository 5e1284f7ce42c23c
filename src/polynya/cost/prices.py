"""The price file of `polynya cost`: TOML, with a default in `prices.toml` beside this module."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files

import msgspec

from polynya.base.errors import ConfigError


class Assumptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The assumptions of the estimates. 0 copies or zones: as the cluster is."""

    copies: int = 0
    zones: int = 0
    disk_hours: float = 24.0
    catalog_share: float = 0.01


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices per 1,000 requests, per GB (2^30 bytes), and per GB and month of 730 hours."""

    put_per_1000: float
    get_per_1000: float
    zone_gb: float
    currency: str = "USD"
    list_per_1000: float = 0.0
    delete_per_1000: float = 0.0
    store_up_gb: float = 0.0
    store_down_gb: float = 0.0
    disk_gb_month: float = 0.0
    assume: Assumptions = Assumptions()


def read_prices(text: str, name: str) -> Prices:
    """Read a price file. `name` is used in messages. Raises ConfigError."""
    try:
        prices = msgspec.convert(tomllib.loads(text), Prices)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name} is not a price file: {error}; 'polynya cost --show-prices' prints one to copy"
        ) from None
    _check(prices, name)
    return prices


def default_text() -> str:
    """Return the text of the default price file."""
    return (files("polynya.cost") / "prices.toml").read_text("utf-8")


def default_prices() -> Prices:
    """Return the default prices."""
    return read_prices(default_text(), "prices.toml")


def _check(prices: Prices, name: str) -> None:
    """Raise ConfigError for a number that is negative or not finite."""
    for holder in (prices, prices.assume):
        for field in holder.__struct_fields__:
            value = getattr(holder, field)
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}: {field} is {value}; expected a number from 0 up")
