"""Find what combines rows in a statement: in a derived table without a key it sees one job only."""

from __future__ import annotations

import re

from polynya.base.transforms import Transform

_SKIPPED = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL
)
_AGGREGATES = (
    "any_value|approx_count_distinct|approx_percentile|array_agg|avg|bit_and|bit_or|"
    "bit_xor|bool_and|bool_or|collect_list|collect_set|corr|count|count_if|"
    "count_min_sketch|first|first_value|last|last_value|listagg|max|max_by|mean|"
    "median|min|min_by|mode|percentile|percentile_approx|some|std|stddev|stddev_pop|"
    "stddev_samp|string_agg|sum|try_avg|try_sum|var_pop|var_samp|variance"
)
_WORDS = {
    "a window (over)": re.compile(r"\bover\s*(\(|\s\w)", re.IGNORECASE),
    "group by": re.compile(r"\bgroup\s+by\b", re.IGNORECASE),
    "distinct": re.compile(r"\bdistinct\b", re.IGNORECASE),
    "a join": re.compile(r"\bjoin\b", re.IGNORECASE),
    "intersect or except": re.compile(r"\b(intersect|except|minus)\b", re.IGNORECASE),
    "limit": re.compile(r"\blimit\b", re.IGNORECASE),
    "an aggregate": re.compile(rf"\b({_AGGREGATES})\s*\(", re.IGNORECASE),
}


def found_in(transform: Transform) -> list[str]:
    """Return what in the statement combines rows of one job only. A function is not looked into, and a
    job that reads all rows is the only one."""
    if transform.kind != "sql" or transform.key or transform.whole:
        return []
    statement = _SKIPPED.sub(" ", transform.code)
    return [name for name, pattern in _WORDS.items() if pattern.search(statement)]


def advice(found: list[str]) -> str:
    """Return what to do about it."""
    return (
        f"the statement has {', '.join(found)}, which sees the records of one job, not those of "
        "earlier ones: each job adds rows of its own. To merge them, drop the table and create it "
        "with --key COLUMN and --merge COLUMN:sum; to aggregate all rows, query the table"
    )
