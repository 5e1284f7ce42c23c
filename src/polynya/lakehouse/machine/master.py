"""Check a Spark master and its settings before a session starts: Spark itself tries for a minute
and answers with a stack trace."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from polynya.base.errors import ConfigError, Unavailable

MASTER_SECONDS = 3.0  # to connect to a master
REPOSITORY_SECONDS = 2.0  # one request to a Maven repository
REPOSITORIES = ("https://repo1.maven.org/maven2/", "https://repos.spark-packages.org/")
FILES = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
_MASTERS = (
    "local[N] (this machine), spark://HOST:PORT[,HOST:PORT], yarn, or k8s://https://HOST:PORT"
)
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)
_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_IMAGE = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
_API_PORT = 443  # of a Kubernetes API server


def is_local(master: str) -> bool:
    """Report whether the tasks run in the driver's own processes."""
    return _LOCAL.fullmatch(master) is not None


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the Spark settings of `KEY=VALUE` pairs. Raises ConfigError."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise ConfigError(
                f"'{pair}' is no Spark setting; expected KEY=VALUE with a key that begins with "
                "'spark.', for example spark.executor.memory=2g"
            )
        found[key] = value
    return found


def check_master(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> None:
    """Check that the master can be reached, and that the files and packages of the settings exist.
    Raises ConfigError, Unavailable."""
    known = {**default_settings(environment), **settings}
    _check_reached(master, master_addresses(master, known, environment))
    _check_files(known)
    if not known.get("spark.jars.ivySettings"):  # these may name any repositories
        _check_packages(known, environment)


def master_addresses(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> list[tuple[str, int]]:
    """Return the hosts and ports of which one must answer; none for this machine and for YARN,
    which Hadoop's configuration describes. Raises ConfigError if the master cannot be used."""
    if is_local(master):
        return []
    if master.startswith("spark://"):
        return [_address(master, each) for each in master.removeprefix("spark://").split(",")]
    if master.startswith("k8s://"):
        return [_api_server(master, settings)]
    if master != "yarn":
        raise ConfigError(f"'{master}' is no Spark master; expected {_MASTERS}")
    _check_yarn(environment)
    return []


def default_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of `spark-defaults.conf`, which Spark reads itself."""
    folder = environment.get("SPARK_CONF_DIR") or os.path.join(_spark_home(environment), "conf")
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (re.split(r"\s*[=\s]\s*", line.strip(), maxsplit=1) for line in lines)
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1 and pair[0].startswith("spark.")}


def _spark_home(environment: Mapping[str, str]) -> str:
    found = find_spec("pyspark")
    home = os.path.dirname(found.origin) if found is not None and found.origin else ""
    return environment.get("SPARK_HOME") or home


def _address(master: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigError(f"'{master}' names no host and port; expected spark://HOST:PORT")
    return host.strip("[]"), int(port)


def _check_reached(master: str, addresses: Sequence[tuple[str, int]]) -> None:
    faults = []
    for host, port in addresses:
        fault = _connect_fault(host, port)
        if not fault:
            return
        faults.append(f"{host}:{port}: {fault}")
    if faults:
        what = "Kubernetes API server" if master.startswith("k8s://") else "Spark master"
        raise Unavailable(f"no {what} answers at {'; '.join(faults)}")


def _check_yarn(environment: Mapping[str, str]) -> None:
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    folders = [environment[name] for name in names if environment.get(name)]
    if not folders:
        raise ConfigError(
            "the master 'yarn' is described by Hadoop's configuration: set HADOOP_CONF_DIR to its "
            "folder"
        )
    if not any(os.path.isdir(folder) for folder in folders):
        raise ConfigError(f"HADOOP_CONF_DIR: there is no folder {folders[0]}")


def _api_server(master: str, settings: Mapping[str, str]) -> tuple[str, int]:
    address = master.removeprefix("k8s://")
    url = urlsplit(address if "://" in address else f"https://{address}")
    if not url.hostname:
        raise ConfigError(f"'{master}' names no API server; expected k8s://https://HOST:PORT")
    if not any(settings.get(name) for name in _IMAGE):
        raise ConfigError(
            f"executors on Kubernetes need an image: pass --conf {_IMAGE[0]}=IMAGE; it must have "
            "Spark, Python and the packages of polynya[lake]"
        )
    return url.hostname, url.port or _API_PORT


def _connect_fault(host: str, port: int) -> str:
    """Return why there is no TCP connection, or ""."""
    try:
        socket.create_connection((host, port), MASTER_SECONDS).close()
    except TimeoutError:
        return f"no connection within {MASTER_SECONDS:.0f} s"
    except OSError as fault:
        return fault.strerror or str(fault)
    return ""


def _check_files(settings: Mapping[str, str]) -> None:
    for setting in FILES:
        for item in filter(None, settings.get(setting, "").split(",")):
            url = urlsplit(item.strip().partition("#")[0])
            on_this_machine = url.scheme in ("", "file") and not set("*?[{") & set(url.path)
            if on_this_machine and not os.path.exists(url.path):
                raise ConfigError(f"{setting}: there is no file {url.path}")


def _check_packages(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Check that each package is in a local repository, or in one that Spark will ask."""
    packages = [each.strip() for each in settings.get("spark.jars.packages", "").split(",")]
    repositories = [each.strip() for each in settings.get("spark.jars.repositories", "").split(",")]
    mirror = environment.get("DEFAULT_ARTIFACT_REPOSITORY")
    repositories += [mirror] if mirror else REPOSITORIES
    wanted = []
    for package in filter(None, packages):
        if not _COORDINATE.fullmatch(package):
            raise ConfigError(
                f"spark.jars.packages: '{package}' is no package; expected GROUP:NAME:VERSION"
            )
        if not _is_here(package, settings, environment):
            wanted.append(package)
    if not wanted:
        return
    asked = list(filter(None, repositories))
    with ThreadPoolExecutor(len(wanted)) as pool:
        found = pool.map(lambda package: _missing(package, asked), wanted)
        if faults := list(filter(None, found)):
            raise ConfigError(f"spark.jars.packages: {'; '.join(faults)}")


def _is_here(package: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Report whether an earlier run, or Maven, stored the package on this machine."""
    group, name, version = package.split(":")
    home = Path(environment.get("HOME") or Path.home())
    ivy = [Path(settings.get("spark.jars.ivy") or home / each) for each in (".ivy2.5.2", ".ivy2")]
    maven = home / ".m2" / "repository" / group.replace(".", "/") / name / version
    addresses = [folder / "jars" / f"{group}_{name}-{version}.jar" for folder in ivy]
    addresses += [folder / "local" / group / name / version for folder in ivy]
    return any(address.exists() for address in (*addresses, maven / f"{name}-{version}.jar"))


def _missing(package: str, repositories: Sequence[str]) -> str:
    """Return why no repository has a package, or ""."""
    import httpx

    group, name, version = package.split(":")
    path = f"{group.replace('.', '/')}/{name}/{version}/{name}-{version}.pom"
    faults = []
    for repository in repositories:
        try:
            answer = httpx.head(
                f"{repository.rstrip('/')}/{path}",
                timeout=REPOSITORY_SECONDS,
                follow_redirects=True,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            faults.append(f"{repository}: {fault or type(fault).__name__}")
            continue
        if answer.is_success:
            return ""
        faults.append(f"{repository} answered {answer.status_code}")
    return f"'{package}' was not found ({', '.join(faults)})"
