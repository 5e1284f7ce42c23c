"""Operations on streams whose group is on this core, and the jobs that maintain them."""
