"""Send a request to the core of this or another node that can answer it, and answer those of others."""
