"""The man page: every command is in it, and roff takes it without a word."""

from __future__ import annotations

import re
import subprocess

import pytest
from click.testing import CliRunner
from missing import needed_program
from test_command_line import commands

from polynya.cli.app import EXIT_MEANINGS, cli
from polynya.cli.man import man_page


def test_every_command_and_exit_code_is_there() -> None:
    page = man_page()
    heads = [line.replace("\\-", "-") for line in page.splitlines() if line.startswith(".SS")]
    for command in commands():
        assert any(re.match(rf'\.SS "polynya {command}[ "]', head) for head in heads), command
    assert all(f"\\fB{code}\\fR" in page for code in EXIT_MEANINGS)
    assert CliRunner().invoke(cli, ["man"]).stdout == page


def test_no_line_is_a_request_by_accident() -> None:
    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi", ".B"}
    assert {
        line.split()[0] for line in man_page().splitlines() if line.startswith((".", "'"))
    } <= known


@pytest.mark.process
def test_roff_takes_it() -> None:
    roff = needed_program("groff", "mandoc")
    command = (
        [roff, "-man", "-Tutf8", "-ww"] if roff.endswith("groff") else [roff, "-Tlint", "-Werror"]
    )
    ran = subprocess.run(command, input=man_page(), capture_output=True, text=True, check=True)
    assert ran.stderr == ""
