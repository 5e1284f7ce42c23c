"""Check settings against each other: contradictions, and ports that others reach without access
control."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from polynya.base.limits import PARTITIONS_MAX
from polynya.base.names import DISKLESS
from polynya.config.cluster_settings import cluster_problems
from polynya.config.model import (
    GROUPS_DEFAULT,
    Config,
    is_loopback,
    split_listen,
)
from polynya.config.ports import port_problems

_HOST = re.compile(r"[\w.-]+|\[[0-9a-f:.]+\]", re.ASCII)
_COOKIE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#,@]+", re.ASCII)


def _reach_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    """Yield the ports that other machines reach without access control or TLS, unless a setting
    allows that."""
    for key, listen, what in (
        ("listen", config.listen, "it"),
        ("admin_listen", config.admin_listen, "the admin port"),
        ("text_listen", config.text_listen, "the text protocol"),
        ("kafka.listen", _kafka_listen(config), "Kafka"),
    ):
        if key != "listen" and not listen:
            continue
        origin = f"{key} ({origins[key]})"
        try:
            address = config.text_address if key == "text_listen" else split_listen(listen)
            is_local = address is None or is_loopback(address[0])
        except ValueError as error:
            yield f"{origin}: {listen!r}: {error}"
            continue
        if is_local or config.unsafe_no_auth:
            continue
        if config.auth.required is False and key == "listen":
            yield (
                f"{origin}: {listen} is reachable from other machines, but auth.required is "
                "false; remove that, or add --unsafe-no-auth"
            )
        if not config.tls.is_on:
            yield (
                f"{origin}: {listen} is reachable from other machines, and {what} has no TLS; set "
                "tls.cert and tls.key, or --tls-self for "
                "a trial, or listen on 127.0.0.1 behind a proxy, or add --unsafe-no-auth"
            )


def _access_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    tls, auth = config.tls, config.auth
    if config.http2 == "on" and not config.serves_http2:
        yield (
            f"http2 ({origins['http2']}): 'on' needs the library h2, which is not installed: "
            "install the extra polynya[h2], or choose auto or off"
        )
    if bool(tls.cert) != bool(tls.key):
        yield "tls.cert and tls.key go together; one of them is not set"
    if tls.self and tls.cert:
        yield "tls.self generates a certificate: remove it, or tls.cert and tls.key"
    if auth.cookie and not _COOKIE.fullmatch(auth.cookie):
        yield (
            f"auth.cookie ({origins['auth.cookie']}): {auth.cookie!r} is not the name of a cookie; "
            "expected one such as __Host-polynya"
        )
    jwt = (auth.jwt_issuer, auth.jwt_audience, auth.jwt_keys)
    if any(jwt) and not all(jwt):
        yield (
            "auth.jwt_issuer, auth.jwt_audience and auth.jwt_keys go together; one of them is not "
            "set"
        )
    if auth.jwt_keys.startswith("http://") and not _is_local_url(auth.jwt_keys):
        yield (
            f"auth.jwt_keys ({origins['auth.jwt_keys']}): unencrypted keys can be forged; use "
            "https://"
        )
    for host in config.hosts:
        if host != "*" and not _HOST.fullmatch(host):
            yield (
                f"allowed_hosts ({origins['allowed_hosts']}): {host!r} is not a host name; "
                "expected one such as polynya.internal, in ASCII (xn--…) and "
                "without a port"
            )
    for origin in config.origins:
        if origin not in ("*", "local") and not _ORIGIN.fullmatch(origin):
            yield (
                f"cors_origins ({origins['cors_origins']}): {origin!r} is not an origin; expected "
                "one such as https://app.example.com, without a path"
            )


def _cluster_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    cluster = config.cluster
    yield from cluster_problems(cluster, origins)
    if not cluster.lists_itself:
        return
    host = cluster.listen_address[0]
    try:
        if not (is_loopback(host) or cluster.ca or cluster.unsafe_no_tls):
            yield (
                f"cluster.nodes ({origins['cluster.nodes']}): the peer port on {host} is "
                "reachable from other machines, and nodes do not "
                "authenticate each other; set cluster.ca, cluster.cert and cluster.key ('polynya "
                "cluster ca' makes some for a trial), or add "
                "--cluster-unsafe-no-tls"
            )
    except ValueError as error:
        yield f"cluster.nodes ({origins['cluster.nodes']}): {error}"
    if config.cold.backend == "memory" or (
        config.cold.backend == "local" and not config.cold.root and cluster.others
    ):
        yield (
            f"cold.backend ({origins['cold.backend']}): the nodes of a cluster share one object "
            "store; choose s3, or none, or local with "
            "cold.root set to a folder that all nodes see"
        )


def _kafka_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    if not 1 <= config.kafka.partitions <= PARTITIONS_MAX:
        yield (
            f"kafka.partitions ({origins['kafka.partitions']}): {config.kafka.partitions}; "
            f"a topic has 1 to {PARTITIONS_MAX} partitions"
        )
    address = config.kafka.advertised
    if not address:
        return
    origin = f"kafka.advertised ({origins['kafka.advertised']})"
    try:
        port = split_listen(address)[1]
    except ValueError as error:
        yield f"{origin}: {address!r}: {error}"
        return
    if not port:
        yield f"{origin}: {address!r}: clients need a port from 1 to 65535"


def _kafka_listen(config: Config) -> str:
    """Return the address for Kafka clients, "" for the default one and for none."""
    return "" if config.kafka.listen in (None, "off") else str(config.kafka.listen)


def _other_addresses(config: Config) -> dict[str, tuple[str, int]]:
    """Return host and port of the settings beside `listen`. Raises ValueError: no address."""
    addresses = {}
    if config.admin_listen:
        addresses["admin_listen"] = split_listen(config.admin_listen)
    if config.text_address is not None:
        addresses["text_listen"] = config.text_address
    if _kafka_listen(config):
        addresses["kafka.listen"] = split_listen(_kafka_listen(config))
    return addresses


def _is_local_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return is_loopback(host)
    except ValueError:
        return False


def contradictions(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    """Yield the contradictions between settings that are each well-formed."""
    yield from _reach_problems(config, origins)
    yield from _access_problems(config, origins)
    yield from _cluster_problems(config, origins)
    yield from _kafka_problems(config, origins)
    with contextlib.suppress(ValueError):  # what is no address is named above
        yield from port_problems(split_listen(config.listen), _other_addresses(config), origins)
    cold = config.cold
    if config.lake.interval and cold.backend in ("none", "memory"):
        yield (
            f"lake.interval ({origins['lake.interval']}): tables need an object store that others "
            f"can read; cold.backend is {cold.backend}"
        )
    if config.reduce.workers and config.needs_token and not config.reduce.token_file:
        yield (
            f"reduce.workers ({origins['reduce.workers']}): requests need a token; set "
            "reduce.token_file to a file with one that has the verb 'admin'"
        )
    if cold.backend == "s3" and not cold.s3_bucket:
        yield (
            f"cold.backend ({origins['cold.backend']}): s3 needs a bucket; set cold.s3_bucket or "
            "POLYNYA_COLD_S3_BUCKET"
        )
    for key, profile in (
        ("default_profile", config.default_profile),
        ("text_profile", config.text_profile),
    ):
        if profile == DISKLESS and cold.backend == "none":
            yield (
                f"{key} ({origins[key]}): diskless streams need an object store, and cold.backend "
                "is none"
            )
    if cold.shared and not config.has_own_objects:
        yield (
            f"cold.shared ({origins['cold.shared']}): only a folder outside the data folder can "
            "be shared, as other users cannot enter that; set "
            "cold.backend = local and cold.root to one outside, or leave cold.shared out"
        )
    if bool(cold.s3_access_key_id) != bool(cold.s3_secret_access_key):
        have, miss = ("s3_access_key_id", "s3_secret_access_key")
        if not cold.s3_access_key_id:
            have, miss = miss, have
        yield (
            f"cold.{have} ({origins['cold.' + have]}): goes together with cold.{miss}, which is "
            "not set"
        )
    if config.cores is not None and config.cores > (config.groups or GROUPS_DEFAULT):
        yield (
            f"cores ({origins['cores']}): {config.cores} cores for "
            f"{config.groups or GROUPS_DEFAULT} groups leave some without work"
        )
