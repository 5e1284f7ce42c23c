"""The examples of docs/client.md, run in order against a node. They print what their comments say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from product import environment, running_node

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
MARK = "=== end of an example ==="
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.process
def test_the_examples_print_what_they_say(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 7
    script = "".join(f"{example}\nprint({MARK!r})\n" for example in EXAMPLES)
    with running_node(tmp_path / "data") as node:
        code = script.replace("http://127.0.0.1:4437", node.url)
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=200,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    for example, said in zip(EXAMPLES, ran.stdout.split(MARK + "\n"), strict=False):
        printed, expected = said.splitlines(), PRINTS.findall(example)
        # a print in a loop: all of it in one comment
        looped = len(expected) == 1 and len(printed) > 1
        assert (", ".join(printed) == expected[0]) if looped else printed == expected, (
            f"{example}\n{said}"
        )


def test_every_example_and_every_fragment_is_python() -> None:
    for fragment in re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        ast.parse(fragment)


def test_every_error_of_the_client_is_on_the_page() -> None:
    import polynya.client

    errors = [
        name
        for name, thing in vars(polynya.client).items()
        if isinstance(thing, type) and issubclass(thing, Exception)
    ]
    assert len(errors) > 15
    assert not [name for name in errors if f"`{name}`" not in PAGE.read_text("utf-8")]
