"""A source made of the one before is what Python makes of the whole text, or is not made."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import monarch_reload
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.splice import spliced

_FILES = sorted(Path(monarch_reload.__file__).parent.rglob("*.py"))
_LINES = (
    "global os", "x = 1", "from __future__ import annotations", "if a:", "else:", "    pass",
    "@foo", "'''", '"""', "(", "]", "x = 1; y = 2", "y = 1 \\", "# c", "", "def f(a=1):",
    "    return lambda: 1", "class K:", "    async def g(self): return [i for i in self]",
    "return 1", "import os, sys", "\f", "try:", "except E:", "nonlocal z", "é = 'ü'",
    "#-*- coding: latin-1 -*-", "match x:", "    case 2: pass", ";", "x = super", "import re",
)  # fmt: skip


def _is_told(before: ModuleSource, text: bytes) -> bool:
    """Whether it could be made; then it is equal in all that a reload asks for."""
    made, whole = spliced(before, text), ModuleSource(before.path, text)
    if made is None:
        return False
    assert len(made.statements) == len(whole.statements)
    for one, other in zip(made.statements, whole.statements, strict=True):
        assert (one.text, one.first, one.last) == (other.text, other.first, other.last)
        assert _dump(one.placed) == _dump(other.placed)
        assert (one.names, one.binds) == (other.names, other.binds)
        if one.is_class:
            assert [(s.text, s.first) for s in one.body] == [(s.text, s.first) for s in other.body]
    assert made.codes.keys() == whole.codes.keys()
    for place, code in whole.codes.items():
        if "__firstlineno__" in code.co_names:
            continue  # the body of a class says where it stands, as of Python 3.13
        assert _all_of(made.codes[place]) == _all_of(code), place
    assert (made.lines, made.flags) == (whole.lines, whole.flags)
    return True


def _dump(node: ast.AST) -> str:
    return ast.dump(node, include_attributes=True)


def _all_of(code: CodeType) -> tuple[object, ...]:
    inner = [_all_of(one) for one in code.co_consts if isinstance(one, CodeType)]
    return code, list(code.co_lines()), code.co_flags, inner


@pytest.mark.long_but(20)
@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_edits_of_lines(path: Path) -> None:
    numbers = random.Random(path.stem)
    before = ModuleSource(str(path), path.read_bytes())
    for _ in range(12):
        lines = before.text.decode().split("\n")
        for _ in range(numbers.choice((1, 1, 2))):
            index = numbers.randrange(len(lines))
            match numbers.randrange(5):
                case 0:
                    lines[index : index + numbers.choice((0, 1, 3))] = [numbers.choice(_LINES)]
                case 1:
                    lines[index] = lines[index].replace("self", "own").replace("1", "23")
                case 2:
                    lines.insert(index, numbers.choice(lines))
                case 3:
                    lines[index] = "    " + lines[index]
                case _:
                    lines[index] += "  # said"
        text = "\n".join(lines).encode()
        _is_told(before, text)
        try:
            before = ModuleSource(str(path), text)
            before.codes
        except (SyntaxError, ValueError):
            before = ModuleSource(str(path), path.read_bytes())


_A = "import os\n\n\ndef a():\n    return os.sep\n\n\nx = 1\n\n\n"
_IF, _ELSE = "if x:\n    x = 2\n", "else:\n    x = 3\n"
_FUTURE = "from __future__ import annotations\n"
_B = "def b():\n    return os.getcwd()\n\n\ny = 2\n"


@pytest.mark.parametrize(
    ("old", "new", "is_made"),
    {
        "a body": (_A + _B, _A + _B.replace("cwd", "cwdb"), True),
        "a statement more": (_A + _B, _A + "z = 3\n" + _B, True),
        "a statement less": (_A + "z = 3\n" + _B, _A + _B, True),
        "at the end": (_A + _B, _A + _B + "z = 3\n", True),
        "goes on above": (_A + _IF + _B, _A + _IF + _ELSE + _B, True),
        "goes on from below": (_A + _B, _A + _IF + "else:\n" + _B, False),
        "joined by a backslash": (_A + "z = 3\n" + _B, _A + "z = 3 \\\n" + _B, False),
        "an open bracket": (_A + _B, _A + "z = (\n" + _B, False),
        "an open text": (_A + _B, _A + 'z = """\n' + _B, False),
        "a decorator": (_A + _B, _A + "@x\n" + _B, False),
        "on one line": (_A + "p = 1; q = 2\n" + _B, _A + "p = 1; q = 3\n" + _B, True),
        "global below a use": (_A + _B, _A + _B + "global x\n", False),
        "a use above global": (_A + "global z\n" + _B, "z = 1\n" + _A + "global z\n" + _B, False),
        "future below": (_A + _B, _A + _FUTURE + _B, False),
        "above the future": (_FUTURE + _A, "v = 1\n" + _FUTURE + _A, False),
        "an import that others use": (_A + _B, _A.replace("import os", "os = x") + _B, False),
        "a name like that of a builtin": (_A + _B, _A + "super = 3\n" + _B, False),
        "an encoding": (_A + _B, "# coding: latin-1\n" + _A + _B, False),
        "nothing but one statement": ("x = 1\n", "x = 2\n", False),
    }.values(),
)  # fmt: skip
def test_edit(old: str, new: str, is_made: bool) -> None:
    assert _is_told(ModuleSource("m.py", old.encode()), new.encode()) is is_made


def test_a_class_in_a_function_knows_its_line() -> None:
    old = _A + "def c():\n    class K:\n        pass\n    return K\n\n\n" + _B
    text = old.replace("x = 1\n", "x = 1\nz = 2\n").encode()
    before = ModuleSource("m.py", old.encode())
    made = spliced(before, text) or ModuleSource("m.py", text)
    named: dict[str, Any] = {}
    exec(made.code, named)
    named["c"].__code__ = made.codes["c", named["c"].__code__.co_firstlineno]
    line = text[: text.index(b"class K")].count(b"\n") + 1
    assert getattr(named["c"](), "__firstlineno__", line) == line


def test_no_utf_8() -> None:
    old = (_A + _B).encode()
    assert not _is_told(ModuleSource("m.py", old), old.replace(b"y = 2", b"y = '\xff'"))


def test_many_edits_keep_nothing_of_the_versions_before() -> None:
    source = ModuleSource("m.py", (_A + _B).encode())
    for number in range(50):
        made = spliced(source, source.text.replace(b"x = 1\n", b"x = 1\nx = %d\n" % number, 1))
        assert made is not None
        source = made
    assert all(statement.lines is source.lines for statement in source.statements)
    assert _is_told(source, source.text + b"z = 3\n")
    line = source.text[: source.text.index(b"def b")].count(b"\n") + 1
    assert [one.first for one in source.statements if one.name == "b"] == [line]
