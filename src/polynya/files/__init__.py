"""Small files and folders that must outlive a power cut, and that only their owner may read.

Invariants:

* A file that `write_whole` replaced has all of its new content or all of the old, whenever the power goes; and so has its name.
* A folder that `make_folder` made is there after a power cut, with all parents that it made.
* A process that called `keep_private` gives no right on what it writes to other users; `tighten` takes those away that older files give.

The journal and the object store have file operations of their own, whose every call tests can fail. This room knows none of their formats.
"""

from polynya.files.private import keep_private, tighten
from polynya.files.whole import make_folder, sync_folder, write_whole

__all__ = ["keep_private", "make_folder", "sync_folder", "tighten", "write_whole"]
