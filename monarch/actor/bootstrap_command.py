"""The command that starts a proc."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from monarch.runtime.procs.zygote_process import ZYGOTE_ARGUMENTS
from monarch.wire.message import Command


class BootstrapCommand:
    """A command that starts a proc. It must end in a Python with the arguments of
    ``default_bootstrap_cmd()``; a shell may quote them with ``shlex.join``.

    Put wrappers (numactl, a profiler, a shell that ends in ``exec``) in front: take
    ``default_bootstrap_cmd()`` and change it. The proc has the environment of its host plus
    ``env``, where ``None`` removes a variable. Without ``inherit_env`` it has ``env`` alone.
    """

    def __init__(
        self,
        program: str,
        arg0: str | None,
        args: Sequence[str],
        env: Mapping[str, str | None],
        inherit_env: bool = True,
    ) -> None:
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str | None):
                raise TypeError(f"env maps names to texts or None, not {name!r} to {value!r}")
        self.program = program
        self.arg0 = arg0
        self.args = list(args)
        self.env: dict[str, str | None] = dict(env)
        self.inherit_env = inherit_env

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """Return a copy with these variables added."""
        merged = {**self.env, **env}
        return BootstrapCommand(self.program, self.arg0, self.args, merged, self.inherit_env)

    def _as_command(self) -> Command:
        return Command(self.program, self.arg0, tuple(self.args), self.env, self.inherit_env)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BootstrapCommand):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BootstrapCommand({self.program!r}, {self.arg0!r}, {self.args}, {self.env})"


def default_bootstrap_cmd(program: str | None = None) -> BootstrapCommand:
    """Return the command that starts procs with the interpreter ``program``, or with this
    interpreter.
    """
    return BootstrapCommand(program or sys.executable, None, ZYGOTE_ARGUMENTS, {})
