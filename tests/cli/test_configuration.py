"""`polynya config`: values with their origins, secrets masked, and every problem with its place."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from polynya.cli import exits
from polynya.cli.app import cli
from polynya.node.settings import SETTINGS


def ran(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments], env=dict(variables))


def test_show_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('listen = "127.0.0.1:1"\n\n[cold]\nbackend = "s3"\ns3_bucket = "b"\n')
    variables = {"POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "hush", "POLYNYA_COLD_S3_ACCESS_KEY_ID": "id"}
    result = ran("show", "--origin", "--json", "--config", str(file), "--cores", "3", **variables)
    shown = json.loads(result.stdout)
    assert set(shown) == {setting.key for setting in SETTINGS}
    assert shown["listen"] == {"value": "127.0.0.1:1", "origin": f"{file}:1: listen"}
    assert shown["cold.s3_bucket"]["origin"] == f"{file}:5: cold.s3_bucket"
    assert (shown["cores"]["origin"], shown["groups"]["origin"]) == ("--cores", "default")
    assert shown["cold.s3_secret_access_key"] == {"value": "***", "origin": "POLYNYA_COLD_S3_SECRET_ACCESS_KEY"}
    text = ran("show", "--origin", "--changed", "--config", str(file), **variables).stdout
    assert "hush" not in text and f"{file}:4: cold.backend" in text and "groups" not in text
    assert "from" not in ran("show").stdout.splitlines()[0]


def test_variables_of_the_commands_are_known(tmp_path: Path) -> None:
    assert ran("check", POLYNYA_CONTEXT="x", POLYNYA_TOKEN="y", POLYNYA_TOKEN_FILE="z", POLYNYA_SERVER="s").exit_code == 0
    assert ran("check", POLYNYA_CONTEX="x").exit_code == exits.USAGE


def test_check_lists_every_problem_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('lisen = "x"\n[cold]\nflush_bytes = "many"\n')
    result = ran("check", "--config", str(file), POLYNYA_CORES="-1")
    assert result.exit_code == exits.USAGE
    assert "3 problems" in result.stderr
    for told in (f"{file}:1: lisen: unknown; did you mean listen?", f"{file}:3: cold.flush_bytes: 'many'", "POLYNYA_CORES: '-1'"):
        assert told in result.stderr
    told = ran("check", "--json", "--config", str(file))
    assert told.exit_code == exits.USAGE and len(json.loads(told.stdout)["problems"]) == 2
    assert ran("check").exit_code == 0
    named = ("--tls-cert", "/nowhere.crt", "--tls-key", "/nowhere.key")
    assert "1 problem with the settings:\n  tls: /nowhere.crt and /nowhere.key cannot be used" in ran("check", *named).stderr
    peers = ("--cluster-ca", "/no.ca", "--cluster-cert", "/no.crt", "--cluster-key", "/no.key", "--cluster-id", "ab" * 16)
    node = ("--cluster-node", "1", "--cluster-nodes", "1=127.0.0.1:2=http://127.0.0.1:1", "--cold-backend", "none")
    assert "  cluster.ca: /no.ca cannot be used: No such file" in ran("check", *peers, *node).stderr
    assert "unsafe:" in ran("check", "--listen", "0.0.0.0:1", "--unsafe-no-auth").stderr
