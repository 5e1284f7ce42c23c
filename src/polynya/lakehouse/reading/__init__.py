"""Objects of the store, and the slices of packs in them as rows."""
