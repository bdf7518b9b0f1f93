"""The contract of one-sided memory on a real RDMA driver: Linux's software RoCE, in a guest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
CACHE = Path("/var/tmp/monarch-rxe-guest")
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "modprobe", "ip", "rdma")


@pytest.mark.timeout(1300)
def test_the_contract_holds_on_a_software_device(tmp_path: Path) -> None:
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not PYVERBS.exists() or os.geteuid() != 0:
        pytest.skip(f"it takes root, pyverbs and {', '.join(missing or PROGRAMS)}")
    if str(ROOT).startswith("/tmp/"):
        pytest.skip("the guest has a /tmp of its own: check out elsewhere")
    (CACHE / "path").mkdir(parents=True, exist_ok=True)
    link = CACHE / "path" / "pyverbs"
    if not link.is_symlink():
        link.symlink_to(PYVERBS)  # Alone: the rest of that folder is of another Python.
    tests = " ".join(
        [
            f"cd {ROOT} && PYTHONPATH={link.parent} HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis",
            # Plugins that these tests do not use take longer to import there than the tests do.
            "RDMA_TEST_SECONDS=300 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
            f"{sys.executable} -m pytest -q -p pytest_timeout -p no:cacheprovider -o timeout=400",
            "-o faulthandler_timeout=0 --color=no tests/rdma/test_rdma_contract.py",
            "-k 'ibverbs and not fake and not tensor'",  # torch takes a minute to import there
        ]
    )
    done = subprocess.run(
        ["bash", str(Path(__file__).with_name("rxe_guest.sh")), str(CACHE), "1200", tests],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    crash = done.stdout.find("Fatal Python error")  # The thread that crashed is told first.
    output = done.stdout[crash:][:8000] if crash >= 0 else done.stdout[-6000:]
    assert done.returncode == 0, output + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
