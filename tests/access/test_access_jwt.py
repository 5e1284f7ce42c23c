"""JWTs of a configured issuer: checks, refusals and key rollover."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from polynya.access import Access, BadScope, Denied, KeysUnknown, revocations
from polynya.access.jwt_issuer import BadJwt, Expected, Issuer, KeyUnknown
from polynya.access.revocations import UnwantedJwt
from polynya.access.token_file import TokenFile, Wanted

ISSUER, AUDIENCE = "https://issuer.example", "polynya"
EXPECTED = Expected(ISSUER, AUDIENCE)
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, tuple[Any, str]] = {"rsa": (RSA, "RS256"), "ec": (EC, "ES256"), "ed": (ED, "EdDSA")}


def jwk(kid: str, **more: Any) -> dict[str, Any]:
    private, algorithm = KEYS[kid]
    maker = jwt.get_algorithm_by_name(algorithm)
    return {**json.loads(maker.to_jwk(private.public_key())), "kid": kid, **more}


def key_set(path: Path, *keys: dict[str, Any]) -> str:
    path.write_text(json.dumps({"keys": list(keys)}))
    return str(path)


def signed(
    kid: str = "rsa", *, algorithm: str = "", headers: dict[str, Any] | None = None, **claims: Any
) -> str:
    private, usual = KEYS[kid]
    full = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": int(time.time()) + 60,
        "scope": "openid read:orders/",
        **claims,
    }
    full = {name: value for name, value in full.items() if value is not None}
    return jwt.encode(
        full, private, algorithm=algorithm or usual, headers={"kid": kid, **(headers or {})}
    )


def issuer_of(source: str, clock: Callable[[], float] = time.monotonic) -> Issuer:
    issuer = Issuer(EXPECTED, source, clock=clock)
    assert asyncio.run(issuer.refresh())
    return issuer


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
def test_a_signed_token_says_who_and_what(kid: str, tmp_path: Path) -> None:
    issuer = issuer_of(key_set(tmp_path / "keys", *(jwk(each) for each in KEYS)))
    proven = issuer.prove(signed(kid))
    assert proven.subject == "alice" and len(proven.grants) == 1
    assert proven.grants[0].prefix == "orders/"


@pytest.mark.parametrize(
    "scope", ["read,append:orders/ profile", ["read,append:orders/", "email", 7]]
)
def test_scopes_come_as_text_or_as_a_list(scope: Any, tmp_path: Path) -> None:
    issuer = issuer_of(key_set(tmp_path / "keys", jwk("rsa")))
    assert issuer.prove(signed(scope=scope)).grants[0].verbs == {"read", "append"}


@pytest.mark.parametrize("scope", [None, "", "openid", {"read": True}, 5])
def test_without_scopes_it_allows_nothing(scope: Any, tmp_path: Path) -> None:
    assert issuer_of(key_set(tmp_path / "keys", jwk("rsa"))).prove(signed(scope=scope)).grants == ()


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"sub": None},
        {"nbf": 99_999_999_999},
    ],
)
def test_every_claim_is_checked(claims: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadJwt):
        issuer_of(key_set(tmp_path / "keys", jwk("rsa"))).prove(signed(**claims))


DAY = 86_400


@pytest.mark.parametrize(
    ("issued", "expires", "maximum", "taken"),
    [
        (-10, DAY - 10, DAY, True),
        (-10, DAY - 9, DAY, False),
        (-10 * DAY, 60, DAY, False),  # nearly over; it was for ten days all the same
        (None, DAY - 60, DAY, True),
        (None, DAY + 60, DAY, False),
        (0, 10**12, DAY, False),
        (-5, 595, 600, True),
        (-5, 596, 600, False),
        (-5, 7 * DAY - 5, 7 * DAY, True),
    ],
)
def test_a_jwt_lives_no_longer_than_it_may(
    issued: int | None, expires: int, maximum: int, taken: bool, tmp_path: Path
) -> None:
    issuer = Issuer(
        Expected(ISSUER, AUDIENCE, lifetime_max=maximum), key_set(tmp_path / "keys", jwk("rsa"))
    )
    assert asyncio.run(issuer.refresh())
    now = int(time.time())
    text = signed(iat=None if issued is None else now + issued, exp=now + expires)
    if taken:
        assert issuer.prove(text).subject == "alice"
    else:
        with pytest.raises(BadJwt, match=r"auth\.jwt_lifetime_max"):
            issuer.prove(text)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": float("inf")},
        {"exp": 10**400},
        {"iat": float("inf")},
        {"iat": float("-inf")},
        {"iat": float("nan")},
        {"iat": -(10**400)},
        {"iat": "x"},
    ],
)
def test_a_time_that_is_none_is_refused(claims: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadJwt):
        issuer_of(key_set(tmp_path / "keys", jwk("rsa"))).prove(signed(**claims))


def without_kid(kid: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in jwk(kid, **more).items() if name != "kid"}


def test_of_several_keys_those_without_a_kid_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = issuer_of(key_set(tmp_path / "keys", jwk("rsa"), without_kid("ec"), without_kid("ed")))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "ignoring keys without a kid, as the issuer's set has several keys"
    ]
    assert issuer.prove(signed("rsa")).subject == "alice"
    for kid in ("ec", "ed"):
        with pytest.raises(KeyUnknown):
            issuer.prove(signed(kid))
        with pytest.raises(KeyUnknown):
            issuer.prove(nameless(kid))


def nameless(kid: str) -> str:
    """A JWT that names no key."""
    private, algorithm = KEYS[kid]
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 60}
    return jwt.encode(claims, private, algorithm=algorithm)


def test_a_set_of_several_keys_without_any_kid_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(EXPECTED, key_set(tmp_path / "keys", without_kid("rsa"), without_kid("ec")))
    assert not asyncio.run(issuer.refresh()) and not issuer.has_keys
    assert any("with a kid" in str(getattr(record, "error", "")) for record in caplog.records)


def test_a_single_key_needs_no_kid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encryption = without_kid("ec", use="enc")  # no key that signs: it confuses no one
    issuer = issuer_of(key_set(tmp_path / "keys", without_kid("rsa"), encryption))
    assert issuer.prove(nameless("rsa")).subject == "alice"
    assert not caplog.records


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_what_is_forged_is_refused(tmp_path: Path) -> None:
    issuer = issuer_of(key_set(tmp_path / "keys", jwk("rsa"), jwk("ec")))
    good = signed()
    head, body, signature = good.split(".")
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "root",
        "exp": int(time.time()) + 60,
        "scope": "admin",
    }
    pem = b"-----BEGIN PUBLIC KEY-----"
    forged = [
        f"{head}.{part(claims)}.{signature}",  # other claims
        f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(claims)}.",  # no signature at all
        # the public key as a secret
        f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims)}.{base64.urlsafe_b64encode(pem).decode()}",
        signed("rsa", headers={"kid": "ec"}),  # one key's signature under another's name
        signed("ed"),  # a key that is not in the set
        f"{part({'alg': 'RS256', 'kid': ['rsa']})}.{body}.{signature}",
        f"{part({'alg': ['RS256'], 'kid': 'rsa'})}.{body}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 'rsa', 'crit': ['b64'], 'b64': False})}.{body}.{signature}",
        *("", ".", "..", "a.b.c", good + "x", good[:-4], "x" * 5000, "é.é.é"),
    ]
    for text in forged:
        with pytest.raises(BadJwt):
            issuer.prove(text)
    assert issuer.prove(good).subject == "alice"


def test_private_and_foreign_keys_are_left_out(tmp_path: Path) -> None:
    secret = {"kty": "oct", "k": part("secret"), "kid": "s", "alg": "HS256"}
    issuer = Issuer(
        EXPECTED, key_set(tmp_path / "keys", secret, jwk("rsa", use="enc"), jwk("ec", d="AAAA"))
    )
    assert not asyncio.run(issuer.refresh()) and not issuer.has_keys
    pinned = issuer_of(key_set(tmp_path / "pinned", jwk("rsa", alg="RS512")))
    with pytest.raises(KeyUnknown):
        pinned.prove(signed())
    assert pinned.prove(signed(algorithm="RS512")).subject == "alice"


def test_a_new_key_is_fetched_when_it_is_met_but_not_for_every_forgery(tmp_path: Path) -> None:
    now = [1000.0]
    source = key_set(tmp_path / "keys", jwk("rsa"))

    async def story() -> None:
        issuer = Issuer(EXPECTED, source, clock=lambda: now[0])
        access = Access(TokenFile(tmp_path), issuer=issuer)
        await access.refresh()
        key_set(tmp_path / "keys", jwk("ec"))
        with pytest.raises(Denied) as soon:
            access.identify(signed("ec"))
        assert not isinstance(soon.value, KeysUnknown), (
            "just looked: not again for every unknown key"
        )
        now[0] += 11
        with pytest.raises(KeysUnknown):
            access.identify(signed("ec"))
        assert await access.refresh()
        assert access.identify(signed("ec")).id == "jwt:alice"
        with pytest.raises(Denied):
            access.identify(signed("rsa"))
        (tmp_path / "keys").write_text("no json")
        now[0] += 11
        assert not await issuer.refresh()
        assert access.identify(signed("ec")).name == "alice", "the keys that were known stay"

    asyncio.run(story())


def test_a_jwt_is_proven_once_and_dies_with_its_time(tmp_path: Path) -> None:
    wall = [time.time()]
    access = Access(
        TokenFile(tmp_path),
        issuer=issuer_of(key_set(tmp_path / "keys", jwk("rsa"))),
        wall=lambda: wall[0],
    )
    text = signed(exp=int(wall[0]) + 10)
    caller = access.identify(text)
    assert access.identify(text) is caller and access.counters.proven == 1
    wall[0] += 41  # the leeway is over too
    access.tick()
    assert not caller.alive


def jwts_of(tmp_path: Path) -> tuple[TokenFile, Access]:
    tokens = TokenFile(tmp_path)
    return tokens, Access(tokens, issuer=issuer_of(key_set(tmp_path / "keys", jwk("rsa"))))


def test_a_revoked_jwt_dies_and_its_sister_lives(tmp_path: Path) -> None:
    tokens, access = jwts_of(tmp_path)
    stolen, other = signed(jti="1"), signed(jti="2")
    caller, bystander = access.identify(stolen), access.identify(other)
    deaths: list[int] = []
    access.on_deaths.append(lambda: deaths.append(1))
    tokens.revoke_jwt(UnwantedJwt(jti="1"), now_ms())
    access.tick()
    assert deaths == [1] and not caller.alive and bystander.alive
    for each in (access, Access(tokens, issuer=access.issuer)):
        with pytest.raises(Denied, match="revoked"):
            each.identify(stolen)
        assert each.identify(other).alive


def test_a_subject_s_jwts_are_revoked_and_it_may_come_back_with_a_newer_one(tmp_path: Path) -> None:
    tokens, access = jwts_of(tmp_path)
    now = now_ms()
    revoked_ms = now - 100_000
    old = signed(iat=revoked_ms // 1000 - 1)
    caller, bystander = (
        access.identify(old),
        access.identify(signed(sub="bob", iat=now // 1000 - 1000)),
    )
    tokens.revoke_jwt(UnwantedJwt(sub="alice"), revoked_ms)
    access.tick()
    assert not caller.alive and bystander.alive
    # without `iat` it may be as old; clocks differ
    for text in (
        old,
        signed(),
        signed(iat=revoked_ms // 1000 + 29),
    ):
        with pytest.raises(Denied, match="revoked"):
            access.identify(text)
    assert access.identify(signed(iat=revoked_ms // 1000 + 31)).alive


def test_a_revocation_lasts_as_long_as_was_said_and_the_list_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocations, "REVOKED_JWTS_MAX", 2)
    tokens, _ = jwts_of(tmp_path)
    first = tokens.revoke_jwt(UnwantedJwt(jti="1", expires_in_seconds=60), 1000)
    assert (first.revoked_ms, first.expires_ms) == (1000, 61_000)
    assert (
        tokens.revoke_jwt(UnwantedJwt(jti="1", expires_in_seconds=5), 2000).expires_ms == 61_000
    ), "never shortened"
    tokens.revoke_jwt(UnwantedJwt(sub="a"), 3000)
    with pytest.raises(BadScope, match="2 JWTs are revoked already"):
        tokens.revoke_jwt(UnwantedJwt(sub="b"), 4000)
    tokens.revoke_jwt(UnwantedJwt(sub="b"), 61_000)
    assert [(entry.jti, entry.sub) for entry in tokens.load().revoked_jwts] == [
        ("", "a"),
        ("", "b"),
    ], "the first was over"
    tokens.add(Wanted(name="x", scopes=["read"]), 62_000)
    assert len(tokens.load().revoked_jwts) == 2, "a change of tokens keeps them"


@pytest.mark.parametrize(
    "bad",
    [{}, {"jti": "1", "sub": "a"}, {"jti": "x" * 1025}, {"jti": "1", "expires_in_seconds": 0}],
)
def test_what_cannot_be_revoked_is_told(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadScope):
        TokenFile(tmp_path).revoke_jwt(UnwantedJwt(**bad), 1000)


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_key_set_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b" " * (1 << 20) + b"{}")
    assert not asyncio.run(Issuer(EXPECTED, str(tmp_path / "keys")).refresh())
