"""SQL queries on tables. Each runs in its own process (`polynya.lakehouse.sql.process`), a few at a
time for each core.

The process receives its input on standard input: the node's store credentials, if any, and the
tables that the client may read. It gets none of the node's environment beyond `KEPT`. It is killed
on timeout and when the client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any

import msgspec

from polynya.admin.workers.lake_worker import lake_environment
from polynya.base.limits import SQL_ANSWER_BYTES_MAX, SQL_QUESTIONS_PER_CORE_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.config.model import Config
from polynya.front.http.api.sql import SqlQuery
from polynya.front.http.protocol.errors import Failure

MODULE = "polynya.lakehouse.sql.process"
# what an interpreter needs to start
KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
GRACE_SECONDS = 5.0  # for the start of the interpreter and its report
STDERR_BYTES = 2000
# exit status of the dynamic linker when a lazily bound library does not fit into memory
NO_MEMORY_TO_LINK = 127


class SqlWorker:
    """Runs the SQL queries of one core; a `polynya.front.http.api.sql.Answerer`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._running = 0
        self.asked = 0

    async def ask(self, query: SqlQuery, tables: list[dict[str, Any]]) -> dict[str, Any]:
        if not self._config.sql.enabled:
            raise Failure("NO_SQL", "SQL queries are disabled on this server (sql.enabled)")
        if self._running >= SQL_QUESTIONS_PER_CORE_MAX:
            raise Failure("SQL_BUSY")
        self.asked += 1
        self._running += 1
        try:
            return self._settled(*await self._run(self._question(query, tables)))
        finally:
            self._running -= 1

    def _question(self, query: SqlQuery, tables: list[dict[str, Any]]) -> bytes:
        limits = self._config.sql
        return msgspec.json.encode(
            {
                **msgspec.structs.asdict(query),
                "tables": tables,
                "environment": self._environment(),
                "answer_bytes": SQL_ANSWER_BYTES_MAX,
                "memory_bytes": limits.memory,
                "seconds": limits.timeout,
            }
        )

    def _environment(self) -> dict[str, str]:
        """Return the variables for the standard AWS chain and the node's store settings."""
        if self._config.cold.backend != "s3":
            return {}
        made = lake_environment(self._config, "", os.environ)
        return {
            name: value
            for name, value in made.items()
            if name.startswith(("AWS_", "POLYNYA_COLD_"))
        }

    async def _run(self, question: bytes) -> tuple[int, bytes, bytes]:
        """Run a process and return (exit code, stdout, end of stderr). It has ended when this
        returns or raises."""
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            close_fds=True,
        )
        try:
            async with asyncio.timeout(self._config.sql.timeout + GRACE_SECONDS):
                out, err = await process.communicate(question)
        except TimeoutError:
            raise _too_long(self._config.sql.timeout) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())
        return process.returncode or 0, out, err[-STDERR_BYTES:]

    def _settled(self, code: int, out: bytes, err: bytes) -> dict[str, Any]:
        try:
            result: dict[str, Any] = msgspec.json.decode(out)
            kind = result.pop("kind")
        except (KeyError, AttributeError, *UNREADABLE):
            if code < 0 or code == NO_MEMORY_TO_LINK:  # maybe mid-write: timeout or out of memory
                raise _too_long(self._config.sql.timeout) from None
            raise RuntimeError(
                f"the SQL process exited with {code}: {err.decode(errors='replace')}"
            ) from None
        if kind == "refused":
            raise Failure(result["code"], result["message"])
        return result


def _too_long(seconds: float) -> Failure:
    return Failure(
        "SQL_TOO_LARGE", f"the query exceeded its limit of {seconds:g} s or of memory; reduce it"
    )
