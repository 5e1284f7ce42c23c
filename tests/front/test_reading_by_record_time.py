"""`from_record_time`: pages and live reads that begin by the times that clients gave."""

from __future__ import annotations

import json

from front_world import World, play

from polynya.base.names import group_of

GROUPS = 2


def test_reads_begin_at_a_record_time() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for number in range(4):
            await world.post("s", b"%d" % number)
        stream = world.service.local.machines[group_of("default/s", GROUPS)].directory.streams[
            "default/s"
        ]
        for batch, time_ms in zip(stream.hot or (), (1000, 9000, 2000, 10000), strict=True):
            batch.record_time_ms_max = time_ms
        for asked, wanted in ((0, [0, 1, 2, 3]), (1500, [1, 2, 3]), (9500, [3]), (10001, [])):
            page = await world.get("s", f"?from_record_time={asked}")
            assert (page.status, json.loads(page.body)) == (200, wanted), asked
            assert page.headers["cache-control"] == "no-cache"
        reader = await world.sse("s", "?live=sse&from_record_time=1970-01-01T00:00:09.500Z")
        assert b"data:[3]\n" in await reader.chunk()
        both = await world.get("s", "?from_record_time=5&from_time=5")
        assert (both.status, both.error) == (400, "INVALID_PARAMETER")
        with_offset = await world.get("s", "?from_record_time=5&offset=-1")
        assert (with_offset.status, with_offset.error) == (400, "INVALID_PARAMETER")
        bad = await world.get("s", "?from_record_time=yesterday")
        assert (bad.status, bad.error) == (400, "INVALID_PARAMETER")
        assert b"from_record_time" in bad.body

    play(story)
