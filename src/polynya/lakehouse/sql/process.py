"""Run one untrusted SQL query in a process of its own: JSON from stdin, JSON to stdout, then exit.

The process is the outer limit. It ends when its time is over, writes no file, and frees any leaked
memory at its end. DuckDB is locked before the query runs (`policy`).
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import Any

import msgspec

from polynya.base.errors import ConfigError
from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.machine.needs import INSTALL
from polynya.lakehouse.sql.policy import BadQuery, Bounds

# besides DuckDB's limit: libraries, thread stacks, address space that allocators reserve and never
# touch
ADDRESS_BYTES_EXTRA = 6 << 30
# writable memory besides twice DuckDB's limit, which counts neither long texts nor rows in Python
DATA_BYTES_EXTRA = 512 << 20
LIMITED = ("Out of Memory Error", "memory")


class SqlRequest(msgspec.Struct, frozen=True):
    """A query. `tables` are all that the client may read; `environment` has only the credentials of
    the store."""

    sql: str
    tables: list[TableRef]
    environment: dict[str, str]
    rows: int
    answer_bytes: int
    memory_bytes: int
    seconds: float
    explain: bool = False  # return the plan and read no rows
    as_of: str = ""  # a time, a snapshot or a tag


class SqlColumn(msgspec.Struct, frozen=True):
    name: str
    type: str  # DuckDB's name


class SqlResult(msgspec.Struct, frozen=True, tag_field="kind", tag="answer"):
    """The result. `rows` are in column order; `truncated` means that more rows exist."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    truncated: bool


class SqlRefused(msgspec.Struct, frozen=True, tag_field="kind", tag="refused"):
    """A refusal. `code` is one of the HTTP API's error codes."""

    code: str
    message: str


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlRequest)
    _bound(question)
    sys.stdout.buffer.write(msgspec.json.encode(_outcome(question), enc_hook=str))
    sys.stdout.buffer.flush()


def _bound(question: SqlRequest) -> None:
    """Set the operating system limits of this process. When its time is over, an uncaught signal
    ends it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, question.seconds)
    space = question.memory_bytes + ADDRESS_BYTES_EXTRA
    data = 2 * question.memory_bytes + DATA_BYTES_EXTRA
    processor = int(question.seconds * 4) + 2
    limits = {
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": space,
        "RLIMIT_DATA": data,
        "RLIMIT_CPU": processor,
    }
    for name, most in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (wanted, wanted))


def _outcome(question: SqlRequest) -> SqlResult | SqlRefused:
    try:
        return answer(question)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "polynya":
            raise
        return SqlRefused(
            "NO_SQL",
            f"{missing.name} is not installed where the server runs: {INSTALL}",
        )
    except ConfigError as wrong:
        return SqlRefused("NO_SQL", str(wrong))
    except BadQuery as bad:
        return SqlRefused(
            "SQL_TOO_LARGE" if str(bad).startswith(LIMITED) else "SQL_INVALID", str(bad)
        )
    except (
        OverflowError,
        RecursionError,
    ) as fault:  # for example an interval of 178 million years, or a VARIANT with a thousand levels
        return SqlRefused(
            "SQL_INVALID",
            f"the result has a value that JSON cannot represent: {fault}; cast it to VARCHAR",
        )
    except MemoryError:
        return SqlRefused(
            "SQL_TOO_LARGE", "the result takes more memory than a query may use; select less"
        )


def answer(question: SqlRequest) -> SqlResult:
    """Run the query. Raises BadQuery, ConfigError."""
    from polynya.lakehouse.sql.query import ask

    rows: list[list[Any]] = []
    size = 0
    with ask(
        question.tables,
        question.sql,
        question.environment,
        Bounds(question.memory_bytes),
        explain=question.explain,
        as_of=question.as_of,
    ) as found:
        columns = [
            SqlColumn(name, kind) for name, kind in zip(found.columns, found.types, strict=True)
        ]
        for block in found.blocks:
            for row in block:
                shown = [_shown(value) for value in row]
                size += len(msgspec.json.encode(shown, enc_hook=str))
                if len(rows) == question.rows or size > question.answer_bytes:
                    if not rows and question.rows:
                        raise BadQuery(
                            "one row is larger than a response may be: select fewer columns, or "
                            "parts of them"
                        )
                    return SqlResult(columns, rows, truncated=True)
                rows.append(shown)
    return SqlResult(columns, rows, truncated=False)


def _shown(value: Any) -> Any:
    """Convert a value for JSON: bytes to text, which they nearly always are, and map keys to
    text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_shown(inner) for inner in value]
    if isinstance(value, dict):
        return {str(name): _shown(inner) for name, inner in value.items()}
    return value


if __name__ == "__main__":
    main()
