"""The text protocol on real nodes: Walrus' wire format, one shared cursor, access, and the
prompt."""

from __future__ import annotations

import json
import os
import pty
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from struct import pack
from urllib.request import urlopen

import pytest
from polling import wait_until
from product import environment, polynya, running_node
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import ask
from worlds.text_client import TextClient, text_address

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_a_node_answers_walrus_clients_byte_for_byte(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--text-listen", "on", "--cores", "2") as node:
        with TextClient(text_address(node)) as client:
            exchanges = [
                ("REGISTER logs", "OK"),
                ("REGISTER logs", "OK"),
                ("GET logs", "EMPTY"),
                ("PUT logs two  spaces, a\nline and trailing \t\n", "OK"),
                ('PUT logs {"a": 1}', "OK"),
                ('PUT logs w\u00f6rld \U0001f43b "quoted" \\ \x00', "OK"),
                ("PUT missing x", "ERR unknown topic missing"),
                ("GET missing", "ERR unknown topic missing"),
                ("STATE missing", "ERR unknown topic missing"),
                ("REGISTER", "ERR REGISTER requires a topic"),
                ("PUT logs", "ERR PUT requires a payload"),
                ("FETCH logs", "ERR unknown command"),
                (b"PUT logs \xff\xfe", "ERR invalid utf-8"),
                ("GET logs", "OK two  spaces, a\nline and trailing"),
                ("GET logs", 'OK {"a": 1}'),
                ("GET logs", 'OK w\u00f6rld \U0001f43b "quoted" \\ \x00'),
                ("GET logs", "EMPTY"),
                (
                    "REGISTER a/../b",
                    "ERR invalid topic a/../b: a stream path has no empty, '.' or '..' segments",
                ),
            ]
            for request, response in exchanges:
                assert client.ask(request) == response, request
            state = {"current_segment": 1, "leader_node": 1, "last_sealed_entry_offset": 0}
            assert json.loads(client.ask("STATE logs")) == {
                **state, "sealed_segments": {}, "segment_leaders": {"1": 1}
            }  # fmt: skip
            metrics = client.ask("METRICS")
            assert metrics.startswith("{\n  ") and json.loads(metrics)["current_leader"] == 1

            client.send(
                *(f"PUT logs {number}" for number in range(500)), "GET logs", "PUT logs last"
            )
            assert [client.receive() for _ in range(502)] == [*["OK"] * 500, "OK 0", "OK"], (
                "pipelined, in order"
            )
            large = "x" * (65_536 - len("PUT logs "))
            assert client.ask(f"PUT logs {large}") == "OK"
        check_the_other_side(node.url, text_address(node))
        assert node.stop() == 0
    with (
        running_node(tmp_path / "data", "--text-listen", "on") as node,
        TextClient(text_address(node)) as client,
    ):
        client.send(*["GET logs"] * 502)
        rest = [client.receive() for _ in range(502)]
        assert rest == [
            *(f"OK {number}" for number in range(1, 500)),
            "OK last",
            "OK " + large,
            "OK from http",
        ]


def check_the_other_side(url: str, address: str) -> None:
    """Check over HTTP: messages are JSON strings; other records arrive as their JSON; trimmed ones
    are skipped."""
    with urlopen(f"{url}/v1/stream/logs?offset=-1") as answer:
        assert json.load(answer)[:2] == ["two  spaces, a\nline and trailing", '{"a": 1}']
    assert ask("POST", f"{url}/v1/stream/logs", b'"from http"')[0] == 204
    with TextClient(address) as client:
        assert client.ask("REGISTER mixed") == "OK"
        assert ask("POST", f"{url}/v1/stream/mixed", b'["one", {"n": [2]}, 3, "\\ud800"]')[0] == 204
        assert [client.ask("GET mixed") for _ in range(5)] == [
            "OK one", 'OK {"n": [2]}', "OK 3", 'OK "\\ud800"', "EMPTY"
        ]  # fmt: skip
        whole = b'[{"key": "k", "value": "four"}, {"value": [5]}, {"value": null}]'
        form = {"Content-Type": "application/vnd.polynya.records+json"}
        assert ask("POST", f"{url}/v1/stream/mixed", whole, **form)[0] == 204
        assert [client.ask("GET mixed") for _ in range(4)] == [
            "OK four", "OK [5]", "OK null", "EMPTY"
        ]  # fmt: skip
        assert ask("PUT", f"{url}/v1/stream/raw", Content_Type="text/plain")[0] in (200, 201)
        assert ask("DELETE", f"{url}/v1/stream/mixed")[0] == 204
        assert client.ask("GET mixed") == "ERR unknown topic mixed"
        assert [client.ask(f"{verb} mixed x") for verb in ("REGISTER", "PUT", "GET", "GET")] == [
            "OK", "OK", "OK x", "EMPTY"
        ]  # fmt: skip


@pytest.mark.long
def test_frames_without_meaning_end_the_connection_with_one_log_line(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--text-listen", "on") as node:
        address = text_address(node)
        for length in (0, 65_537, 0x20544547):
            with TextClient(address) as client:
                client.send("REGISTER t")
                client.socket.sendall(pack("<I", length) + b"rest")
                assert [client.receive(), client.receive()] == ["OK", "ERR invalid frame length"]
                wait_until(client.ended, what="the connection to end")
        with TextClient(address) as client:
            client.socket.sendall(pack("<I", 10) + b"REG")
            client.socket.shutdown(socket.SHUT_WR)
            assert client.ended(), "half a frame is dropped with its connection"
        with TextClient(address) as client:
            client.send("PUT t a", "PUT t b", "GET t")
            client.socket.shutdown(socket.SHUT_WR)
            assert [client.receive() for _ in range(3)] == ["OK", "OK", "OK a"], (
                "answers in flight are sent"
            )
        with urlopen(f"{node.url}/metrics") as answer:
            metrics = dict(
                line.rsplit(" ", 1)
                for line in answer.read().decode().splitlines()
                if line[0] != "#"
            )
        assert metrics["polynya_text_malformed_total"] == "3"
        assert metrics['polynya_text_commands_total{command="PUT"}'] == "2"
        assert node.stop() == 0
        assert "".join(node.log).count("invalid frame") == 1


def test_any_node_of_three_answers_and_each_message_goes_to_one_reader(tmp_path: Path) -> None:
    with dev_cluster(
        tmp_path / "c", "--text-listen", "on", "--cores", "1", "--groups", "4"
    ) as cluster:
        ports = [int(url.rsplit(":", 1)[1]) + 4 for url in cluster.urls]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        with (
            TextClient(addresses[0]) as one,
            TextClient(addresses[1]) as two,
            TextClient(addresses[2]) as three,
        ):
            assert one.ask("REGISTER logs") == "OK"
            assert two.ask("PUT logs hello") == "OK"
            assert three.ask("GET logs") == "OK hello"
            assert one.ask("GET logs") == "EMPTY"
            states = wait_until(
                lambda: (
                    said
                    if len(said := {each.ask("STATE logs") for each in (one, two, three)}) == 1
                    else None
                ),
                what="all nodes to tell one state",
            )
            assert json.loads(states.pop())["leader_node"] in (1, 2, 3)
            assert json.loads(two.ask("METRICS"))["membership_config"]["membership"]["configs"] == [
                [1, 2, 3]
            ]
            two.send(*(f"PUT logs {number}" for number in range(60)))
            assert [two.receive() for _ in range(60)] == ["OK"] * 60
        taken: list[list[str]] = [[], [], []]

        def take(reader: int) -> None:
            with TextClient(addresses[reader]) as client:
                while (answer := client.ask("GET logs")) != "EMPTY":
                    taken[reader].append(answer)

        readers = [threading.Thread(target=take, args=(reader,)) for reader in range(3)]
        for each in readers:
            each.start()
        for each in readers:
            each.join()
        found = [answer for each in taken for answer in each]
        assert sorted(found) == sorted(f"OK {number}" for number in range(60)), "each message once"
        assert all(each == sorted(each, key=lambda text: int(text[3:])) for each in taken), (
            "in order at each"
        )

        cluster.kill(3)
        with TextClient(addresses[0]) as one, TextClient(addresses[1]) as two:
            wait_until(lambda: one.ask("PUT logs later") == "OK", what="a PUT without node 3")
            assert (
                wait_until(lambda: (said := two.ask("GET logs")) != "EMPTY" and said, what="it")
                == "OK later"
            )


def test_tokens_and_tls_guard_the_text_protocol_as_they_guard_http(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tokens = {}
    for name, scopes in {
        "all": "all,metrics",
        "writer": "append:logs",
        "reader": "read:logs",
    }.items():
        arguments = [option for scope in scopes.split(",") for option in ("--allow", scope)]
        ran = polynya("token", "create", name, *arguments, "--data", str(data))
        assert ran.code == 0, ran.err
        tokens[name] = ran.out.strip()
    slow = polynya(
        "token", "create", "slow", "--allow", "read", "--requests", "1", "--data", str(data)
    )
    assert slow.code == 0, slow.err
    flags = ("--text-listen", "on", "--auth-required", "--tls-self")
    with running_node(data, *flags) as node:
        address, ca = text_address(node), data / "tls" / "self.crt"
        trust = ssl.create_default_context(cafile=ca)
        with TextClient(address, trust) as client:
            assert (
                client.ask("PUT logs x")
                == "ERR unauthorized: this node needs a token; send AUTH TOKEN first"
            )
            assert client.ask("AUTH nonsense").startswith("ERR unauthorized: ")
            assert client.ask("METRICS").startswith("ERR unauthorized")
            assert client.ask(f"AUTH {tokens['all']}") == "OK"
            assert [client.ask(f"{verb} logs x") for verb in ("REGISTER", "PUT", "GET")] == [
                "OK",
                "OK",
                "OK x",
            ]
            assert client.ask("METRICS").startswith("{")
            assert client.ask(f"AUTH {tokens['writer']}") == "OK"
            assert client.ask("PUT logs y") == "OK"
            assert (
                client.ask("PUT other y")
                == "ERR forbidden: the token does not allow 'append' on other"
            )
            assert (
                client.ask("GET logs") == "ERR forbidden: the token does not allow 'read' on logs"
            )
            assert (
                client.ask("REGISTER logs")
                == "ERR forbidden: the token does not allow 'create' on logs"
            )
            assert client.ask(f"AUTH {tokens['reader']}") == "OK"
            assert client.ask("STATE logs").startswith("{")
            assert (
                client.ask("GET logs") == "ERR forbidden: the token does not allow 'append' on logs"
            )
            assert polynya("token", "revoke", "reader", "--data", str(data)).code == 0
            wait_until(
                lambda: client.ask("STATE logs").startswith("ERR unauthorized"),
                what="the revocation",
            )
        with TextClient(address, trust) as client:
            assert client.ask(f"AUTH {slow.out.strip()}") == "OK"
            client.send(*["STATE logs"] * 20)
            answers = [client.receive() for _ in range(20)]
            assert answers[0].startswith("{") and answers[-1].startswith(
                "ERR rate limit of the token: retry after"
            )
        with pytest.raises(OSError), TextClient(address) as plain:
            plain.ask(f"AUTH {tokens['all']}")
        server = node.url.rsplit(":", 1)[0]
        variables = {"POLYNYA_TOKEN": tokens["all"], "POLYNYA_CA_FILE": str(ca)}
        arguments = (
            "--server",
            server,
            "--addr",
            address,
            "-c",
            "PUT logs cli",
            "-c",
            "GET logs",
            "-c",
            "GET logs",
        )
        ran = polynya("walrus", *arguments, **variables)
        assert (ran.code, ran.out) == (0, "OK\nOK y\nOK cli\n"), ran.err
    ran = polynya(
        "serve", "--data", str(data), "--listen", "127.0.0.1:0", "--text-listen", "0.0.0.0:0"
    )
    assert ran.code == 78 or "text_listen" in ran.err, ran.err
    assert "the text protocol has no TLS" in ran.err


def test_the_prompt_and_single_commands(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--text-listen", "on") as node:
        address = text_address(node)
        ran = polynya(
            "walrus", "--addr", address, stdin=b"REGISTER logs\n\nPUT logs from stdin\nGET logs\n"
        )
        assert (ran.code, ran.out) == (0, "OK\nOK\nOK from stdin\n"), ran.err
        ran = polynya("walrus", "--addr", address, "-c", "PUT nothing x", "-c", "GET logs")
        assert (ran.code, ran.out) == (1, "ERR unknown topic nothing\nEMPTY\n")
        assert "unknown topic nothing" in ran.err

        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "polynya", "walrus", "--addr", address]
        more = {"XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}
        prompt = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**more)
        )
        os.close(theirs)
        said = b""

        def says(text: bytes) -> None:
            nonlocal said
            while text not in said:
                said += os.read(ours, 4096)

        says(b"walrus> ")
        typed = (
            (b"help\n", b"PUT <topic> <payload>"),
            (b"P\tlogs typed\n", b"OK"),
            (b"GET lo\t\n", b"OK typed"),
        )
        for line, answer in typed:
            said = b""
            os.write(ours, line)
            says(answer)
            says(b"walrus> ")
        os.write(ours, b"exit\n")
        assert prompt.wait(60) == 0
        os.close(ours)
        assert "PUT logs typed" in (tmp_path / "state" / "polynya" / "walrus_history").read_text()
    ran = polynya("walrus", "--addr", address, "-c", "GET logs")
    assert ran.code == 3 and "text_listen = on" in ran.err
    assert polynya("walrus", "--addr", "nowhere", "-c", "GET logs").code == 2
