"""Actors whose classes import the same package at once, each on a thread of its own."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from monarch.actor import this_host

NUM = 4

# As torch: the package imports its parts, and does not survive a part that imports the package
# while that is half there.
PACKAGE = """
import time
time.sleep(0.2)
from slow_package import part_1, part_2, part_3
assert all(part.IS_WHOLE for part in (part_1, part_2, part_3))
IS_WHOLE = True
"""
PART = """
import time
import slow_package
time.sleep(0.1)
IS_WHOLE = True
"""
USER = """
from monarch.actor import Actor, endpoint
import {first}
import slow_package


class User{number}(Actor):
    def __init__(self):
        assert slow_package.IS_WHOLE

    @endpoint
    def where(self):
        return {number}
"""


@pytest.mark.timeout(120)
def test_classes_that_import_parts_of_one_package_at_once_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package/__init__.py").write_text(PACKAGE)
    for number in range(1, NUM):
        (tmp_path / f"slow_package/part_{number}.py").write_text(PART)
    for number in range(NUM):
        first = f"slow_package.part_{number}" if number else "slow_package"
        text = USER.format(first=first, number=number)
        (tmp_path / f"user_{number}.py").write_text(textwrap.dedent(text))
    procs = this_host().spawn_procs({"gpus": 1})
    users = []
    for number in range(NUM):
        module = __import__(f"user_{number}")
        users.append(procs.spawn(f"user{number}", getattr(module, f"User{number}")))
    try:
        assert [user.where.call_one().get(timeout=60) for user in users] == list(range(NUM))
    finally:
        procs.stop().get()
        for name in list(sys.modules):
            if name.startswith(("slow_package", "user_")):
                del sys.modules[name]
