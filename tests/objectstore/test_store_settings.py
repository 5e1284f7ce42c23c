"""Settings of stores: a missing one is reported, the AWS chain is followed, secrets are not shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from s3_server import S3Server

from polynya.base.errors import ConfigError
from polynya.objectstore import (
    MemoryStore,
    StoreSettings,
    StoreUnavailable,
    open_store,
    prove_conditional_writes,
)
from polynya.objectstore.settings import s3_config


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (StoreSettings(backend="s4"), "unknown object store backend 's4'"),
        (StoreSettings(backend="local"), "root folder"),
        (StoreSettings(backend="s3"), "needs a bucket"),
        (StoreSettings(backend="s3", s3_bucket="b", s3_access_key_id="x"), "both"),
        (StoreSettings(backend="s3", s3_bucket="b", s3_endpoint="localhost:1"), "http://"),
    ],
)
def test_unusable_settings_are_refused(settings: StoreSettings, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_store(settings, {})


def test_none_and_memory() -> None:
    assert open_store(StoreSettings(backend="none")) is None
    assert isinstance(open_store(StoreSettings(backend="memory")), MemoryStore)


def test_a_root_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        open_store(StoreSettings(root=str(tmp_path / "file")))


def test_settings_travel_and_hide_secrets() -> None:
    settings = StoreSettings(
        backend="s3", s3_bucket="b", s3_secret_access_key="hush", s3_session_token="hush"
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=StoreSettings) == settings
    assert "hush" not in repr(settings)


def test_the_credential_chain(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n[work]\naws_access_key_id = "
        "c\n"
    )
    (tmp_path / "config").write_text(
        "[profile work]\nregion = eu-west-1\naws_secret_access_key = d\n"
    )
    files = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }
    settings = StoreSettings(backend="s3", s3_bucket="b")
    assert s3_config(settings, files) == {
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
    }
    work = {**files, "AWS_PROFILE": "work"}
    assert s3_config(settings, work) == {
        "access_key_id": "c",
        "secret_access_key": "d",
        "region": "eu-west-1",
    }
    assert s3_config(settings, {**work, "AWS_ACCESS_KEY_ID": "e", "AWS_REGION": "x"}) == {}
    assert (
        s3_config(settings, {**files, "AWS_ENDPOINT_URL": "http://here", "AWS_ENDPOINT": "x"})[
            "endpoint"
        ]
        == "http://here"
    )
    explicit = StoreSettings(
        backend="s3", s3_bucket="b", s3_access_key_id="f", s3_secret_access_key="g", s3_region="h"
    )
    assert s3_config(explicit, work) == {
        "access_key_id": "f",
        "secret_access_key": "g",
        "region": "h",
    }


@pytest.mark.process
def test_everything_from_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = s3_server.settings()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings["s3_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings["s3_secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", settings["s3_endpoint"])

    async def story() -> None:
        store = open_store(
            StoreSettings(backend="s3", s3_bucket=settings["s3_bucket"], root=settings["root"])
        )
        assert store is not None
        await prove_conditional_writes(store)

    asyncio.run(story())
