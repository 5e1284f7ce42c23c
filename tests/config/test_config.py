"""Sources of settings, and refusals of invalid ones."""

import re

import pytest

from polynya.base.errors import ConfigError
from polynya.config.loading import load, show
from polynya.config.model import Config, split_listen
from polynya.config.setting import parse_millis, parse_seconds, parse_size
from polynya.config.settings import BY_ENV, SETTINGS


def refusal(flags=None, environ=None, path=None, folder="/nonexistent") -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environ=environ or {}, path=path, folder=folder)
    return str(caught.value)


def test_without_any_source_the_defaults_hold(tmp_path):
    loaded = load({}, environ={"PATH": "/bin", "POLYNYA_SERVER": "http://x"}, folder=str(tmp_path))
    assert set(loaded.origins.values()) == {"default"}
    for setting in SETTINGS:
        value = loaded.config
        for part in setting.key.split("."):
            value = getattr(value, part)
        if setting.key == "data":
            assert value.endswith("/polynya-data") and value.startswith("/")
        else:
            assert value == setting.default, f"the table and the struct differ in {setting.key}"


def test_a_later_source_wins_and_each_origin_is_known(tmp_path):
    (tmp_path / "polynya.toml").write_text(
        'cores = 1\ngroups = 4\nlisten = "127.0.0.1:1"\n[cold]\nflush_bytes = "1MiB"\n'
        'flush_max_age_ms = "2min"\n[log]\nformat = "json"\n'
    )
    environ = {
        "POLYNYA_CORES": "2",
        "POLYNYA_LISTEN": "127.0.0.1:2",
        "POLYNYA_COLD_FLUSH_INTERVAL_MS": "250",
    }
    loaded = load({"--listen": "127.0.0.1:3"}, environ=environ, folder=str(tmp_path))
    config = loaded.config
    assert (config.groups, config.cores, config.listen) == (4, 2, "127.0.0.1:3")
    assert (
        config.cold.flush_bytes,
        config.cold.flush_interval_ms,
        config.cold.flush_max_age_ms,
    ) == (1 << 20, 250, 120_000)
    assert config.log.format == "json"
    origins = loaded.origins
    assert re.search(r"polynya\.toml:\d+: groups$", origins["groups"])
    assert (origins["cores"], origins["listen"], origins["log.level"]) == (
        "POLYNYA_CORES",
        "--listen",
        "default",
    )


def test_the_documented_variables_exist_with_the_documented_defaults():
    cold = load({}, environ={}, folder="/nonexistent").config.cold
    names = (
        "BACKEND ROOT SHARED S3_BUCKET S3_REGION S3_ENDPOINT S3_ACCESS_KEY_ID "
        "S3_SECRET_ACCESS_KEY S3_SESSION_TOKEN FLUSH_INTERVAL_MS "
    )
    names += (
        "FLUSH_BYTES FLUSH_MAX_CONCURRENCY MAX_HOT_BYTES_PER_GROUP FLUSH_MIN_HOT_BYTES "
        "FLUSH_MAX_BYTES FLUSH_MAX_AGE_MS "
    )
    names += "DELETE_GRACE_MS EVICT_AFTER_MS PAGE_SLICES COMPRESSION"
    assert {f"POLYNYA_COLD_{name}" for name in names.split()} == {
        name for name in BY_ENV if "COLD" in name
    }
    assert (cold.backend, cold.flush_interval_ms, cold.flush_bytes) == ("local", 1000, 8 << 20)
    assert (cold.flush_max_concurrency, cold.max_hot_bytes_per_group, cold.flush_max_age_ms) == (
        4,
        64 << 20,
        300_000,
    )
    assert (cold.flush_from_bytes, cold.pack_bytes_max) == (8 << 20, 8 << 20)


def test_every_problem_is_named_with_its_origin_at_once(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(
        'lisen = "x"\ncores = "many"\n[cold]\nflush_byte = 1\nbackend = "s4"\n[log]\nlevel = '
        '["info"]\n'
    )
    message = refusal(
        {"--long-poll-timeout": "soon"},
        {"POLYNYA_GROUPS": "1025", "POLYNYA_COLD_FLUSH_BITES": "1"},
        str(file),
    )
    assert f"{file}:1: lisen: unknown; did you mean listen?" in message
    assert f"{file}:2: cores: 'many': expected a whole number" in message
    assert f"{file}:4: cold.flush_byte: unknown; did you mean cold.flush_bytes?" in message
    assert f"{file}:5: cold.backend: 's4': expected one of local, s3, memory, none" in message
    assert (
        f"{file}:7: log.level: expected debug \\| info \\| warning \\| error, not a list" in message
    )
    assert "--long-poll-timeout: 'soon': expected a duration" in message
    assert "POLYNYA_GROUPS: '1025': expected at most 1024" in message
    assert "POLYNYA_COLD_FLUSH_BITES: unknown; did you mean POLYNYA_COLD_FLUSH_BYTES?" in message
    assert len(message.splitlines()) == 8


def test_a_named_file_must_be_there_and_be_toml(tmp_path):
    assert "No such file" in refusal(path=str(tmp_path / "missing.toml"))
    (tmp_path / "bad.toml").write_text("listen = ")
    assert "no valid TOML" in refusal(path=str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("listen", ["0.0.0.0:4437", "[::]:4437", "192.0.2.1:80", "8.8.8.8:0"])
def test_nothing_listens_beyond_loopback_unless_it_is_said(listen):
    assert "--unsafe-no-auth" in refusal({"--listen": listen})
    config = load(
        {"--listen": listen, "--unsafe-no-auth": "true"}, environ={}, folder="/nonexistent"
    ).config
    assert "unsafe-no-auth" in config.unsafe[0] and "unsafe-no-tls" in config.unsafe[1]
    assert not config.needs_token


def loaded(**flags):
    return load(
        {f"--{name.replace('_', '-')}": text for name, text in flags.items()},
        environ={},
        folder="/nonexistent",
    ).config


def test_beyond_loopback_there_is_access_control_and_tls():
    config = loaded(listen="0.0.0.0:4437", tls_self="true")
    assert config.needs_token and config.tls.is_on and config.unsafe == []
    assert "auth.required" in refusal(
        {"--listen": "0.0.0.0:4437", "--tls-self": "true", "--auth-required": "false"}
    )
    assert "TLS" in refusal({"--listen": "0.0.0.0:4437", "--auth-required": "true"})
    behind_a_proxy = loaded(listen="0.0.0.0:4437", auth_required="true", unsafe_no_auth="true")
    assert behind_a_proxy.needs_token and [
        line.split(":")[0] for line in behind_a_proxy.unsafe
    ] == ["unsafe-no-tls"]


def test_on_loopback_a_token_is_needed_when_that_is_said():
    assert not loaded().needs_token
    assert loaded(auth_required="true").needs_token


def test_the_admin_port_beyond_loopback_has_tls():
    assert "admin port has no TLS" in refusal({"--admin-listen": "0.0.0.0:4450"})
    assert loaded(admin_listen="0.0.0.0:4450", tls_self="true").unsafe == []
    assert loaded(admin_listen="127.0.0.1:4450").unsafe == []


def test_kafka_beyond_loopback_needs_tokens_and_tls():
    assert loaded().kafka.listen is None
    assert not loaded(kafka_listen="off", auth_required="false").has_tokens
    assert loaded(auth_required="true").kafka_needs_token
    assert not loaded(kafka_listen="127.0.0.1:9092").kafka_needs_token
    guarded = loaded(kafka_listen="0.0.0.0:9092", tls_self="true")
    assert guarded.kafka_needs_token
    assert guarded.has_tokens
    assert not guarded.needs_token
    assert "Kafka has no TLS" in refusal({"--kafka-listen": "0.0.0.0:9092"})
    assert "expected HOST:PORT" in refusal({"--kafka-listen": "nowhere"})
    assert "port from 1 to 65535" in refusal({"--kafka-advertised": "host:0"})
    open_to_all = loaded(kafka_listen="0.0.0.0:9092", unsafe_no_auth="true")
    assert any("Kafka clients" in line for line in open_to_all.unsafe)


def test_the_text_protocol_beyond_loopback_has_tls_and_tokens():
    assert loaded().text_address is None and not loaded().text_needs_token
    assert loaded(text_listen="on").text_address == ("127.0.0.1", 4441)
    assert loaded(text_listen="on", listen="127.0.0.1:0").text_address == ("127.0.0.1", 0)
    assert not loaded(text_listen="on").text_needs_token and not loaded(text_listen="on").has_tokens
    assert loaded(text_listen="on", auth_required="true").text_needs_token
    assert "the text protocol has no TLS" in refusal({"--text-listen": "0.0.0.0:4441"})
    beyond = loaded(text_listen="0.0.0.0:4441", tls_self="true")
    assert (
        beyond.text_needs_token
        and beyond.has_tokens
        and not beyond.needs_token
        and beyond.unsafe == []
    )
    unsafe = loaded(text_listen="0.0.0.0:4441", unsafe_no_auth="true")
    assert not unsafe.text_needs_token and len(unsafe.unsafe) == 2
    assert "text_listen" in refusal({"--text-listen": "nowhere"})
    assert "port up to 65531" in refusal({"--text-listen": "on", "--listen": "127.0.0.1:65532"})


def test_settings_of_access_go_together():
    assert "tls.cert and tls.key" in refusal({"--tls-cert": "x.pem"})
    assert "generates a certificate" in refusal(
        {"--tls-cert": "x.pem", "--tls-key": "x.key", "--tls-self": "true"}
    )
    assert "go together" in refusal({"--auth-jwt-issuer": "https://i"})
    three = {"--auth-jwt-issuer": "https://i", "--auth-jwt-audience": "a"}
    assert "unencrypted" in refusal({**three, "--auth-jwt-keys": "http://issuer.invalid/jwks"})
    assert load(
        {**three, "--auth-jwt-keys": "http://127.0.0.1:1/jwks"}, environ={}, folder="/nonexistent"
    ).config.auth.jwt_keys


def test_origins_are_a_list():
    assert loaded().origins == ["local"]
    assert loaded(cors_origins="local, HTTPS://A.example").origins == ["local", "https://a.example"]
    assert loaded(cors_origins="none").origins == []
    assert loaded(cors_origins="https://a.example, http://localhost:3000").origins == [
        "https://a.example",
        "http://localhost:3000",
    ]
    for bad in (
        "a.example",
        "https://a.example/",
        "https://a.example/path",
        "https://user@a.example",
    ):
        assert "not an origin" in refusal({"--cors-origins": bad})


def test_allowed_hosts_are_names():
    assert loaded().hosts == []
    assert loaded(allowed_hosts="Polynya, node_1.internal.,[::1],10.0.0.1,*").hosts == [
        "polynya",
        "node_1.internal.",
        "[::1]",
        "10.0.0.1",
        "*",
    ]
    for bad in ("http://a.example", "a.example:80", "bücher.example", "*.example", "a/b", "a b"):
        assert "is not a host name" in refusal({"--allowed-hosts": bad})


def test_loopback_is_not_unsafe():
    for listen in ("127.0.0.1:0", "[::1]:1", ":4437", "4437", "127.8.9.1:1"):
        assert load({"--listen": listen}, environ={}, folder="/nonexistent").config.unsafe == []


@pytest.mark.parametrize(
    "listen", ["127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "", "nowhere.invalid:80"]
)
def test_an_address_that_is_none_is_refused(listen):
    assert f"listen (--listen): {listen!r}" in refusal({"--listen": listen})


def test_s3_needs_a_bucket_and_both_keys_or_none():
    assert "needs a bucket" in refusal({}, {"POLYNYA_COLD_BACKEND": "s3"})
    message = refusal({}, {"POLYNYA_COLD_S3_ACCESS_KEY_ID": "a"})
    assert (
        "cold.s3_access_key_id (POLYNYA_COLD_S3_ACCESS_KEY_ID): goes together with "
        "cold.s3_secret_access_key" in message
    )


def test_more_cores_than_groups_are_refused():
    assert "8 cores for 4 groups" in refusal({"--cores": "8", "--groups": "4"})


def test_secrets_are_not_shown_and_have_no_flag():
    environ = {
        "POLYNYA_COLD_S3_ACCESS_KEY_ID": "public",
        "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "hush",
    }
    loaded = load({}, environ=environ, folder="/nonexistent")
    assert "hush" not in repr(show(loaded))
    assert ("cold.s3_access_key_id", "public", "POLYNYA_COLD_S3_ACCESS_KEY_ID") in show(loaded)
    assert "unknown" in refusal({"--cold-s3-secret-access-key": "x"})
    assert loaded.config.store.s3_secret_access_key == "hush"


def test_the_store_is_under_the_data_folder_unless_it_is_elsewhere():
    def store(root: str, backend: str = "local"):
        flags = {
            "--data": "/var/p",
            "--cold-root": root,
            "--cold-backend": backend,
            "--cold-s3-bucket": "b",
        }
        return load(flags, environ={}, folder="/nonexistent").config.store

    assert store("").root == "/var/p/objects"
    assert store("/mnt/objects").root == "/mnt/objects"
    assert (store("a/b", "s3").root, store("a/b", "s3").s3_bucket) == ("a/b", "b")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "8MiB", 8 << 20),
        (parse_size, " 1.5 kib ", 1536),
        (parse_size, "64kB", 64_000),
        (parse_size, "0", 0),
        (parse_millis, "1500", 1500),
        (parse_millis, "1s", 1000),
        (parse_millis, "0.5ms", 0),
        (parse_seconds, "500ms", 0.5),
        (parse_seconds, "2", 2.0),
        (parse_seconds, "5min", 300.0),
    ],
)
def test_units(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_size, parse_millis, parse_seconds])
@pytest.mark.parametrize("text", ["", "-1", "1 parsec", "x", "1e3", "\u0661", "1 2", "nan"])
def test_no_units(parse, text):
    with pytest.raises(ValueError, match="expected a"):
        parse(text)


def test_split_listen():
    assert split_listen("[::1]:80") == ("::1", 80)
    assert split_listen(":80") == ("127.0.0.1", 80)


def test_a_configuration_survives_json():
    import msgspec

    config = load({"--cores": "2"}, environ={}, folder="/nonexistent").config
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_the_cookie_is_the_name_of_one():
    assert loaded().auth.cookie == ""
    assert load(
        {"--auth-cookie": "__Host-polynya"}, environ={}, folder="/nonexistent"
    ).config.auth.cookie
    for bad in ("a b", "a=b", "a;b", "ä"):
        assert "not the name of a cookie" in refusal({"--auth-cookie": bad})


def test_http2_needs_its_library_only_where_it_is_demanded(monkeypatch):
    assert loaded().serves_http2
    assert not loaded(http2="off").serves_http2
    monkeypatch.setattr("polynya.config.model.find_spec", lambda name: None)
    assert not loaded().serves_http2
    assert "polynya[h2]" in refusal({"--http2": "on"})


def test_the_sampling_of_traces_is_set_and_checked():
    flags = {"--traces-ratio": "0.25", "--traces-follow-clients": "off", "--traces-queue": "64"}
    traces = load(flags, environ={}, folder="/nonexistent").config.traces
    assert (traces.ratio, traces.follow_clients, traces.queue) == (0.25, False, 64)
    for ratio in ("2", "-1", "1e-3", "many"):
        assert "expected" in refusal({"--traces-ratio": ratio})


def test_two_listeners_of_a_node_have_two_ports():
    base = {"--listen": "127.0.0.1:4811"}
    assert "4812 is the node's admin port, the one after that of 'listen'" in refusal(
        base | {"--kafka-listen": "127.0.0.1:4812"}
    )
    assert "text_listen (--text-listen): 4811 is the port of 'listen'" in refusal(
        base | {"--text-listen": "127.0.0.1:4811"}
    )
    assert "kafka.listen (--kafka-listen): 4815 is the port of 'text_listen'" in refusal(
        base | {"--text-listen": "on", "--kafka-listen": "0.0.0.0:4815", "--unsafe-no-auth": "true"}
    )
    loaded(listen="127.0.0.1:4811", text_listen="127.0.0.2:4811", kafka_listen="127.0.0.1:4813")
    loaded(listen="127.0.0.1:0", text_listen="127.0.0.1:0", kafka_listen="127.0.0.1:0")
