"""Edits of Python code that match its syntax tree: comments, line breaks and parentheses do not
matter.

An edit replaces one expression with another, or consecutive statements with others. It must match
exactly once: one that does not is stale.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

BODIES = ("body", "orelse", "finalbody")


class Stale(LookupError):
    """Raised when an edit, or a mutant's target, does not match the code any more. The list of
    mutants has to follow the code."""


def edited_source(source: str, old: str, new: str, within: str = "") -> str:
    """Return a module's source with the edit, written from its tree. `within`: the qualified name
    of the function or class that is searched."""
    tree = ast.parse(source)
    edit(_scope(tree, within), old, new)
    return ast.unparse(tree)


def edited_function(function: Any, old: str, new: str) -> Any:
    """Return a copy of the function with the edit. It uses the globals of the original, so
    constants that a test patches apply to it too."""
    tree = ast.parse(dedent(inspect.getsource(function)))
    edit(tree, old, new)
    source = ast.unparse(tree)
    module = compile(
        f"from __future__ import annotations\n{source}", inspect.getfile(function), "exec"
    )
    code = next(const for const in module.co_consts if isinstance(const, CodeType))
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def edit(tree: ast.AST, old: str, new: str) -> None:
    """Carry out the edit in place. Raises Stale unless `old` occurs exactly once."""
    before, after = ast.parse(dedent(old)).body, ast.parse(dedent(new)).body
    if (
        isinstance(before[0], ast.Expr)
        and isinstance(after[0], ast.Expr)
        and len(before) == len(after) == 1
    ):
        matches = list(_expressions(tree, ast.dump(before[0].value)))
    else:
        matches = list(_statements(tree, [ast.dump(each) for each in before]))
    if len(matches) != 1:
        raise Stale(
            f"{old!r} occurs {len(matches)} times, expected once: adapt the mutant to the code, or "
            "narrow it with `within`"
        )
    parent, field, at = matches[0]
    if at is None:
        assert isinstance(after[0], ast.Expr)
        setattr(parent, field, after[0].value)
    elif isinstance(at, slice):
        getattr(parent, field)[at] = after
    else:
        assert isinstance(after[0], ast.Expr)
        getattr(parent, field)[at] = after[0].value


Location = tuple[ast.AST, str, "int | slice | None"]  # a node, its field, and where in a list


def _expressions(tree: ast.AST, wanted: str) -> Iterator[Location]:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for at, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.expr) and ast.dump(child) == wanted:
                    yield parent, field, at


def _statements(tree: ast.AST, wanted: list[str]) -> Iterator[Location]:
    for parent in ast.walk(tree):
        for field in BODIES:
            body = getattr(parent, field, None)
            if isinstance(body, list):
                dumped = [ast.dump(each) for each in body]
                for at in range(len(body) - len(wanted) + 1):
                    if dumped[at : at + len(wanted)] == wanted:
                        yield parent, field, slice(at, at + len(wanted))


def _scope(tree: ast.Module, name: str) -> ast.AST:
    """Return the definition of this qualified name. Raises Stale when there is none."""
    scope: ast.AST = tree
    for part in filter(None, name.split(".")):
        found = [
            each
            for each in ast.walk(scope)
            if getattr(each, "name", None) == part and each is not scope
        ]
        if len(found) != 1:
            raise Stale(f"{name} is defined {len(found)} times, expected once")
        scope = found[0]
    return scope
