"""Sources, each parsed once for the tests of style, words and layers, which one process runs."""

from __future__ import annotations

import ast
import functools


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Return all syntax nodes of a source."""
    return tuple(ast.walk(ast.parse(text)))
