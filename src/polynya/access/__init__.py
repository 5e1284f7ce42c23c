"""Who may do what: principals, what they are granted, how much of it, and how they prove who they are.

A request carries a bearer credential: a token of this node, or a JWT of the configured issuer. `guard.Access` turns it into a `Principal`,
whose grants say which verbs it may use on which streams, and whose meter says how much is left of its limits. Tokens live in one file of
the data folder (`store`), hashed; every core looks at that file four times a second, so that a revoked token is refused everywhere within
that time. The decision and what was rejected: docs/decisions/0007-keep-tokens-in-one-file.md.

Invariants:

* A secret is never stored, logged or answered after it was made: the file has its SHA-256, which is enough for 256 random bits.
* A principal never changes. When the file does, it dies (`alive` is false) and the next request makes another one.
* Grants are prefixes of canonical names, so that no spelling of a name leads around them.
"""

from polynya.access.authenticator import Access, Denied, KeysUnknown
from polynya.access.grants import VERBS, BadScope, Grant, Limits, Principal, parse_scope

__all__ = ["VERBS", "Access", "BadScope", "Denied", "Grant", "KeysUnknown", "Limits", "Principal", "parse_scope"]
