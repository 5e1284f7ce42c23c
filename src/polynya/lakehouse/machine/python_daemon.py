"""Start the Python workers of a local Spark session as forks of one process: Spark calls
`python -m polynya.lakehouse.machine.python_daemon MODULE-OF-THE-WORKER`.

PySpark would import itself from a zip file, which has no compiled modules, and each worker would
import again what its tasks need. This process imports PySpark from where it is installed, and those
modules once for all workers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

_ZIP = "pyspark.zip"
_SHARED = ("polynya.lakehouse.jobs.spark_tasks",)


def prefer_installed() -> None:
    """Take PySpark's zip file off the path, unless it is all there is of PySpark."""
    before = sys.path[:]
    sys.path[:] = [each for each in before if not each.endswith(_ZIP)]
    if find_spec("pyspark") is None:
        sys.path[:] = before


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    prefer_installed()
    for name in _SHARED:
        import_module(name)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
