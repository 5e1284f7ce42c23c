"""Child processes of a node that run jobs: tables, SQL and reducers; and what watches for work of
them."""
