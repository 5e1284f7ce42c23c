"""JSON records as typed columns: fast by pyarrow, and exactly, one record at a time."""
