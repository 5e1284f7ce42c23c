"""`GET /v1/live`: many streams on one connection, as server-sent events.

A connection has a strand for each of its streams. Each strand attaches and reads as one tail does;
the connection gives them their turns, so that none starves another and a slow client costs no
memory. `docs/design/live.md` has the decisions.
"""
