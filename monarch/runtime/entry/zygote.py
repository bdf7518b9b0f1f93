"""The template process, a fork server: it imports what procs need, and forks when told to.

It is single-threaded, so that forking is safe, and runs no user code and no CUDA. It ends, with
every proc that it made, when its host agent ends, because the kernel closes their socket then.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Objects that imports make stay, and looking for garbage among them takes a tenth of the start.
    gc.disable()

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from typing import Any, NoReturn

import msgspec

from monarch.runtime.ends.process_group import die_with_parent, kill_group, wake_with_parent
from monarch.runtime.ends.process_start import process_start

# Modules that every proc needs, so that a fork finds them imported.
from monarch.runtime.entry import bootstrap
from monarch.runtime.entry.learned_modules import import_learned
from monarch.runtime.entry.template_cuda import TemplateCuda, is_spoiled
from monarch.runtime.procs.proc_config import CONTROL_FD, MAX_PACKET_BYTES, ProcConfig, decode_order
from monarch.wire.codec import message_decoder

_OF_USERS = "monarch.actor"
"""The module that actor classes import, by name, as this layer may not import it: each proc would
import it with its first actor."""
_PAST_FD = "MONARCH_TEMPLATE_PAST_FD"


class _Zygote:
    def __init__(self, control: socket.socket, past: TemplatePast, directory: str) -> None:
        self._control = control
        self._past = past
        self._directory = directory
        self._cuda = TemplateCuda()
        self._children = {pid: (uid, life) for pid, uid, life in past.children}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write)
        if self._past.modules:  # It was a template before, and has begun again.
            self._import(self._past.imported, {})
            self._preload(self._past.modules)
            self._reap()
        else:
            self._tell(event="ready")
        control = self._control.fileno()
        while True:
            readable, _, _ = select.select([control, self._wake_read], [], [])
            if self._wake_read in readable:
                self._drain_wakeups()
                self._reap()
            if control in readable and not self._serve():
                self._kill_all()
                # With torch imported, an ordinary exit takes a second.
                os._exit(0)

    def _serve(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 3)
        except OSError:
            return False
        if not data:
            return False
        order = decode_order(data)
        if order["op"] == "fork":
            self._fork(msgspec.convert(order["config"], ProcConfig), fds)
        elif order["op"] == "preload":
            self._preload(order["modules"])
        elif order["op"] == "learn":
            self._learn(order["modules"])
        elif order["op"] == "kill":
            self._kill(order["uid"])
        return True

    def _fork(self, config: ProcConfig, fds: list[int]) -> None:
        template = os.getpid()
        try:
            with warnings.catch_warnings():
                # From 3.12 on, Python warns of threads of libraries (OpenBLAS's), which see to a
                # fork themselves.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            # There is no memory for it, or no pid: this proc fails, and the others live on.
            pid = -1
            os.write(fds[1], f"no process could be made: {error.strerror}\n".encode())
        if pid == 0:
            self._become_proc(config, fds, template)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            self._tell(event="exited", uid=config.uid, life=config.life, code=1)
            return
        self._children[pid] = config.uid, config.life
        started = process_start(pid, even_ended=True)
        self._tell(event="forked", uid=config.uid, life=config.life, pid=pid, started=started)

    def _become_proc(self, config: ProcConfig, fds: list[int], template: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            die_with_parent()
            if os.getppid() != template:
                os._exit(1)  # The template died before we asked for its death's signal.
            for fd in (self._control.detach(), self._wake_read, self._wake_write):
                os.close(fd)
            os.dup2(fds[0], 1)
            os.dup2(fds[1], 2)
            setup = _read_all(fds[2]) if len(fds) > 2 else b""
            for fd in fds:
                os.close(fd)
            if self._directory:
                sys.path.remove(self._directory)
                sys.path.insert(0, self._directory)
            bootstrap.run_proc(config, setup)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            bootstrap.exit_quietly(code)

    def _preload(self, modules: list[str]) -> None:
        errors: dict[str, str] = {}
        self._import(modules, errors)
        self._past.imported += [name for name in modules if name not in errors]
        gc.collect()
        gc.freeze()
        self._tell(event="preloaded", modules=modules, errors=errors)

    def _import(self, modules: list[str], errors: dict[str, str]) -> None:
        for name in modules:
            if name in self._past.spoilers:
                errors[name] = self._past.spoilers[name]
                continue
            try:
                with self._cuda.importing():
                    importlib.import_module(name)
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
            if is_spoiled():
                self._begin_again(name, modules)

    def _begin_again(self, spoiler: str, modules: list[str]) -> NoReturn:
        """Become a new template without a module that has spoiled this one: procs that want it
        import it themselves. Orders wait in the socket meanwhile, and procs stay our children."""
        cause = self._cuda.cause
        by = f", by {cause}" if cause and cause != spoiler else ""
        self._past.spoilers[spoiler] = (
            f"its import asks CUDA{by}, and a process that has done so cannot be forked: "
            "procs import it themselves"
        )
        self._past.modules = modules
        self._past.children = [(pid, *child) for pid, child in self._children.items()]
        self._past.exec(self._control.fileno())

    def _learn(self, modules: list[str]) -> None:
        """Import modules that no order named, if a fork then behaves like a fresh import."""
        with self._cuda.importing():
            errors = import_learned(modules)
        gc.collect()
        gc.freeze()
        self._tell(event="preloaded", modules=modules, errors=errors)

    def _kill(self, uid: str) -> None:
        for pid, (child, _) in self._children.items():
            if child == uid:
                kill_group(pid)

    def _kill_all(self) -> None:
        for pid in self._children:
            kill_group(pid)

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass

    def _reap(self) -> None:
        while self._children:
            try:
                # Looked at before it is reaped: while it is a zombie, its group id is its own.
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            kill_group(info.si_pid)
            _, status = os.waitpid(info.si_pid, 0)
            child = self._children.pop(info.si_pid, None)
            if child is not None:
                uid, life = child
                code = os.waitstatus_to_exitcode(status)
                self._tell(event="exited", uid=uid, life=life, code=code)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            self._control.send(msgspec.json.encode(event))


class TemplatePast(msgspec.Struct):
    """The facts that a template keeps when it restarts itself.

    ``modules`` are those of the preload that spoiled it, ``imported`` those of earlier preloads.
    ``spoilers`` says, by module, why some are not imported. ``children`` are the procs that it has
    forked, each as (pid, uid, life).
    """

    environment: dict[str, str]
    modules: list[str] = []
    imported: list[str] = []
    spoilers: dict[str, str] = {}
    children: list[tuple[int, str, int]] = []

    def exec(self, control: int) -> NoReturn:
        """Restart this program with the arguments that it was started with."""
        os.set_inheritable(control, True)
        past = os.memfd_create("monarch-past", 0)
        os.write(past, msgspec.json.encode(self))
        environment = {**self.environment, CONTROL_FD: str(control), _PAST_FD: str(past)}
        os.execve(sys.executable, sys.orig_argv, environment)

    @classmethod
    def of_this_process(cls) -> TemplatePast:
        past = os.environ.pop(_PAST_FD, None)
        if past is None:
            environment = {k: v for k, v in os.environ.items() if k != CONTROL_FD}
            return cls(environment)
        with os.fdopen(int(past), "rb") as file:
            file.seek(0)
            return msgspec.json.decode(file.read(), type=cls)


def _read_all(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        return file.read()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # So that a template that is stopped sees that its host agent has ended, and ends its procs.
    wake_with_parent()
    past = TemplatePast.of_this_process()
    importlib.import_module(_OF_USERS)
    message_decoder()
    gc.freeze()
    gc.enable()
    directory = ""
    with contextlib.suppress(FileNotFoundError):
        directory = os.getcwd()
        # Modules that are imported ahead may be there, but must not replace a library. In procs,
        # which run the user's code, the folder is the first, as with `python -m`.
        sys.path.append(directory)
    _Zygote(socket.socket(fileno=int(os.environ.pop(CONTROL_FD))), past, directory).run()


if __name__ == "__main__":
    main()
