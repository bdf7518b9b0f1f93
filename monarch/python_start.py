"""The arguments of each Python that we start, so that it imports nothing from its current folder.

With ``-m`` and with ``-c``, Python searches the current folder first, so a ``json.py`` of a
stranger's checkout would run in place of Python's own. ``-I`` would also ignore PYTHONPATH, by
which a host may find monarch, and Python 3.10 has no ``-P``.
"""

from __future__ import annotations

ALONE = "import sys;sys.path[:]=[p for p in sys.path if p];"
"""The beginning of each program that is passed as text. Any Python can read it."""

_MODULE = (
    f"{ALONE}import runpy;del sys.argv[0];"
    "runpy.run_module(sys.argv[0],run_name='__main__',alter_sys=True)"
)


def text_arguments(text: str, *arguments: str) -> list[str]:
    """Return arguments that run a text, as ``-c`` does; ``arguments`` become ``sys.argv[1:]``."""
    return ["-c", f"{ALONE}\n{text}", *arguments]


def module_arguments(module: str, *arguments: str) -> list[str]:
    """Return arguments that run a module, as ``-m`` does."""
    return ["-c", _MODULE, module, *arguments]
