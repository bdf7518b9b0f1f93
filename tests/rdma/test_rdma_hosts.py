"""Two hosts with a wire between them: network namespaces. Only TCP leads from one to the other."""

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
NAMES = ("mrdma-a", "mrdma-b")
ADDRESSES = ("198.18.77.1", "198.18.77.2")
PORT = 26611

CLIENT = """
    import hashlib, subprocess, time, warnings
    from monarch.actor import attach_to_workers
    from monarch.config import configure
    from monarch.rdma import RDMABuffer, RDMATcpFallbackWarning, RemoteMemoryError
    from tests.rdma.owners import Owner

    configure(rdma_tcp_encrypted={encrypted}, heartbeat_timeout_seconds=4.0)

    if __name__ == "__main__":
        hosts = attach_to_workers(ca="trust_all_connections", workers=["tcp://{there}:{port}"])
        owner = hosts.spawn_procs({{"gpus": 1}}).spawn("owner", Owner)
        data = bytes(range(256)) * 4096 * 20
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            buffer = owner.make.call_one("one", data).get(timeout=30)
            into = bytearray(len(data))
            started = time.monotonic()
            buffer.read_into(into, timeout=30).get()
        print("read", into == data, buffer.backend, flush=True)
        print("warned", [w.category for w in caught] == [RDMATcpFallbackWarning], flush=True)
        buffer.write_from(data[::-1], timeout=30).get()
        content = owner.content.call_one("one").get(timeout=30)
        print("written", content == data[::-1], flush=True)
        word = int.from_bytes(content[:8], "little", signed=True)
        print("added", buffer.fetch_add(0).get() == word, flush=True)
        subprocess.run(["ip", "link", "set", "mrdma-veth-a", "down"], check=True)
        started = time.monotonic()
        try:
            buffer.read_into(into, timeout=20).get()
            print("cut: nothing was noticed", flush=True)
        except (RemoteMemoryError, TimeoutError) as error:
            print("cut", time.monotonic() - started < 25, str(error)[:60], flush=True)
        import os
        os._exit(0)
"""


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


@pytest.mark.timeout(200)
@pytest.mark.parametrize("encrypted", [False, True])
def test_memory_of_another_host_goes_over_tcp_until_the_wire_is_cut(
    wire: None, encrypted: bool, tmp_path: Path
) -> None:
    secret = secrets.token_hex(32)
    env = {
        **os.environ, "MONARCH_JOB_SECRET": secret, "PYTHONPATH": str(ROOT),
        "MONARCH_RUNTIME_DIR": "",
    }  # fmt: skip
    monarch = str(Path(sys.executable).parent / "monarch")
    url = f"tcp://{ADDRESSES[1]}:{PORT}"
    log = (tmp_path / "host.log").open("w+")
    # Short paths: they are part of sockets'.
    runtime = [Path(tempfile.mkdtemp(prefix="mt-rdma-", dir="/tmp")) for _ in NAMES]
    host = subprocess.Popen(
        ["ip", "netns", "exec", NAMES[1], monarch, "host", "--address", url],
        env={**env, "MONARCH_RUNTIME_DIR": str(runtime[1])}, stdout=log, stderr=log, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    try:
        text = CLIENT.format(encrypted=encrypted, there=ADDRESSES[1], port=PORT)
        script = tmp_path / "client.py"
        script.write_text(textwrap.dedent(text))
        done = subprocess.run(
            ["ip", "netns", "exec", NAMES[0], sys.executable, str(script)],
            env={**env, "MONARCH_RUNTIME_DIR": str(runtime[0])}, cwd=tmp_path,
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
    finally:
        host.terminate()
        try:
            host.wait(20)
        except subprocess.TimeoutExpired:
            host.kill()
            host.wait()
        log.close()
        for folder in runtime:
            shutil.rmtree(folder)
    story = done.stdout + done.stderr + (tmp_path / "host.log").read_text()
    assert "read True tcp" in done.stdout, story
    assert "warned True" in done.stdout, story
    assert "written True" in done.stdout, story
    assert "added True" in done.stdout, story
    assert "cut True" in done.stdout, story
