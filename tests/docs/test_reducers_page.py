"""The tutorial of docs/reducers.md runs as it stands: a shopping cart by `latest`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from product import environment, polynya, running_node

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reducers.md").read_text("utf-8")
TUTORIAL = PAGE[PAGE.index("## A shopping cart") :]
CODE = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.process
def test_a_shopping_cart(tmp_path: Path) -> None:
    (code,), (commands,) = CODE, COMMANDS
    with running_node(tmp_path / "data", "--cores", "1") as node:
        done = subprocess.run(
            [sys.executable, "-c", code.replace("http://127.0.0.1:4437", node.url)],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == PRINTS.findall(code)
        for line in commands.splitlines():
            ran = polynya(*shlex.split(line)[1:], server=node.url)
            assert ran.code == 0, ran.err
        expected = {"item/pears": {"record": 2, "value": {"amount": 3}}}
        assert json.loads(ran.out) == expected, "the snapshot is the state"
