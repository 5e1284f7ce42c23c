"""Child processes of a node that run SQL and table jobs, and what watches for work of them."""
