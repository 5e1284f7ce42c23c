"""One module for each thing that a request can want of a stream. `table` says which."""
