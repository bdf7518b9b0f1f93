"""The Python text that a worker runs for a template.

For one operation, with ``v`` the values by reference, ``r`` the records, ``i`` the index where this
one begins, ``s`` the numbers that are sent with it:

    def op(v, r, i, s):
        s0 = next(s)
        v[r[i+1]] = f(v[r[i+2]], s0)
        return i + 3

For a recording, straight-line text with a name for each value, which is deleted after its last use:

        x7 = v[r[i+2]]
        x9 = f16(x7, 0.5)
        del x7
        v[r[i+1]] = x9

The line of a traceback shows which operation failed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from monarch.tensors.core.specs import CallSpec, Spec

WorkerOp = tuple[Any, CallSpec, Any]
"""The function of an operation, its call, and the check of its inputs or ``None``."""


class RecordedStep(NamedTuple):
    """One operation of a recording.

    ``number`` is that of its template, ``base`` that of its first result; ``used`` refers to its
    inputs.
    """

    number: int
    base: int
    used: tuple[int, ...]
    scalars: tuple[Any, ...]
    mesh: int


class WorkerProgram(NamedTuple):
    """The text of a program that defines ``op``, with ``constants`` for the names that it needs.

    ``lines`` are the lines at which its steps begin.
    """

    text: str
    constants: dict[str, Any]
    lines: tuple[int, ...] = ()

    def step_at(self, line: int) -> int:
        """Return the step that a line belongs to; -1 for lines before the first step."""
        return bisect_right(self.lines, line) - 1


class _ProgramText:
    """Writes the text of calls; a value that has no literal becomes a constant."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def of(self, spec: Spec, tensor: Callable[[int], str], scalar: Callable[[int], str]) -> str:
        kind = spec[0]
        if kind == "t":
            return tensor(spec[1])
        if kind == "o":
            return tensor(~spec[1])
        if kind == "s":
            return scalar(spec[1])
        if kind in ("l", "u", "n"):
            inner = "".join(self.of(item, tensor, scalar) + ", " for item in spec[-1])
            if kind == "n":
                named = self.constant(spec[1])
                return f"{named}({inner})" if hasattr(spec[1], "_fields") else f"{named}(({inner}))"
            return f"[{inner}]" if kind == "l" else f"({inner})"
        if kind == "d":
            items = (f"{self.constant(k)}: {self.of(v, tensor, scalar)}, " for k, v in spec[1])
            return "{" + "".join(items) + "}"
        if spec[1] is None or type(spec[1]) in (bool, int, str):
            return repr(spec[1])
        return self.constant(spec[1])

    def statements(
        self,
        op: WorkerOp,
        *,
        num_in: int,
        tensor: Callable[[int], str],
        scalar: Callable[[int], str],
        result: Callable[[int], str],
    ) -> list[str]:
        """Return the statements of a call: the check of its inputs, the call, and its results.

        ``tensor``, ``scalar`` and ``result`` return the text of the n-th input, number and result.
        """
        function, spec, check = op
        lines = []
        if check is not None and num_in:
            inputs = ", ".join(tensor(~n) for n in range(num_in))
            lines.append(f"{self.constant(check)}({inputs})")
        args = [self.of(arg, tensor, scalar) for arg in spec.args]
        args += [f"{name}={self.of(arg, tensor, scalar)}" for name, arg in spec.kwargs]
        call = f"{self.constant(function)}({', '.join(args)})"
        stored = [path for path in spec.paths if path is not None]
        if stored == [()]:
            return [*lines, f"{result(0)} = {call}"]
        if not stored:
            return [*lines, call]
        results = [f"{result(n)} = o{self.path(path)}" for n, path in enumerate(stored)]
        return [*lines, f"o = {call}", *results, "del o"]

    def path(self, path: tuple[Any, ...]) -> str:
        return "".join(f"[{key if type(key) is int else self.constant(key)}]" for key in path)


def operation(function: Any, spec: CallSpec, check: Any = None) -> WorkerProgram:
    """Return the program of one operation. ``check``, if any, is called with the inputs first."""
    text = _ProgramText()

    def tensor(n: int) -> str:
        return f"v[r[i+{2 + n}]]" if n >= 0 else f"v.get(r[i+{2 + ~n}])"

    lines = [f"s{n} = next(s)" for n in range(spec.num_scalars)]
    lines += text.statements(
        (function, spec, check),
        num_in=spec.num_in,
        tensor=tensor,
        scalar=lambda n: f"s{n}",
        result=lambda n: f"v[r[i+1]+{n}]" if n else "v[r[i+1]]",
    )
    lines.append(f"return i + {2 + spec.num_in}")
    return WorkerProgram(_function(lines), text.constants)


def recording(
    inputs: Sequence[int],
    results: Sequence[int],
    steps: Sequence[RecordedStep],
    ops: Callable[[int], WorkerOp],
    mine: Callable[[int], bool],
) -> WorkerProgram:
    """Return the program of a recording.

    ``inputs`` and ``results`` are the references that the recording was made with; ``ops`` returns
    the operation of a number; ``mine`` says whether this worker is in a mesh. Steps of other
    workers are left out, with the values that only these steps make.
    """
    text = _ProgramText()
    num_inputs = len(inputs)
    lines = [f"x{ref} = v.get(r[i+{2 + n}])" for n, ref in enumerate(inputs)]
    own = [step for step in steps if mine(step.mesh)]
    calls = {step.number: ops(step.number) for step in own}
    results_of = [_results(step, calls[step.number][1]) for step in own]
    made = {ref for refs in results_of for ref in refs}
    last = {ref: n for n, step in enumerate(own) for ref in (*step.used, *results_of[n])}
    kept = {*inputs, *results}
    known = made.union(inputs)
    begins = []
    for n, step in enumerate(own):
        begins.append(len(lines) + 2)  # The first line is that of `def`.
        lines += _step(text, step, calls[step.number], known)
        dead = sorted(ref for ref in last if last[ref] == n and ref not in kept and ref in made)
        if dead:
            lines.append("del " + ", ".join(f"x{ref}" for ref in dead))
    for n, ref in enumerate(results):
        if ref in known:
            lines.append(f"v[r[i+1]+{n}] = x{ref}")
    lines.append(f"return i + {2 + num_inputs}")
    return WorkerProgram(_function(lines), text.constants, tuple(begins))


def _step(
    text: _ProgramText, step: RecordedStep, op: WorkerOp, known: Collection[int]
) -> list[str]:
    def tensor(n: int) -> str:
        ref = step.used[n if n >= 0 else ~n]
        return f"x{ref}" if ref in known else "None"

    def scalar(n: int) -> str:
        value = step.scalars[n]
        return repr(value) if type(value) is int else text.constant(value)

    return text.statements(
        op,
        num_in=len(step.used),
        tensor=tensor,
        scalar=scalar,
        result=lambda n: f"x{step.base + n}",
    )


def _results(step: RecordedStep, spec: CallSpec) -> range:
    return range(step.base, step.base + sum(path is not None for path in spec.paths))


def _function(lines: Sequence[str]) -> str:
    return "def op(v, r, i, s):\n    " + "\n    ".join(lines)
