"""Checks of this machine: Python and its packages, limits, the clock, Java."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator

from polynya.admin.workers.lake_worker import check_lake
from polynya.base.errors import ConfigError
from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.config.model import Config, cores_default
from polynya.lakehouse.machine.java import find_java_home
from polynya.lakehouse.machine.needs import INSTALL, PACKAGES, READER
from polynya.system.open_files import WANTED, raise_limit, shares

PYTHON_LEAST = (3, 11)
PYTHON_LATEST = (3, 13)  # latest tested version
LEAN = (
    "click",
    "cramjam",
    "cryptography",
    "google-crc32c",
    "httpx",
    "msgspec",
    "obstore",
    "pyjwt",
    "uvloop",
)
LAKE = (*PACKAGES, READER)
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([^;]*)")
_CONDITION = re.compile(r"(>=|<|==)\s*([0-9]+(?:\.[0-9]+)*)")
_TIME_ERROR = 5  # TIME_ERROR of adjtimex(2): the clock is not synchronised


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Check that this Python is supported and tested."""
    said = (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}"
    )
    if version < PYTHON_LEAST:
        return Finding("python", FAIL, said, "Python 3.11 or newer is needed.")
    if version > PYTHON_LATEST:
        return Finding(
            "python",
            WARN,
            said,
            f"Tested with Python 3.11 to {PYTHON_LATEST[0]}.{PYTHON_LATEST[1]}.",
        )
    if platform.python_implementation() != "CPython":
        return Finding("python", WARN, said, "Tested with CPython only.")
    return Finding("python", OK, said)


def check_packages() -> Iterator[Finding]:
    """Check the packages of the server, and those of tables."""
    wanted = _wanted()
    yield _packages("packages", LEAN, wanted, FAIL, "pip install --upgrade . in Polynya's checkout")
    yield _packages("table packages", LAKE, wanted, WARN, f"Tables need these packages: {INSTALL}")


def check_java() -> Finding:
    """Check for Java, if PySpark is installed."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("java", OK, "not checked: PySpark is not installed")
    try:
        return Finding("java", OK, find_java_home())
    except ConfigError as error:
        return Finding("java", WARN, "no Java for Spark", f"{error}.")


def check_worker(config: Config) -> Iterator[Finding]:
    """Check that a node with these settings can start its table worker."""
    if not config.lake.interval:
        return
    try:
        check_lake(config)
    except ConfigError as wrong:
        yield Finding("tables", FAIL, str(wrong), "The server does not start with this setting.")
    else:
        yield Finding(
            "tables",
            OK,
            f"synced every {config.lake.interval:g} s by Spark at {config.lake.master}",
        )


def check_open_files(config: Config) -> Finding:
    """Check how many clients per core the file limit allows; a node raises its soft limit to the
    hard one."""
    limit = raise_limit()
    step = (
        f"Run 'ulimit -Hn {WANTED}' before 'polynya serve', or set LimitNOFILE={WANTED} in its "
        "unit: each connection is an open file."
    )
    try:
        clients = shares(
            limit, cores=config.cores or cores_default(), nodes=len(config.cluster.nodes)
        ).base
    except ConfigError as error:
        return Finding("open files", FAIL, str(error), step)
    said = f"{limit} per core: {clients} clients"
    return (
        Finding("open files", OK, said)
        if clients == CONNECTIONS_PER_CORE_MAX
        else Finding("open files", WARN, said, step)
    )


def check_clock() -> Finding:
    """Check that the kernel reports a synchronised clock; Linux only."""
    if sys.platform != "linux":
        return Finding("clock", OK, "not checked: this system does not report it")
    # struct timex, modes 0: read only
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    if state == _TIME_ERROR:
        step = "Run chrony or systemd-timesyncd: TTLs, expiry and record times follow the clock."
        return Finding("clock", WARN, "not synchronised", step)
    return Finding(
        "clock", OK, "synchronised" if state >= 0 else "not checked: this system does not report it"
    )


def _packages(
    name: str, packages: tuple[str, ...], wanted: dict[str, str], status: str, step: str
) -> Finding:
    found, wrong = [], []
    for package in packages:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{package} is not installed")
            continue
        found.append(f"{package} {version}")
        if not satisfies(version, wanted.get(package, "")):
            wrong.append(f"{package} {version} does not satisfy {wanted[package]}")
    return (
        Finding(name, status, "; ".join(wrong), step)
        if wrong
        else Finding(name, OK, ", ".join(found))
    )


def satisfies(version: str, conditions: str) -> bool:
    """Return True if a version meets conditions such as `>=2.2,<3` or `==1.6.*`; unknown conditions
    are ignored."""
    for condition in conditions.split(","):
        match = _CONDITION.match(condition.strip())
        if match is None:
            continue
        bound = _parts(match[2])
        have = _parts(version)
        if (
            (match[1] == ">=" and have < bound)
            or (match[1] == "<" and have >= bound)
            or (match[1] == "==" and have[: len(bound)] != bound)
        ):
            return False
    return True


def _wanted() -> dict[str, str]:
    """Return package -> conditions from this distribution's metadata; empty when run from
    source."""
    try:
        lines = importlib.metadata.requires("polynya") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {match[1]: match[2].strip() for line in lines if (match := _REQUIREMENT.match(line))}


def _parts(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
