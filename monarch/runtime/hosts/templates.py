"""What makes the procs of a host: templates that they share, or a program for one proc alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from monarch.runtime.hosts.launcher import MakesProcs
from monarch.wire.message import Command

__all__ = ["Templates"]

_log = logging.getLogger("monarch.host")


class Templates:
    """The templates of a host agent, one for each set of preloaded modules. On the loop.

    ``start`` starts one: a template of ours for ``None``, otherwise what the command says.
    """

    def __init__(self, start: Callable[[Command | None], MakesProcs]) -> None:
        self._start = start
        self._by_modules: dict[frozenset[str], MakesProcs] = {}
        self._ahead: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._by_modules)

    @property
    def all(self) -> list[MakesProcs]:
        return list(self._by_modules.values())

    def maker(self, command: Command | None, preload: Sequence[str]) -> MakesProcs:
        """What makes a proc that ``command`` starts, with modules that it finds imported."""
        return self.template(preload) if command is None else self._new(command, preload)

    def ahead(self, preload: Sequence[str]) -> MakesProcs:
        """The template with these modules, which all procs come from that ask for no others."""
        self._ahead = frozenset(preload)
        return self.template(preload)

    def template(self, preload: Sequence[str]) -> MakesProcs:
        """The template with these modules; a new one where there is none, or it has died."""
        key = frozenset(preload)
        if key <= self._ahead:
            key, preload = self._ahead, sorted(self._ahead)
        template = self._by_modules.get(key)
        if template is None or not template.is_alive:
            template = self._by_modules[key] = self._new(None, preload)
        return template

    def _new(self, command: Command | None, preload: Sequence[str]) -> MakesProcs:
        maker = self._start(command)
        if preload:
            maker.preload(preload, _log_errors)
        return maker

    def is_shared(self, maker: MakesProcs) -> bool:
        """Whether other procs come from it too, so that it stays when one has ended."""
        return maker in self._by_modules.values()


def _log_errors(errors: dict[str, str]) -> None:
    for name, error in errors.items():
        _log.warning("could not preload %s: %s", name, error)
