"""Creation, deletion and expiry of streams."""
