"""The command line as a process: its help, its speed, its exit codes, its pipes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from free_ports import refusing_url
from product import environment, polynya

from polynya.cli.app import VERBS, cli

# of processor time, which other tests beside it make longer, but not much; 0.07 s alone
HELP_SECONDS_MAX = 0.4


@pytest.mark.process
def test_help_is_quick() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert polynya("--help").code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < HELP_SECONDS_MAX


HEAVY = ("httpx", "asyncio", "pyarrow", "obstore", "pyspark", "duckdb")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        ("--help", (*HEAVY, "msgspec", "polynya.node")),
        ("read --help", (*HEAVY, "polynya.node")),
        ("append --help", (*HEAVY, "polynya.node")),
        ("sub create --help", (*HEAVY, "polynya.node")),
        ("table ls --help", (*HEAVY, "polynya.node")),
        ("context ls", HEAVY),
    ],
)
def test_help_loads_nothing_heavy(arguments: str, heavy: tuple[str, ...]) -> None:
    code = (
        f"import sys; from polynya.cli.app import cli; cli({arguments.split()}, "
        "standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert not set(heavy) & set(ran.stderr.split())


def commands() -> list[str]:
    """Every verb that does something: `create`, `table create`, …"""
    found = []
    with click.Context(cli) as context:
        for verb in VERBS:
            command = cli.get_command(context, verb)
            found += (
                [f"{verb} {inner}" for inner in command.commands]
                if isinstance(command, click.Group)
                else [verb]
            )
    return found


@pytest.mark.parametrize("command", commands())
def test_every_verb_has_help_with_an_example(command: str) -> None:
    text = CliRunner().invoke(cli, [*command.split(), "--help"], prog_name="polynya").output
    assert text.count(f"polynya {command}") >= 2, text  # once in the usage line


def test_the_help_of_a_group_has_whole_sentences() -> None:
    output = " ".join(
        CliRunner().invoke(cli, ["cluster", "--help"], prog_name="polynya").output.split()
    )
    assert (
        "Add a node to the cluster, and print the settings to start it with." in output
        and "..." not in output.partition("Commands:")[2]
    )


@pytest.mark.process
def test_a_mistyped_verb_is_answered_with_the_nearest() -> None:
    ran = polynya("crate", "x")
    assert ran.code == 2 and "Did you mean 'create'?" in ran.err


@pytest.mark.process
def test_no_server_is_exit_code_3_and_says_what_to_do() -> None:
    with refusing_url() as url:
        ran = polynya("ls", server=url)
    assert ran.code == 3 and "polynya serve" in ran.err and ran.out == ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--cores", "0"], "at least 1"),
        (["serve", "--cold-backend", "tape"], "local"),
        (["serve", "--listen", "0.0.0.0:80"], "--unsafe-no-auth"),
        (["serve", "--dta", "x"], "--data"),
        (["read", "x", "--offset", "12"], "start"),
        (["create", "x", "--ttl", "soon"], "15min"),
        (["info", "x", "--server", "ftp://x"], "http://127.0.0.1:4437"),
        (
            ["--server", "http://x", "ls"],
            "'--server' belongs after the command: 'polynya ls --server …'",
        ),
        (["--server=http://x", "cluster", "status"], "'polynya cluster status --server …'"),
        (["cluster", "--server", "http://x", "status"], "'polynya cluster status --server …'"),
        (["--servr", "http://x", "cluster", "status"], "No such option '--servr'"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_says_what_is_right(
    arguments: list[str], message: str
) -> None:
    ran = polynya(*arguments)
    assert ran.code == 2 and message in ran.err


@pytest.mark.process
def test_show_config_says_where_values_come_from(tmp_path: object) -> None:
    ran = polynya(
        "serve",
        "--show-config",
        "--cores",
        "3",
        POLYNYA_COLD_S3_SECRET_ACCESS_KEY="hush",
        POLYNYA_COLD_S3_ACCESS_KEY_ID="id",
    )
    assert ran.code == 0 and "--cores" in ran.out and "hush" not in ran.out


@pytest.mark.process
def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "polynya", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.close(read)
    os.close(write)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 141 and err == b""
