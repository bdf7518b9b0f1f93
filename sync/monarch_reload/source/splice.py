"""Makes a new version of a source from the one before: only the edited lines are parsed and
compiled.

The edited lines, extended to whole statements, are compiled as a program of their own, which does
not depend on the lines above and below. Harder cases are compiled whole: an edit that does not
compile by itself, and top-level statements that affect how others compile.
"""

from __future__ import annotations

import ast
import codecs
from collections.abc import Iterable, Iterator, Sequence

from monarch_reload.source.codes import Codes
from monarch_reload.source.source import ENCODING_COMMENT, ModuleSource, decoded_lines
from monarch_reload.source.spelling import FunctionNode, imported_names
from monarch_reload.source.statements import Statement, split


def spliced(before: ModuleSource, text: bytes) -> ModuleSource | None:
    """Return the new source, made by parsing only the lines that changed; None if the whole text
    has to be parsed."""
    if not (_is_plain(before.text) and _is_plain(text)):
        return None
    lines = decoded_lines(text)
    try:
        old = before.statements
        window = _window(old, before.lines, lines)
        if window is None:
            return None
        above, below, distance = window
        start = old[above - 1].last + 1 if above else 1
        stop = old[below].first if below < len(old) else len(before.lines) + 1
        edited = "\n".join(lines[start - 1 : stop + distance - 1])
        if "__future__" in edited or any(statement.is_future for statement in old[below:]):
            return None
        tree = ast.parse("\n" * (start - 1) + edited + "\n", before.path)
        fresh = split(tree.body, lines, is_head=above == 0)
        classes = {s.name: s for s in old[above:below] if s.is_class}
        for statement in fresh:
            if statement.is_class and statement.name in classes:
                statement.take_members(classes[statement.name])
        kept = (*old[:above], *old[below:])
        if any(statement.may_affect_others for statement in (*kept, *fresh)):
            return None
        if names_imported(old[above:below]) != names_imported(fresh):
            return None
        tree.body += as_imported(names_imported(kept))
        code = compile(tree, before.path, "exec", flags=before.flags, dont_inherit=True)
        codes = before.codes.spliced(range(start, stop), Codes.inside(code), distance)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    statements = (
        *(statement.moved(0, lines) for statement in old[:above]),
        *fresh,
        *(statement.moved(distance, lines) for statement in old[below:]),
    )
    source = ModuleSource(before.path, text)
    vars(source).update(lines=lines, statements=statements, codes=codes, flags=before.flags)
    return source


def as_imported(names: Iterable[str]) -> list[ast.stmt]:
    """Return statements to put above code before it is compiled. They do nothing, but the code is
    compiled as if its module imported these names.

    That matters because the instructions for a call of ``os.read`` depend on whether ``os`` was
    imported. Empty if there are no names.
    """
    aliases = [ast.alias(name) for name in sorted(names)]
    if not aliases:
        return []
    never = ast.If(ast.Constant(False), [ast.Import(aliases)], [], lineno=1, col_offset=0)
    return [ast.fix_missing_locations(never)]


def names_imported(statements: Iterable[Statement]) -> set[str]:
    """Return the names that the imports at the top level of the module bind."""
    nodes = (node for s in statements if s.imports for node in _of_module(s.node))
    return {name for node in nodes for name in imported_names(node)} - {"*"}


def _of_module(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    elif not isinstance(node, (*FunctionNode, ast.ClassDef, ast.expr)):
        for child in ast.iter_child_nodes(node):
            yield from _of_module(child)


def _window(
    old: Sequence[Statement], before: Sequence[str], after: Sequence[str]
) -> tuple[int, int, int] | None:
    """Return where an edit is, as (number of unchanged statements above it, index of the first
    unchanged statement below it, number of lines by which that statement has moved).

    None if the text cannot be spliced.
    """
    num_lines = min(len(before), len(after))
    num_above = next((n for n in range(num_lines) if before[n] != after[n]), num_lines)
    most = num_lines - num_above
    num_below = next((n for n in range(most) if before[-1 - n] != after[-1 - n]), most)
    above = next((i for i, statement in enumerate(old) if statement.last > num_above), len(old))
    # The new lines may continue the last statement above, as an `else` continues an `if`.
    above = _between(old, max(above - 1, 0), -1)
    below = next(
        (i for i in range(above, len(old)) if old[i].first > len(before) - num_below), len(old)
    )
    below = _between(old, below, +1)
    if above == 0 and below == len(old):
        return None
    return above, below, len(after) - len(before)


def _between(statements: Sequence[Statement], index: int, step: int) -> int:
    """Return ``index``, moved in steps of ``step`` until the statement at the index does not begin
    on a line on which the statement above it ends.
    """
    while 0 < index < len(statements) and statements[index].first <= statements[index - 1].last:
        index += step
    return index


def _is_plain(source: bytes) -> bool:
    """Return whether a source is valid UTF-8 and has neither a byte-order mark nor an encoding
    comment."""
    if source.startswith(codecs.BOM_UTF8) or ENCODING_COMMENT.match(source):
        return False
    try:
        source.decode()
    except UnicodeDecodeError:
        return False
    return True
