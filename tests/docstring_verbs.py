"""Find docstrings of functions whose first sentence has no verb.

A sentence has one if a word of it is a form of a verb of `VERBS`, or an auxiliary. `PYTHONPATH=tests
python -m docstring_verbs FOLDER …` lists those without."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

AUXILIARIES = frozenset(
    "am is are was were be been being has have had do does did can cannot could may might must "
    "shall should will would let lets".split()
)
VERBS = frozenset(
    """
abandon abort accept account acknowledge acquire add adjust admit adopt advance agree alias allocate
allot allow announce answer append apply arrive ask assemble assert assign attach authorize avoid
await balance become begin believe belong bind blame break bring broadcast build bump call cancel
carry cast catch cause change charge check choose claim classify clean clear close collect combine
come commit compact compare compile complete compress compute confirm connect consist construct
consume contain continue convert copy corrupt cost count cover crash create cut damage deal decide
declare decode decompress decrypt define delay delete deliver depend derive describe detach detect
die differ discard disconnect dispatch distribute divide do draw drive drop duplicate emit empty
encode encrypt end enforce ensure enter escape estimate evaluate evict examine exceed exclude
execute exercise exist exit expand expect expire explain export extend extract fail fake feed fence
fetch fill filter find finish fit fix flip flush fold follow forbid force forget forward free fsync
generate get give go grant grow guard guess handle hand happen hash heal hide hit hold ignore import
include increment index inject insert inspect install invalidate invoke issue iterate join judge
jump keep kill know label land last lead leak learn leave lie limit link list listen live load lock
log look lose make manage map mark match mean measure meet merge mint miss mock modify mount move
name need normalize note notify number observe obtain occur offer omit open operate order own pack
parse pass patch pause perform permit persist pick pin place plan plant play poll pop predict prefix
prepare prescribe present preserve press pretend prevent print probe proceed process produce promise
promote propose protect prove provide publish pull push put query queue race quit raise ramp random
reach react read rebuild recall receive recognize reconnect record recover redirect reduce refer
refresh refuse register reject relay release rely reload remain remember remove rename render repeat
replace replay reply report represent request require reread rerun reserve reset resolve respond
rest restart restore restrict resume retry return reuse reveal revoke rewrite round route run sample
satisfy save say scan schedule scrape seal search see seed seek select send separate serialize serve
set settle shape share show shrink shuffle shut sign simulate skip sleep snapshot sort spawn specify
speak spell split spread spy stage stall stamp stand start state stay stop store stream stretch
submit subscribe succeed suit sum supply support suppose swap sweep switch sync tail take tear tell
test think throw time touch trace track train transact transfer transform translate travel treat
trigger trim trip truncate trust try turn undo unfold understand unlink unpack unwrap update upgrade
use validate vary verify visit vote wait wake walk want warn watch weigh widen win work wrap write
yield
""".split()
)
IRREGULAR = frozenset(
    "began begun broke broken brought built came caught chose chosen cost cut done drawn drew fell felt "
    "found gave given goes gone got grew grown heard held hid hidden kept knew known laid lay led left "
    "lost made meant met paid put ran read said sat saw seen sent set shown slept spent spoken spoke "
    "stood stuck taken taught thrown told took torn tore understood went woke won written wrote".split()
)
SENTENCE = re.compile(r"(?<=[.:!?])\s|\n\s*\n")
WORD = re.compile(r"[a-z]+")


class Docstring(NamedTuple):
    """A docstring of a function, and where it is."""

    file: Path
    line: int
    function: str
    text: str


def docstrings(folder: Path) -> Iterator[Docstring]:
    """Yield the docstrings of all functions below a folder."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                text := ast.get_docstring(node)
            ):
                yield Docstring(file, node.lineno, node.name, text)


def has_verb(text: str) -> bool:
    """Report whether the first sentence has a verb."""
    sentence = SENTENCE.split(text.strip(), maxsplit=1)[0]
    return any(is_verb(word) for word in WORD.findall(sentence.lower()))


def is_verb(word: str) -> bool:
    return word in AUXILIARIES or word in IRREGULAR or any(base in VERBS for base in bases(word))


def bases(word: str) -> Iterator[str]:
    """Yield what a word may be a form of: `tries` of `try`, `makes` of `make`, `stopped` of `stop`."""
    yield word
    for ending in ("s", "es", "ed", "d"):
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            yield stem
            if ending in ("es", "ed") and stem.endswith("i"):
                yield stem[:-1] + "y"
            if ending == "ed" and len(stem) > 2 and stem[-1] == stem[-2]:
                yield stem[:-1]


def main() -> None:
    for folder in sys.argv[1:]:
        found = list(docstrings(Path(folder)))
        without = [each for each in found if not has_verb(each.text)]
        for each in without:
            print(f"{each.file}:{each.line}: {each.function}: {each.text.splitlines()[0]}")
        print(f"{folder}: {len(without)} of {len(found)} functions' docstrings have no verb")


if __name__ == "__main__":
    main()
