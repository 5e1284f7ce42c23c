"""The commands of tables: define them, sync them, query them."""
