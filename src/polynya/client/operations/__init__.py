"""Operations of the client beside the basic ones of streams: attributes, snapshots, appends to many
streams, and tokens."""
