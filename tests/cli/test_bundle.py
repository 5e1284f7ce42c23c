"""The debug bundle: it has the data for support, and no secrets or stream contents."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from product import polynya, running_node

from polynya.cli.app import cli
from polynya.cli.diagnostics.bundle import MASK, scrubber


def contents(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            name.partition("/")[2]: archive.extractfile(name).read().decode()
            for name in archive.getnames()
        }  # type: ignore[union-attr]


@pytest.mark.process
def test_of_a_running_node(tmp_path: Path) -> None:
    log = tmp_path / "proxy.log"
    log.write_text(
        "GET / Authorization: Bearer abcdef123456\nPUT https://user:hunter22@host/x "
        "token=s3cr3t-thing\n" * 3
    )
    secrets = {
        "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "xyzzy-plugh",
        "POLYNYA_COLD_S3_ACCESS_KEY_ID": "id",
        "POLYNYA_TOKEN": "t0k3n-of-mine",
    }
    with running_node(tmp_path / "data", **secrets) as node:
        polynya("append", "letters", '{"word": "confidential"}', "--create", server=node.url)
        file = tmp_path / "bundle.tar.gz"
        arguments = [
            "debug",
            "bundle",
            "--data",
            str(tmp_path / "data"),
            "--log",
            str(log),
            "-o",
            str(file),
            "--json",
        ]
        ran = polynya(*arguments, server=node.url, **secrets)
        assert ran.code == 0, ran
        # what is there is not overwritten
        assert polynya(*arguments, server=node.url, **secrets).code == 1
    assert file.stat().st_mode & 0o777 == 0o600
    output = json.loads(ran.out)
    members = contents(file)
    assert output["members"] == list(members) and output["missing"] == []
    assert {
        "README.txt",
        "config.json",
        "files.txt",
        "node.json",
        "health.json",
        "metrics.txt",
        "state.json",
        "doctor.jsonl",
        "logs/0-proxy.log",
    } <= set(members)
    whole = "\n".join(members.values())
    for hidden in (
        "confidential",
        "xyzzy-plugh",
        "t0k3n-of-mine",
        "abcdef123456",
        "hunter22",
        "s3cr3t-thing",
    ):
        assert hidden not in whole
    assert json.loads(members["config.json"])["cold.s3_secret_access_key"] == {
        "value": MASK,
        "origin": "POLYNYA_COLD_S3_SECRET_ACCESS_KEY",
    }
    health = json.loads(members["health.json"])
    # tests beside this one may keep the disk busy
    assert not health["failed"] and {each["check"] for each in health["warnings"]} <= {"disk"}
    assert json.loads(members["state.json"])["cores"][0]["groups"][0]["role"] == "leader"
    assert "polynya_info" in members["metrics.txt"] and ".journal" in members["files.txt"]
    assert "POLYNYA_TOKEN\n" in members["environment.txt"]
    assert all(name in members["README.txt"] for name in members if name != "README.txt")


@pytest.mark.process
def test_without_a_node_and_with_wrong_settings_there_is_still_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("lisen = 1\n")
    file = tmp_path / "b.tar.gz"
    arguments = [
        "debug",
        "bundle",
        "--config",
        str(tmp_path / "node.toml"),
        "-o",
        str(file),
        "--server",
        "http://127.0.0.1:1",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "left out: server responses" in result.stderr and "left out: logs" in result.stderr
    members = contents(file)
    assert "lisen" in json.loads(members["config.json"])["problems"][0]
    assert "metrics.txt" not in members and "FAIL" in members["doctor.jsonl"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer aaa.bbb-ccc", "Authorization: Bearer ***"),
        ("https://me:word@host/", "https://me:***@host/"),
        ('{"password": "p", "n": 1}', '{"password": "***", "n": 1}'),
        ("url=/x?X-Amz-Signature=0a1b&y=2", "url=/x?X-Amz-Signature=***&y=2"),
        ("jwt eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.sig end", "jwt *** end"),
        (
            '"cold.s3_secret_access_key": {"value": ""}',
            '"cold.s3_secret_access_key": {"value": ""}',
        ),
        ("a token was refused", "a token was refused"),
        ("x\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\ny", "x\n***\ny"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, expected: str) -> None:
    assert scrubber([])(text) == expected


@given(st.text(), st.text(min_size=4), st.text())
def test_a_known_secret_does_not_survive(before: str, secret: str, after: str) -> None:
    assert secret not in scrubber([secret])(before + secret + after).replace(MASK, "")
