"""Modules that come by an entry of `sys.path` that depends on the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import asyncio, os, sys
sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != os.getcwd()]
sys.path.insert(0, sys.argv[1])

from monarch.actor import this_host
from monarch_sync import Workspace
from relative_actor import Reader

def put(text):
    for number, name in enumerate(("relative_code.py", "relative_pack/inner.py")):
        path = os.path.join(sys.argv[1], name)
        with open(path, "w") as file:
            file.write(text)

CODE = "class A:\\n    __slots__ = ('{}',)\\ndef f():\\n    return {}\\n"
procs = this_host().spawn_procs({"gpus": 1})
reader = procs.spawn("reader", Reader)
seen = [reader.read.call_one().get()]
for slot, number in (("y", 2), ("y", 3), ("y", 4), ("z", 4), ("z", 5)):
    put(CODE.format(slot, number))
    workspace = Workspace(dirs={os.path.abspath(sys.argv[1]): ""})
    assert asyncio.run(procs.sync_workspace(workspace)).ok
    seen.append(reader.read.call_one().get())
print(seen)
"""
_ACTOR = """
import relative_code
from monarch.actor import Actor, endpoint
from relative_pack import inner

class Reader(Actor):
    @endpoint
    def read(self):
        return relative_code.f(), inner.f()
"""
_CODE = "class A:\n    __slots__ = ('x',)\ndef f():\n    return 2\n"


@pytest.mark.long
@pytest.mark.parametrize(("entry", "is_safe"), [("", False), ("", True), ("below", False)])
def test_the_first_edit_after_a_respawn_is_taken(entry: str, is_safe: bool, tmp_path: Path) -> None:
    folder = tmp_path / entry
    (folder / "relative_pack").mkdir(parents=True)
    (folder / "relative_actor.py").write_text(_ACTOR)
    for name in ("relative_code.py", "relative_pack/inner.py"):
        (folder / name).write_text(_CODE)
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(_PROGRAM)
    environment = {**os.environ, **({"PYTHONSAFEPATH": "1"} if is_safe else {})}
    done = subprocess.run(
        [sys.executable, program, entry],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers = [2, 2, 3, 4, 4, 5]
    assert done.stdout.strip().endswith(str([(one, one) for one in numbers])), done.stdout
