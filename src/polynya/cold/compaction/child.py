"""The computation of passes in a subprocess of the core: `python -m polynya.cold.compaction.child`,
one framed request on stdin, one framed answer on stdout."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from typing import IO, Protocol

import msgspec

from polynya.base.limits import MIB
from polynya.cold.compaction.work import Answer, CompactionWork, Request

MODULE = "polynya.cold.compaction.child"
NICENESS = 15
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")  # inherited environment
FRAME_BYTES_MAX = 256 * MIB  # a slice, or what becomes of it, with room to spare
ANSWER_SECONDS = 120.0  # for one slice
_HEAD_BYTES = 4
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.encode


class CompactionFailed(Exception):
    """The subprocess ended, or did not answer in time: the pass begins again later."""


class Worker(Protocol):
    """A worker that does the steps of a pass."""

    async def run(self, request: Request) -> Answer:
        """Do one step. Raises CompactionFailed."""
        ...

    async def close(self) -> None:
        """End it; the next step begins another one."""
        ...


class ChildWorker:
    """A worker in a subprocess at low priority, which is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self, request: Request) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.to_thread(self._ask, request)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as fault:
            await self.close()
            raise CompactionFailed(
                f"the compaction process failed: {fault or 'no answer'}"
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    def _ask(self, request: Request) -> Answer:
        if self._process is None:
            self._process = _spawn()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        _write(process.stdin, _encode(request))
        return _answers.decode(_read(process.stdout))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.shield(asyncio.to_thread(_ended, process))


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: os.environ[name] for name in KEPT if name in os.environ},
    )


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, and close its pipes."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _write(pipe: IO[bytes], body: bytes) -> None:
    if len(body) > FRAME_BYTES_MAX:
        raise OSError(f"a step of {len(body)} bytes; at most {FRAME_BYTES_MAX} are sent")
    pipe.write(len(body).to_bytes(_HEAD_BYTES))
    pipe.write(body)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Read one frame. Raises EOFError at the end of the pipe."""
    size = int.from_bytes(_exactly(pipe, _HEAD_BYTES))
    if size > FRAME_BYTES_MAX:
        raise OSError(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are read")
    return _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError("it ended")
    return data


def main() -> int:
    """Answer requests until stdin ends, which it does with the parent."""
    os.nice(NICENESS)
    work = CompactionWork()
    with suppress(EOFError, BrokenPipeError):
        while True:
            _write(sys.stdout.buffer, _encode(work.run(_requests.decode(_read(sys.stdin.buffer)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
