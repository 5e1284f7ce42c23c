"""An executable model of Kafka transactions (docs/design/transactions.md), before the product has
them: coordinator, participants, storage, readers and backups, with the rules that the product will
have and nothing else.

A group of Raft is one log that applies one command after the other; its leader is what a crash
forgets. Rules are functions of a state, a command and the log time. A world (`world.py`) has a
clock, messages that are late, lost, repeated or reordered, and processes: generators that sleep and
call. The same seed gives the same run. `mutants.py` has edits of the rules; the checker of
`chaos/transaction_history.py` must catch each."""
