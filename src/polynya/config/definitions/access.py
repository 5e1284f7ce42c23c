"""The settings of hosts, TLS and access control."""

from __future__ import annotations

from polynya.config import setting

ACCESS = (
    setting.text(
        "allowed_hosts",
        "",
        "Host names that a node without access control accepts, separated by commas; `*` accepts "
        "any. Default: IP addresses, `localhost`, "
        "`*.localhost`, the host of `listen` and the hosts of the cluster's nodes. Other requests "
        "get 421, which protects "
        "against DNS rebinding.",
    ),
    setting.text(
        "cors_origins",
        "local",
        "Origins of web pages that may read and write, separated by commas. `local` is every "
        "origin on this machine (loopback) or on a "
        "host of the cluster or of `allowed_hosts`; `*` is any, `none` is none.",
    ),
    setting.text(
        "tls.cert",
        "",
        "A file with the certificate and its intermediate certificates (PEM). It is reloaded when "
        "it changes.",
    ),
    setting.text("tls.key", "", "A file with its private key (PEM), without a passphrase."),
    setting.switch(
        "tls.self",
        False,
        "Serve TLS with a self-signed certificate in the data folder; its fingerprint is printed. "
        "For development.",
    ),
    setting.switch(
        "auth.required",
        None,
        "Require a token for requests. Default: when `listen` reaches beyond loopback, unless "
        "`unsafe_no_auth`.",
    ),
    setting.text(
        "auth.cookie",
        "",
        "A cookie that may hold a token, such as `__Host-polynya`, for pages of this host and of the "
        "origins that `cors_origins` spells out. Default: cookies are ignored.",
    ),
    setting.text("auth.jwt_issuer", "", "Accept JWTs with this `iss` as tokens."),
    setting.text("auth.jwt_audience", "", "The required `aud` of the JWTs."),
    setting.text(
        "auth.jwt_keys",
        "",
        "The issuer's key set (JWKS): a file, or a URL that is fetched every five minutes.",
    ),
    setting.text("auth.jwt_claim", "scope", "The claim of the JWTs that holds their scopes."),
    setting.seconds(
        "auth.jwt_lifetime_max",
        86_400.0,
        "The maximum lifetime of a JWT, `exp - iat`; without `iat`, its remaining lifetime. "
        "Longer ones are rejected.",
        low=1,
    ),
    setting.count(
        "auth.requests_per_second",
        0,
        "Requests per second of a token without its own limit; 0 is unlimited.",
    ),
    setting.size(
        "auth.bytes_per_second",
        0,
        "Bytes per second of a token without its own limit, of request and response bodies "
        "together; 0 is unlimited.",
    ),
    setting.count(
        "auth.streams",
        0,
        "Streams that may exist under the prefixes of a token without its own limit when it "
        "creates one; 0 is unlimited.",
    ),
    setting.count(
        "auth.connections", 0, "Open connections of a token without its own limit; 0 is unlimited."
    ),
    setting.switch(
        "console.acts",
        True,
        "Let the web console change streams, topics, groups, tables, subscriptions and tokens, with "
        "the rights of its caller. `false` makes it a viewer, and refuses its requests that change "
        "something.",
    ),
)
