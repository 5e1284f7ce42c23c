"""The keys of consumer groups: who coordinates, membership, offsets, administration."""
