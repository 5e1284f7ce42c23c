"""JSON APIs over HTTP: buckets, cluster, SQL, schemas, subscriptions, tables and tokens."""
