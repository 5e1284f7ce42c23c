"""The README's blocks are one session: pasted into bash from top to bottom, every command succeeds
and prints what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from free_ports import free_ports, ports_in_a_row
from product import environment

README = (Path(__file__).parent.parent.parent / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
INSTALL = "python3 -m venv venv && . venv/bin/activate && pip install '.[all]'"
MARK = "--- of the test:"  # before the number and the status of each command

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]


def steps() -> list[tuple[str, str]]:
    """(command, what the page says that it prints, or "") of all blocks."""
    found: list[tuple[str, str]] = []
    lines = iter("".join(block for _, block in BLOCKS).splitlines())
    for line in lines:
        if line.startswith("#"):
            command, output = found.pop()
            found.append((command, f"{output}{line.removeprefix('# ')}\n"))
        elif line.endswith("<< 'EOF'"):
            document = [line, *iter(lambda: next(lines), "EOF"), "EOF"]
            found.append(("\n".join(document), ""))
        else:
            found.append((line, ""))
    return found


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Variables with which `polynya` and `python3` are of the product under test."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, program in (("polynya", f"{sys.executable} -m polynya"), ("python3", sys.executable)):
        (tools / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (tools / name).chmod(0o755)
    known = environment()
    return known | {"PATH": f"{tools}:{known['PATH']}"}


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Yield free ports for HTTP and Kafka."""
    with ports_in_a_row(30) as port:
        yield port, free_ports(1)[0]


def script(commands: list[str], port: int, kafka: int) -> str:
    """The session on these ports, with a mark and the status behind each command."""
    text = "".join(
        f"{command}\nprintf '\\n{MARK} %s %s\\n' {at} $?\n" for at, command in enumerate(commands)
    )
    text = re.sub("44[345]7", lambda found: str(port + int(found[0]) - 4437), text)
    text = text.replace("cluster dev", f"cluster dev --listen 127.0.0.1:{port}")
    return text.replace(
        "polynya serve", f"polynya serve --listen 127.0.0.1:{port} --kafka-listen 127.0.0.1:{kafka}"
    )


def test_the_readme_can_be_pasted_from_top_to_bottom(
    tmp_path: Path, settings: dict[str, str], ports: tuple[int, int]
) -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh"}, "a block of another kind cannot be pasted"
    (install, _), *rest = steps()
    assert install.startswith(f"{INSTALL} "), "the session begins with what it needs"
    assert len(rest) >= 30 and not re.search(r"kcat|docker|sudo", str(rest))
    port, kafka = ports
    settings["POLYNYA_SERVER"] = f"http://127.0.0.1:{port}"
    session = subprocess.Popen(
        ["bash", "-c", script([command for command, _ in rest], port, kafka)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=settings,
        start_new_session=True,
    )
    try:
        printed, said = session.communicate(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGKILL)
    parts = re.split(rf"\n{MARK} (\d+) (\d+)\n", printed)
    assert len(parts) == 3 * len(rest) + 1, f"{printed}{said}"
    for (command, output), shown, status in zip(rest, parts[::3], parts[2::3], strict=False):
        assert status == "0", f"{command}\n{printed}{said}"
        if output:
            assert shown.strip() == output.strip(), f"{command}\n{printed}{said}"
    assert '{"item": "ice", "price": 2.5}' in printed and "499500" in printed
