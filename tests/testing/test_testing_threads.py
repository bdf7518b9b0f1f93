"""What a world leaves in the process whose threads it unwound."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import Program

_TRACED = """
    import sys
    from monarch.actor import Actor, endpoint
    from monarch.testing import in_process

    class Turner(Actor):
        @endpoint
        def turn(self):
            while True:
                pass

    def called():
        return "a function"

    with in_process() as world:
        turner = world.host.spawn_procs({"gpus": 1}).spawn("turner", Turner)
        turner.turn.broadcast()
    sys.settrace(lambda *about: None)
    print("traced", called(), flush=True)
"""


def test_code_is_traced_as_ever_when_threads_were_unwound(
    program: Callable[..., Program],
) -> None:
    """As for coverage, or by a debugger. It hung where Python (3.11) thought that something was to
    be raised yet."""
    tracing = program(_TRACED)
    assert tracing.line("traced", 30.0) == "a function"
    assert tracing.wait() == 0
