"""What `polynya doctor` looks at: this machine, the place of the data, the object store, and the server.

Each check looks and says what it found; none changes anything but files and objects of its own, that it takes away again (a launcher for
Java stays in the user's cache, where tables look for it). A check does not raise: what it could not do is a finding too. Each is bounded in
time, so that a doctor who is asked about a dead network still answers.
"""

from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding

__all__ = ["FAIL", "OK", "WARN", "Finding"]
