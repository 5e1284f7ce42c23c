"""The protocols that clients speak. A front parses, calls the service, and renders; it decides
nothing about data."""
