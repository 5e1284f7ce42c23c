"""The metadata of both formats over the same files: Iceberg and Delta."""
