"""A list for the next refactoring: `python -m structure_report` (with `tests` on PYTHONPATH) prints
classes with many methods or attributes, folders with many files (but generated ones), and circles of
imports. It gates nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
METHODS, ATTRIBUTES, FILES = 25, 20, 20


class ClassSize(NamedTuple):
    """A class: where it is, and how many methods and attributes of `self` it has."""

    name: str
    methods: int
    attributes: int


def class_sizes(tree: ast.Module, place: str) -> Iterator[ClassSize]:
    """Yield the size of each class of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            fields = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            stored = {
                each.attr
                for method in methods
                for each in ast.walk(method)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
            yield ClassSize(f"{place}:{node.name}", len(methods), len(fields | stored))


def imports_of(tree: ast.Module, known: frozenset[str]) -> set[str]:
    """Return the known modules that a module names in its imports, also those for type hints."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= names & known or {node.module}
    return found & known


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other, the largest first."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted((sorted(each) for each in found), key=len, reverse=True)


def _reached(graph: Mapping[str, set[str]], begin: str) -> set[str]:
    found, todo = set[str](), list(graph[begin])
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += graph.get(each, ())
    return found


def report(source: Path = SOURCE) -> Iterator[str]:
    """Yield the lines of the list."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    names = {path: _module(path.relative_to(source)) for path in trees}
    known = frozenset(names.values())
    sizes = [
        size
        for path, tree in trees.items()
        for size in class_sizes(tree, str(path.relative_to(source)))
        if size.methods > METHODS or size.attributes > ATTRIBUTES
    ]
    yield f"classes with more than {METHODS} methods or {ATTRIBUTES} attributes: {len(sizes)}"
    for size in sorted(sizes, key=lambda each: -each.methods - each.attributes):
        yield f"  {size.name}: {size.methods} methods, {size.attributes} attributes"
    folders = {path.parent for path in trees if path.parent.name != "generated"}
    many = {each: len(list(each.glob("*.py"))) for each in folders}
    crowded = sorted((each for each in folders if many[each] > FILES), key=lambda each: -many[each])
    yield f"folders with more than {FILES} files: {len(crowded)}"
    for folder in crowded:
        yield f"  {folder.relative_to(source)}: {many[folder]} files"
    found = circles({names[path]: imports_of(tree, known) for path, tree in trees.items()})
    yield f"circles of imports: {len(found)}"
    for circle in found:
        yield f"  {len(circle)}: {', '.join(circle)}"


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


if __name__ == "__main__":
    print("\n".join(report()))
