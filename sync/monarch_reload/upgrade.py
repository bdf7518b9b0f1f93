"""Upgrade a live class to a version that was pickled by value: it has no module and no source.

The methods of the new class arrive with globals of their own, a copy of what its author had. After
the commit they and the old methods share one namespace, which has the new values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from monarch_reload.errors import NeedsRespawn, ReloadError
from monarch_reload.live.classes import ClassPatch, forget_subclass_checks
from monarch_reload.live.compiled import COMPILED, CodeChanges, name_in
from monarch_reload.live.patch import FunctionPatch, Home, parts_of
from monarch_reload.report import ModuleVerdict, ReloadReport
from monarch_reload.undo_log import MISSING, Attribute, Flip, Item, UndoLog


class ClassUpgrade:
    """A prepared upgrade of the class ``live`` to ``staged``. The commit changes both classes, and
    its undo restores both.

    ``adds_globals``: the values in the globals of the new methods are set in the globals of the
    live methods, too. ``also`` are further changes of the same commit. Raises NeedsRespawn if live
    instances cannot become instances of the new class.
    """

    def __init__(
        self, live: type, staged: type, *, adds_globals: bool = True, also: tuple[Flip, ...] = ()
    ) -> None:
        name = f"{live.__module__}.{live.__qualname__}"
        self._live, self._staged = live, staged
        _rename(staged, live)
        self._functions = FunctionPatch()
        self._classes = ClassPatch(self._functions, self._is_inner)
        self._classes.patch(live, staged, None, None)
        self._adds_globals = adds_globals
        self._also = also
        self._changes = CodeChanges()
        if self._classes.refused:
            reasons = "; ".join(f"{cls}: {why}" for cls, why in self._classes.refused.items())
            refused = tuple(self._classes.refused)
            verdict = ModuleVerdict(live.__module__, "", "respawn", reasons, refused)
            raise NeedsRespawn.of_verdicts([verdict])
        gone = live.__dict__.keys() - staged.__dict__.keys()
        self._gone = [name for name in live.__dict__ if name in gone and name[:2] != "__"]
        self.label_before = ""
        self.verdicts = {name: ModuleVerdict(live.__module__, "", "patch", "upgraded", (name,))}

    def _is_inner(self, value: Any) -> bool:
        prefix = f"{self._staged.__qualname__}."
        return isinstance(value, type) and value.__qualname__.startswith(prefix)

    def abort(self) -> None:
        """Do nothing, as nothing has changed yet."""

    def commit(self) -> ReloadReport:
        """Make the upgrade. Raises ReloadError, with everything restored, if something cannot be
        changed."""
        started = time.perf_counter()
        log = UndoLog()
        try:
            log.apply(COMPILED.following(self._flips(), self._changes, lambda: None))
            compiles_again = self._refresh()
        except Exception as error:
            log.rollback()
            raise ReloadError.of_exception(error, "commit") from error
        live = self._live
        report = ReloadReport(
            modules=[live.__module__],
            classes=[f"{live.__module__}.{live.__qualname__}"],
            functions=sorted({f"{f.__module__}.{f.__qualname__}" for f in self._functions.patched}),
            verdicts=self.verdicts,
            compiles_again=compiles_again,
            seconds=time.perf_counter() - started,
        )

        def undo() -> None:
            log.rollback()
            self._refresh()

        report._undo = undo
        return report

    def _flips(self) -> Iterator[Flip]:
        live, staged = self._live, self._staged
        home = _home(live)
        fresh = _home(staged)
        functions = [f for f in _functions(staged) if f.__globals__ is fresh]
        if home is not None and fresh is not None and home is not fresh:
            if self._adds_globals:
                for key, value in list(fresh.items()):
                    if key != "__builtins__" and home.get(key, MISSING) is not value:
                        yield Item(home, key, self._functions.live_of(value))
            for function in functions:
                yield Home(function, home)
        yield from self._functions.flips
        yield from self._classes.flips
        for name in self._gone:
            yield Attribute(live, name)
        yield from self._also

    def _refresh(self) -> list[str]:
        forget_subclass_checks(self._classes.patched)
        for part in parts_of(self._live, self._live.__module__):
            if not isinstance(part, type) and callable(getattr(part, "cache_clear", None)):
                part.cache_clear()
        frames = COMPILED.forget(self._changes)
        return sorted({f"{self._live.__module__}.{name_in(code)}" for code in frames})


def _rename(staged: type, live: type) -> None:
    """Give the staged class, and the functions and classes in it, the qualified names that they
    have in the live class. The names differ if the two classes were defined in different functions.
    """
    prefix, _ = next(filter(None, (_place_of(f, live) for f in _functions(live))), ("", ""))
    for part in parts_of(staged, staged.__module__):
        if part is not staged and isinstance(part, (FunctionType, type)):
            place = _place_of(part, staged)
            if place is not None:
                part.__qualname__ = prefix + place[1]
    staged.__qualname__ = live.__qualname__


def _place_of(part: FunctionType | type, cls: type) -> tuple[str, str] | None:
    """Return (qualified name of what surrounds the class, name of ``part`` beginning with the
    class's name); None if ``part`` is not defined in the class.
    """
    outer, class_name, inner = part.__qualname__.rpartition(f"{cls.__name__}.")
    return (outer, class_name + inner) if class_name else None


def _home(cls: type) -> dict[str, Any] | None:
    """Return the globals that the methods of a class read; None if it has no methods."""
    return next((f.__globals__ for f in _functions(cls)), None)


def _functions(cls: type) -> list[FunctionType]:
    return [
        part
        for part in parts_of(cls, cls.__module__)
        if isinstance(part, FunctionType) and part.__module__ == cls.__module__
    ]
