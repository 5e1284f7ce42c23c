"""Appends whose payloads are in packs: judged by the rules of all appends, and added to the index
(docs/decisions/0027)."""
