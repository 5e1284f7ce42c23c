"""The format version of everything that outlives a process: data directories, backups, object store
roots, token files.

Version 1 was never released. It took a first segment of one to three characters for no bucket, so
`iot/a` was in the bucket `default`.
"""

from __future__ import annotations

from polynya.base.errors import ConfigError

FORMAT = 2


def check_format(what: str, found: int, *, older: str) -> None:
    """Raise `ConfigError` unless this release reads the format; `older` tells what to do with an
    older one."""
    if found != FORMAT:
        step = older if found < FORMAT else "use the release that wrote it, or a newer one"
        raise ConfigError(
            f"{what} has format {found}, and this release reads format {FORMAT}: {step}"
        )
