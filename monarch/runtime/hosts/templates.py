"""The templates that procs of a host are forked from: shared templates, or a program for a single
proc."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from monarch.runtime.hosts.launcher import MakesProcs
from monarch.wire.message import Command

_log = logging.getLogger("monarch.host")
_MAX_LESSONS = 8  # Each takes a process, and seconds if it imports torch.


class Templates:
    """The templates of a host agent, one for each set of preloaded modules. On the loop.

    ``start`` starts a template: an ordinary one for ``None``, otherwise by the given command.

    In addition there is a learned template. It has imported the modules that procs were seen
    importing, and later procs are forked from it if they ask for no others. A new learned template
    replaces the previous one only when it is ready, so no spawn waits for it. If a module cannot be
    forked, it spoils only a template that is not in use yet.
    """

    def __init__(self, start: Callable[[Command | None], MakesProcs]) -> None:
        self._start = start
        self._by_modules: dict[frozenset[str], MakesProcs] = {}
        #: The modules that the program has asked for in advance, for all procs.
        self._ahead: frozenset[str] = frozenset()
        #: The learned template; None if there is none yet.
        self._learned: MakesProcs | None = None
        #: The template that imports what was learned; None if none does.
        self._learning: MakesProcs | None = None
        #: Former learned templates, which living procs may have come from.
        self._retired: list[MakesProcs] = []
        #: The modules that procs were seen importing, in that order.
        self._seen: dict[str, None] = {}
        #: The modules that spoil a template.
        self._refused: set[str] = set()
        #: How many learned templates were started.
        self._num_lessons = 0

    def __len__(self) -> int:
        return len(self._by_modules)

    @property
    def all(self) -> list[MakesProcs]:
        templates = [*self._by_modules.values(), self._learned, self._learning, *self._retired]
        return [template for template in templates if template is not None]

    def maker(
        self,
        command: Command | None,
        preload: Sequence[str],
        fits: Callable[[MakesProcs], bool] = lambda learned: False,
    ) -> MakesProcs:
        """Return the template from which a proc is forked, with the modules ``preload`` imported.

        If a ``command`` is given, it starts a template that only this proc uses. Otherwise it may
        be the learned template: it has imported all these modules, and ``fits`` returns true for
        it.
        """
        if command is not None:
            return self._new(command, preload)
        learned = self._learned
        is_there = learned is not None and learned.is_alive
        if learned and is_there and frozenset(preload) <= self._ahead and fits(learned):
            return learned
        return self.template(preload)

    def learn(self, maker: MakesProcs, modules: Collection[str]) -> None:
        """Note that a proc of ``maker`` has imported ``modules``.

        A new learned template imports them for later procs.
        """
        if maker is not self._learned and maker is not self._by_modules.get(self._ahead):
            return
        unseen = [name for name in modules if name not in self._seen and name not in self._refused]
        self._seen.update(dict.fromkeys(unseen))
        if unseen and self._learning is None:
            self._study()

    def _study(self) -> None:
        """Start a template that imports all modules seen so far."""
        if self._num_lessons >= _MAX_LESSONS:
            return
        self._num_lessons += 1
        names = list(self._seen)
        pupil = self._learning = self._new(None, sorted(self._ahead))

        def done(errors: dict[str, str]) -> None:
            if pupil is not self._learning:
                return  # The host agent closes.
            self._learning = None
            if errors:
                pupil.close()
                for name in errors:
                    self._seen.pop(name, None)
                    self._refused.add(name)
            else:
                if self._learned is not None:
                    self._retired.append(self._learned)
                self._learned = pupil
            if self._seen and list(self._seen) != names:
                self._study()

        pupil.learn(names, done)

    def let_go(self, in_use: Iterable[MakesProcs]) -> None:
        """Close former learned templates from which no living proc was forked. ``in_use`` are the
        templates of the living procs.
        """
        if self._retired:
            used = set(map(id, in_use))
            for maker in [template for template in self._retired if id(template) not in used]:
                self._retired.remove(maker)
                maker.close()

    def ahead(self, preload: Sequence[str]) -> MakesProcs:
        """Return the template with the modules ``preload``, and drop the learned template.

        Later procs that need no further modules are forked from this one.
        """
        self._ahead = frozenset(preload)
        if self._learned is not None:
            self._retired.append(self._learned)
            self._learned = None
        return self.template(preload)

    def template(self, preload: Sequence[str]) -> MakesProcs:
        """Return the template with these modules; start one if there is none, or if it has died."""
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
        """Return whether other procs are forked from this maker too. Such a maker is not closed
        when one of its procs has ended.
        """
        return maker in self.all


def _log_errors(errors: dict[str, str]) -> None:
    for name, error in errors.items():
        _log.warning("could not preload %s: %s", name, error)
