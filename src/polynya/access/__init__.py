"""Access control: credentials, principals, their grants and their limits.

A request carries a bearer credential: a token of this node, or a JWT of the configured issuer.
`authenticator.Access` resolves it to a `Principal`. Its grants list the allowed verbs and streams;
its meter tracks the rest of its limits. Tokens are stored hashed in one file of the data folder
(`token_file`). Every core checks that file four times a second, which bounds the delay of a
revocation. For the decision and its alternatives, see
docs/decisions/0007-keep-tokens-in-one-file.md.

Invariants:

* A secret is never stored or logged, and is returned only on creation. The file holds its SHA-256,
  enough for 256 random bits.
* A principal is immutable. When the file changes, it is invalidated (`alive` is false) and the next
  request creates another.
* Grants are prefixes of canonical names, so no spelling of a name bypasses them.
"""

from polynya.access.authenticator import Access, Denied, KeysUnknown
from polynya.access.grants import VERBS, BadScope, Grant, Limits, Principal, parse_scope

__all__ = [
    "VERBS",
    "Access",
    "BadScope",
    "Denied",
    "Grant",
    "KeysUnknown",
    "Limits",
    "Principal",
    "parse_scope",
]
