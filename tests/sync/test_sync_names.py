"""What `monarch_sync` shows of its modules, each imported when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import monarch_sync


@pytest.mark.parametrize("name", monarch_sync.__all__)
def test_every_name_is_there_and_is_listed(name: str) -> None:
    assert getattr(monarch_sync, name).__name__ in (name, "PushMessage")
    assert name in dir(monarch_sync)


def test_a_message_of_a_push_has_its_former_name_too() -> None:
    assert monarch_sync.Outgoing is monarch_sync.PushMessage


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = monarch_sync.nonsense  # type: ignore[attr-defined]


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    program = "import sys, monarch_sync; print([m for m in sys.modules if 'monarch_sync.' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
