"""Inner parts of Monarch's runtime that do not exist here, as names that can be imported.

Programs import them for an annotation, an ``isinstance``, or a function that they may never call.
Each name is a class without instances; calling it, or reading an attribute of it, raises an error
that says that it does not exist here. ``addresses`` lists the names at each address: other names
raise ImportError.
"""

from __future__ import annotations


class NotHereError(NotImplementedError, AttributeError):
    """An inner part of Monarch's runtime was used, which does not exist here.

    As an ``AttributeError`` it makes ``hasattr`` return False.
    """


class _Inner(type):
    def __call__(cls, *args: object, **kwargs: object) -> object:
        raise NotHereError(
            f"{cls.__name__} is an inner part of Monarch's runtime, and not there in this one; "
            "monarch.actor has what programs need"
        )

    def __getattr__(cls, name: str) -> object:
        raise NotHereError(
            f"{cls.__name__}.{name} is an inner part of Monarch's runtime, and not there in this "
            "one; monarch.actor has what programs need"
        )

    def __getitem__(cls, parameters: object) -> _Inner:
        return cls


def __getattr__(name: str) -> _Inner:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    inner = _Inner(name, (), {"__module__": __name__})
    globals()[name] = inner
    return inner
