"""Runs notebooks one after the other in one kernel, each in a folder and with names of its own.

A kernel takes seconds to start, and torch as many to import. ``python run_notebooks.py BOOK...``;
it writes what each cell showed into the files, and ends with 1 at the first cell that raises.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

_BEGIN = "%reset -f\nimport os, sys\nos.chdir({folder!r})\nsys.path[:] = {path!r}"


def main(paths: list[Path]) -> int:
    client: Any = NotebookClient(nbformat.v4.new_notebook(), timeout=120)
    with client.setup_kernel(cwd=str(paths[0].parent)):
        for path in paths:
            folder = path.parent / path.stem
            folder.mkdir()
            book = nbformat.read(path, as_version=4)
            known = ["", *sys.path[1:]]
            first = nbformat.v4.new_code_cell(_BEGIN.format(folder=str(folder), path=known))
            client.nb = nbformat.v4.new_notebook(cells=[first, *book.cells])
            client.reset_execution_trackers()
            try:
                for index, cell in enumerate(client.nb.cells):
                    client.execute_cell(cell, index)
            except CellExecutionError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                return 1
            finally:
                book.cells = client.nb.cells[1:]
                nbformat.write(book, path)
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(one) for one in sys.argv[1:]]))
