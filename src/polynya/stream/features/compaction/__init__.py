"""Key compaction: which streams want it, and how far it has come."""
