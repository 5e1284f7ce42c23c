"""The definitions of the metrics, in files by what they are about. `metrics` joins them."""
