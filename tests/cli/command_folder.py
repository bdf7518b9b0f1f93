"""A folder, and the ``monarch`` command run in it: as a process of its own, or within this one."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from monarch.cli.main import cli, main

__all__ = ["CommandFolder"]


_SECONDS = 100


class CommandFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def monarch(self, *arguments: str, status: int | None = 0, **environment: str) -> str:
        """Its output, standard error last."""
        output, ended = self._run(arguments, {**os.environ, **environment})
        assert status is None or ended == status, output
        return output

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-m", "monarch.cli.main", *arguments],
            cwd=self.path, capture_output=True, text=True, timeout=_SECONDS,
            stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        return done.stdout + done.stderr, done.returncode

    def here(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
        """Within this process, for what starts nothing: the output, or what it raises."""
        with self._within(monkeypatch) as output:
            cli.main(list(arguments), standalone_mode=False)
        return output()

    def told(self, monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int) -> str:
        """Within this process, for what starts nothing: what it says as it ends with ``status``."""
        monkeypatch.setattr(sys, "argv", ["monarch", *arguments])
        with self._within(monkeypatch) as output, pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == status, output()
        return output()

    @contextlib.contextmanager
    def _within(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
        monkeypatch.chdir(self.path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                yield lambda: out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        finally:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", "")).startswith(str(self.path)):
                    del sys.modules[name]
            importlib.invalidate_caches()
