"""The part of the language rules that a program can check: docstrings, comments, pages, renamed
words, commit subjects."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import docstring_verbs
import pytest
from missing import left_out
from parsed import nodes_of

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TREES = ("src", "tests", "chaos", "bench", "scripts")
NO_BEGINNING = {
    "What",
    "Whether",
    "Of",
    "Who",
    "Whoever",
    "As",
    "For",
    "It",
    "Where",
    "How",
    "Those",
    "That",
}
# with these a docstring begins as a fragment: neither a verb nor the name of a thing
NO_FIRST_WORD = set(
    "Also And At Because Before Behind Between But By Else From In Into Its Never Not On Once Or "
    "Over Since So Then There They Through To Until When Which While Whose Why With Without".split()
)
AVOIDED = re.compile(
    r"\b(anew|by itself|for ever|so long as|nobody|mended|whoever)\b", re.IGNORECASE
)
# of design notes that are not in this repository
MARKS = re.compile(r"\((?:[FR]\d+)(?:, ?[FR]?\d+)*\)")
SENTENCE_WORDS_MAX = 30  # 20 is the aim
WITHOUT_VERB_MAX = 0.02  # share of the docstrings of functions
PLAIN_PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in (
        "access", "backup", "benchmarks", "cli", "client", "clients-rust", "clients-typescript", "cluster", "cluster-howto", "concepts", "configuration", "console", "cost",
        "diskless", "durability", "embedded", "errors", "glossary", "kafka", "limits", "metrics", "migration", "operations", "protocol",
        "quickstarts", "reliability", "runbooks", "scale", "spark", "spark-cluster", "subscriptions", "tables", "walrus",
    )),
    *(ROOT / "docs" / "decisions").glob("*.md"),
    *(ROOT / "docs" / "formats" / f"{name}.md" for name in (
        "README", "backup", "commands", "embedded", "group-state", "journal", "packs", "pages", "raft", "snapshots", "tables",
    )),
    *(ROOT / "docs" / "design").glob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]  # fmt: skip
RENAMED = (
    "OTHER_LIFE", "OVER_HOT_BOUND", "HOT_LIMIT", "HOT_FULL", "BODY_BUDGET", "ANSWER_BUDGET", "CLUSTER_UNREADY", "QUESTIONS_BUSY", "BAD_QUESTION",
    "QUESTION_TOO_LARGE",
    "JOB_TAKEN", "JOB_LOST", "FORBIDDEN_HOST", "polynya_sql_questions_total", "polynya_recall_copies_total", "polynya_nodes_away",
    "leads_follow_writers",
)  # fmt: skip
# what names in the code were before -> now; the rooms and other trees where an old one is
# forbidden, all when none is named
IDENTIFIERS = {
    "_doubts": "_validator",
    "_farewell": "_shutdown_barrier",
    "_fitness": "_readiness",
    "_older": "_stale_copy_guard",
    "_copier": "_state_copy_worker",
    "chunk_patience_ms": "timeout_ms",
    "compass": "router",
    "forgetful": "amnesiac",
    "farewell": "closing_request",
    "shelf": "repository",
    "birth": "identity",
    "births": "connection_count",
    "_Again": "_Retry",
    "_ghost": "_evicted_view",
    "_heir": "_successor",
    "ghost_of": "evicted_view",
    "heir": "successor",
    "make_small": "compact_dicts",
    "patient_ms": "election_holdoff_until_ms",
    "recollection": "peer_positions",
    "refuse_older": "refuse_stale_copy",
    "unborn": "group_is_new",
    "unmet": "undiscovered",
    "settler": "outbox_sender",
    "_settler": "_outbox_sender",
    "recalls": "rehydration",
    "_recalls": "_rehydration",
    "_residence": "_replica_lifecycle",
    "whereabouts": "group_locations",
    "_whereabouts": "_group_locations",
    "entrance": "authorizer",
    "_entrance": "_authorizer",
    "assurance": "tail_confirmation",
    "assure": "confirm",
    "ListQuestion": "ListRequest",
    "OtherWay": "DisklessAppends",
    "Slab": "Split",
    "slab": "split",
    "slabs": "splits",
    "Crew": "lakehouse: TablePool",
    "Give": "client: Deliver",
    "Heard": "EffectResult",
    "HomeLate": "OwnerGroupLate",
    "News": "subscriptions: TailUpdates",
    "Talk": "Operation",
    "Trouble": "Backoff",
    "_door": "transport: _listener",
    "_doors": "node: _listeners",
    "_news": "subscriptions: _pending_updates",
    "_patience": "engine: _commit_timeouts",
    "_placing": "node cluster: _reconciler",
    "_pulse": "transport: _keepalive",
    "asleep": "raft: quiescent",
    "_greet": "transport: _handshake",
    "greet": "transport: record_accepted",
    "guest": "transport: connection",
    "heard": "client: effect_result",
    "holds": "stream: replica_count",
    "home": "admin backup cold diskless service stream subscriptions: owner_group, owner",
    "homes": "admin backup cold diskless service stream subscriptions: owner_groups, owned",
    "house": "transport: connections",
    "is_there": "transport: is_up",
    "leads": "engine replica stream: is_leader, leading",
    "let_go": "stream replica engine transport cold: release, detach_socket",
    "life": "transport: incarnation",
    "recalled": "raft: queried",
    "residence": "cluster: lifecycle",
    "sleeping": "raft: quiescent",
    "steering": "cluster node: reconfiguration",
    "strangers": "raft transport: unknown_leaders, missing_cores",
    "unheard": "raft: awaiting_term",
    "wish": "proposed_columns",
    "wished": "proposed",
    "wishes": "proposals",
}
# `place` was a core, a position, an address, a location, a partition …
ROOMS = " ".join(
    [
        *sorted(path.name for path in (ROOT / "src" / "polynya").iterdir()),
        *("tests", "chaos", "bench", "scripts"),
    ]
)
IDENTIFIERS |= {
    "place": f"{ROOMS}: position, location, address, core_id, partition",
    "places": f"{ROOMS}: positions, locations, addresses, core_ids, partitions",
    "Place": f"{ROOMS}: Offset, Location, TopicPartition",
    "by_place": f"{ROOMS}: by_core",
    "place_of": f"{ROOMS}: position_of",
    "places_of": f"{ROOMS}: positions_of",
    "told": f"{ROOMS}: body, status, reported, described, listed",
    "told_ms": "reported_ms",
    "told_failure": "failure_text",
    "told_outcome": "outcome_text",
    "told_range": "range_text",
    "all_told": "all_notified",
    "tell_of_fetch": "add_leaders_to_fetch",
    "tell_of_produce": "add_leaders_to_produce",
    "text_place": "text_address",
    "listen_place": "listen_address",
    "peer_place": "peer_address",
    "parse_place": "parse_address",
    "S3Place": "S3Location",
    "StreamPlace": "StreamPosition",
    "SourcePlace": "SourcePosition",
    "ManyPlaces": "ReaderOffsets",
    "DropPlaces": "DropPartitionOffsets",
    "ResetPlace": "ResetTarget",
}
LISTS_RENAMED = ROOT / "docs" / "migration.md"  # the table of what was renamed
FOR_PEOPLE = [
    *(ROOT / "src/polynya/cli").rglob("*.py"),
    *(ROOT / "src/polynya/client").rglob("*.py"),
]
CONSOLE = sorted((ROOT / "src/polynya/console/static").glob("*.js"))
CONSOLE_PAGE = ROOT / "src/polynya/console/static/index.html"
# in messages, help and texts of the console
ODD = re.compile(
    r"\b(there already|looked at|not looked|goes? on|going on|says? why|(is|all|not) well|is "
    r"none|is told|any more|makes one|mend"
    r"|for so long|so many|take back|br(ing|ought) back|by itself|leads "
    r"and|forgets?|forgot(ten)?|has been told"
    r"|name (another|one|it)|give (one|both|another|exactly|it)|a question)\b",
    re.IGNORECASE,
)
SUBJECT_MAX = 72
SUBJECTS_SINCE = "23d6f08"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring of a module."""
    for node in nodes_of(path.read_text()):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def sentences(text: str) -> Iterator[str]:
    """Sentences of a docstring, without the blocks that click prints as they are (after a line with \\b) and without indented code."""
    prose = re.sub(r"^\x08\n(?:.+\n?)*", "", text, flags=re.MULTILINE)
    prose = re.sub(r"^ {4,}.*$", "", prose, flags=re.MULTILINE)
    yield from re.split(r"(?<=[.!?:;])\s+|\n\n|\n\s*[*-] ", prose)


def faults(text: str) -> Iterator[str]:
    """List the faults of a docstring or a message."""
    if text.split(maxsplit=1)[0].strip("`,:") in NO_BEGINNING:
        yield f"begins with {text.split(maxsplit=1)[0]!r}"
    if found := AVOIDED.search(text):
        yield f"says {found[0]!r}"
    if found := MARKS.search(text):
        yield f"cites {found[0]}, which is not in the repository"
    for sentence in sentences(text):
        if len(sentence.split()) > SENTENCE_WORDS_MAX:
            yield f"has a sentence of {len(sentence.split())} words: {sentence[:60]!r}"


def docstring_faults(text: str) -> Iterator[str]:
    """List the faults of a docstring, fragments included."""
    yield from faults(text)
    if (first := text.split(maxsplit=1)[0].strip("`,:;.")) in NO_FIRST_WORD:
        yield f"begins as a fragment, with {first!r}"


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each message of a module: strings of three words that are no
    docstrings, with X for each placeholder."""
    nodes = nodes_of(path.read_text())
    left = {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in nodes:
        if isinstance(node, ast.Expr):
            left.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in left and re.search(r"[A-Za-z]{2,} [a-z]+ [a-z]+", text):
            yield node.lineno, text


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what a script of the console shows: strings and templates of two
    words."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        for found in re.finditer(
            r'"((?:[^"\\]|\\.)*)"|`((?:[^`\\]|\\.)*)`', re.sub(r"(?<!:)//.*|^\s*/?\*.*", "", line)
        ):
            text = re.sub(r"\$\{[^}]*\}", "X", found[1] or found[2] or "")
            if re.search(r"[A-Za-z]{2,} [a-z]+", text):
                yield number, text


def message_faults(text: str) -> Iterator[str]:
    """List the faults of a message, a help text or a text of the console."""
    yield from faults(text)
    if found := ODD.search(text):
        yield f"says {found[0]!r}"


@pytest.mark.parametrize("tree", TREES)
def test_docstrings_are_plain_sentences(tree: str) -> None:
    found = [
        (path, line, text)
        for path in sorted((ROOT / tree).rglob("*.py"))
        for line, text in docstrings(path)
    ]
    assert len(found) > 20
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path, line, text in found
        for fault in docstring_faults(text)
    ]


@pytest.mark.parametrize("tree", ["src", "tests", "chaos", "bench"])
def test_nearly_all_docstrings_of_functions_have_a_verb(tree: str) -> None:
    found = list(docstring_verbs.docstrings(ROOT / tree))
    without = [each for each in found if not docstring_verbs.has_verb(each.text)]
    assert len(without) <= len(found) * WITHOUT_VERB_MAX, "\n".join(map(str, without))


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("The newest segment.", False),
        ("Return the newest segment.", True),
        ("It tries again: none.", True),
        ("Two batches of one producer. It is read whole.", False),
        ("Stopped where the log ends.", True),
    ],
)
def test_a_sentence_without_a_verb_is_found(text: str, has: bool) -> None:
    assert docstring_verbs.has_verb(text) == has


def test_comments_avoid_the_same_words() -> None:
    def says(text: str) -> bool:
        return bool(AVOIDED.search(text) or MARKS.search(text))

    texts = {path: path.read_text() for tree in TREES for path in (ROOT / tree).rglob("*.py")}
    found = [
        (path, line, text)
        for path, whole in texts.items()
        if says(whole)
        for line, text in comments(whole)
        if says(text)
    ]
    assert not [f"{path.relative_to(ROOT)}:{line}: {text}" for path, line, text in found]


@pytest.mark.parametrize("room", ["cli", "client"])
def test_messages_and_help_are_plain_sentences(room: str) -> None:
    files = [path for path in FOR_PEOPLE if path.is_relative_to(ROOT / "src/polynya" / room)]
    found = [(path, line, text) for path in files for line, text in messages(path)]
    assert len(found) > 50
    assert not [
        f"{path.name}:{line}: {fault}: {text}"
        for path, line, text in found
        for fault in message_faults(text)
    ]


def test_the_help_of_commands_is_plain() -> None:
    found = [
        (path, node.lineno, text)
        for path in FOR_PEOPLE
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith("_command")
        and (text := ast.get_docstring(node))
    ]
    assert len(found) > 50
    assert not [
        f"{path.name}:{line}: {fault}"
        for path, line, text in found
        for fault in message_faults(text)
    ]


def test_texts_of_the_console_are_plain() -> None:
    found = [(path, line, text) for path in CONSOLE for line, text in texts(path)]
    page = re.sub(r"<[^>]*>", "\n", CONSOLE_PAGE.read_text("utf-8"))
    found += [(CONSOLE_PAGE, 0, line.strip()) for line in page.splitlines() if line.strip()]
    assert len(found) > 100
    assert not [
        f"{path.name}:{line}: {fault}: {text}"
        for path, line, text in found
        for fault in message_faults(text)
    ]


@pytest.mark.parametrize("page", PLAIN_PAGES, ids=lambda page: page.name)
def test_a_page_avoids_the_same_words(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert not AVOIDED.findall(text)


def test_renamed_words_are_gone() -> None:
    folders = ("src", "docs", "packaging", "scripts", "chaos", "bench")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".js", ".html", ".yaml", ".1", ".toml"}
    ]
    old = re.compile(r"(?<![A-Za-z0-9_])(?:" + "|".join(RENAMED) + r")(?![A-Za-z0-9_])")
    assert len(files) > 300
    assert not [
        f"{path.relative_to(ROOT)}: {old.findall(path.read_text('utf-8'))}"
        for path in files
        if path != LISTS_RENAMED and old.search(path.read_text("utf-8"))
    ]


def identifiers(text: str) -> set[str]:
    """Return the names that a source defines or uses: variables, attributes, parameters, functions,
    classes. The keyword of a call is a name of what is called."""
    found = set()
    for node in nodes_of(text):
        if isinstance(node, ast.keyword):
            continue
        found |= {
            getattr(node, field)
            for field in ("id", "attr", "arg", "name")
            if isinstance(getattr(node, field, None), str)
        }
    return found


def renamed_identifiers(room: str, text: str) -> set[str]:
    """Return the old names of a source in this room of the product, or in this other tree."""
    forbidden = set()
    for old, new in IDENTIFIERS.items():
        rooms, _, _ = new.rpartition(":")
        if not rooms or room in rooms.split():
            forbidden.add(old)
    return identifiers(text) & forbidden


def test_renamed_identifiers_are_gone() -> None:
    source = ROOT / "src" / "polynya"
    rooms = {
        path: path.relative_to(source if path.is_relative_to(source) else ROOT).parts[0]
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
    }
    assert len(rooms) > len(SOURCES) > 300
    found = {
        str(path.relative_to(ROOT)): renamed_identifiers(room, path.read_text())
        for path, room in rooms.items()
    }
    assert not {path: names for path, names in found.items() if names}


def test_an_old_identifier_is_found_in_its_rooms_only() -> None:
    text = "def look(guest): return guest.forgetful(place=1)"
    assert renamed_identifiers("transport", text) == {"guest", "forgetful"}
    assert renamed_identifiers("raft", text) == {"forgetful"}


@pytest.mark.process
def test_subjects_of_commits_are_short() -> None:
    command = [
        "git",
        "-C",
        str(ROOT),
        "log",
        "--no-merges",
        "--format=%s",
        f"{SUBJECTS_SINCE}..HEAD",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        left_out(f"no history of commits here: {done.stderr.strip()}")
    assert not [
        subject
        for subject in done.stdout.splitlines()
        if len(subject) > SUBJECT_MAX or subject.endswith(".")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "What a node is.",
        "Ask anew.",
        "Return the level (F12).",
        "Return " + "one more " * 20 + "word.",
        "Of one core.",
    ],
)
def test_the_rules_can_fail(text: str) -> None:
    assert list(faults(text))


@pytest.mark.parametrize("text", ["Until nothing is in flight.", "In milliseconds.", "Its URL."])
def test_a_docstring_is_no_fragment(text: str) -> None:
    assert list(docstring_faults(text)) and not list(faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "Where clients find it.",
        "Name another: give one of them.",
        "the cluster is not well",
        "with --wait: for so long",
        "goes on by itself",
    ],
)
def test_the_rules_of_messages_can_fail(text: str) -> None:
    assert list(message_faults(text))


def test_messages_and_texts_are_found(tmp_path: Path) -> None:
    module = tmp_path / "a.py"
    module.write_text(
        '"""Not this text at all."""\nraise Wrong(f"the node {number} is not well", '
        'code="A_CODE")\n'
    )
    assert list(messages(module)) == [(2, "the node X is not well")]
    script = tmp_path / "a.js"
    script.write_text(
        '// "not this text"\nput(note, `There are ${many} left`, "button", "Trying again");\n'
    )
    assert list(texts(script)) == [(2, "There are X left"), (2, "Trying again")]


def test_click_blocks_and_plain_docstrings_pass() -> None:
    assert not list(
        faults("Return the tail.\n\n\b\npolynya read " + "word " * 40 + "\n\nRaises Unavailable.")
    )
