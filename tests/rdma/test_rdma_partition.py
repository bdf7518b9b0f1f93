"""Three hosts on one switch: the owner, who writes, and the client. The link between the first two
is cut in the middle of a write, while the client reaches both."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
CLIENT, OWNER, WRITER = SPACES = ("mrdma3-c", "mrdma3-o", "mrdma3-w")
ADDRESSES = {name: f"198.18.78.{number}" for number, name in enumerate(SPACES, 1)}
PORTS = {OWNER: "mrdma3-po", WRITER: "mrdma3-pw"}
URLS = [f"tcp://{ADDRESSES[name]}:26612" for name in PORTS]

PROGRAM = f"""
    import os, signal, subprocess, sys, time, warnings
    from pathlib import Path
    from monarch.actor import attach_to_workers
    from monarch.config import configure
    from tests.rdma.owners import Owner, Reader
    from tests.support import wait_for

    warnings.simplefilter("ignore")
    configure(rdma_tcp_encrypted=sys.argv[1] == "encrypted", heartbeat_timeout_seconds=4.0)
    SIZE = 16 * 2**20

    def received(pid):
        "The most bytes that lie in a connection of that process's host, unread."
        lines = Path(f"/proc/{{pid}}/net/tcp").read_text().splitlines()[1:]
        return max(int(line.split()[4].partition(":")[2], 16) for line in lines)

    if __name__ == "__main__":
        hosts = attach_to_workers(ca="trust_all_connections", workers={URLS})
        owner = hosts.slice(hosts=0).spawn_procs({{"gpus": 1}}).spawn("owner", Owner)
        writer = hosts.slice(hosts=1).spawn_procs({{"gpus": 1}}).spawn("writer", Reader)
        buffer = owner.make.call_one("one", bytes(SIZE)).get(timeout=60)
        pid = owner.pid.call_one().get(timeout=60)
        buffer.write_from(b"client", timeout=60).get()
        before = owner.num_descriptors.call_one().get(timeout=60)
        writer.write.call_one(buffer, b"before").get(timeout=60)
        # The owner stands still, so that the write cannot have ended when the link is cut.
        os.kill(pid, signal.SIGSTOP)
        started = writer.write.call_one(buffer, b"w" * SIZE)
        wait_for(lambda: received(pid) > 100_000)
        for port in {list(PORTS.values())}:
            subprocess.run(["bridge", "link", "set", "dev", port, "isolated", "on"], check=True)
        os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
        try:
            started.get(timeout=60)
            print("writer: nothing was noticed", flush=True)
        except Exception as error:
            named = f"{{buffer.part.region.key:016x}}" in str(error)
            is_soon = time.monotonic() - began < 30
            print("writer was told", named, is_soon, str(error)[-300:], flush=True)
        # Half of it is there: a consistent read does not give that, and the next write mends it.
        into = bytearray(SIZE)
        buffer.write_from(b"c" * SIZE, timeout=60).get()
        try:
            buffer.read_into(into, timeout=30, consistent=True).get()
            print("whole", into == b"c" * SIZE, flush=True)
        except Exception as error:
            print("whole: not", type(error).__name__, str(error), flush=True)
        try:
            wait_for(lambda: owner.num_descriptors.call_one().get(timeout=60) <= before)
            print("left nothing", flush=True)
        except Exception as error:
            print("left: not", error, flush=True)
        os._exit(0)
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def switch() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("bridge") is None:
        pytest.skip("it takes root, and iproute2, to make network namespaces")
    made = []
    try:
        for name in SPACES:
            try:
                run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
            made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", CLIENT, "link", "add", "br0", "type", "bridge")
        for name, port in PORTS.items():
            run("ip", "link", "add", port, "netns", CLIENT, "type", "veth",
                "peer", "name", "eth0", "netns", name)  # fmt: skip
            run("ip", "-n", CLIENT, "link", "set", port, "master", "br0", "up")
        for name, link in {CLIENT: "br0", OWNER: "eth0", WRITER: "eth0"}.items():
            run("ip", "-n", name, "addr", "add", f"{ADDRESSES[name]}/24", "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
        yield
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.fixture
def python(switch: None, tmp_path: Path) -> Iterator[list[str]]:
    """What runs Python on the client's host, while the others have an agent each."""
    # Short paths: they are part of sockets'.
    runtime = {name: Path(tempfile.mkdtemp(prefix="mt-rdma-", dir="/tmp")) for name in SPACES}
    env = {
        "MONARCH_JOB_SECRET": secrets.token_hex(32), "PYTHONPATH": str(ROOT),
        "RDMA_TEST_SECONDS": "8",
    }  # fmt: skip

    def on(name: str, *words: str) -> list[str]:
        settings = [f"{key}={value}" for key, value in env.items()]
        settings.append(f"MONARCH_RUNTIME_DIR={runtime[name]}")
        return ["ip", "netns", "exec", name, "env", *settings, *words]

    monarch = str(Path(sys.executable).parent / "monarch")
    agents = []
    for name, url in zip(PORTS, URLS, strict=True):
        with (tmp_path / f"{name}.log").open("w") as log:
            agents.append(
                subprocess.Popen(
                    on(name, monarch, "host", "--address", url),
                    stdout=log, stderr=log, cwd=tmp_path, start_new_session=True,
                )
            )  # fmt: skip
    try:
        yield on(CLIENT, sys.executable)
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for folder in runtime.values():
            shutil.rmtree(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["plain", "encrypted"])
def test_a_write_that_is_cut_off_is_over_for_all(
    python: list[str], way: str, tmp_path: Path
) -> None:
    script = tmp_path / "client.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [*python, str(script), way],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    story = done.stdout + done.stderr
    story += "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert "writer was told True True" in done.stdout, story
    assert "whole True" in done.stdout, story
    assert "left nothing" in done.stdout, story
