"""Every Python process that has this folder on PYTHONPATH is of another release: one that knows
levels of logs up to RELEASE_LEVEL. A warm process imports this module once it has its environment."""

import os
import sys

import polynya
from polynya.base import levels

if "RELEASE_LEVEL" in os.environ:
    wanted = int(os.environ["RELEASE_LEVEL"])
    if wanted < levels.LEVEL:  # registers commands up to the level of its import
        import polynya.stream.command  # noqa: F401
    for name, module in list(sys.modules.items()):
        if name.startswith("polynya"):
            for variable, value in (("LEVEL", wanted), ("__version__", f"{wanted}.0.0")):
                if hasattr(module, variable):
                    setattr(module, variable, value)
