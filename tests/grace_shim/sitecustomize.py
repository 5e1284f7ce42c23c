"""Every Python process that has this folder on PYTHONPATH keeps a superseded snapshot for
SNAPSHOT_GRACE_MS of its environment."""

import os

from polynya.base import limits

if "SNAPSHOT_GRACE_MS" in os.environ:
    limits.SNAPSHOT_GRACE_MS = int(os.environ["SNAPSHOT_GRACE_MS"])
