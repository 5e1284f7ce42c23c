"""The client of a node that wants tokens and speaks TLS: every verb, and shared work, whose
acknowledgements have tokens of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from product import RunningNode, polynya, running_node

from polynya.client import START, AccessDenied, AsyncClient, Client, Outcome, Retry, Unavailable

pytestmark = pytest.mark.process


class Guarded:
    """A node, a token for everything and one for reading."""

    def __init__(self, node: RunningNode, data: Path, token: str, reader: str) -> None:
        self.url = node.url
        self.token = token
        self.reader = reader
        self.trusted = ssl.create_default_context(cafile=data / "tls" / "self.crt")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("node") / "data"
    tokens = []
    for name, allow in (("root", "all"), ("reader", "read")):
        ran = polynya("token", "create", name, "--allow", allow, "--data", str(data))
        assert ran.code == 0, ran
        tokens.append(ran.out.strip())
    with running_node(data, "--auth-required", "--tls-self") as node:
        yield Guarded(node, data, *tokens)


def test_everything_works_with_the_token_that_allows_it(guarded: Guarded) -> None:
    with Client(guarded.url, token=guarded.token, verify=guarded.trusted) as client:
        stream = client.stream("guarded/a")
        stream.create()
        with client.share("crew", "guarded/*", lanes=2, wait=False) as work:
            with stream.producer("named") as producer:
                for number in range(10):
                    producer.append(number)
            assert sorted(job.value for job in work) == list(range(10))
        assert [record.value for record in stream.read()] == list(range(10))
        assert list(client.share("crew", "guarded/*", lanes=2, wait=False)) == [], (
            "all was acknowledged"
        )
        stream.close()

    async def follow() -> list[int]:
        async with AsyncClient(guarded.url, token=guarded.reader, verify=guarded.trusted) as client:
            return [record.value async for record in client.stream("guarded/a").tail(START)]

    assert asyncio.run(follow()) == list(range(10))


def test_what_the_token_does_not_allow_is_denied(guarded: Guarded) -> None:
    for token in ("", "nonsense", guarded.reader):
        with Client(guarded.url, token=token, verify=guarded.trusted) as client:
            with pytest.raises(AccessDenied) as denied:
                client.stream("guarded/b").create()
            assert denied.value.outcome is Outcome.REFUSED and denied.value.status in (401, 403)


def test_a_certificate_that_is_not_trusted_is_said(guarded: Guarded) -> None:
    with (
        Client(guarded.url, token=guarded.token, retry=Retry(seconds=0.1)) as client,
        pytest.raises(Unavailable, match=r"(?i)certificate"),
    ):
        client.stream("guarded/b").create()


def test_the_bench_takes_the_commands_token_and_certificate(
    guarded: Guarded, tmp_path: Path
) -> None:
    trusted = tmp_path / "self.crt"
    trusted.write_text(ssl.DER_cert_to_PEM_cert(guarded.trusted.get_ca_certs(binary_form=True)[0]))
    variables = {"POLYNYA_TOKEN": guarded.token, "POLYNYA_CA_FILE": str(trusted)}
    ran = polynya(
        "bench", "append", "--seconds", "100ms", "--streams", "1", server=guarded.url, **variables
    )
    assert ran.code == 0, ran
