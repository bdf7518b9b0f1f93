"""Templates stay clean of CUDA: with a stand-in for torch that remembers who asked the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.net.io_loop import IoLoop
from monarch.runtime.hosts.launcher import Launcher
from monarch.wire.message import Command
from tests.runtime.test_runtime_launcher import config
from tests.support import wait_for

TORCH = {
    "torch/__init__.py": """
        class version:
            cuda, hip = "13.0", None
        from torch import cuda
    """,
    # As torch has it: a process that asked the driver is spoiled, and knows so in a fork.
    "torch/cuda.py": """
        import os, pynvml
        asked = 0
        def _cuda_init():
            global asked
            asked = os.getpid()
        def _lazy_init(): _cuda_init()
        def _is_in_bad_fork(): return asked not in (0, os.getpid())
        def is_available():
            if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
                _cuda_init()
            return True
        def current_device():
            _lazy_init()
            return 0
        def get_device_properties(device=None):
            _lazy_init()
            class Real:
                major, minor, name, total_memory, multi_processor_count = 9, 0, "CUDA", 1, 132
            return Real()
        def get_device_capability(device=None):
            found = get_device_properties(device)
            return found.major, found.minor
        def _get_pynvml_handler(device=None): return "handle"
    """,
    "pynvml.py": """
        from types import SimpleNamespace
        def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
        def nvmlDeviceGetName(handle): return b"NVML"
        def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=80)
    """,
    # A library that asks as TorchTitan does, one that keeps the function, one that asks too much.
    "library.py": """
        from torch.cuda import current_device, get_device_properties, is_available
        from torch import cuda
        found = is_available(), cuda.get_device_capability(), current_device()
        name = get_device_properties(0).name
    """,
    "asks_more.py": "import library, deeper\n",
    "deeper.py": "import library\ncount = library.get_device_properties().multi_processor_count\n",
    "initializes.py": "import torch\ntorch.cuda._lazy_init()\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    for name, text in TORCH.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def run(folder: Path, script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_what_a_library_asks_while_it_is_imported_is_not_asked_of_cuda(folder: Path) -> None:
    said = run(
        folder,
        """
        import os
        from monarch.runtime.entry.template_cuda import TemplateCuda, is_spoiled
        template = TemplateCuda()
        with template.importing():
            import library
        import torch
        print(library.found, library.name, is_spoiled())
        print(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        print(torch.cuda.get_device_properties(0).name, library.get_device_properties(0).name)
        print(torch.cuda.asked == os.getpid(), is_spoiled())
        """,
    )
    assert said == [
        "(True, (9, 0), 0) NVML False",
        "None",
        "CUDA CUDA",  # In the proc they are CUDA's own again, also where a name was kept.
        "True True",
    ]


def test_what_nvml_does_not_know_is_asked_of_cuda_and_noticed(folder: Path) -> None:
    said = run(
        folder,
        """
        from monarch.runtime.entry.template_cuda import TemplateCuda, is_spoiled
        template = TemplateCuda()
        with template.importing():
            import asks_more
        print(asks_more.deeper.count, is_spoiled(), template.cause)
        """,
    )
    assert said == ["132 True deeper"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in for the driver needs cc")
def test_a_driver_that_is_only_loaded_spoils_nothing_and_one_that_has_begun_does(
    folder: Path,
) -> None:
    """NVML opens the devices that CUDA opens, so that they tell nothing: the driver is asked."""
    (folder / "driver.c").write_text(
        "static int begun;\n"
        "int cuInit(unsigned flags) { begun = 1; return 0; }\n"
        "int cuDeviceGetCount(int *count) { *count = 1; return begun ? 0 : 3; }\n"
    )
    name = "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, "driver.c"],
        cwd=folder, check=True, timeout=60,
    )  # fmt: skip
    said = run(
        folder,
        f"""
        import ctypes
        from monarch.runtime.entry.template_cuda import is_spoiled
        print(is_spoiled())
        driver = ctypes.CDLL({str(folder / name)!r})
        print(is_spoiled())
        driver.cuInit(0)
        print(is_spoiled())
        """,
    )
    assert said == ["False", "False", "True"]


class Template:
    """A template of a host agent's, and what the host agent hears of it."""

    def __init__(self, loop: IoLoop, folder: Path) -> None:
        self.forked: list[tuple[str, int]] = []
        self.exited: list[tuple[str, int | None]] = []
        path = f"{folder}:{Path(__file__).parents[2]}"
        args = ("-m", "monarch.runtime.entry.zygote")
        command = Command(sys.executable, None, args, env={"PYTHONPATH": path})
        self._loop = loop
        self.launcher = loop.run_on_loop(
            lambda: Launcher(
                loop,
                lambda uid, pid, started: self.forked.append((uid, pid)),
                lambda uid, code: self.exited.append((uid, code)),
                command,
            )
        )

    def preload(self, *modules: str) -> dict[str, str]:
        told: list[dict[str, str]] = []
        self._loop.run_on_loop(lambda: self.launcher.preload(modules, told.append))
        wait_for(lambda: told)
        return told[0]

    def fork(self, life: int) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        self._loop.run_on_loop(lambda: self.launcher.fork(config(life=life), null, null))
        os.close(null)


@pytest.fixture
def template(folder: Path) -> Iterator[Template]:
    loop = IoLoop("test")
    loop.start()
    made = Template(loop, folder)
    yield made
    loop.run_on_loop(made.launcher.close)
    loop.stop()


def test_a_template_that_a_module_has_spoiled_begins_again_without_it(template: Template) -> None:
    pid = template.launcher.pid
    assert template.preload("library") == {}
    template.fork(life=0)
    wait_for(lambda: template.forked)
    errors = template.preload("initializes", "json.tool", "asks_more")
    assert list(errors) == ["initializes", "asks_more"]
    assert "its import asks CUDA, and a process that has done so" in errors["initializes"]
    assert "its import asks CUDA, by deeper, and" in errors["asks_more"]
    assert template.launcher.pid == pid
    assert Path(f"/proc/{pid}").exists()
    assert template.preload("library") == {}
    # The proc from before is still its child: its end is heard of.
    template._loop.run_on_loop(lambda: template.launcher.kill("proc"))
    wait_for(lambda: template.exited)
    assert template.exited[0][0] == "proc"


def test_modules_that_leave_cuda_alone_cost_no_second_beginning(template: Template) -> None:
    assert template.preload("library", "json.tool") == {}
    command: Any = Path(f"/proc/{template.launcher.pid}/environ").read_bytes()
    assert b"MONARCH_TEMPLATE_PAST_FD" not in command
