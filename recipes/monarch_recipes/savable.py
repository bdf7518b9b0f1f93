"""Checks that a checkpoint holds only tensors, plain values, and containers of these.

``torch.load(weights_only=True)`` reads nothing else, because other pickled objects may run code. A
checkpoint with other objects could be written, but never read.
"""

from __future__ import annotations

import io
import operator
import warnings
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

from monarch.runs.recover.saving import UnsavableState

_LEAVES = {
    bool, int, float, complex, str, bytes, bytearray, type(None), torch.Size, torch.dtype,
    torch.device,
}  # fmt: skip
_MAPPINGS: set[type] = {dict, OrderedDict, Counter}
_SEQUENCES: set[type] = {list, tuple, set}


def savable(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with numpy's numbers as Python's. Values that need no change are shared.

    Raises UnsavableState, with the key of the first value that could not be read from a checkpoint.
    """
    try:
        fit: dict[str, Any] = _Check().of(state, "")
    except RecursionError:
        raise UnsavableState("", "its containers are nested too deeply") from None
    return fit


class _Check:
    def __init__(self) -> None:
        # By id, so that what is shared stays shared, and a circle has an end.
        self._fit: dict[int, Any] = {}

    def of(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if id(value) in self._fit:
            return self._fit[id(value)]
        self._fit[id(value)] = value
        fit = value
        if kind in _MAPPINGS:
            items = {
                self.of(key, f"a key of {path}"): self.of(part, _below(path, key))
                for key, part in value.items()
            }
            is_unchanged = all(
                new_key is key and items[new_key] is part
                for new_key, (key, part) in zip(items, value.items(), strict=True)
            )
            fit = value if is_unchanged else _like(value, items)
        elif kind in _SEQUENCES:
            parts = [self.of(part, f"{path}[{index}]") for index, part in enumerate(value)]
            is_unchanged = all(map(operator.is_, parts, value))
            fit = value if is_unchanged else kind(parts)
        elif isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
            fit = _number(value, path)
        elif kind not in (torch.Tensor, torch.nn.Parameter):
            _check_by_trial(value, path)
        # Attributes of a tensor, or of a model's state, are saved, too.
        for name, part in getattr(value, "__dict__", {}).items():
            if self.of(part, f"{path}.{name}") is not part:
                raise UnsavableState(f"{path}.{name}", _what(part))
        self._fit[id(value)] = fit
        return fit


def _like(value: Any, items: dict[Any, Any]) -> Any:
    changed = type(value)(items)
    if attributes := getattr(value, "__dict__", None):
        vars(changed).update(attributes)
    return changed


def _number(value: Any, path: str) -> Any:
    number = value.item()
    if isinstance(number, np.floating):  # with more bits than Python's float
        number = float(number)
    if type(number) not in _LEAVES:
        raise UnsavableState(path, _what(value))
    return number


def _check_by_trial(value: Any, path: str) -> None:
    """Raise UnsavableState if the value cannot be saved and loaded again by itself."""
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(value, file)
            file.seek(0)
            torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # A pickle may fail in any way.
        raise UnsavableState(path, _what(value)) from error


def _what(value: Any) -> str:
    kind = type(value)
    name = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    advice = ": a tensor could be saved" if isinstance(value, np.ndarray) else ""
    return f"a {name}{kind.__qualname__}, which a checkpoint could not give back{advice}"


def _below(path: str, key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"
