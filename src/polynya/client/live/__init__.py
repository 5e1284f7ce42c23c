"""Live reads: events of one stream and of many, and the feeds of records made of them."""
