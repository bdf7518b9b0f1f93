"""``monarch.step``: the place in a script's loop at which new code may be loaded.

The script has a thread of its own, and waits there until its actor lets it continue. Outside of
``monarch run``, under torchrun or plain Python, ``step()`` does nothing.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_GPU_EVERY = 10  # how many steps pass until numbers on a GPU are read again


class ScriptThread:
    """A script on a thread of its own, which waits at each ``step()`` for its driver."""

    def __init__(self, main: Callable[[], object]) -> None:
        #: The figures that the script gave ``step``.
        self.figures: dict[str, float] = {}
        #: How many steps the script has made.
        self.num_steps = 0
        self.is_ended = False
        #: The function that the script gave ``step``, with its arguments; ``None`` without one.
        self.work: Callable[[], Any] | None = None
        self._main = main
        #: From the driver to the script: whether to call the function, or to continue.
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        #: From the script to the driver: the error that was raised, or ``None``.
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        #: The result of the function.
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, name="script", daemon=True)

    @property
    def ident(self) -> int:
        """Return the id of the script's thread; before it has begun, of the current thread."""
        return self._thread.ident or threading.get_ident()

    # Called in the driver's thread

    def go_on(self) -> bool:
        """Let the script continue to its next ``step``, or its end; return whether it is at a step.

        Raises the script's own error.
        """
        if self.is_ended:
            return False
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._orders.put(False)
        self._answer()
        return not self.is_ended

    def make_step(self) -> dict[str, float]:
        """Call the function that the script gave ``step``, if any, in the script's thread; return
        the figures of its result. If it raised, it may be called again."""
        if self.is_ended or self.work is None:
            return {}
        self._orders.put(True)
        self._answer()
        return _figures_of(self._result, is_due=self.num_steps % _GPU_EVERY == 0)

    def _answer(self) -> None:
        while True:
            try:
                error = self._answers.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue  # The wait is short, so that this thread can be interrupted, too.
            if error is not None:
                raise error
            return

    # Called in the script's thread

    def _run(self) -> None:
        global _script
        _script = self
        error: BaseException | None = None
        try:
            self._main()
        except BaseException as raised:  # also SystemExit, which must not end the actor
            error = raised
        self.is_ended = True
        _script = None
        self._answers.put(error)

    def arrive(self, work: Callable[[], T] | None, figures: dict[str, float]) -> T | None:
        """Wait at a step until the driver lets the script continue; return the result of ``work``,
        which is called when the driver says so."""
        if threading.get_ident() != self._thread.ident:
            return work() if work is not None else None  # Another thread of the script's.
        self.work, self._result, self.figures = work, None, figures
        self._answers.put(None)
        while self._orders.get():
            error: BaseException | None = None
            try:
                self._result = self.work() if self.work is not None else None
            except BaseException as raised:
                error = raised
            self._answers.put(error)
            del error  # Its frames hold tensors.
        self.num_steps += 1
        result: T | None = self._result
        self.work = self._result = None
        return result


_script: ScriptThread | None = None


def step(function: Callable[..., T] | None = None, /, *args: Any, **kwargs: Any) -> T | None:
    """Mark the end of a step of a script's loop; with a ``function``, call it as the step.

    ``monarch.step()`` lets pushed code in: all ranks switch to new code between the same two steps.
    ``monarch.step(loss=0.3)`` adds figures to the run's table and record.

    ``loss = monarch.step(train_step, batch)`` calls the function, and returns its result. A number,
    or a tensor with one number, becomes the run's figure ``loss``; a dict has figures by name.
    Tensors on a GPU are read at each tenth step only, as reading them waits for the GPU. If new
    code makes the function raise, the run holds: the state is restored, and the next save calls the
    function again. Outside of ``monarch run`` it does nothing else.
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
    """Return the numbers in a step's result by name; those on a GPU only if they are due, as
    reading them waits for the GPU."""
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
    return float(value.detach() if hasattr(value, "detach") else value)


class _Work:
    """A function with its arguments.

    Each call runs the newest version of the function, which its module has at that time.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        name = getattr(self.function, "__qualname__", "")
        module = sys.modules.get(getattr(self.function, "__module__", "") or "")
        newest = getattr(module, name, None) if name.isidentifier() else None
        function = newest if callable(newest) else self.function
        return function(*self.args, **self.kwargs)
