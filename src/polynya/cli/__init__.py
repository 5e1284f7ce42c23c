"""The command line: thin verbs over HTTP, the node's start, and the tables' tools.

Data goes to stdout, notices and errors to stderr, so that everything can be piped. `--json` makes the output one JSON value, or one a line
where it streams. Exit codes are `exits`. Nothing heavy is imported before the command that needs it runs: `polynya --help` and a mistyped
flag answer at once, and the stream verbs never load what only tables need.
"""

from polynya.cli.app import main

__all__ = ["main"]
