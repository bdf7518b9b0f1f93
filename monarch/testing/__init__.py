"""Test your own actors without processes: hosts and procs that live in the test's process.

    from monarch.testing import in_process

    def test_a_dead_worker_is_replaced():
        with in_process() as world:
            workers = this_host().spawn_procs({"gpus": 4}).spawn("worker", Worker)
            world.kill_proc(workers, rank=2)
            ...

Everything but the making of processes, the sockets and, with ``virtual_time=True``, the clock is
the real runtime: messages are pickled, actors have their threads, failures are reported as they are
between machines; pids, environments and output are each proc's own, to Python code. The limits:
modules and their globals are shared by all procs; an actor that blocks for ever in C code keeps its
thread; ``with_python_executable`` and ``sync_workspace`` have no meaning here.

What to open:

    world                  the simulation, and the failures that a test may cause
    proc                   a proc in the test's process
    threads                which proc a thread belongs to
    surroundings           a pid, an end and an environment for each proc
    output                 the output of procs
    clock                  virtual time
    script                 failures by script, at the nth call
    fake_gpu, fake_verbs   a GPU and an RDMA device without hardware
"""

from monarch.testing.clock import VirtualClock
from monarch.testing.world import World, in_process

__all__ = ["VirtualClock", "World", "in_process"]
