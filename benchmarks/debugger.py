"""How long a person waits in `monarch debug`: prompt, attach, a line, stacks, environment.

    python benchmarks/debugger.py [--procs 8] [--rounds 20]

Medians are told, with the load of the machine: they are of this machine at that moment.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from monarch import configure
from monarch.actor import Actor, endpoint, this_host
from monarch.debugger.visit import Visit
from monarch.runtime.client_agent import client
from monarch.wire.hold import HoldNote
from monarch.wire.message import EnvAsked, HoldLine, HoldText, StacksAsked


class Stepper(Actor):
    """An actor that stops at a breakpoint in each step."""

    @endpoint
    def step(self) -> int:
        number = 1
        breakpoint()
        number += 1
        return number


def _median(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def _line(visit: Visit, hold: HoldNote, line: str) -> None:
    """Type a line into a held call's debugger, and wait until it asks for another one."""
    ask = visit.ask
    begun = ask(hold.proc, HoldText(hold.id, -1, False, 0.0))
    number, is_waiting = begun.number, False
    ask(hold.proc, HoldLine(hold.id, line, "", True))
    while not is_waiting:
        output = ask(hold.proc, HoldText(hold.id, number, False, 5.0), 9.0)
        number, is_waiting = output.number, output.is_waiting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--procs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    configure(breakpoint="wait")
    procs = this_host().spawn_procs({"gpus": given.procs})
    steppers = procs.spawn("stepper", Stepper)
    began = time.perf_counter()
    answer = steppers.step.call()
    agent = client()
    visit = Visit(agent.node, lambda: {"this program": agent.node.address})
    while len([hold for hold in visit.holds() if hold.is_waiting]) < given.procs:
        time.sleep(0.01)
    print(f"all stand after               {(time.perf_counter() - began) * 1000:8.1f} ms")
    hold, seen = visit.holds()[0], visit.procs()
    rows = {
        "list": lambda: visit.holds(),
        "a line, to its answer": lambda: _line(visit, hold, "p number"),
        "a step": lambda: _line(visit, hold, "w"),
        "stacks of all procs": lambda: visit.ask_many(seen, StacksAsked(False)),
        "environment of all procs": lambda: visit.ask_many(
            seen, EnvAsked(("PATH",), False, "s", False)
        ),
    }
    for name, work in rows.items():
        print(f"{name:<28}  {_median(work, given.rounds):8.1f} ms")

    def prompt() -> None:
        command = [sys.executable, "-c", "from monarch.cli.main import main; main()", "debug"]
        subprocess.run(command, input="quit\n", text=True, capture_output=True, check=True)

    print(f"monarch debug, to its end     {_median(prompt, 5):8.1f} ms")
    for one in visit.holds():
        visit.ask(one.proc, HoldLine(one.id, "c", "", True))
    answer.get(timeout=30)
    print(f"{given.procs} procs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
