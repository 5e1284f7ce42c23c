"""The messages that a group sends to others, across a change of its leader."""

from __future__ import annotations

from worlds.led_group import Led


def test_an_outbox_is_sent_again_by_a_leader_that_comes_back() -> None:
    led = Led()
    led.a_stream_in_a_pack_goes()
    led.outbox_sender.pump()
    assert led.releases() == ["p"]
    _, _, refused = led.asked[0]
    refused(RuntimeError("no leader is reachable"))
    led.outbox_sender.leadership_changed(1)
    led.outbox_sender.pump()
    assert led.releases() == ["p"], "it leads as before: the sweep repeats what failed"
    machines, led.local.led = led.local.led, {}
    led.outbox_sender.leadership_changed(1)
    led.local.led = machines
    led.outbox_sender.leadership_changed(1)
    led.outbox_sender.pump()
    assert led.releases() == ["p", "p"]
    led.outbox_sender.pump()
    assert led.releases() == ["p", "p"], "once for each term"
