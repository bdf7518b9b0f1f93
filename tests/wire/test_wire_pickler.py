from __future__ import annotations

import pickle
from types import FunctionType
from typing import Any

import msgspec
import pytest

from monarch.wire import payload, pickler
from monarch.wire.pickler import dumps, place_of_stray

_SOURCE = """
def outer(number):
    def inner():
        return number
    return inner, lambda: 0

class Made:
    def method(self):
        return [value for value in (1, 2)]
"""


def _of_a_file(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "of_no_module"}
    exec(compile(_SOURCE, name, "exec"), names)
    return names


def _files(*functions: FunctionType) -> set[str]:
    nested = [c for f in functions for c in f.__code__.co_consts if hasattr(c, "co_filename")]
    return {code.co_filename for code in (*(f.__code__ for f in functions), *nested)}


def test_code_keeps_the_name_of_its_file() -> None:
    names = _of_a_file("/nowhere/task.py")
    outer, made = pickle.loads(dumps((names["outer"], names["Made"])))
    assert _files(outer, *outer(5), made.method) == {"/nowhere/task.py"}
    assert outer(5)[0]() == 5


def _stray(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of an extension that is not in the module that it names."""
    decoder = msgspec.json.Decoder
    assert decoder.__module__ == "msgspec.json"
    monkeypatch.setattr(msgspec, "TheDecoder", decoder, raising=False)
    monkeypatch.delattr(msgspec.json, "Decoder")
    return decoder


def test_a_class_of_an_extension_travels_as_where_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stray = _stray(monkeypatch)
    assert place_of_stray(stray) == ("msgspec", "TheDecoder")
    arrived = pickle.loads(dumps({"kind": stray}))
    assert arrived["kind"] is stray
    assert payload.load(*payload.dump([stray]))[0] is stray


def test_one_that_no_module_has_is_an_error_where_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stray = _stray(monkeypatch)
    monkeypatch.setattr(pickler, "_places_of", lambda cls: iter(()))
    monkeypatch.setattr(pickler, "_strays", {})
    with pytest.raises(pickle.PicklingError, match="Decoder cannot be sent: an extension"):
        payload.dump([stray])


def test_classes_of_safetensors_travel() -> None:
    safetensors = pytest.importorskip("safetensors")
    assert pickle.loads(dumps(safetensors.safe_open)) is safetensors.safe_open


def test_what_a_payload_carries_keeps_it_too() -> None:
    data, buffers = payload.dump(_of_a_file("/nowhere/task.py")["outer"](1))
    inner, other = payload.load(bytes(data), list(map(bytes, buffers)))
    assert _files(inner, other) == {"/nowhere/task.py"}


def test_equal_code_has_equal_pickles() -> None:
    first, second = (_of_a_file("/nowhere/" + name)["outer"] for name in ("task.py", "task.py"))
    assert dumps(first) == dumps(second)


def test_a_copy_can_be_sent_on() -> None:
    once = pickle.loads(dumps(_of_a_file("/nowhere/task.py")["Made"]))
    assert _files(pickle.loads(dumps(once.method))) == {"/nowhere/task.py"}
