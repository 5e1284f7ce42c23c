"""`polynya config`: values with their origins, secrets masked, and every problem with its place."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from polynya.cli.app import cli
from polynya.cli.terminal import exits
from polynya.config.settings import SETTINGS


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
    assert shown["cold.s3_secret_access_key"] == {
        "value": "***",
        "origin": "POLYNYA_COLD_S3_SECRET_ACCESS_KEY",
    }
    text = ran("show", "--origin", "--changed", "--config", str(file), **variables).stdout
    assert "hush" not in text and f"{file}:4: cold.backend" in text and "groups" not in text
    assert "from" not in ran("show").stdout.splitlines()[0]


def test_variables_of_the_commands_are_known(tmp_path: Path) -> None:
    assert (
        ran(
            "check",
            POLYNYA_CONTEXT="x",
            POLYNYA_TOKEN="y",
            POLYNYA_TOKEN_FILE="z",
            POLYNYA_SERVER="s",
        ).exit_code
        == 0
    )
    assert ran("check", POLYNYA_CONTEX="x").exit_code == exits.USAGE


def test_check_lists_every_problem_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('lisen = "x"\n[cold]\nflush_bytes = "many"\n')
    result = ran("check", "--config", str(file), POLYNYA_CORES="-1")
    assert result.exit_code == exits.USAGE
    assert "3 problems" in result.stderr
    for message in (
        f"{file}:1: lisen: unknown; did you mean listen?",
        f"{file}:3: cold.flush_bytes: 'many'",
        "POLYNYA_CORES: '-1'",
    ):
        assert message in result.stderr
    as_json = ran("check", "--json", "--config", str(file))
    assert as_json.exit_code == exits.USAGE and len(json.loads(as_json.stdout)["problems"]) == 2
    assert ran("check").exit_code == 0
    named = ("--tls-cert", "/nowhere.crt", "--tls-key", "/nowhere.key")
    assert (
        "1 problem with the settings:\n  tls: /nowhere.crt and /nowhere.key cannot be used"
        in ran("check", *named).stderr
    )
    peers = (
        "--cluster-ca",
        "/no.ca",
        "--cluster-cert",
        "/no.crt",
        "--cluster-key",
        "/no.key",
        "--cluster-id",
        "ab" * 16,
    )
    node = (
        "--cluster-node",
        "1",
        "--cluster-nodes",
        "1=127.0.0.1:2=http://127.0.0.1:1",
        "--cold-backend",
        "none",
    )
    assert "  cluster.ca: /no.ca cannot be used: No such file" in ran("check", *peers, *node).stderr
    assert "unsafe:" in ran("check", "--listen", "0.0.0.0:1", "--unsafe-no-auth").stderr


def problems(file: Path, text: str, *flags: str, **variables: str) -> list[str]:
    """Return the problems that `config check` lists for a file of this text."""
    file.write_text(text)
    result = ran("check", "--json", "--config", str(file), *flags, **variables)
    found: list[str] = json.loads(result.stdout)["problems"]
    assert result.exit_code == (exits.USAGE if found else 0)
    return found


def test_check_lists_what_is_malformed_what_does_not_fit_together_and_the_certificates_at_once(
    tmp_path: Path,
) -> None:
    text = (
        'lisen = "x"\ncores = 3\ngroups = 2\n[cold]\nbackend = "s3"\nflush_bytes = "many"\n[tls]\n'
        'cert = "/no.crt"\nkey = "/no.key"\n'
    )
    found = problems(
        tmp_path / "node.toml", text, "--listen", "0.0.0.0:1", POLYNYA_LAKE_INTERVAL="often"
    )
    assert len(found) == 6, found
    for message in (
        "lisen: unknown",
        "'many'",
        "'often'",
        "s3 needs a bucket",
        "3 cores for 2 groups",
        "/no.crt and /no.key cannot be used",
    ):
        assert sum(message in problem for problem in found) == 1, (message, found)


def test_check_lists_every_fault_of_a_cluster(tmp_path: Path) -> None:
    files = "".join(f'{name} = "/no.{name}"\n' for name in ("ca", "cert", "key"))
    node = '[[cluster.nodes]]\nid = {}\npeer = "127.0.0.1:{}"\nhttp = "http://127.0.0.1:{}"\n'
    head = f'[cluster]\nid = "{"ab" * 16}"\nnode = 1\nreplicas = 4\n'
    found = problems(
        tmp_path / "a.toml",
        head + files + node.format(1, 2, 3) + node.format(2, 2, 4),
        "--cold-backend",
        "memory",
    )
    assert len(found) == 6, found
    for message in (
        "two nodes have the peer",
        "expected 1, 3 or 5",
        "cold.backend",
        "/no.ca",
        "/no.cert",
        "/no.key",
    ):
        assert sum(message in problem for problem in found) == 1, (message, found)
    bad = (
        '[[cluster.nodes]]\nid = 3\npeer = "127.0.0.1:5"\n[[cluster.nodes]]\nid = 4\npeers = "x"\n'
    )
    (of_the_list, odd) = problems(tmp_path / "b.toml", head + bad)
    assert (
        "node 3: http is missing" in of_the_list
        and "node 4: peers: unknown" in of_the_list
        and "expected 1, 3 or 5" in odd
    )
    (malformed,) = problems(
        tmp_path / "c.toml",
        "# flags alone\n",
        "--cluster-nodes",
        "1=x,2=127.0.0.1:1=ftp://x",
        "--cluster-node",
        "1",
        "--cluster-id",
        "ab" * 16,
    )
    assert "'1=x'" in malformed and "node 2: 'ftp://x'" in malformed
    (alone,) = problems(
        tmp_path / "d.toml",
        head.replace("node = 1", "node = 9").replace("4", "3") + node.format(1, 2, 3),
    )
    assert "9 is not in cluster.nodes" in alone


def test_check_blames_no_setting_for_another_that_cannot_be_read(tmp_path: Path) -> None:
    """Blame only the invalid setting: a misspelled name or invalid value leaves its setting
    unknown, so no conflict with it is reported."""
    (typo,) = problems(tmp_path / "a.toml", '[cold]\nbackend = "s3"\ns3_buckets = "b"\n')
    assert "did you mean cold.s3_bucket?" in typo
    (switch,) = problems(tmp_path / "b.toml", 'listen = "0.0.0.0:1"\nunsafe_no_auth = "perhaps"\n')
    assert "'perhaps'" in switch
    (broken,) = problems(tmp_path / "c.toml", "[cold\n", POLYNYA_COLD_S3_ACCESS_KEY_ID="x")
    assert "no valid TOML" in broken
