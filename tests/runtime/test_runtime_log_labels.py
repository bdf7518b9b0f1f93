"""Each line is shown under the actor that printed it, however many share a process."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import Program

Start = Callable[..., Program]

SETUP = """
import asyncio, logging, os, sys, threading
from monarch.actor import *

class Says(Actor):
    @endpoint
    def say(self, text): print(text)
    @endpoint
    def complain(self, text): print(text, file=sys.stderr)
    @endpoint
    def by_thread(self, text):
        thread = threading.Thread(target=print, args=(text,))
        thread.start()
        thread.join()
    @endpoint
    def redirected(self, path):
        kept = os.dup(1)
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        print("into the file")
        os.dup2(kept, 1)

class Async(Actor):
    @endpoint
    async def say(self, text):
        for turn in range(3):
            print(text, turn)
            await asyncio.sleep(0.01)

procs = this_host().spawn_procs()
"""


def printed(run: Program) -> list[str]:
    assert run.wait() == 0, run.story()
    return sorted(run.lines)


def test_not_under_the_one_that_was_made_last(program: Start) -> None:
    run = program(
        SETUP
        + """
first, second = procs.spawn("first", Says), procs.spawn("second", Says)
for turn in range(3):
    first.say.call_one(f"first says {turn}").get()
    second.say.call_one(f"second says {turn}").get()
first.complain.call_one("first complains").get()
"""
    )
    expected = [f"[{who} 0] {who} says {turn}" for who in ("first", "second") for turn in range(3)]
    assert printed(run) == expected
    assert run.errors == ["[first 0] first complains"]


def test_actors_on_a_loop_that_take_turns(program: Start) -> None:
    run = program(
        SETUP
        + """
one, two = procs.spawn("one", Async), procs.spawn("two", Async)
both = one.say.call_one("of one"), two.say.call_one("of two")
for future in both: future.get()
"""
    )
    expected = [f"[{who} 0] of {who} {turn}" for who in ("one", "two") for turn in range(3)]
    assert printed(run) == expected


def test_a_thread_prints_for_the_actor_that_has_started_it(program: Start) -> None:
    run = program(
        SETUP
        + """
first, second = procs.spawn("first", Says), procs.spawn("second", Says)
second.say.call_one("before").get()
first.by_thread.call_one("by a thread").get()
"""
    )
    assert printed(run) == ["[first 0] by a thread", "[second 0] before"]


def test_a_descriptor_that_is_redirected_gets_no_marks(program: Start, tmp_path: object) -> None:
    run = program(
        SETUP
        + f"""
first, second = procs.spawn("first", Says), procs.spawn("second", Says)
first.say.call_one("before").get()
second.redirected.call_one("{tmp_path}/file").get()
print(repr(open("{tmp_path}/file").read()))
"""
    )
    assert printed(run) == ["'into the file\\n'", "[first 0] before"]


def test_ranks_need_not_be_shown(program: Start) -> None:
    run = program(
        SETUP
        + """
from monarch.config import configure
configure(prefix_with_rank=False)
procs.spawn("first", Says).say.call_one("hello").get()
"""
    )
    assert printed(run) == ["[first] hello"]


def test_an_error_says_the_rank_that_raised(program: Start) -> None:
    run = program(
        """
import pickle
from monarch.actor import *
class Picky(Actor):
    @endpoint
    def step(self):
        if current_rank()["gpus"] == 2: raise ValueError("mine")
picky = this_host().spawn_procs({"gpus": 4}).spawn("picky", Picky)
try: picky.step.call().get()
except ActorError as error:
    print(error.rank, pickle.loads(pickle.dumps(error)).rank, str(error).splitlines()[0])
"""
    )
    assert printed(run) == ["2 2 Actor call picky.step failed. It was rank 2 {'gpus': 2/4}."]
