"""The examples of the pages of the clients in other languages."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from package_cache import ROOT

MARK = "=== end of an example ==="
PRINTS = re.compile(r"console\.log\(.*\)+ // (.*)$", re.MULTILINE)
PLAIN = 'new Client("http://127.0.0.1:4437")'


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"clients-{name}.md").read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the examples of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page_of(name), re.DOTALL)


def check_module(
    name: str, folder: Path, command: list[str], env: Mapping[str, str], server: str, token: str
) -> None:
    """Run the examples of a page in JavaScript as one module, in a folder that has the package.
    They print what their comments say."""
    examples = blocks(name, "js")
    text = "".join(f"{each}\nconsole.log({MARK!r})\n" for each in examples)
    text = text.replace(PLAIN, f"new Client({server!r}, {{ token: {token!r} }})")
    (folder / "page.mjs").write_text(text)
    done = subprocess.run(
        [*command, "page.mjs"],
        cwd=folder,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for example, said in zip(examples, done.stdout.split(MARK + "\n"), strict=False):
        printed, expected = said.splitlines(), PRINTS.findall(example)
        # a print in a loop: all of it in one comment
        looped = len(expected) == 1 and len(printed) > 1
        assert (", ".join(printed) == expected[0]) if looped else printed == expected, (
            f"{example}\n{said}"
        )


def words_of(code: str) -> str:
    """Return code without spaces and line ends."""
    return re.sub(r"\s+", "", code)
