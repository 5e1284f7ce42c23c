"""Authorization of HTTP requests."""
