"""`%load_ext monarch`: short errors, `%monarch` for the commands, `%%upgrade` for new classes.

Without it, meshes and values are still shown as tables, and ranks' output in its cell.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
import shlex
import subprocess
import sys
import textwrap
from types import CodeType, TracebackType
from typing import Any

from monarch.actor import Actor, ActorMesh, Future, ProcMesh, current_rank, endpoint
from monarch.core.grouping import ODD, group
from monarch.core.rank_sets import BadRanks, RanksType, is_in, parse_set
from monarch.errors import ActorError, SupervisionError
from monarch.python_start import text_arguments

_MOST_LINES = 12
_INTERRUPTED = (
    "KeyboardInterrupt: the wait has ended, and the call goes on: `.get()` of the same future has "
    "its value"
)
_COMMAND = "import sys; sys.argv[0] = 'monarch'; from monarch.cli.entry import main; main()"
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)')
_FILE = re.compile(r'File "([^"\n]+)"')
_FOREIGN = ("/site-packages/", "/monarch/runtime/", "/monarch/actor/", "/lib/python", __file__)


class NotebookErrors:
    """Shows errors of ranks in a dozen lines; ``whole`` has the full text of the last one."""

    def __init__(self) -> None:
        self.whole = ""

    def __call__(
        self, shell: Any, kind: type, error: BaseException, tb: Any, **_: Any
    ) -> list[str]:
        if isinstance(error, KeyboardInterrupt):
            if not _has_waited(tb):
                shell.showtraceback((kind, error, tb))
                return []
            lines = [_INTERRUPTED]
        else:
            self.whole = with_cells(with_sources(str(error)), shell)
            lines = [with_cells(line, shell) for line in short_of(error)]
        print("\n".join(lines), file=sys.stderr)  # noqa: T201
        return lines


def _has_waited(tb: TracebackType | None) -> bool:
    """Whether the error was raised while waiting for an answer."""
    while tb is not None:
        if tb.tb_frame.f_code is Future.get.__code__:
            return True
        tb = tb.tb_next
    return False


def short_of(error: BaseException) -> list[str]:
    """Return at most a dozen lines: the rank, the error, and the user's own frames."""
    if isinstance(error, ActorError):
        where = "" if error.rank is None else f"rank {error.rank}: "
        head = f"ActorError: {where}{type(error.exception).__name__}: {error.exception}"
        lines = [*head.splitlines(), *_user_frames(error.exception_formatted)]
    else:
        lines = f"{type(error).__name__}: {error}".splitlines()
    hint = "(all of it: %monarch error)"
    return lines if len(lines) < _MOST_LINES else [*lines[: _MOST_LINES - 2], "  ...", hint]


def with_cells(text: str, shell: Any) -> str:
    """Return a traceback that names cells by number, ``Cell In[14]``, not by the kernel's temporary
    file."""

    def named(match: re.Match[str]) -> str:
        try:
            label, name = shell.compile.format_code_name(match[1])
        except (AttributeError, TypeError):  # No cell, or an IPython that does not number them.
            return match[0]
        return f"{label} {name}"

    return _FILE.sub(named, text)


def with_sources(text: str) -> str:
    """Return a rank's traceback with the source lines of cells, which only this kernel has."""
    lines = text.splitlines()
    completed = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        completed.append(line)
        frame = _FRAME.search(line)
        if frame is None or after.startswith(f"{line[: frame.start()]}    "):
            continue
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        completed += [f"{line[: frame.start()]}    {source}"] if source else []
    return "\n".join(completed)


def _user_frames(text: str) -> list[str]:
    """Return the last three of the user's frames, with their source lines.

    If no frame is the user's, return the last three of libraries.
    """
    lines = with_sources(text).splitlines()
    frames = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if match := _FRAME.match(line):
            frames.append((match["file"], [line, after] if after.startswith("    ") else [line]))
    users = [frame for file, frame in frames if not any(part in file for part in _FOREIGN)]
    chosen = users or [frame for _, frame in frames]
    return [line for frame in chosen[-3:] for line in frame]


class CellRunner(Actor):
    """Runs cells in its process, one after the other, in one namespace."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__cell__", "rank": current_rank().rank}

    @endpoint
    def run(
        self, cell: str, rank_set: RanksType | None, labels: tuple[str, ...], sizes: tuple[int, ...]
    ) -> str | None:
        """Run the cell; return its output and the value of a last expression.

        Returns ``None`` on ranks that are not in ``rank_set``.
        """
        rank = current_rank().rank
        if rank_set is not None and not is_in(rank_set, rank, labels, sizes):
            return None
        # For tracebacks: they show the line of a file that ``linecache`` knows.
        linecache.cache["<cell>"] = len(cell), None, cell.splitlines(keepends=True), "<cell>"
        tree = ast.parse(cell)
        last = tree.body[-1] if tree.body else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(last, ast.Expr):
                exec(_compiled(ast.Module(tree.body[:-1], []), "exec"), self.names)
                value = eval(_compiled(ast.Expression(last.value), "eval"), self.names)
                if value is not None:
                    print(repr(value))  # noqa: T201
            else:
                exec(_compiled(tree, "exec"), self.names)
        return printed.getvalue()


def _compiled(tree: ast.Module | ast.Expression, mode: str) -> CodeType:
    """Compile a cell's code without this module's imports from ``__future__``."""
    code: CodeType = compile(tree, "<cell>", mode, dont_inherit=True)
    return code


def load(shell: Any) -> None:
    """Add monarch's magics and short errors to IPython: the hook of ``%load_ext monarch``."""
    errors = NotebookErrors()
    shell.set_custom_exc((ActorError, SupervisionError, KeyboardInterrupt), errors)

    def monarch(line: str) -> None:
        """%monarch COMMAND: one of `monarch --help`; `%monarch error` for all of the last error."""
        arguments = shlex.split(line)
        if arguments == ["error"]:
            print(errors.whole or "no call has failed so far")  # noqa: T201
            return
        _run_command(arguments)

    def upgrade(line: str, cell: str) -> None:
        """%%upgrade MESH...: run the cell, and have these actor meshes take its new class."""
        names = line.split()
        meshes = [shell.user_ns.get(name) for name in names]
        wrong = [
            n for n, mesh in zip(names, meshes, strict=True) if not isinstance(mesh, ActorMesh)
        ]
        if wrong or not names:
            problem = f"{wrong[0]!r} is no actor mesh" if wrong else "which meshes?"
            print(f"%%upgrade: {problem}; %%upgrade trainers [MESH...]", file=sys.stderr)  # noqa: T201
            return
        if not shell.run_cell(textwrap.dedent(cell)).success:
            return
        for name, mesh in zip(names, meshes, strict=True):
            assert isinstance(mesh, ActorMesh)
            cls = shell.user_ns.get(mesh._ref.cls.__name__)
            if not isinstance(cls, type):
                problem = f"the cell has no class {mesh._ref.cls.__name__}"
                print(f"%%upgrade {name}: {problem}", file=sys.stderr)  # noqa: T201
                continue
            mesh.upgrade(cls).get()
            print(f"{name}: {mesh.extent} runs the {cls.__name__} of this cell")  # noqa: T201

    runners: dict[ProcMesh, Any] = {}

    def on_ranks(line: str, cell: str) -> None:
        """%%monarch exec [PROCS] [RANKS]: run the cell in these processes; answers are grouped."""
        command, *arguments = line.split() or [""]
        if command != "exec":
            print("%%monarch exec [PROCS] [RANKS] is what a cell may be for", file=sys.stderr)  # noqa: T201
            return
        proc_meshes = {
            name: mesh for name, mesh in shell.user_ns.items() if isinstance(mesh, ProcMesh)
        }
        named = [arguments.pop(0)] if arguments and arguments[0] in proc_meshes else [*proc_meshes]
        if len({id(proc_meshes[name]) for name in named}) != 1:
            names_shown = (
                ", ".join(n for n in named if not n.startswith("_")) or "there is no ProcMesh here"
            )
            print(f"%%monarch exec: which processes? {names_shown}", file=sys.stderr)  # noqa: T201
            return
        procs = proc_meshes[named[0]]
        try:
            rank_set = parse_set(" ".join(arguments)) if arguments else None
        except BadRanks as error:
            print(f"%%monarch exec: {error}", file=sys.stderr)  # noqa: T201
            return
        if procs not in runners:
            runners[procs] = procs.spawn("cells", CellRunner)
        sizes = procs.sizes
        answers = runners[procs].run.call(cell, rank_set, tuple(sizes), tuple(sizes.values())).get()
        texts = {rank: text for rank, text in enumerate(answers.values()) if text is not None}
        for ranks in group(texts):
            odd = f"  {ODD}" if ranks.is_odd else ""
            print(f"[{ranks.who}]{odd}\n{ranks.answer}".rstrip())  # noqa: T201

    shell.register_magic_function(monarch, "line", "monarch")
    shell.register_magic_function(on_ranks, "cell", "monarch")
    shell.register_magic_function(upgrade, "cell", "upgrade")


def unload(shell: Any) -> None:
    """Restore IPython's own errors: the hook of ``%unload_ext monarch``."""
    shell.custom_exceptions = ()


def _run_command(arguments: list[str]) -> None:
    """Run a ``monarch`` command in a process of its own, and print its output.

    A command may use the terminal or end its program, so it does not run in the kernel's process.
    """
    process = subprocess.run(
        [sys.executable, *text_arguments(_COMMAND, *arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.stdout:
        print(process.stdout, end="")  # noqa: T201
    if process.stderr:
        print(process.stderr, end="", file=sys.stderr)  # noqa: T201
