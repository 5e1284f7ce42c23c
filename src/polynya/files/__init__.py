"""Small files and directories that must survive a power failure, and that only their owner may
read.

Invariants:

* After a power failure, a file replaced by `write_whole` has all of its new or all of its old
  content.
* A directory made by `make_folder` survives a power failure, together with all parents that it
  made.
* A process that called `keep_private` grants other users no access to its files; `tighten` removes
  such access from older files.

The journal and the object store have their own file operations, in which tests can make every call
fail. This package knows none of their formats.
"""

from polynya.files.private import keep_private, tighten
from polynya.files.whole import is_full, make_folder, sync_folder, write_whole

__all__ = ["is_full", "keep_private", "make_folder", "sync_folder", "tighten", "write_whole"]
