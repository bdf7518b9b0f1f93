"""Hosts learn what their procs import, so that the next ones find it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.config import configured
from monarch.runtime.procs.seen_imports import SeenImports, drop_hidden
from tests.support import Program, wait_for

SECONDS = 60.0


class Importer(Actor):
    def __init__(self, name: str, environment: dict[str, str] | None = None) -> None:
        import importlib
        import os

        self.was_there = name in sys.modules
        self.threads = len(os.listdir("/proc/self/task"))
        os.environ.update(environment or {})
        importlib.import_module(name)

    @endpoint
    def found(self) -> bool:
        return self.was_there


def finds(name: str, environment: dict[str, str] | None = None) -> bool:
    """Whether a new proc of this host has a module from its birth; it imports it, too."""
    procs = this_host().spawn_procs()
    found = procs.spawn("importer", Importer, name, environment)
    was_there = found.found.call_one().get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)
    return was_there


# Each another, that nothing here has imported: the host is the same for all of them.
def test_a_later_proc_finds_what_an_earlier_one_imported() -> None:
    assert not finds("pyproject_hooks")
    assert wait_for(lambda: finds("pyproject_hooks"), what="it to be learned")


@pytest.mark.long
def test_nothing_is_learned_where_that_is_turned_off() -> None:
    with configured(learn_imports=False):
        assert not finds("stack_data")
        assert not finds("stack_data")


def test_nothing_is_learned_from_who_sets_what_libraries_read_at_their_import() -> None:
    told: list[tuple[str, ...]] = []
    seen = SeenImports(told.append)
    seen._inherited.discard("psutil")
    seen.look()
    assert told == []
    seen.look()
    assert any("psutil" in names for names in told)
    with pytest.MonkeyPatch.context() as patch:
        later = SeenImports(told.append)
        later._inherited.discard("psutil")
        patch.setenv("OMP_NUM_THREADS", "3")
        told.clear()
        later.look(is_last=True)
        assert told == []


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "CUDA_VISIBLE_DEVICES"])
def test_what_libraries_set_themselves_or_read_later_may_change(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []
    seen = SeenImports(told.append)
    seen._inherited -= {"psutil", "psutil._common", "concurrent.futures.thread"}
    monkeypatch.setenv(variable, "7")
    seen.look(is_last=True)
    [names] = told
    assert "psutil" in names
    assert "concurrent.futures.thread" not in names


def test_modules_of_any_depth_are_told() -> None:
    told: list[tuple[str, ...]] = []
    seen = SeenImports(told.append)
    deep = "hypothesis.internal.conjecture.data"
    importlib.import_module(deep)
    seen._inherited.discard(deep)
    seen.look(is_last=True)
    assert deep in told[0]


def test_the_users_own_modules_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[tuple[str, ...]] = []
    seen = SeenImports(told.append)
    __import__("mine_alone")
    seen.look(is_last=True)
    assert "mine_alone" not in [name for names in told for name in names]


LEARN = """
    import os, sys
    from pathlib import Path
    from monarch.runtime.entry import learned_modules as learned
    from monarch.runtime.procs import seen_imports
    site = os.getcwd() + "/site/"
    seen_imports._INSTALLED = (site,)
    learned._PYTHONS += (site,)
    sys.path += [site]
    print(learned.import_learned(sys.argv[1:]))
    print(*sorted(name for name in sys.modules if name in ("plain", "mine", "torch")), flush=True)
"""


def learned(folder: Path, *names: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEARN) + "os._exit(0)", *names],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import threading as t\nt.Timer(60, print).start()", "starts threads"),
        ("raise ValueError('no')", "ValueError: no"),
        ("raise SystemExit", "SystemExit"),
    ],
)  # fmt: skip
def test_what_no_proc_may_be_forked_from_is_refused(tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plain.py").write_text("")
    (tmp_path / "site" / "bad.py").write_text(source)
    told = learned(tmp_path, "plain", "bad")
    assert "'bad'" in told[0]
    assert why in told[0]


def test_nothing_of_the_users_is_imported(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plain.py").write_text("")
    (tmp_path / "plain.py").write_text("raise ValueError")
    (tmp_path / "mine.py").write_text("")
    assert learned(tmp_path, "plain") == ["{}", "plain"]
    assert "not installed" in learned(tmp_path, "mine")[0]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_package_that_the_users_code_hides_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    (tmp_path / "made_up.py").write_text("")
    order = [str(tmp_path), *sys.path] if is_first else [*sys.path, str(tmp_path)]
    monkeypatch.setattr(sys, "path", order)
    for name in ("made_up", "made_up.part", "made_upper"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    drop_hidden(["made_up", "made_up.part", "made_upper"])
    left = [name for name in sys.modules if name.startswith("made_up")]
    assert left == (["made_upper"] if is_first else ["made_up", "made_up.part", "made_upper"])


DRAW = """
    from monarch.actor import Actor, endpoint, this_host

    class Drawer(Actor):
        @endpoint
        def draw(self):
            import numpy
            return numpy.random.random()

    drawn = set()
    for _ in range(6):
        procs = this_host().spawn_procs({"procs": 2}, preload=["numpy"])
        drawn |= set(procs.spawn("drawer", Drawer).draw.call().get(timeout=30).values())
        procs.stop().get(timeout=30)
    print(len(drawn))
"""


@pytest.mark.long
def test_procs_of_one_template_draw_different_numbers(program: Callable[..., Program]) -> None:
    pytest.importorskip("numpy")
    running = program(DRAW)
    assert running.wait() == 0, running.story()
    assert running.lines[-1] == "12"
