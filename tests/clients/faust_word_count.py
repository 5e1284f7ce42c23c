"""Count words by Faust with exactly-once, twice: the second worker restores its table from the changelog.

python faust_word_count.py SERVERS TOPIC: prints the counts of both as a line of JSON. With a third
argument it is one of the workers.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from typing import Any

import faust
from aiokafka import AIOKafkaProducer

WORDS = ["a", "b", "a", "c", "a", "b"]
SECONDS = 120


def application(servers: str, topic: str) -> Any:
    """Return an application with an empty folder for its state."""
    return faust.App(
        f"{topic}-words",
        broker=f"kafka://{servers}",
        processing_guarantee="exactly_once",
        topic_partitions=1,
        store="memory://",
        web_enabled=False,
        datadir=tempfile.mkdtemp(),
        broker_commit_interval=0.2,
        consumer_auto_offset_reset="earliest",
        value_serializer="raw",
        key_serializer="raw",
    )


def work(servers: str, topic: str) -> None:
    """Print the counts of the words that were not counted yet."""
    app = application(servers, topic)
    words, counted = app.topic(topic), app.topic(f"{topic}-counts")
    counts = app.Table("counts", default=int, partitions=1)
    found: list[tuple[str, int]] = []
    worker = faust.Worker(app, loglevel="ERROR", redirect_stdouts=False)

    @app.agent(words)
    async def count(stream: Any) -> None:
        async for word in stream:
            text = word.decode()
            counts[text] += 1
            await counted.send(key=word, value=str(counts[text]))
            found.append((text, counts[text]))
            if len(found) == len(WORDS):
                asyncio.get_running_loop().call_later(3.0, worker.request_stop)

    worker.request_stop = lambda: asyncio.ensure_future(worker.stop())  # type: ignore[attr-defined]
    try:
        worker.execute_from_commandline()
    except SystemExit:
        pass
    print(json.dumps(sorted(found)))


async def write(servers: str, topic: str) -> None:
    """Write each word, with itself as the key."""
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for word in WORDS:
            await producer.send_and_wait(topic, key=word.encode(), value=word.encode())


def main() -> None:
    servers, topic, *rest = sys.argv[1:]
    if rest:
        work(servers, topic)
        return
    command = [sys.executable, __file__, servers, topic, "worker"]
    found = []
    for _ in range(2):
        asyncio.run(write(servers, topic))
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        # among escape sequences of Faust's
        found += [json.loads(line) for line in done.stdout.splitlines() if line[:2] == "[["]
    print(json.dumps(found))


main()
