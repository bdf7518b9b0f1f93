"""The arguments of each Python that we start: it imports nothing from the folder that it starts in.

Python looks there before it looks anywhere else, with ``-m`` and with ``-c``, so that a ``json.py``
of a stranger's checkout would run in place of Python's own. ``-I`` would also take away PYTHONPATH,
by which a host may find monarch; Python 3.10 has no ``-P``.
"""

from __future__ import annotations

ALONE = "import sys;sys.path[:]=[p for p in sys.path if p];"
"""What each program that is a text begins with. Any Python can read it; ``sys`` is built in."""

_MODULE = (
    f"{ALONE}import runpy;del sys.argv[0];"
    "runpy.run_module(sys.argv[0],run_name='__main__',alter_sys=True)"
)


def text_arguments(text: str, *arguments: str) -> list[str]:
    """As ``-c text``; the arguments are ``sys.argv[1:]``."""
    return ["-c", f"{ALONE}\n{text}", *arguments]


def module_arguments(module: str, *arguments: str) -> list[str]:
    """As ``-m module``."""
    return ["-c", _MODULE, module, *arguments]
