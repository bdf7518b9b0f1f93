"""The code objects of a file, by their place in it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import CodeType

Place = tuple[str, int]  # the name of a function or class, and its first line


class Codes(Mapping[Place, CodeType]):
    """Code objects by name and first line. If two have the same name and line, such as two lambdas,
    both are left out.

    A code object whose lines have moved is copied to its new lines when it is first read.
    """

    def __init__(self, codes: Mapping[Place, tuple[CodeType, int]]) -> None:
        """``codes`` has each code object with the number of lines that it has moved down."""
        self._codes = dict(codes)

    @classmethod
    def inside(cls, whole: CodeType) -> Codes:
        codes: dict[Place, tuple[CodeType, int] | None] = {}
        for code in inner_codes(whole):
            place = code.co_name, code.co_firstlineno
            codes[place] = None if place in codes else (code, 0)
        return cls({place: entry for place, entry in codes.items() if entry is not None})

    def spliced(self, window: range, others: Codes, distance: int) -> Codes:
        """Return new `Codes` for an edited file: code objects that begin in ``window``, a range of
        lines, are replaced by ``others``. Code objects below the window move down by `distance`
        lines.

        Raises ValueError for code that cannot be moved.
        """
        codes = dict(others._codes)
        for (name, line), (code, moved) in self._codes.items():
            if line < window.start:
                codes[name, line] = code, moved
            elif line >= window.stop:
                if distance and _says_its_line(code):
                    raise ValueError(f"{name} makes a class that knows its line")
                codes[name, line + distance] = code, moved + distance
        return Codes(codes)

    def copy_codes(self) -> None:
        """Replace the code objects by copies. Call it before the lines of code objects that live
        functions run are changed in place, so that this object keeps the present lines.
        """
        self._codes = {place: (moved_code(*moved), 0) for place, moved in self._codes.items()}

    def has_closures(self) -> bool:
        """Return whether the code of an inner function is among the code objects. Its functions are
        bound to no name of the module, but objects may refer to them.
        """
        return any(
            code.co_flags & inspect.CO_NESTED and name[0] != "<"
            for (name, _), (code, _) in self._codes.items()
        )

    def __getitem__(self, place: Place) -> CodeType:
        code, distance = self._codes[place]
        if distance:
            code = moved_code(code, distance)
            self._codes[place] = code, 0
        return code

    def __contains__(self, place: object) -> bool:
        return place in self._codes

    def __iter__(self) -> Iterator[Place]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


def _says_its_line(code: CodeType) -> bool:
    """Return whether the code is that of a class body inside a function and stores its own line, as
    it does from Python 3.13 on.

    Class bodies at the top level do not matter: they run again from their source, or never again.
    """
    return "__firstlineno__" in code.co_names and "<locals>" in qualname_of(code)


def moved_code(code: CodeType, distance: int, path: str | None = None) -> CodeType:
    """Return the code with its lines moved down by ``distance``, nested code objects included; with
    ``path``, as code of that file.

    The first line of each code object is replaced. Its other lines are stored relative to the
    first.
    """
    constants = tuple(
        moved_code(constant, distance, path) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(
        co_firstlineno=code.co_firstlineno + distance,
        co_consts=constants,
        co_filename=code.co_filename if path is None else path,
    )


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside a code object, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_codes(constant)


def qualname_of(code: CodeType) -> str:
    """Return the qualified name of a code object; its bare name on Python 3.10."""
    return str(getattr(code, "co_qualname", code.co_name))
