"""SCRAM: the exchange of RFC 7677, and messages that are none of it."""

from __future__ import annotations

import base64

import pytest

from polynya.access.scram import HASHES, ScramFailed, ScramServer, Verifier, make_verifiers

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PROOF = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
FINAL = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},".encode() + PROOF


def server() -> ScramServer:
    return ScramServer("SCRAM-SHA-256", NONCE)


def verifier(password: str = "pencil") -> Verifier:
    return make_verifiers(password, SALT)["SCRAM-SHA-256"]


def test_the_exchange_is_that_of_the_rfc() -> None:
    it = server()
    assert it.read_first(FIRST) == "user"
    first = it.challenge(verifier())
    assert first == f"r=rOprNGfwEbeRWgbNEkqO{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert it.finish(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_each_mechanism_has_a_verifier_without_the_password() -> None:
    made = make_verifiers("pencil", SALT)
    assert set(made) == set(HASHES)
    assert "pencil" not in str(made)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,n=user",
        b"n,,m=x,n=user,r=x",
        b"n,,garbage",
        b"\xff",
        b"",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(ScramFailed):
        server().read_first(first)


@pytest.mark.parametrize(
    "final",
    [
        FINAL.replace(b"p=dH", b"p=eH"),
        FINAL.replace(b"c=biws", b"c=eSws"),
        FINAL.replace(b"r=rO", b"r=rP"),
        FINAL.replace(PROOF, b"p=AAAA"),
        FINAL.replace(PROOF, b"p=%%"),
        b"",
    ],
)
def test_a_final_message_of_another_exchange_or_password_is_refused(final: bytes) -> None:
    it = server()
    it.read_first(FIRST)
    it.challenge(verifier())
    with pytest.raises(ScramFailed):
        it.finish(final)


def test_another_password_is_refused() -> None:
    it = server()
    it.read_first(FIRST)
    it.challenge(verifier("pencils"))
    with pytest.raises(ScramFailed, match="proof is wrong"):
        it.finish(FINAL)
