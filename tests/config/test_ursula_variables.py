"""The variables of Ursula: fourteen are other names of ours, and others are named in a warning."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from polynya.base.errors import ConfigError
from polynya.cli.app import cli
from polynya.config.loading import load, show, value_of
from polynya.config.settings import BY_ENV
from polynya.config.ursula import ALIASES, in_own_names

VALUES = {"BACKEND": "memory", "S3_ENDPOINT": "http://127.0.0.1:9000"}
TOGETHER = ("POLYNYA_COLD_S3_ACCESS_KEY_ID", "POLYNYA_COLD_S3_SECRET_ACCESS_KEY")
FOLDER = "/nonexistent"


def value_for(alias: str) -> str:
    name = alias.removeprefix("URSULA_COLD_")
    is_number = "BYTES" in name or "_MS" in name or "CONCURRENCY" in name
    return VALUES.get(name, "7" if is_number else "text")


def test_there_are_fourteen() -> None:
    assert len(ALIASES) == 14 and set(ALIASES.values()) <= BY_ENV.keys()


@pytest.mark.parametrize("alias", ALIASES)
def test_each_is_another_name_of_ours(alias: str) -> None:
    name, text = ALIASES[alias], value_for(alias)
    key = BY_ENV[name].key
    other = {each: "other" for each in TOGETHER if name in TOGETHER and each != name}
    ours = load({}, environ={name: text, **other}, folder=FOLDER)
    theirs = load({}, environ={alias: text, **other}, folder=FOLDER)
    assert value_of(theirs.config, key) == value_of(ours.config, key) != BY_ENV[name].default
    assert (theirs.origins[key], ours.origins[key]) == (alias, name)
    assert ours.warnings == []
    (warning,) = theirs.warnings
    assert warning.startswith(f"{alias}: ")
    with pytest.raises(ConfigError, match=f"{alias}: {name} is set too"):
        load({}, environ={alias: text, name: text}, folder=FOLDER)
    assert in_own_names({alias: text, "A": "b"}) == {name: text, "A": "b"}


def test_one_warning_has_all_aliases_and_one_all_that_change_nothing() -> None:
    environ = {alias: value_for(alias) for alias in ALIASES}
    environ |= {"URSULA_TOKIO_CONSOLE": "1", "URSULA_COLD_COMPACTION_ENABLED": "true"}
    loaded = load({}, environ=environ, folder=FOLDER)
    aliases, others = loaded.warnings
    assert all(alias in aliases for alias in ALIASES)
    assert others.startswith("URSULA_COLD_COMPACTION_ENABLED, URSULA_TOKIO_CONSOLE: ")
    shown = {key: value for key, value, _ in show(loaded)}
    assert "text" not in shown["cold.s3_secret_access_key"], "a secret stays one"


def test_a_wrong_value_names_the_variable_that_was_set() -> None:
    with pytest.raises(ConfigError, match="URSULA_COLD_FLUSH_BYTES"):
        load({}, environ={"URSULA_COLD_FLUSH_BYTES": "much"}, folder=FOLDER)


def test_the_check_of_the_settings_shows_them() -> None:
    runner = CliRunner(env={"URSULA_COLD_FLUSH_BYTES": "7", "URSULA_X": "1"})
    found = runner.invoke(cli, ["config", "check"])
    assert found.exit_code == 0, found.output
    assert "warning: URSULA_COLD_FLUSH_BYTES: " in found.output
    assert "warning: URSULA_X: " in found.output
