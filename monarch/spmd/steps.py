"""``monarch.step``: the place in a script's loop where new code may come in.

The script has a thread of its own, and stops there; the actor that drives it lets it go on. Outside
of ``monarch run``, under torchrun or plain Python, ``step()`` does nothing.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_GPU_EVERY = 10  # steps between two looks at numbers on a GPU


class ScriptThread:
    """A script on a thread of its own, which waits at each ``step()`` for its driver."""

    def __init__(self, main: Callable[[], object]) -> None:
        self._main = main
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to make the step
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._work: Callable[[], Any] | None = None
        self._result: Any = None
        self.figures: dict[str, float] = {}
        self.num_steps = 0  # that were made
        self.is_ended = False
        self._thread = threading.Thread(target=self._run, name="script", daemon=True)

    @property
    def ident(self) -> int:
        """The number of its thread; of this one before that has begun."""
        return self._thread.ident or threading.get_ident()

    @property
    def work(self) -> Callable[[], Any] | None:
        """The function that the script has given ``step`` to call, with its arguments."""
        return self._work

    # In the driver's thread

    def go_on(self) -> bool:
        """Let the script go on to its next ``step``, or its end; whether it is at a step. Raises
        what the script has raised."""
        if self.is_ended:
            return False
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._orders.put(False)
        self._answer()
        return not self.is_ended

    def make_step(self) -> dict[str, float]:
        """Have the script's thread call the function that the script gave ``step``, if it gave
        one, and return the figures of its result. It may be made again where it raised."""
        if self.is_ended or self._work is None:
            return {}
        self._orders.put(True)
        self._answer()
        return _figures_of(self._result, is_due=self.num_steps % _GPU_EVERY == 0)

    def _answer(self) -> None:
        while True:
            try:
                error = self._answers.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue  # So that this thread can be interrupted, too.
            if error is not None:
                raise error
            return

    # In the script's thread

    def _run(self) -> None:
        global _script
        _script = self
        error: BaseException | None = None
        try:
            self._main()
        except BaseException as raised:  # SystemExit, too: it is the script's, not the actor's
            error = raised
        self.is_ended = True
        _script = None
        self._answers.put(error)

    def arrive(self, work: Callable[[], T] | None, figures: dict[str, float]) -> T | None:
        """The script is at a step: wait until it may go on, and return what ``work`` returned."""
        if threading.get_ident() != self._thread.ident:
            return work() if work is not None else None  # Another thread of the script's.
        self._work, self._result, self.figures = work, None, figures
        self._answers.put(None)
        while self._orders.get():
            error: BaseException | None = None
            try:
                self._result = self._work() if self._work is not None else None
            except BaseException as raised:
                error = raised
            self._answers.put(error)
            del error  # Its frames hold tensors.
        self.num_steps += 1
        result: T | None = self._result
        self._work = self._result = None
        return result


_script: ScriptThread | None = None


def step(function: Callable[..., T] | None = None, /, *args: Any, **kwargs: Any) -> T | None:
    """A step of a script's loop is over, or, with a ``function``, is this call of it.

    ``monarch.step()`` lets in what was pushed: all ranks switch to new code between the same two
    steps. ``monarch.step(loss=0.3)`` has figures for the run's table and record.

    ``loss = monarch.step(train_step, batch)`` calls the function, and returns what it returns. A
    number, or a tensor with one, is the run's figure ``loss``; a dict of them has figures by name.
    Of tensors on a GPU that is each tenth step, as it waits for the GPU.
    Where new code makes it raise, the run holds: the state is put back, and the next save calls it
    again. Does nothing else outside of ``monarch run``.
    """
    if function is not None and not callable(function):
        raise TypeError(
            f"monarch.step({function!r}): the first argument is the function to call; figures have "
            "names, as in monarch.step(loss=0.3)"
        )
    script = _script
    if function is None:
        if args:
            raise TypeError("monarch.step() takes figures by name, as in monarch.step(loss=0.3)")
        if script is not None:
            script.arrive(None, {name: _number(value) for name, value in kwargs.items()})
        return None
    if script is None:
        return function(*args, **kwargs)
    return script.arrive(_Work(function, args, kwargs), {})


def _figures_of(result: Any, *, is_due: bool) -> dict[str, float]:
    """The numbers in what a step has returned; ``is_due``: those that a GPU has to be waited for,
    too."""
    named = result if isinstance(result, dict) else {"loss": result}
    return {
        name: _number(value)
        for name, value in named.items()
        if isinstance(name, str) and _is_number(value) and (is_due or not _is_on_gpu(value))
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return not isinstance(value, bool)
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return value.numel() == 1 and not (value.is_complex() or value.is_meta)


def _is_on_gpu(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _number(value: Any) -> float:
    """A tensor's may be part of a graph."""
    return float(value.detach() if hasattr(value, "detach") else value)


class _Work:
    """A call to be made. The function is looked up anew where its module has another one by now."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        return self._newest()(*self.args, **self.kwargs)

    def _newest(self) -> Callable[..., Any]:
        function = self.function
        name = getattr(function, "__qualname__", "")
        module = sys.modules.get(getattr(function, "__module__", "") or "")
        found = getattr(module, name, function) if name.isidentifier() else function
        return found if callable(found) else function
