"""Input and output of the terminal: formats, progress, completion, redaction and exit codes."""
