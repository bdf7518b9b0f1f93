"""The shape of the house: what names mean, what git keeps, where files are listed."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from monarch.config_file.toml_text import loads
from tests.syntax_tree import SyntaxTree, parse_all

ROOT = Path(__file__).parents[1]
HOMES = {
    "monarch": ROOT,
    "monarch_sync": ROOT / "sync",
    "monarch_reload": ROOT / "sync",
    "monarch_recipes": ROOT / "recipes",
}
MOST_ARGUMENTS_BY_ORDER = 5
_NAMED = r"monarch[\w.]*:\w+"  # something in a module, which is imported when it is used
# What a checkout brings along for ever: no packages, data or builds.
MOST_BYTES_OF_A_TRACKED_FILE = 200_000
ROOT_FILES = {
    ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "README.md", "pyproject.toml",
}  # fmt: skip


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    """Of the product, by dotted name. Models for users to edit are written as they would write."""
    found = {}
    for package, home in HOMES.items():
        for path in (home / package).rglob("*.py"):
            parts = path.relative_to(home).with_suffix("").parts
            if "configs" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.fixture(scope="module")
def trees(modules: dict[str, Path]) -> dict[str, SyntaxTree]:
    """Of the same modules."""
    return parse_all(modules.items())


def test_no_class_name_means_two_things(trees: dict[str, SyntaxTree]) -> None:
    homes = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert not {cls: found for cls, found in homes.items() if len(found) > 1}


def test_many_arguments_are_given_by_name(trees: dict[str, SyntaxTree]) -> None:
    """With more than five by their order, two that are swapped are easily overlooked."""
    classes = {node.name for tree in trees.values() for node in tree.nodes(ast.ClassDef)}
    assert not {
        f"{name}:{node.lineno} {node.func.id}"
        for name, tree in trees.items()
        for node in tree.nodes(ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id in classes
        and len(node.args) > MOST_ARGUMENTS_BY_ORDER
    }


def test_what_git_keeps_is_small_and_the_root_holds_what_belongs_there() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    tracked = [ROOT / name for name in listed.split("\0") if name]
    assert len(tracked) > 1000
    assert {path.name for path in tracked if path.parent == ROOT} <= ROOT_FILES
    sizes = {path: path.lstat().st_size for path in tracked if path.exists()}
    large = {path for path, size in sizes.items() if size > MOST_BYTES_OF_A_TRACKED_FILE}
    assert not large


def test_each_package_names_its_files(
    modules: dict[str, Path], trees: dict[str, SyntaxTree]
) -> None:
    """In the docstring of its ``__init__``: there a newcomer looks which file to open."""
    unnamed = []
    for name, path in modules.items():
        if path.name != "__init__.py":
            said = ast.get_docstring(trees[name.rpartition(".")[0]].tree) or ""
            if not re.search(rf"\b{path.stem}\b", said):
                unnamed.append(name)
    assert not unnamed


def test_a_name_in_a_string_points_down_too(trees: dict[str, SyntaxTree]) -> None:
    """An import by name is an arrow as well. The package itself is above all layers."""
    contracts = loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = (one["layers"] for one in contracts["contracts"] if one["name"].startswith("Arrows"))
    height = {
        name.strip(): len(layers) - row for row, names in enumerate(layers)
        for name in names.split("|")
    }  # fmt: skip

    def layer_of(module: str) -> str:
        return next((name for name in height if f"{module}.".startswith(f"{name}.")), "")

    wrong = []
    for module, tree in trees.items():
        for node in tree.nodes(ast.Call):
            if "import_module" not in _last_name(node.func):
                continue
            target = node.args[0] if node.args else None
            if not isinstance(target, ast.Constant) or not isinstance(target.value, str):
                continue
            here, there = layer_of(module), layer_of(target.value)
            if here and there and here != there and height[there] >= height[here]:
                wrong.append(f"{module} -> {target.value}")
    assert wrong == []


def _arrows(module: str, trees: dict[str, SyntaxTree]) -> set[str]:
    """What a module names to be imported, anywhere in it, by a string too: the argument of
    ``import_module``, or ``"module:attribute"``. Not what is only for annotations."""
    found: set[str] = set()

    def add(name: str) -> None:
        found.update(fnmatch.filter(trees, name) if "*" in name else {name} & trees.keys())

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name if "." in alias.name else "")  # `import monarch`: for its folder
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                add(whole if whole in trees else node.module)
        elif isinstance(node, ast.Call) and node.args:
            if _last_name(node.func) in ("import_module", "__import__"):
                add(_text(node.args[0], module))
        elif isinstance(node, ast.Constant) and re.fullmatch(_NAMED, str(node.value)):
            add(str(node.value).partition(":")[0])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(trees[module].tree)
    return found - {module}


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _text(node: ast.expr, module: str) -> str:
    """A string as far as it is written out; ``*`` stands for the rest."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = (
        str(part.value)
        if isinstance(part, ast.Constant)
        else module
        if ast.unparse(part) in ("{__name__}", "f'{__name__}'")
        else "*"
        for part in node.values
    )
    return "".join(parts)


def _circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The modules that lead to each other: what is left where those that lead nowhere, or that
    nothing leads to, are taken away again and again."""
    left = {module: set(named) for module, named in arrows.items()}
    while True:
        led_to = set().union(*left.values()) if left else set()
        ends = {module for module, named in left.items() if not named or module not in led_to}
        if not ends:
            return [set(left)] if left else []
        left = {module: named - ends for module, named in left.items() if module not in ends}


def test_there_is_no_circle_with_names_in_strings_either(trees: dict[str, SyntaxTree]) -> None:
    """The package itself is above all layers: it may name each, and none may import from it."""
    arrows = {module: _arrows(module, trees) for module in trees}
    assert {module for module, named in arrows.items() if "monarch" in named} == set()
    lazily = "a package's names are found lazily"
    assert "monarch.runs.record.record" in arrows["monarch.runs"], lazily
    assert _circles(arrows) == []


def test_a_circle_by_a_string_is_found() -> None:
    sources = {
        "monarch.a": "import monarch.b",
        "monarch.b": 'import_module(f"monarch.{name}_library")',
        "monarch.c_library": "def f():\n    from monarch.b import x",
        "monarch.d": 'NAMES = ["monarch.a:x"]',
    }
    trees = {module: SyntaxTree(source) for module, source in sources.items()}
    arrows = {module: _arrows(module, trees) for module in trees}
    assert _circles(arrows) == [{"monarch.b", "monarch.c_library"}]


def test_code_of_others_is_compiled_without_our_future_imports(
    trees: dict[str, SyntaxTree],
) -> None:
    """``compile`` hands on the ``from __future__`` lines of the file that calls it: a user's
    annotations would be texts, and her code another one than a fresh import gives."""
    inheriting = [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        for node in tree.nodes(ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id == "compile"
        and "dont_inherit" not in {keyword.arg for keyword in node.keywords}
    ]
    assert inheriting == []
