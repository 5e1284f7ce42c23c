"""The costs of a cluster: its use of the object store and of the network between zones.

`history` keeps the counts of each hour in a small file. `report` is the answer of `GET /v1/cost`.
`prices` reads a price file. `bill` turns a report into money, beside estimates for both profiles;
docs/cost.md has the formulas.
"""

from polynya.cost.bill import Bill, bill_of
from polynya.cost.history import HOURS_MAX, Counts, UsageHistory
from polynya.cost.prices import Prices, default_prices, read_prices
from polynya.cost.report import (
    APPEND,
    CATALOG,
    PACKED,
    PAYLOAD,
    STORE,
    ZONE,
    CostReport,
    HourUsage,
    NodeUsage,
    Shape,
    report_of,
)

__all__ = [
    "APPEND",
    "CATALOG",
    "HOURS_MAX",
    "PACKED",
    "PAYLOAD",
    "STORE",
    "ZONE",
    "Bill",
    "CostReport",
    "Counts",
    "HourUsage",
    "NodeUsage",
    "Prices",
    "Shape",
    "UsageHistory",
    "bill_of",
    "default_prices",
    "read_prices",
    "report_of",
]
