"""The definitions of the settings, in files by what they are about. `settings` joins them."""
