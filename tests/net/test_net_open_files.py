"""A process with many peers has many connections, more than most systems allow at first."""

from __future__ import annotations

import resource

import pytest

from monarch.net.io_loop import allow_many
from tests.support import Program

MANY_PROCS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (48, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from monarch.actor import this_host
from tests.actors import *
echoes = this_host().spawn_procs({"gpus": 24}).spawn("e", Echo)
print("answers", len(echoes.echo.call(1).get(timeout=50)), flush=True)
"""


@pytest.mark.long
def test_a_client_may_have_more_peers_than_a_shell_allows_files() -> None:
    client = Program.of_script(MANY_PROCS)
    try:
        assert client.line("answers", 60) == "24"
    finally:
        client.close()


Limits = tuple[int, int]
NO_END = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "highest", "expected"),
    [
        ((1024, 4096), NO_END, (4096, 4096)),
        ((1024, 1_048_576), NO_END, (65_536, 1_048_576)),
        ((1024, NO_END), NO_END, (65_536, NO_END)),
        ((1024, NO_END), 10_240, (10_240, NO_END)),  # as on macOS
        ((256, 20_000), 100, (256, 20_000)),
        ((100_000, NO_END), NO_END, None),
        ((20_000, 20_000), NO_END, None),
        ((NO_END, NO_END), NO_END, None),
    ],
)
def test_it_is_raised_as_far_as_can_be(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, highest: int, expected: Limits | None
) -> None:
    now = limits

    def set_limits(_: int, wanted: Limits) -> None:
        nonlocal now
        if highest != NO_END and wanted[0] > highest:
            raise ValueError("not allowed")
        now = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    allow_many()
    assert now == (expected or limits)


TOO_FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from monarch.actor import this_host
from tests.actors import *
try:
    echoes = this_host().spawn_procs({"gpus": 20}).spawn("e", Echo)
    echoes.echo.call(1).get(timeout=50)
except OSError as error:
    print("said", error, flush=True)
print("answers", len(this_host().spawn_procs({"gpus": 2}).spawn("e", Echo).echo.call(1).get(50)))
"""


def test_procs_that_a_client_has_no_descriptors_for_are_refused_at_once() -> None:
    """Else their answers would never be taken in, and a call would wait for its time-out."""
    client = Program.of_script(TOO_FEW)
    try:
        assert "may have 64 files open" in client.line("said", 30)
        assert client.line("answers", 30) == "2"
    finally:
        client.close()
