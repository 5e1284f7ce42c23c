"""A worker: it answers the tool calls of the agents. Start as many as you like.

POLYNYA_URLS=http://127.0.0.1:4437 POLYNYA_TOKEN=... python tools.py
"""

from __future__ import annotations

import os
from typing import Any

from polynya.client import Client, Job


def measure(argument: str) -> int:
    """Stand in for a tool: it cannot handle every argument."""
    if argument.startswith("poison"):
        raise ValueError(f"cannot measure {argument}")
    return len(argument)


def answer(client: Client, job: Job, value: dict[str, Any]) -> None:
    """Append to the run. A call has one answer, also if it is given again: the name of the producer
    is that of the call, and its first append is stored once."""
    run = client.stream(f"runs/{job.value['run']}")
    with run.producer(f"{job.stream}@{job.offset}", epoch=0) as producer:
        producer.append(value)


def main() -> None:
    client = Client(os.environ["POLYNYA_URLS"].split(","), token=os.environ["POLYNYA_TOKEN"])
    with client, client.share("tools", "calls/*", by="stream", max_attempts=2) as calls:
        for job in calls:
            try:
                result = measure(job.value["argument"])
            except Exception as error:
                if job.is_last_attempt:  # then it goes to groups/tools/dead-letters
                    answer(client, job, {"tool": "measure", "failed": True})
                job.retry(after=0.1, error=repr(error))
            else:
                answer(client, job, {"tool": "measure", "result": result})


if __name__ == "__main__":
    main()
