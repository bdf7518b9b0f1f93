"""Lints: what is removed or signalled is proved ours, and each Python and git starts alone.

A path or a pid that came from a file proves nothing (``monarch/ours.py``, ``is_ours`` in
``monarch/runtime/ends/process_start.py``).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax_tree import SyntaxTree, parse_all

ROOT = Path(__file__).parents[1]
PRODUCT = [
    path.relative_to(ROOT)
    for folder in ("monarch", "sync", "recipes")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

BANNED = {"rmtree", "killpg", "pidfd_send_signal", "kill", "removedirs"}
"""Of the standard library's, by whatever module they are reached."""

ALLOWED = {
    "monarch/ours.py": "proves folders",
    "monarch/runtime/ends/process_group.py": "proves processes, or they are its own children",
    "monarch/runtime/ends/process_start.py": "signal 0 asks whether a process is there",
    "monarch/runtime/hosts/bundle_place.py": "is sent alone to hosts without monarch; has a proof",
    "monarch/runtime/programs/guard.py": "runs without monarch; ends its own descendants",
    "monarch/testing/script.py": "scripted ends of procs that are threads",
    "monarch/testing/surroundings.py": "os.kill as procs that are threads see it",
    "sync/monarch_sync/replicas/state_folder.py": "imports nothing of ours; has a proof of its own",
}

HANDLES = {"kill", "terminate", "send_signal"}
"""Of a child, allowed in the file that starts it: its pid stays its own until it is waited for."""

_MAKERS = {"subprocess.Popen", "start_agent"}

NO_PROCESSES = {"self", "job", "self.job", "self._zygote", "proc.launcher"}
"""What has a method ``kill`` of our own: it ends what it has started itself."""


def starts_children(tree: SyntaxTree) -> bool:
    return any(ast.unparse(call.func) in _MAKERS for call in tree.nodes(ast.Call))


def sequences(tree: SyntaxTree) -> list[ast.List | ast.Tuple]:
    return [*tree.nodes(ast.List), *tree.nodes(ast.Tuple)]


def unproved(tree: SyntaxTree) -> Iterator[str]:
    """The places where a folder is removed or a process signalled, as text."""
    for imported in tree.nodes(ast.ImportFrom):
        if imported.module in ("os", "shutil", "signal"):
            yield from (name.name for name in imported.names if name.name in BANNED)
    for node in tree.nodes(ast.Attribute):
        if node.attr not in BANNED | HANDLES:
            continue
        owner = ast.unparse(node.value)
        is_banned = node.attr in BANNED and owner in ("os", "shutil", "signal")
        is_handle = node.attr in HANDLES and owner not in NO_PROCESSES
        if is_banned or (is_handle and not starts_children(tree)):
            yield f"{node.lineno} {owner}.{node.attr}"


@pytest.fixture(scope="module")
def trees() -> dict[str, SyntaxTree]:
    """The product's files, by path."""
    found = parse_all((str(path), ROOT / path) for path in PRODUCT)
    assert len(found) > 500
    return found


def test_what_is_removed_or_signalled_is_proved_ours(trees: dict[str, SyntaxTree]) -> None:
    found = {path: list(unproved(tree)) for path, tree in trees.items() if path not in ALLOWED}
    assert not {path: places for path, places in found.items() if places}


def test_each_python_is_started_in_one_place(trees: dict[str, SyntaxTree]) -> None:
    """``python -c`` and ``python -m`` are in one module, which drops the current folder first."""
    assert not [
        f"{path}:{words.lineno}"
        for path, tree in trees.items()
        if path != "monarch/python_start.py"
        for words in sequences(tree)
        for before, option in itertools.pairwise(words.elts)
        if isinstance(option, ast.Constant)
        and option.value in ("-c", "-m")
        and "executable" in ast.unparse(before)
    ]


def test_git_is_run_in_one_place(trees: dict[str, SyntaxTree]) -> None:
    assert not [
        f"{path}:{words.lineno}"
        for path, tree in trees.items()
        if path != "monarch/runs/record/git.py"
        for words in sequences(tree)
        if any(isinstance(word, ast.Constant) and word.value == "git" for word in words.elts[:1])
    ]


def test_what_is_allowed_is_used(trees: dict[str, SyntaxTree]) -> None:
    assert not [path for path in ALLOWED if not list(unproved(trees[path]))]


@pytest.mark.parametrize("text", [
    "import shutil\nshutil.rmtree(path)",
    "import shutil\ngone = shutil.rmtree",
    "from shutil import rmtree",
    "from os import kill as end",
    "import os\nos.kill(pid, 9)",
    "import os\nos.killpg(pid, 9)",
    "process.terminate()",
    "self.agent.send_signal(15)",
])  # fmt: skip
def test_the_lint_sees(text: str) -> None:
    assert list(unproved(SyntaxTree(text)))


@pytest.mark.parametrize("text", [
    "job.kill()", "import subprocess\nchild = subprocess.Popen(['x'])\nchild.kill()",
])  # fmt: skip
def test_the_lint_lets_pass(text: str) -> None:
    assert not list(unproved(SyntaxTree(text)))
