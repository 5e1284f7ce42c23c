"""Remove other users' rights on files that earlier releases wrote: once for each folder, while the
node runs.

New files are private by the umask. Each start closes the data folder itself first. Its contents,
and those of an object folder elsewhere, follow in a thread, as there may be millions of files.
`DATA/private.json` lists the finished folders.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

from polynya.config.model import Config
from polynya.config.node_identity import PRIVATE
from polynya.files import tighten, write_whole
from polynya.objectstore import MARKER_KEY

NAMED_MAX = 3  # paths in a warning
log = logging.getLogger("polynya.supervisor")


def begin_tightening(config: Config, cluster_id: str) -> None:
    """Close the data folder and start a thread for its contents unless that is done. A refusal, as
    on some mounts, is a warning."""
    _warn(tighten([Path(config.data)], deep=False))
    threading.Thread(
        target=tighten_once, args=(config, cluster_id), name="rights", daemon=True
    ).start()


def tighten_once(config: Config, cluster_id: str) -> None:
    """Remove other users' rights in the unfinished folders and record them. A refusal is not
    retried."""
    data = Path(config.data)
    folders = [data]
    try:
        if config.has_own_objects and not config.cold.shared:
            folders.append(config.objects_path.resolve())
        for folder in folders:
            if str(folder) in _done(data) or not folder.is_dir():
                continue  # missing store: the next start retries
            _warn(tighten([folder] if folder == data else _own(folder, cluster_id)))
            write_whole(data / PRIVATE, msgspec.json.encode(sorted({*_done(data), str(folder)})))
    except OSError as error:
        log.warning(
            "cannot check the rights on older files; the next start retries",
            extra={"error": str(error)},
        )


def _own(root: Path, cluster_id: str) -> list[Path]:
    """Return the root of the objects, or only this product's entries if it holds others."""
    names = {MARKER_KEY, ".lock", ".tmp", "self-test", "tables", cluster_id}
    found = list(root.iterdir())
    own = [path for path in found if path.name in names]
    return [root] if all(path in own or path.name == "lost+found" for path in found) else own


def _done(data: Path) -> list[str]:
    """Return the finished folders, none if the record is unreadable."""
    try:
        return msgspec.json.decode((data / PRIVATE).read_bytes(), type=list[str])
    except (OSError, ValueError):
        return []


def _warn(refused: list[tuple[str, str]]) -> None:
    if refused:
        named = ", ".join(f"{path} ({reason})" for path, reason in refused[:NAMED_MAX])
        log.warning(
            "cannot remove other users' rights on files: they may be able to read them",
            extra={"files": len(refused), "first": named},
        )
