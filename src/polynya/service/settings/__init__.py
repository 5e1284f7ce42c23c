"""Settings that the meta group keeps by name: default profiles of buckets, and configs of named
things."""
