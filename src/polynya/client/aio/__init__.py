"""The asyncio client: it carries out operations and runs producers and workers in tasks."""
