"""The life of streams and their records: creates, deletes, expiry and retention."""
