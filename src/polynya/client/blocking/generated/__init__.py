"""The modules that `scripts/blocking_client.py` makes from those of `polynya.client.aio`."""
