"""The settings of hosts, TLS and access control."""

from __future__ import annotations

from polynya.config.setting import (
    Setting,
    parse_count,
    parse_seconds,
    parse_size,
    parse_switch,
    parse_text,
)

ACCESS = (
    Setting(
        "allowed_hosts",
        parse_text,
        "",
        "Host names that a node without access control accepts, separated by commas; `*` accepts "
        "any. Default: IP addresses, `localhost`, "
        "`*.localhost`, the host of `listen` and the hosts of the cluster's nodes. Other requests "
        "get 421, which protects "
        "against DNS rebinding.",
    ),
    Setting(
        "cors_origins",
        parse_text,
        "local",
        "Origins of web pages that may read and write, separated by commas. `local` is every "
        "origin on this machine (loopback) or on a "
        "host of the cluster or of `allowed_hosts`; `*` is any, `none` is none.",
    ),
    Setting(
        "tls.cert",
        parse_text,
        "",
        "A file with the certificate and its intermediate certificates (PEM). It is reloaded when "
        "it changes.",
    ),
    Setting("tls.key", parse_text, "", "A file with its private key (PEM), without a passphrase."),
    Setting(
        "tls.self",
        parse_switch,
        False,
        "Serve TLS with a self-signed certificate in the data folder; its fingerprint is printed. "
        "For development.",
    ),
    Setting(
        "auth.required",
        parse_switch,
        None,
        "Require a token for requests. Default: when `listen` reaches beyond loopback, unless "
        "`unsafe_no_auth`.",
    ),
    Setting("auth.jwt_issuer", parse_text, "", "Accept JWTs with this `iss` as tokens."),
    Setting("auth.jwt_audience", parse_text, "", "The required `aud` of the JWTs."),
    Setting(
        "auth.jwt_keys",
        parse_text,
        "",
        "The issuer's key set (JWKS): a file, or a URL that is fetched every five minutes.",
    ),
    Setting(
        "auth.jwt_claim", parse_text, "scope", "The claim of the JWTs that holds their scopes."
    ),
    Setting(
        "auth.jwt_lifetime_max",
        parse_seconds,
        86_400.0,
        "The maximum lifetime of a JWT, `exp - iat`; without `iat`, its remaining lifetime. "
        "Longer ones are rejected.",
        low=1,
    ),
    Setting(
        "auth.requests_per_second",
        parse_count,
        0,
        "Requests per second of a token without its own limit; 0 is unlimited.",
    ),
    Setting(
        "auth.bytes_per_second",
        parse_size,
        0,
        "Bytes per second of a token without its own limit, of request and response bodies "
        "together; 0 is unlimited.",
    ),
    Setting(
        "auth.streams",
        parse_count,
        0,
        "Streams that may exist under the prefixes of a token without its own limit when it "
        "creates one; 0 is unlimited.",
    ),
    Setting(
        "auth.connections",
        parse_count,
        0,
        "Open connections of a token without its own limit; 0 is unlimited.",
    ),
)
