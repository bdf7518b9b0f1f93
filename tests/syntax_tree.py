"""A file's syntax tree, walked once, for lints that look at many files in many ways."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Node = TypeVar("_Node", bound=ast.AST)


class SyntaxTree:
    """The tree of a source text, and its nodes by their type."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self._nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            self._nodes[type(node)].append(node)
            # As ast.walk, which is a generator in a generator.
            for value in node.__dict__.values():
                if isinstance(value, ast.AST):
                    pending.append(value)
                elif isinstance(value, list):
                    pending += [one for one in value if isinstance(one, ast.AST)]

    def nodes(self, kind: type[_Node]) -> list[_Node]:
        """All nodes of exactly this type, wherever they are in the text."""
        return self._nodes.get(kind, [])


def parse_all(paths: Iterable[tuple[_Key, Path]]) -> dict[_Key, SyntaxTree]:
    """The trees of files. Not collected meanwhile: a million new nodes, all of which stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return {key: SyntaxTree(path.read_text()) for key, path in paths}
    finally:
        if was_on:
            gc.enable()
