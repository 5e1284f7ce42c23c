"""Every Python process that has this folder on PYTHONPATH is of another release: one that knows
levels of logs up to RELEASE_LEVEL."""

import os

import polynya
from polynya.base import levels

if "RELEASE_LEVEL" in os.environ:
    wanted = int(os.environ["RELEASE_LEVEL"])
    if wanted < levels.LEVEL:  # registers commands up to the level of its import
        import polynya.stream.command  # noqa: F401
    levels.LEVEL = wanted
    polynya.__version__ = f"{wanted}.0.0"
