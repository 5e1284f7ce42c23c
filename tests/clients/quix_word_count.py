"""Count words by Quix Streams, twice: the second application restores its state from the changelog.

python quix_word_count.py SERVERS TOPIC: prints the counts of both as a line of JSON.
"""

import json
import sys
import tempfile
from typing import Any

from quixstreams import Application

WORDS = ["a", "b", "a", "c", "a", "b"]


def application(servers: str, topic: str) -> Any:
    """Return an application with an empty folder for its state."""
    return Application(
        broker_address=servers,
        consumer_group=f"{topic}-words",
        auto_offset_reset="earliest",
        state_dir=tempfile.mkdtemp(),
        processing_guarantee="exactly-once",
        commit_interval=0.2,
    )


def write(servers: str, topic: str) -> None:
    """Write each word, with itself as the key."""
    app = application(servers, topic)
    words = app.topic(topic, value_serializer="json")
    with app.get_producer() as producer:
        for word in WORDS:
            message = words.serialize(key=word, value={"word": word})
            producer.produce(topic, key=message.key, value=message.value)


def counted(value: dict[str, str], state: Any) -> dict[str, Any]:
    """Count a word in the state of its key."""
    state.set("count", state.get("count", 0) + 1)
    return {"word": value["word"], "count": state.get("count")}


def run(servers: str, topic: str) -> list[tuple[str, int]]:
    """Return the counts of the words that were not counted yet."""
    app = application(servers, topic)
    frame = app.dataframe(app.topic(topic, value_deserializer="json"))
    counts = app.topic(f"{topic}-counts", value_serializer="json")
    frame.apply(counted, stateful=True).to_topic(counts)
    found = app.run(count=len(WORDS), timeout=60, collect=True)
    return sorted((each["word"], each["count"]) for each in found)


def main() -> None:
    servers, topic = sys.argv[1:]
    found = []
    for _ in range(2):
        write(servers, topic)
        found.append(run(servers, topic))
    print(json.dumps(found))


main()
