"""Two hosts with a wire between them: network namespaces. Only TCP leads from one to the other."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
NAMES = ("mrdma-a", "mrdma-b")
ADDRESSES = ("198.18.77.1", "198.18.77.2")
URL = f"tcp://{ADDRESSES[1]}:26611"

BUFFERS = """
    import os, subprocess, sys, time, warnings
    from monarch.actor import attach_to_workers
    from monarch.config import configure
    from monarch.rdma import RDMATcpFallbackWarning, RemoteMemoryError
    from tests.rdma.owners import Owner

    configure(rdma_tcp_encrypted=sys.argv[2] == "encrypted", heartbeat_timeout_seconds=4.0)

    if __name__ == "__main__":
        hosts = attach_to_workers(ca="trust_all_connections", workers=[sys.argv[1]])
        owner = hosts.spawn_procs({"gpus": 1}).spawn("owner", Owner)
        data = bytes(range(256)) * 4096 * 20
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            buffer = owner.make.call_one("one", data).get(timeout=30)
            into = bytearray(len(data))
            buffer.read_into(into, timeout=30).get()
        print("read", into == data, buffer.backend, flush=True)
        print("warned", [w.category for w in caught] == [RDMATcpFallbackWarning], flush=True)
        subprocess.run(["ip", "link", "set", "mrdma-veth-a", "down"], check=True)
        started = time.monotonic()
        try:
            buffer.read_into(into, timeout=20).get()
            print("cut: nothing was noticed", flush=True)
        except (RemoteMemoryError, TimeoutError) as error:
            print("cut", time.monotonic() - started < 25, str(error)[:60], flush=True)
        os._exit(0)
"""

WEIGHTS = """
    import os, subprocess, sys, time, warnings
    import torch
    from monarch.actor import attach_to_workers
    from monarch.config import configure
    from monarch.rdma import RemoteMemoryError, SharedStateDict
    from tests.rdma.weights import Trainer

    warnings.simplefilter("ignore")
    configure(rdma_tcp_encrypted=sys.argv[2] == "encrypted", heartbeat_timeout_seconds=4.0)

    if __name__ == "__main__":
        hosts = attach_to_workers(ca="trust_all_connections", workers=[sys.argv[1]])
        trainer = hosts.spawn_procs({"gpus": 1}).spawn("trainer", Trainer, "weights", 0, 1)
        shared, into = SharedStateDict("weights"), {"w": torch.zeros(2**20)}
        for version in (1, 2):
            trainer.publish_filled_once.call_one(version, 2**20).get(timeout=60)
            number = shared.fetch(into, version=version).get(timeout=60)
            print("fetched", number == version and bool((into["w"] == version).all()), flush=True)
        trainer.publish_filled_once.call_one(3, 2**20).get(timeout=60)
        subprocess.run(["ip", "link", "set", "mrdma-veth-a", "down"], check=True)
        started = time.monotonic()
        try:
            shared.fetch(into, timeout=20).get()
            print("cut: nothing was noticed", flush=True)
        except (RemoteMemoryError, TimeoutError) as error:
            print("cut", time.monotonic() - started < 25, str(error)[:60], flush=True)
        os._exit(0)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def wire() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("it takes root, and iproute2, to make network namespaces")
    made = []
    try:
        for name in NAMES:
            try:
                run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
            made.append(name)
        links = [f"mrdma-veth-{name[-1]}" for name in NAMES]
        run("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for name, link, address in zip(NAMES, links, ADDRESSES, strict=True):
            run("ip", "link", "set", link, "netns", name)
            within = ("ip", "-n", name)
            run(*within, "addr", "add", f"{address}/24", "dev", link)
            run(*within, "link", "set", link, "up")
            run(*within, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.fixture
def on_first_host(wire: None, tmp_path: Path) -> Iterator[Run]:
    """Runs Python on the first host, while the second has an agent."""
    # Short paths: they are part of sockets'.
    runtime = [Path(tempfile.mkdtemp(prefix="mt-rdma-", dir="/tmp")) for _ in NAMES]
    env = {
        **os.environ, "MONARCH_JOB_SECRET": secrets.token_hex(32), "PYTHONPATH": str(ROOT),
        "RDMA_TEST_HOST": URL,
    }  # fmt: skip
    log = tmp_path / "host.log"
    with log.open("w") as file:
        host = subprocess.Popen(
            ["ip", "netns", "exec", NAMES[1], str(Path(sys.executable).parent / "monarch"),
             "host", "--address", URL],
            env={**env, "MONARCH_RUNTIME_DIR": str(runtime[1])}, stdout=file, stderr=file,
            cwd=tmp_path, start_new_session=True,
        )  # fmt: skip

    def python(*words: str, seconds: int, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["ip", "netns", "exec", NAMES[0], sys.executable, *words],
            env={**env, "MONARCH_RUNTIME_DIR": str(runtime[0])}, cwd=cwd,
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        done.stderr += log.read_text()
        return done

    try:
        yield python
    finally:
        host.terminate()
        try:
            host.wait(20)
        except subprocess.TimeoutExpired:
            host.kill()
            host.wait()
        for folder in runtime:
            shutil.rmtree(folder)


@pytest.mark.timeout(420)
def test_the_contract_holds_from_one_host_to_the_other(on_first_host: Run) -> None:
    done = on_first_host(
        *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "", "--color=no"),
        str(ROOT / "tests/rdma/test_rdma_contract.py"),
        seconds=400,
        cwd=ROOT,
    )
    story = done.stdout[-6000:] + done.stderr[-3000:]
    assert done.returncode == 0, story
    assert " passed" in done.stdout, story
    assert " skipped" not in done.stdout, story
    assert "deselected" not in done.stdout, story


@pytest.mark.timeout(200)
@pytest.mark.parametrize("way", ["plain", "encrypted"])
def test_a_wire_that_is_cut_ends_a_read(on_first_host: Run, way: str, tmp_path: Path) -> None:
    done = on_first_host(*program(tmp_path, BUFFERS), URL, way, seconds=150)
    story = done.stdout + done.stderr
    assert "read True tcp" in done.stdout, story
    assert "warned True" in done.stdout, story
    assert "cut True" in done.stdout, story


@pytest.mark.timeout(200)
def test_a_wire_that_is_cut_ends_a_fetch(on_first_host: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = on_first_host(*program(tmp_path, WEIGHTS), URL, "plain", seconds=150)
    story = done.stdout + done.stderr
    assert done.stdout.count("fetched True") == 2, story
    assert "cut True" in done.stdout, story


def program(folder: Path, text: str) -> list[str]:
    script = folder / "client.py"
    script.write_text(textwrap.dedent(text))
    return [str(script)]
