"""Every test leaves things as it found them: no process, thread, descriptor or directory more.

The client agent stays from test to test within a module, because starting it takes longer
than most tests; what a test spawned is stopped after it, and the agent itself with the module.
"""

from __future__ import annotations

import compileall
import contextlib
import ctypes
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# Before anything of ours is imported: sockets of this run lie apart from those of others.
_RUNTIME_DIR = tempfile.mkdtemp(prefix="mt-", dir="/tmp")
os.environ["MONARCH_RUNTIME_DIR"] = _RUNTIME_DIR
# The state of jobs is kept apart from the user's own; and what tests write is trusted.
_STATE_HOME = tempfile.mkdtemp(prefix="mt-state-", dir="/tmp")
os.environ["XDG_STATE_HOME"] = _STATE_HOME
os.environ["MONARCH_TRUST"] = "1"

import hypothesis  # noqa: E402
import psutil  # noqa: E402
import pytest  # noqa: E402
import zmq  # noqa: E402
from _pytest.faulthandler import fault_handler_stderr_fd_key  # noqa: E402

from tests.cases import pytest_collection_modifyitems  # noqa: E402, F401
from tests.gpu_here import why_no_gpu  # noqa: E402
from tests.guard import write_guard  # noqa: E402
from tests.support import GUARD_FOLDER, Program, wait_for  # noqa: E402
from tests.warm_python import warm_python  # noqa: E402

# An example that takes long, as on a machine that stands still for a moment, is no failure. And
# what fails, fails again: new examples are for who looks for them, with HYPOTHESIS_PROFILE=search.
for _name, _is_same in (("gate", True), ("search", False)):
    hypothesis.settings.register_profile(
        _name,
        deadline=None,
        derandomize=_is_same,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


class _Loggers(dict[str, Any]):
    """The loggers that pytest visits as a test begins, while threads of fixtures may add to
    them."""

    def values(self) -> Any:
        return list(super().values())


logging.root.manager.loggerDict = _Loggers(logging.root.manager.loggerDict)


_PROJECT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Compile our code once, not in each of the thousand processes that the tests start.

    Where PYTHONDONTWRITEBYTECODE is set, as in many containers, no import would keep it.
    """
    _hide_gpus(config)
    _share_out_by_file(config)
    _give_a_folder_of_its_own(config)
    # What compilers for GPUs keep would go into the user's home.
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        os.environ.setdefault(name, os.path.join(_STATE_HOME, name))
    if hasattr(config, "workerinput") or not os.access(_PROJECT, os.W_OK):
        return
    for package in ("monarch", "sync", "recipes"):
        compileall.compile_dir(_PROJECT / package, quiet=2)


def _share_out_by_file(config: pytest.Config) -> None:
    """With ``-n N``, however it was given: the tests of a file run in one process, in their order.

    Some files count what their earlier tests did. A worker that crashes is not replaced: with files
    shared out, the others would wait for it for ever.
    """
    if config.getoption("dist", "no") == "load":  # What xdist takes where only -n was given.
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False
        config.option.maxworkerrestart = "0"


def _give_a_folder_of_its_own(config: pytest.Config) -> None:
    """Have the tests write below a folder that no other session of pytest touches.

    A session that begins takes the folder that all sessions of a user share from other users, and
    some tests here run as another user.
    """
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="mt-tests-", dir="/tmp")
        config.add_cleanup(lambda: _remove_unless_failed(config))


def _remove_unless_failed(config: pytest.Config) -> None:
    session = config.pluginmanager.get_plugin("session")
    if session is None or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


def _hide_gpus(config: pytest.Config) -> str:
    """Why the tests of this session do not see the GPUs of this machine; "" where they do.

    They compare digests with those of CPUs, have more ranks than a machine has GPUs, and fake GPUs
    themselves. Those that are about GPUs are marked so, and are chosen by that mark alone.
    """
    wanted = config.getoption("markexpr", "") or ""
    if os.environ.get("MONARCH_TEST_GPUS") or ("gpu" in wanted and "not gpu" not in wanted):
        return ""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
    return "GPUs are hidden from these tests: `make gpu` runs those that are about them"


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say so where there is one."""
    why = _hide_gpus(config)
    return [why] if why and os.path.exists("/dev/nvidia0") else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and why_no_gpu():
        pytest.skip(why_no_gpu())


_CACHES = (
    ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", ".import_linter_cache",
)  # fmt: skip


class _Guarded:
    """Whether this process, and those that it starts, may change only what is the tests'."""

    def __init__(self) -> None:
        self.is_on = False
        handle, self.report = tempfile.mkstemp(prefix="mt-refused-", dir="/tmp")
        os.close(handle)
        os.chmod(self.report, 0o666)  # Tests start processes of other users, too.

    def begin(self) -> None:
        roots = [
            tempfile.gettempdir(),
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            *(_PROJECT / name for name in _CACHES),
        ]
        os.environ[write_guard.ROOTS] = ":".join(map(str, roots))
        os.environ[write_guard.REPORT] = self.report
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{GUARD_FOLDER}:{known}" if known else str(GUARD_FOLDER)
        write_guard.install(os.environ[write_guard.ROOTS], self.report, lambda: self.is_on)
        self.is_on = True

    def refused(self) -> list[str]:
        """Returns the refusals since the last call."""
        if os.stat(self.report).st_size == 0:
            return []
        refused = Path(self.report).read_text().splitlines()
        os.truncate(self.report, 0)
        return refused


_guarded = _Guarded()


# Nobody may change the first two; Python itself ignores the others.
_ALWAYS_SO = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}


def _take_usual_signals() -> None:
    """Give signals their usual effect. A shell may have had them ignored (`pytest &`, nohup), and
    all programs that tests start would inherit that: the tests are about programs at a person's
    terminal."""
    for number in signal.valid_signals() - _ALWAYS_SO:
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


_take_usual_signals()


def pytest_sessionstart(session: pytest.Session) -> None:
    runs_tests = hasattr(session.config, "workerinput") or not session.config.getoption(
        "numprocesses", None
    )
    if runs_tests:
        _guarded.begin()
        warm_python.start()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests themselves are kept compiled too; what they import later, only as ever."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_finish() -> None:
    """Keep the objects that tests import out of garbage collections, which take half a second each.

    A proc does the same when it has imported what it is to run.
    """
    gc.collect()
    gc.freeze()
    gc.unfreeze = _unfreeze


_unfreeze_all = gc.unfreeze
_unfrozen: list[None] = []


def _unfreeze() -> None:
    _unfrozen.append(None)
    _unfreeze_all()


_PATIENCE_SECONDS = 60.0
_MANY_OBJECTS = 150_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Ends the worker of a test whose main thread no signal wakes, or that hangs after its end;
    says which test it was, as xdist throws away all that is printed there."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]

    def end() -> None:
        os.write(stderr, f"\n{item.nodeid} does not end: its worker does\n".encode())
        os._exit(1)

    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker is not None else float(item.config.getini("timeout"))
    timer = threading.Timer(seconds + _PATIENCE_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        # What tests have thawed, or imported late, all looks at objects would go through later.
        is_last_of_file = nextitem is None or nextitem.path != item.path
        if _unfrozen or (is_last_of_file and len(gc.get_objects()) > _MANY_OBJECTS):
            _unfrozen.clear()
            gc.collect()
            gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    warm_python.close()
    _guarded.is_on = False  # Reports go wherever who runs the tests wants them.
    shutil.rmtree(_RUNTIME_DIR, ignore_errors=True)
    shutil.rmtree(_STATE_HOME, ignore_errors=True)
    Path(_guarded.report).unlink(missing_ok=True)


def _client() -> Any:
    """The client agent of this process, if a test made one."""
    process = sys.modules.get("monarch.runtime.process")
    return process.current() if process is not None and process.is_bootstrapped() else None


def _children() -> set[int]:
    if not os.path.exists("/proc/thread-self/children"):  # A kernel that keeps no such list.
        return {child.pid for child in psutil.Process().children(recursive=True)}
    found: set[int] = set()
    while found != (found := _descendants(os.getpid())):
        pass  # One that ended meanwhile can hide another.
    return found


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    except OSError:
        return found  # It has ended.
    return found.union(*map(_descendants, found))


def _own_children() -> set[int]:
    """The template processes that the client agent keeps, and the one of the tests' own."""
    client = _client()
    if client is None:
        return warm_python.pids
    templates = {launcher.pid for launcher in client.host_agent.templates.all}
    return warm_python.pids | templates | client.ahead.pids


def _num_uses_of_ray() -> int:
    """How often tests have joined a Ray cluster: its library keeps descriptors of its own."""
    return int(getattr(sys.modules.get("tests.job.ray_cluster"), "num_uses", 0))


def _num_files_of_drivers() -> int:
    """How many descriptors the drivers of GPUs have here. With the first use of one, or of NVML,
    they open devices, and sockets and pipes of their own, which stay until the process ends."""
    return sum(target.startswith("/dev/nvidia") for target in _targets().values())


def _is_cuda_loaded() -> bool:
    """Whether CUDA's driver is loaded. A library loads it when it asks for GPUs, also where none is
    visible: the driver then keeps an event of its own, and no device."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _targets() -> dict[str, str]:
    """What each open descriptor leads to."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _descriptors() -> set[str]:
    """The open sockets, pipes and files, by a name that no later one has."""
    found = set()
    # The standard streams are pytest's, which has them lead elsewhere while it captures.
    own = {"0", "1", "2", *map(str, warm_python.descriptors)}
    for fd, target in _targets().items():
        if fd in own or target.startswith("/dev/nvidia"):
            continue
        if "memfd:monarch" in target and _client() is not None:
            continue  # Shared memory that the client keeps, to use it again.
        if target.endswith("/mountinfo"):
            continue  # One a process, to hear of new mounts.
        if "inotify" in target and _client() is not None:
            continue  # What the client watches until it ends, so that the next push is quick.
        if "/monarch-cookie-" in target and _client() is not None:
            continue  # With that: what tells it that it has heard of everything.
        numbered = target.startswith(("socket:", "pipe:"))
        found.add(target if numbered else f"{target} as {fd}")
    return found


# What pytest-timeout sets for each test, and faulthandler for itself.
_OF_PYTEST = {
    signal.SIGALRM,
    signal.SIGSEGV,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
}


_CLIENTS = "monarch.runtime.ends.end_program"


def _handlers() -> dict[int, object]:
    """The signal handlers of this process, except the one that a client keeps for its end."""
    found = {kind: signal.getsignal(kind) for kind in signal.valid_signals() - _OF_PYTEST}
    return {
        kind: signal.SIG_DFL if getattr(handler, "__module__", "") == _CLIENTS else handler
        for kind, handler in found.items()
    }


def _restore(handlers: dict[int, Any]) -> None:
    """A handler that stays behind may end the worker in the middle of another test."""
    left = {kind for kind, now in _handlers().items() if now is not handlers[kind]}
    for kind in left:
        signal.signal(kind, handlers[kind])
    if left:
        pytest.fail(f"left behind: handlers of {left}")


def _set_umask(mask: int) -> int:
    """The one that was set before."""
    return os.umask(mask)


def _end_activations() -> bool:
    """Whether a mesh was left active in this thread; torch computes here again, by itself.

    Torch operations of the tests that come later would be sent to procs that are gone.
    """
    known: Any = sys.modules.get("monarch.tensors.client.ambient")
    if known is None:
        return False
    ambient = known.ambient
    was_active = ambient.mesh is not None
    mode, ambient.mode, ambient.mesh, ambient.stream = ambient.mode, None, None, known.MAIN
    if mode is not None:  # A bare `activate()` leaves it, without a mesh, after `deactivate()`.
        mode.mesh = None
        mode.__exit__(None, None, None)
    return was_active


@pytest.fixture
def refusals() -> Callable[[], list[str]]:
    """The refusals of the write guard so far, for a test that is about them."""
    return _guarded.refused


@pytest.fixture(autouse=True)
def changes_only_its_own() -> Iterator[None]:
    mask = _set_umask(0o022)
    yield
    left, refused = _set_umask(mask), _guarded.refused()
    if _end_activations():
        pytest.fail("left behind: an active mesh")
    if refused:
        pytest.fail("would have changed what is not the tests':\n" + "\n".join(refused))
    if left != 0o022:
        pytest.fail(f"left behind: the umask {left:#o}")


def _import_hooks() -> list[object]:
    found = [finder for finder in sys.meta_path if type(finder).__module__.startswith("monarch")]
    # Those of addresses that are no files stay for as long as their packages.
    return [one for one in found if type(one).__module__ != "monarch.compat.finder"]


def _check(leaked: Callable[[], object], what: str) -> None:
    try:
        wait_for(lambda: not leaked(), 0.5)
    except AssertionError:
        gc.collect()
        try:
            wait_for(lambda: not leaked())  # A large process ends slowly where many work.
        except AssertionError:
            pytest.fail(f"left behind: {what} {leaked()}{_stacks() if what == 'threads' else ''}")


def _stacks() -> str:
    """What every thread does now, on lines of its own."""
    frames = sys._current_frames()
    return "".join(
        f"\n{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    )


def _stop_what_was_spawned() -> None:
    client = _client()
    if client is None:
        return
    listens = any(url.startswith("tcp://") for url in client.node.address.urls)
    if (
        client.links
        or listens
        or client.faults.has_ended_program
        or len(client.host_agent.templates) > 1
    ):
        _shut_down()
        return
    loop, agent = client.node.loop, client.host_agent
    loop.run_on_loop(lambda: agent.stop(list(agent.procs), 0.0, "the test is over"))
    client.stop_all(2.0)
    wait_for(lambda: not loop.run_on_loop(lambda: len(agent.procs)), what="procs end")


def _shut_down() -> None:
    if _client() is not None:
        from monarch.actor import shutdown_context

        shutdown_context().get(timeout=20)


@pytest.fixture(autouse=True, scope="session")
def zero_copy_collector() -> None:
    """Start the thread that pyzmq keeps for messages sent without a copy: it stays."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as out, context.socket(zmq.PULL) as to:
        to.bind("inproc://warm-up")
        out.connect("inproc://warm-up")
        out.send(bytes(zmq.COPY_THRESHOLD), copy=False)
        to.recv()


@pytest.fixture(autouse=True)
def no_fault(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fault that no test asked for fails it, instead of interrupting the whole run."""
    actor: Any = sys.modules.get("monarch.actor")
    if actor is None:
        yield
        return
    faults: list[Any] = []
    real = actor.unhandled_fault_hook
    actor.unhandled_fault_hook = faults.append
    yield
    actor.unhandled_fault_hook = real
    if faults and "faults" not in request.fixturenames:
        pytest.fail(f"nobody handled: {faults[0].report()}")


@pytest.fixture
def faults(no_fault: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The failures that no handler took, for a test that is about them."""
    import monarch.actor

    seen: list[Any] = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", seen.append)
    return seen


def _uses() -> tuple[int, int, bool]:
    """What keeps descriptors from then on."""
    return _num_uses_of_ray(), _num_files_of_drivers(), _is_cuda_loaded()


def _standing() -> tuple[object, ...]:
    """What tests may have begun that stays, with descriptors of its own."""
    return _client(), _own_children(), _uses()


@pytest.fixture(autouse=True)
def leaves_nothing(
    request: pytest.FixtureRequest, leaves_no_client: None, no_fault: None
) -> Iterator[None]:
    children, threads = _children(), _threads()
    standing, descriptors = _standing(), _descriptors()
    handlers = _handlers()
    yield
    _restore(handlers)
    _stop_what_was_spawned()
    _check(lambda: _children() - children - _own_children(), "processes")
    _check(lambda: _threads() - threads, "threads")
    if _standing() == standing:
        _check(lambda: _descriptors() - descriptors, "descriptors")


@pytest.fixture(autouse=True, scope="module")
def leaves_no_client(zero_copy_collector: None) -> Iterator[None]:
    children, descriptors, uses = _children(), _descriptors(), _uses()
    yield
    _shut_down()
    _check(lambda: _children() - children - warm_python.pids, "processes")
    if _uses() == uses:
        _check(lambda: _descriptors() - descriptors, "descriptors")
    _check(lambda: [t for t in threading.enumerate() if t.name.startswith("monarch")], "threads")
    _check(_import_hooks, "import hooks")
    # Host agents that a test killed cannot tidy up: the next one does.
    _check(lambda: [d for d in os.listdir(_RUNTIME_DIR) if f"-{os.getpid()}-" in d], "directories")


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts scripts in processes of their own, and ends them after the test."""
    with _ended_at_last() as started:

        def start(script: str, **env: str) -> Program:
            started.append(Program.of_script(script, **env))
            return started[-1]

        yield start


@pytest.fixture
def monarch_program() -> Iterator[Callable[..., Program]]:
    """Starts `monarch` with arguments in this process's folder, and ends it after the test."""
    with _ended_at_last() as started:

        def start(*arguments: str) -> Program:
            started.append(Program.of_command(*arguments))
            return started[-1]

        yield start


@contextlib.contextmanager
def _ended_at_last() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for one in started:
        one.close()
