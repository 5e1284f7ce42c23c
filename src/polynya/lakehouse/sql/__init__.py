"""SQL queries on tables, and their limits for untrusted clients."""
