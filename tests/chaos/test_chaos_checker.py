"""The checker of histories: it believes a true one, and each lie is found and called by its
name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.history import FAIL, INFO, OK, Append, History, Piece, Read, Tail, check, differences  # noqa: E402  (not a part of the package)

S = "chaos/s0"


class Story:
    """A true history of one log, drawn from a seed: `final` is what the log holds."""

    def __init__(self, seed: int = 1, appends: int = 300) -> None:
        self.draw = Random(seed)
        self.history = History()
        self.final: list[str] = []
        self.ends: list[int] = []  # of the appends in it
        self.now = 0.0
        produced = 0
        for number in range(appends):
            self.now += 1.0
            kind = self.draw.choice(("w", "w", "p", "info", "info applied", "fail"))
            writer, count = ("p", produced) if kind == "p" else (f"w{number}", 0)
            produced += kind == "p"
            self.append(kind, writer, count)
            if number % 3 == 0:
                self.read()
        self.follow()

    def append(self, kind: str, writer: str, number: int) -> None:
        records = [f"{writer}.{number}.{part}" for part in range(self.draw.choice((1, 3)))]
        append = Append(S, writer, number, records, self.now, produced=kind == "p", by=2)
        if kind == "fail":
            append.outcome, append.ended = FAIL, self.now + 0.4
        elif kind != "info":
            self.final += records
            self.ends.append(len(self.final))
            if kind != "info applied":
                append.outcome, append.ended, append.end = OK, self.now + 0.4, len(self.final)
        self.history.appends.append(append)

    def read(self) -> None:
        begin = self.draw.randrange(len(self.final) + 1)
        self.history.reads.append(
            Read(S, 3, self.now + 0.5, self.now + 0.6, begin, self.final[begin:])
        )

    def follow(self) -> None:
        tail = Tail("t", S)
        position = gathered = 0
        while position < len(self.final):
            gathered = min(len(self.ends), gathered + self.draw.randint(1, 5))
            end = self.ends[gathered - 1]
            tail.pieces.append(
                Piece(self.draw.choice((1, 2, 3)), position, self.final[position:end], end)
            )
            position = end
        self.history.tails.append(tail)

    def acknowledged(self) -> list[Append]:
        return [
            append
            for append in self.history.appends
            if append.outcome == OK and not append.produced
        ]

    def check(self) -> list[str]:
        return check(self.history, {S: self.final})


@pytest.mark.parametrize("seed", range(5))
def test_a_true_history_is_believed(seed: int) -> None:
    story = Story(seed)
    assert {append.outcome for append in story.history.appends} == {OK, FAIL, INFO}
    assert story.check() == []


def lost(story: Story) -> None:
    append = story.acknowledged()[50]
    story.final[
        story.final.index(append.records[0]) : story.final.index(append.records[-1]) + 1
    ] = []


def twice(story: Story) -> None:
    story.final += story.acknowledged()[10].records


def swapped(story: Story) -> None:
    """Two that were acknowledged, one after the other."""
    one, other = (append for append in story.acknowledged()[20:22])
    for append in (one, other):
        append.end = None
    first, second = story.final.index(one.records[0]), story.final.index(other.records[0])
    if len(one.records) == len(other.records):
        (
            story.final[first : first + len(one.records)],
            story.final[second : second + len(one.records)],
        ) = other.records, one.records
    else:
        del story.final[first : first + len(one.records)]
        story.final[
            second + len(other.records) - len(one.records) : second
            + len(other.records)
            - len(one.records)
        ] = one.records


def refused_and_there(story: Story) -> None:
    story.final += next(
        append for append in story.history.appends if append.outcome == FAIL
    ).records


def torn(story: Story) -> None:
    append = next(
        each
        for each in story.history.appends
        if len(each.records) == 3 and each.records[0] in story.final
    )
    story.final.remove(append.records[1])


def from_nowhere(story: Story) -> None:
    story.final.append("x.0.0")


def wrong_offset(story: Story) -> None:
    append = story.acknowledged()[5]
    assert append.end is not None
    append.end += 1


def producer_out_of_order(story: Story) -> None:
    mine = [
        append for append in story.history.appends if append.produced and len(append.records) == 1
    ]
    first, second = (story.final.index(append.records[0]) for append in mine[:2])
    story.final[first], story.final[second] = story.final[second], story.final[first]


def producer_gap(story: Story) -> None:
    append = next(
        append for append in story.history.appends if append.produced and append.number == 4
    )
    append.outcome, append.end = INFO, None
    at = story.final.index(append.records[0])
    del story.final[at : at + len(append.records)]


def stale_read(story: Story) -> None:
    """Start a read after an append has ended, and miss that append."""
    read = story.history.reads[-1]
    story.history.reads.append(Read(S, 1, read.began, read.ended, 0, story.final[: read.end - 5]))


def read_goes_back(story: Story) -> None:
    read = story.history.reads[40]
    story.history.reads.append(Read(S, 1, read.ended + 0.01, read.ended + 0.02, read.end - 1, []))


def stale_write(story: Story) -> None:
    """Place an append before data that had been read when it began."""
    append = story.acknowledged()[30]
    append.began = append.ended = story.now + 50


def read_of_the_future(story: Story) -> None:
    story.history.reads.append(Read(S, 1, 0.0, 2.0, 0, story.final[:100]))


def other_content(story: Story) -> None:
    read = next(read for read in story.history.reads if len(read.records) > 3)
    read.records[1], read.records[2] = read.records[2], read.records[1]


def tail_gap(story: Story) -> None:
    story.history.tails[0].pieces[4].records.pop(0)


def tail_twice(story: Story) -> None:
    pieces = story.history.tails[0].pieces
    pieces[5].records.insert(0, pieces[4].records[-1])


def tail_not_resumed(story: Story) -> None:
    del story.history.tails[0].pieces[7]


def tail_ends_early(story: Story) -> None:
    story.history.tails[0].pieces.pop()


def tail_wrong_bookmark(story: Story) -> None:
    piece = story.history.tails[0].pieces[3]
    story.history.tails[0].pieces[3] = Piece(
        piece.node, piece.begin, piece.records, piece.resume_at + 1
    )


def read_of_half(story: Story) -> None:
    """Return a part of an append as the end of the stream; reads before and after are right."""
    append = next(append for append in story.acknowledged() if len(append.records) == 3)
    end = story.final.index(append.records[0]) + 2
    story.history.reads.append(
        Read(S, 1, append.began + 0.1, append.ended - 0.1, end - 2, story.final[end - 2 : end])
    )


def tail_of_half(story: Story) -> None:
    """A piece is handed in two, in the middle of an append."""
    pieces = story.history.tails[0].pieces
    at, end = next(
        (at, end)
        for at, piece in enumerate(pieces)
        for end in range(piece.begin + 1, piece.resume_at)
        if end not in story.ends
    )  # fmt: skip
    piece, cut = pieces[at], end - pieces[at].begin
    pieces[at : at + 1] = [
        Piece(1, piece.begin, piece.records[:cut], end),
        Piece(1, end, piece.records[cut:], piece.resume_at),
    ]


LIES: dict[Callable[[Story], None], str] = {
    lost: "lost",
    twice: "twice",
    swapped: "stale",
    refused_and_there: "refused",
    torn: "torn",
    from_nowhere: "stranger",
    wrong_offset: "offset",
    producer_out_of_order: "order",
    producer_gap: "gap",
    stale_read: "stale",
    read_goes_back: "stale",
    stale_write: "stale",
    read_of_the_future: "future",
    other_content: "read",
    tail_gap: "tail",
    tail_twice: "tail",
    tail_not_resumed: "resume",
    tail_ends_early: "unseen",
    tail_wrong_bookmark: "bookmark",
    read_of_half: "half",
    tail_of_half: "half",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_lie_is_found(lie: Callable[[Story], None], seed: int) -> None:
    story = Story(seed)
    lie(story)
    kinds = {wrong.split(": ")[1] for wrong in story.check()}
    assert LIES[lie] in kinds, kinds


@pytest.mark.parametrize(
    ("found", "kind"),
    [(lambda all_: all_[:-1], "lost"), (lambda all_: all_[1:], "lost"), (lambda all_: [*all_, "x.0.0"], "restored"),
     (lambda all_: [all_[1], all_[0], *all_[2:]], "restored")],
    ids=["without the end", "without the beginning", "with a stranger", "in another order"],
)  # fmt: skip
def test_what_was_restored_is_what_was_there(
    found: Callable[[list[str]], list[str]], kind: str
) -> None:
    final = Story().final
    assert differences(list(final), final) == []
    (wrong,) = differences(found(final), final)
    assert wrong.startswith(f"{kind}: ")


def test_it_is_quick() -> None:
    """A long run ends with its check, so that must not be the longest part of it."""
    story = Story(9, 20_000)
    assert story.check() == []
