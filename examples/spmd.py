"""A torchrun script, unchanged, on a mesh: `python examples/spmd.py`."""

from pathlib import Path

from monarch.actor import this_host
from monarch.spmd import SPMDActor

SCRIPT = Path(__file__).with_name("plain_script.py")


def main() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="script", preload=["torch"])
    ranks = procs.spawn("spmd", SPMDActor)
    host, port = ranks.slice(gpus=0).get_host_port.call_one().get()
    ranks.main.call(host, port, [str(SCRIPT), "--steps", "50"]).get()
    procs.stop().get()


if __name__ == "__main__":
    main()
