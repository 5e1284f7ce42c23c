"""The demo: load real flights into streams, build tables, and compare the results."""
