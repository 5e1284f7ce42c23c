"""A list for the next refactoring: `python -m structure_report` (with `tests` on PYTHONPATH) prints
classes with many methods or attributes, folders with many files (but generated ones), and circles of
imports. It gates nothing."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
METHODS, ATTRIBUTES, FILES = 25, 20, 20


class ClassSize(NamedTuple):
    """A class: where it is, and how many methods and attributes of `self` it has, inherited ones
    included."""

    name: str
    methods: int
    attributes: int


class ClassParts(NamedTuple):
    """The names that one class body binds, and its base classes as the module names them."""

    methods: frozenset[str]
    attributes: frozenset[str]
    bases: tuple[str, ...]


def class_parts(node: ast.ClassDef) -> ClassParts:
    """Return the methods of a class, and its attributes: fields, and what methods store on
    `self`."""
    methods = [
        each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not ast.unparse(each.annotation).startswith("ClassVar")
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
    bases = tuple(ast.unparse(each).partition("[")[0] for each in node.bases)
    return ClassParts(frozenset(each.name for each in methods), frozenset(fields | stored), bases)


def class_sizes(trees: Mapping[str, ast.Module]) -> Iterator[ClassSize]:
    """Yield the size of each class of the modules, which are given by their dotted names."""
    parts = {
        f"{module}:{node.name}": class_parts(node)
        for module, tree in trees.items()
        for node in _statements(tree)
        if isinstance(node, ast.ClassDef)
    }
    names = {module: _names_of(tree, module, trees) for module, tree in trees.items()}

    def inherited(name: str, seen: frozenset[str]) -> list[ClassParts]:
        module = name.partition(":")[0]
        found = [parts[name]]
        for base in parts[name].bases:
            parent = names[module].get(base, f"{module}:{base}")
            if parent in parts and parent not in seen:
                found += inherited(parent, seen | {parent})
        return found

    for name in parts:
        each = inherited(name, frozenset({name}))
        yield ClassSize(
            name,
            len(frozenset().union(*(one.methods for one in each))),
            len(frozenset().union(*(one.attributes for one in each))),
        )


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements of a module: classes and imports are below no expression."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            todo += getattr(node, block, ())


def _names_of(tree: ast.Module, module: str, trees: Mapping[str, ast.Module]) -> dict[str, str]:
    """Return the classes that a module names by import: `Base` or `module.Base` -> its place."""
    found = {}
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name, other = alias.asname or alias.name, f"{node.module}.{alias.name}"
                found[name] = f"{node.module}:{alias.name}"
                for each in trees[other].body if other in trees else ():
                    if isinstance(each, ast.ClassDef):
                        found[f"{name}.{each.name}"] = f"{other}:{each.name}"
    return found


def imports_of(tree: ast.Module, known: frozenset[str]) -> set[str]:
    """Return the known modules that a module names in its imports, also those for type hints."""
    found = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{each.name}" for each in node.names)
            found |= {name if name in known else node.module for name in names}
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


class Structure(NamedTuple):
    """The large parts and import circles of a source tree."""

    classes: list[ClassSize]
    folders: dict[str, int]  # with their numbers of files
    circles: list[list[str]]


def structure(source: Path = SOURCE) -> Structure:
    """Measure a source tree. Files of a folder `generated` do not count."""
    paths = [each for each in sorted(source.rglob("*.py")) if "generated" not in each.parts]
    trees = {_module(path.relative_to(source)): ast.parse(path.read_text()) for path in paths}
    known = frozenset(trees)
    large = (
        size
        for size in class_sizes(trees)
        if size.methods > METHODS or size.attributes > ATTRIBUTES
    )
    files = Counter(path.parent.relative_to(source).as_posix() for path in paths)
    return Structure(
        sorted(large, key=lambda each: -each.methods - each.attributes),
        {folder: count for folder, count in files.most_common() if count > FILES},
        circles({name: imports_of(tree, known) for name, tree in trees.items()}),
    )


def report(source: Path = SOURCE) -> Iterator[str]:
    """Yield the lines of the list."""
    found = structure(source)
    yield f"classes with more than {METHODS} methods or {ATTRIBUTES} attributes: {len(found.classes)}"
    for size in found.classes:
        yield f"  {size.name}: {size.methods} methods, {size.attributes} attributes"
    yield f"folders with more than {FILES} files: {len(found.folders)}"
    for folder, count in found.folders.items():
        yield f"  {folder}: {count} files"
    yield f"circles of imports: {len(found.circles)}"
    for circle in found.circles:
        yield f"  {len(circle)}: {', '.join(circle)}"


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


if __name__ == "__main__":
    print("\n".join(report()))
