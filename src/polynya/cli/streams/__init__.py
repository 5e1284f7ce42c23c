"""Commands for streams: create, append, read, retention, subscriptions, import and load tests."""
