"""The command line: thin commands over HTTP, the start of a node, and table tools.

Data goes to stdout, notices and errors to stderr, so that output can be piped. `--json` prints one
JSON value, or one per line for streaming output. `exits` holds the exit codes. Heavy modules are
imported only by the command that needs them: `polynya --help` and usage errors respond at once, and
stream commands never load table libraries.
"""

from polynya.cli.app import main

__all__ = ["main"]
