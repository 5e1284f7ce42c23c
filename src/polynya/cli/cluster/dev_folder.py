"""The folder of `polynya cluster dev`: reads the files of its cluster and nodes, and tolerates
empty or torn ones of an earlier release."""

from __future__ import annotations

import secrets
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from polynya.cli.storage.s3_server import S3Location
from polynya.cli.terminal import exits, output
from polynya.config.cluster_settings import parse_cluster_id
from polynya.config.node_identity import FILE as BIRTH
from polynya.config.node_identity import REMOVED, NodeIdentity
from polynya.files import write_whole

ID = "cluster.id"
LAID = "cluster.json"
SETTINGS_FILE = "polynya.toml"


class Laid(msgspec.Struct):
    """The start options of a folder's nodes; an added node takes them over."""

    cores: int
    flags: list[str]
    replicas: int
    objects: bool  # the nodes share the folder `objects`
    s3: S3Location | None = None  # … or the S3 server of the folder `s3`
    environment: dict[str, str] = {}  # the variables that the nodes need


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the folder's nodes, except those removed from the cluster.

    Before any node has data, complete an interrupted start: use the nodes that any readable
    settings file names."""
    there = {int(path.name[5:]) for path in folder.glob("node-*") if path.name[5:].isdigit()}
    removed = {number for number in there if (folder / f"node-{number}" / REMOVED).exists()}
    found = {
        number: settings
        for number in there
        if (settings := settings_of(folder / f"node-{number}")) is not None
    }
    born = {number for number in there if identity_of(folder / f"node-{number}") is not None}
    named = (
        set()
        if born
        else {
            int(node["id"]) for settings in found.values() for node in settings["cluster"]["nodes"]
        }
    )
    return sorted((born | set(found) | named) - removed)


def settings_of(node: Path) -> dict[str, Any] | None:
    """Return a node's settings, or None if the file is missing, empty or torn."""
    try:
        settings = tomllib.loads((node / SETTINGS_FILE).read_text())
        return (
            settings
            if settings["listen"] and settings["cluster"]["node"] and settings["cluster"]["nodes"]
            else None
        )
    except (OSError, KeyError, TypeError, ValueError):
        return None


def identity_of(node: Path) -> NodeIdentity | None:
    """Return the identity of a node's data, or None if it is missing or unreadable."""
    try:
        return msgspec.json.decode((node / BIRTH).read_bytes(), type=NodeIdentity)
    except (OSError, ValueError):
        return None


def joins(node: Path) -> bool:
    """Return True if the node joined an existing cluster, according to its settings or else its
    data."""
    settings = settings_of(node)
    if settings is not None:
        return bool(settings["cluster"].get("join", False))
    identity = identity_of(node)
    return (
        identity is not None
        and identity.node > 0
        and not identity.nodes
        and identity.node not in _first_readers(node.parent)
    )


def reads(node: Path) -> bool:
    """Return True for a read replica, according to its settings, else those of other nodes, else
    the data of the first nodes."""
    for folder in (node, *sorted(node.parent.glob("node-*"))):
        settings = settings_of(folder)
        for entry in settings["cluster"]["nodes"] if settings is not None else ():
            if f"node-{entry.get('id')}" == node.name:
                return bool(entry.get("role") == "reader")
    return node.name in {f"node-{number}" for number in _first_readers(node.parent)}


def _first_readers(folder: Path) -> set[int]:
    """Return the numbers of the read replicas that the cluster started with."""
    identities = [identity_of(node) for node in folder.glob("node-*")]
    return {
        number for identity in identities if identity is not None for number in identity.readers
    }


def cluster_id(folder: Path) -> str:
    """Return the cluster's id from its file, else from the nodes' data, else a new one. Raises
    `exits.Refused`."""
    path = folder / ID
    try:
        return str(parse_cluster_id(path.read_text(errors="replace").strip()))
    except FileNotFoundError:
        what = "is missing"
    except ValueError:
        what = "is empty or damaged"
    with_data = sorted(each.parent for each in folder.glob(f"node-*/{BIRTH}"))
    known = {
        identity.cluster_id for node in with_data if (identity := identity_of(node)) is not None
    }
    if len(known) > 1 or (with_data and not known):
        why = (
            "belongs to different clusters"
            if known
            else f"does not contain it either ({BIRTH} is unreadable)"
        )
        raise exits.Refused(
            f"{path} {what}, and the data of the nodes {why}. Nothing was changed",
            hint=(
                f"Restore the cluster's id in {path} from a copy. A new id would not match the "
                "data."
            ),
        )
    found = known.pop() if known else secrets.token_hex(16)
    write_whole(path, f"{found}\n".encode())
    if with_data:
        output.notice(
            f"{path} {what}, as after a power cut: rewritten with the id in the nodes' data, "
            f"{found}"
        )
    return found


def read_laid(folder: Path) -> Laid:
    """Return the start options of the nodes. Raises `exits.Refused` if the file is empty or
    torn."""
    path = folder / LAID
    try:
        return msgspec.json.decode(path.read_bytes(), type=Laid)
    except ValueError:
        raise exits.Refused(
            f"{path} is empty or damaged, as after a power cut",
            hint=(
                "Stop the cluster with Ctrl-C and start it again with 'polynya cluster dev "
                f"--data {folder}': this rewrites the file."
            ),
        ) from None
