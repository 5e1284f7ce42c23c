"""The example of docs/work-queues.md, run against a node; its fragments, and the metrics it names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from product import environment, running_node

from polynya.observability.metrics import BY_NAME

PAGE = (Path(__file__).parents[2] / "docs" / "work-queues.md").read_text("utf-8")


@pytest.mark.process
def test_the_example_hands_out_good_records_and_puts_the_bad_one_aside(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with running_node(tmp_path / "data") as node:
        code = example.replace("http://127.0.0.1:4437", node.url)
        ran = subprocess.run(
            [sys.executable, "-c", f"from polynya.client import Client\n{code}"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=200,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    *handled, letter = ran.stdout.splitlines()
    assert sorted(handled) == ["ann", "bob"] and letter == "no address 2 {'to': None}"


def test_the_fragments_are_python() -> None:
    for fragment in re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(fragment)


def test_the_metrics_are_there() -> None:
    named = set(re.findall(r"`(polynya_\w+)`", PAGE))
    assert named and named <= BY_NAME.keys()
