"""Interrupting a kernel that waits for a call, and restarting one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client")

# In a process of its own: what a kernel's client leaves open is not ours to close.
SCRIPT = """
import os, sys, threading, time
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3", cwd=sys.argv[1])

def told(code, timeout=100):
    sent, text = client.execute(code), ""
    while True:
        message = client.get_iopub_msg(timeout=timeout)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            text += content["text"]
        elif kind == "error":
            text += content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return text

told('''
%load_ext monarch
import os, sys, threading, time
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob

class Slow(Actor):
    @endpoint
    def work(self, gate):
        while not os.path.exists(gate):
            time.sleep(0.005)
        return "done"

    @endpoint
    def pids(self):
        return os.getpid(), os.getppid()

job = ProcessJob(meshes={"nodes": 1})
hosts = job.state().nodes
slow = hosts.spawn_procs({"gpus": 1}).spawn("slow", Slow)
future = slow.work.call_one(os.path.abspath("gate"))

def tell_of_wait(kernel):
    frame = None
    while frame is None:
        frame = sys._current_frames()[kernel]
        while frame is not None and not frame.f_code.co_filename.endswith("runtime/promise.py"):
            frame = frame.f_back
    open("waits", "w").close()
''')

def interrupt():
    while not os.path.exists("waits"):
        time.sleep(0.005)
    manager.interrupt_kernel()

threading.Thread(target=interrupt, daemon=True).start()
text = told('''
threading.Thread(target=tell_of_wait, args=(threading.get_ident(),)).start()
future.get()
''')
is_short = text.count("\\n") < 4 and "KeyboardInterrupt: the wait has ended, and the call" in text
print("interrupted", is_short, flush=True)
open("gate", "w").close()
print("later", told("print(future.get())").strip(), flush=True)
pids = [int(one) for one in told("print(*slow.pids.call_one().get())").split()]
kernel = int(told("print(os.getpid())"))

manager.restart_kernel(now=True)
client.wait_for_ready(timeout=60)
print("again", told('''
from monarch.job import ProcessJob
job = ProcessJob(meshes={"nodes": 1})
hosts = job.state().nodes
procs = hosts.spawn_procs({"gpus": 1})
procs.initialized.get(60)
print(hosts.extent)
procs.stop().get()
job.kill()
''').strip(), flush=True)
end = time.monotonic() + 30
left = {kernel, *pids}
while left and time.monotonic() < end:
    left = {pid for pid in left if os.path.exists(f"/proc/{pid}")}
    time.sleep(0.05)
print("left", *left, flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@pytest.mark.long
def test_an_interrupt_ends_the_wait_and_a_restart_finds_the_hosts(tmp_path: Path) -> None:
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=env, cwd=tmp_path, timeout=150, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "interrupted True", "later done", "again {hosts: 1}", "left",
    ], done.stdout + done.stderr  # fmt: skip
