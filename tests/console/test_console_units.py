"""The console's pure modules, run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from node_js import environment, node

pytestmark = pytest.mark.process

STATIC = Path(__file__).parents[2] / "src" / "polynya" / "console" / "static"


def test_the_pure_modules_of_the_console(tmp_path: Path) -> None:
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static" / "package.json").write_text(json.dumps({"type": "module"}))
    done = subprocess.run(
        [node(), "--test", str(Path(__file__).parent / "units.test.mjs")],
        env=environment(CONSOLE=str(tmp_path / "static")),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 31" in done.stdout, done.stdout
