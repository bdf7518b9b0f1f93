"""``patch_actor``: lets tests replace an actor's class."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

from monarch.actor.spawn_hooks import stand_ins as _actor_registry


class patch_actor(contextlib.ContextDecorator):
    """Replaces an actor class in a block: ``spawn`` of ``original`` makes actors of ``mock``.

    Procs that are started within the block do so too. It is a context manager and a decorator, for
    plain functions and for coroutine functions.
    """

    def __init__(self, original: type, mock: type) -> None:
        self.original = original
        self.mock = mock
        #: What each nested use has replaced.
        self._previous: list[type | None] = []

    def __enter__(self) -> type:
        self._previous.append(_actor_registry.get(self.original))
        _actor_registry[self.original] = self.mock
        return self.mock

    def __exit__(self, *error: object) -> None:
        previous = self._previous.pop()
        if previous is None:
            _actor_registry.pop(self.original, None)
        else:
            _actor_registry[self.original] = previous

    async def __aenter__(self) -> type:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def __call__(self, func: Any) -> Any:
        if not asyncio.iscoroutinefunction(func):
            return super().__call__(func)

        @functools.wraps(func)
        async def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await func(*args, **kwargs)

        return run


def get_actor_class(cls: type) -> type:
    """Return the class that is spawned for ``cls``: its replacement, or ``cls`` itself."""
    return _actor_registry.get(cls, cls)


def get_actor_mock_registry_state() -> dict[type, type]:
    """Return the classes that ``patch_actor`` replaces now, each with its replacement."""
    return dict(_actor_registry)


def set_actor_mock_registry_state(state: dict[type, type]) -> None:
    """Add replacements of classes, as ``get_actor_mock_registry_state`` returns them."""
    _actor_registry.update(state)
