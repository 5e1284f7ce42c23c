"""Operations on streams of the local groups, and their maintenance jobs."""
