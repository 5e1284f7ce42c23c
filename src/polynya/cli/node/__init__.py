"""Commands that start a node, and that read its settings and its tokens."""
