"""Every Python process that has this folder on PYTHONPATH is of another release: one that knows
levels of logs up to RELEASE_LEVEL."""

import os

import polynya
from polynya.base import levels

if "RELEASE_LEVEL" in os.environ:
    levels.LEVEL = int(os.environ["RELEASE_LEVEL"])
    polynya.__version__ = f"{levels.LEVEL}.0.0"
