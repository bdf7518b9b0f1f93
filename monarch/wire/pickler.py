"""cloudpickle, with the names of the files that code came from.

Since 3.1.3 cloudpickle calls every file ``<dynamic-code>``. Tracebacks, the debugger and reload
find source lines by these names, so here they are kept.
"""

from __future__ import annotations

import io
from types import CodeType
from typing import Any

import cloudpickle

# Its place among the arguments of CodeType, in every Python since 3.8.
_CO_FILENAME = 10

_reduce_without_file = cloudpickle.Pickler.dispatch_table[CodeType]


def _reduce_code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    made_by, arguments = _reduce_without_file(code)
    # A string of its own, as for the other names: equal code has equal pickles, interned or not.
    name = "".join(code.co_filename)
    return made_by, (*arguments[:_CO_FILENAME], name, *arguments[_CO_FILENAME + 1 :])


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what cloudpickle does; code keeps its ``co_filename``."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduce_code})


def dumps(value: Any) -> bytes:
    """``value`` as a pickle of protocol 5, without buffers of its own."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()
