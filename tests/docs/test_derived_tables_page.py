"""The commands of the page on derived tables: each definition is valid and fits its statement."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec

from polynya.base.transforms import Transform
from polynya.cli.app import cli
from polynya.cli.tables import spanning
from polynya.cli.tables.commands import table_create_command
from polynya.cli.tables.deriving import defined

PAGE = Path(__file__).parents[2] / "docs/derived-tables.md"


def definitions(folder: Path) -> list[Transform]:
    """The derived tables of the page, made by its own commands from its own files."""
    text = PAGE.read_text("utf-8")
    for name, statement in re.findall(r"cat > (\S+) <<'END'\n(.*?)\nEND\n", text, re.DOTALL):
        (folder / name).write_text(statement)
    found = []
    for line in re.findall(r"^polynya table create (?:.*\\\n)*.*$", text, re.MULTILINE):
        words = shlex.split(line.replace("\\\n", " "))[3:]
        given = [str(folder / each) if each.endswith(".sql") else each for each in words]
        with cli.make_context("polynya", ["table", "ls"]) as above:
            context = table_create_command.make_context("create", given, above)
        options = context.params
        path = options["statement"]
        source = f"sql:{path.read_text()}" if path else f"python:{options['function']}"
        names = ("key", "merge", "latest_by", "watermark")
        made = defined(source, *(options[name] for name in names))
        if options["source"]:  # of a table with a key, as on the page
            made = msgspec.structs.replace(made, table="7", whole=True)
        found.append(made)
    return found


def test_each_definition_fits_its_statement(tmp_path: Path) -> None:
    found = definitions(tmp_path)
    assert len(found) == 6
    for made in found:
        assert spanning.found_in(made) == []
        for column in (*made.key, *made.merge, *filter(None, [made.latest_by])):
            assert re.search(rf"\b{column}\b", made.code.split(" from ")[0]), (column, made)
    windows = found[-2]
    assert (windows.time, windows.delay_ms) == ("begin", 3_600_000)
