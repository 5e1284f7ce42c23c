"""The tables of packs behave like dicts, whether a pack is an object or a row."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from polynya.stream.state import pack_tables, sorted_rows
from polynya.stream.state.model import Pack, PackReference
from polynya.stream.state.pack_tables import HeldPacks, OwnedPacks, PackKeys
from polynya.stream.state.sorted_rows import SortedRows
from polynya.wire.pack import pack_key

SEEDS = range(8)
STEPS = 300


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_tables, "RECENT_MAX", 6)
    monkeypatch.setattr(sorted_rows, "LEAF_ROWS", 4)


def key_of(random: Random) -> str:
    """A real key, or one that has no code."""
    if random.random() < 0.1:
        return f"pack{random.randrange(30)}"
    return pack_key(
        random.choice(["c1", "restored/c2"]),
        owner_group=random.choice([0, 1, 65_535]),
        now_ms=random.randrange(3) * 3_600_000 + 1_700_000_000_000,
        random=bytes([random.randrange(20)]) + bytes(15),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_a_sorted_map(seed: int) -> None:
    random, rows, known = Random(seed), SortedRows(3), dict[int, bytes]()
    for _ in range(STEPS):
        number, value = random.randrange(60), random.randbytes(3)
        if random.random() < 0.55:
            rows.put(number, value)
            known[number] = value
        else:
            assert rows.remove(number) == (known.pop(number, None) is not None)
        assert len(rows) == len(known)
        assert rows.get(number) == known.get(number)
    assert list(rows.rows()) == sorted(known.items())
    assert list(rows.rows(30)) == [item for item in sorted(known.items()) if item[0] >= 30]
    assert all(rows._numbers) and max(map(len, rows._numbers)) <= sorted_rows.LEAF_ROWS


def test_numbers_in_order_fill_the_leaves() -> None:
    rows = SortedRows(1)
    for number in range(40):
        rows.put(number, b"x")
    assert list(map(len, rows._numbers)) == [4] * 10
    for number in range(40):
        rows.remove(number)
    assert not rows._numbers and not rows._values and not rows._firsts


def test_codes_give_their_keys() -> None:
    codes = PackKeys()
    random = Random(1)
    some = "0f" * 16
    good = f"c/packs/00010101-00/7-{some}"
    for key in (good, *(key_of(random) for _ in range(50))):
        code = codes.code(key, new=True)
        assert code is None or codes.key(*code) == key
    assert codes.code(good) is not None
    for bad in (
        f"c/packs/20260101-00/07-{some}",
        f"c/packs/20260101-00/65536-{some}",
        f"c/packs/99990101-00/1-{some}",
        f"c/packs/20260101-00/1-{some.upper()}",
        f"c/packs/20260101-00/1-{some}0",
        f"c/packs/٢٠٢٦٠١٠١-00/1-{some}",
        f"c\n/packs/20260101-00/1-{some}",
    ):
        assert codes.code(bad, new=True) is None, bad
    assert codes.code(f"unknown/packs/20260101-00/1-{some}") is None


def test_keys_that_share_half_of_their_random_bits_are_two() -> None:
    packs = OwnedPacks()
    keys = [f"c/packs/20260101-00/1-{'ab' * 8}{number:016x}" for number in range(20)]
    for number, key in enumerate(keys):
        packs[key] = Pack([1], number)
    assert len(packs._rows) == 1 and len(packs) == 20
    assert [packs[key].written_ms for key in keys] == list(range(20))
    assert keys[0][:-2] + "ff" not in packs and keys[0] in packs
    del packs[keys[0]]
    assert keys[0] not in packs and keys[1] in packs


@pytest.mark.parametrize("seed", SEEDS)
def test_held_packs_are_a_map_by_key_and_by_number(seed: int) -> None:
    random, held, known, number = Random(seed), HeldPacks(), dict[str, PackReference](), 0
    for _ in range(STEPS):
        key = key_of(random)
        found = held.get(key)
        assert found == known.get(key)
        if found is not None and random.random() < 0.3:
            del held[key], known[key]
            with pytest.raises(KeyError):
                held.key_of(found.number)
        elif found is not None:
            found.slices = random.choice([1, 7, 2**32 - 1])
            held[key] = found
            known[key] = msgspec.structs.replace(found)
        else:
            number += 1
            held[key] = PackReference(random.choice([1, 65_535]), 1, number)
            known[key] = PackReference(held[key].owner_group, 1, number)
        if random.random() < 0.02:
            held = HeldPacks(dict(held.items()))
        assert len(held) == len(known)
    assert held == known and list(held) == list(known)
    assert held.slices == sum(each.slices for each in known.values())
    assert held.by_number == {each.number: key for key, each in known.items()}
    assert len(held._by_number) == len(held._rows) > 0
    assert len(held._keys) == len(held) - len(held._rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_home_packs_are_a_map_and_list_what_is_condemned(seed: int) -> None:
    random, packs, known = Random(seed), OwnedPacks(), dict[str, Pack]()
    for _ in range(STEPS):
        key = key_of(random)
        pack = packs.get(key)
        assert pack == known.get(key)
        if pack is None:
            groups = random.sample([0, 1, 2, 3, 1023, 65_534, 65_535], random.randrange(1, 7))
            packs[key] = Pack(groups, random.randrange(2**45))
            known[key] = msgspec.structs.replace(packs[key], groups=list(groups))
        elif pack.groups:
            pack.groups.remove(pack.groups[0])
            pack.condemned_ms = 0 if pack.groups else random.randrange(1, 100)
            packs[key] = pack
            known[key] = msgspec.structs.replace(pack, groups=list(pack.groups))
        else:
            del packs[key], known[key]
        if random.random() < 0.02:
            packs = OwnedPacks(dict(sorted(packs.items())))
        assert len(packs) == len(known)
    assert packs == known
    assert set(packs.condemned(50)) == {
        key for key, pack in known.items() if not pack.groups and pack.condemned_ms <= 50
    }


def test_a_walk_in_portions_sees_every_pack_and_the_objects_each_time() -> None:
    packs = OwnedPacks()
    for number in range(50):
        packs[f"c/packs/20260101-00/1-{number + 1:016x}{0:016x}"] = Pack([1], number)
    seen, position, turns = list[str](), 0, 0
    while True:
        some, position = packs.some(position, 8)
        assert dict(some).keys() >= packs._recent.keys()
        seen += (key for key, _ in some if key not in packs._recent)
        turns += 1
        if not position:
            break
    assert sorted(seen) == sorted(packs.keys() - packs._recent.keys())
    assert turns == -(-len(seen) // 8) > 5
