"""Why a process ended, in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.runtime.ends.exit_words import describe_exit, has_ended_itself
from monarch.runtime.hosts.launcher import ExitReasons, oom_kills

SECONDS = 60.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "template"),
        (-signal.SIGKILL, "killed by SIGKILL"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-63, "killed by"),
        (3, "exited with status 3"),
    ],
)
def test_exit_codes_have_words(code: int | None, words: str) -> None:
    assert words in describe_exit(code)


@pytest.mark.parametrize(
    ("code", "itself"),
    [(None, False), (-signal.SIGKILL, False), (-signal.SIGTERM, False), (0, True), (3, True),
     (-signal.SIGSEGV, True), (-signal.SIGABRT, True), (-63, False)],
)  # fmt: skip
def test_what_a_process_did_itself(code: int | None, itself: bool) -> None:
    assert has_ended_itself(describe_exit(code)) is itself


def cgroup(folder: Path, version: int, kills: int) -> None:
    """What the kernel shows of a memory cgroup after ``kills``."""
    where = folder / ("job/memory.events" if version == 2 else "memory/job/memory.oom_control")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(f"low 0\noom 5\noom_kill {kills}\n")
    (folder / "self").write_text("0::/job\n" if version == 2 else "3:cpu:/x\n4:memory:/job\n")


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_for_want_of_memory_is_named(tmp_path: Path, version: int) -> None:
    cgroup(tmp_path, version, 1)
    reasons = ExitReasons(str(tmp_path), str(tmp_path / "self"))
    assert oom_kills(str(tmp_path), str(tmp_path / "self")) == 1
    assert "memory" not in reasons.describe(-signal.SIGKILL)
    cgroup(tmp_path, version, 2)
    assert "memory" not in reasons.describe(-signal.SIGSEGV)
    told = reasons.describe(-signal.SIGKILL)
    assert "SIGKILL" in told
    assert "out of memory" in told
    # Once: the next one may have another reason.
    assert "memory" not in reasons.describe(-signal.SIGKILL)


def test_where_the_kernel_tells_nothing_nothing_is_told(tmp_path: Path) -> None:
    assert oom_kills(str(tmp_path), str(tmp_path / "absent")) == 0
    (tmp_path / "memory.events").write_text("nonsense")
    assert oom_kills(str(tmp_path), str(tmp_path / "absent")) == 0


def test_a_crash_in_c_code_is_told_with_the_python_stack(faults: list[object]) -> None:
    class Crashes(Actor):
        @endpoint
        def dereference_null(self) -> None:
            import ctypes

            print("a last word")
            ctypes.string_at(0)

    crashes = this_host().spawn_procs().spawn("crashes", Crashes)
    with pytest.raises(SupervisionError) as caught:
        crashes.dereference_null.call_one().get(timeout=SECONDS)
    text = str(caught.value)
    for part in ("SIGSEGV", "a last word", "in dereference_null"):
        assert part in text
