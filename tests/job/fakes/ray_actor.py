"""An actor of the Ray that is not there: begun again whenever it dies, until SIGTERM."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from multiprocessing.connection import Listener
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def serve(place: Path) -> None:
    cls, arguments = pickle.loads((place / "order").read_bytes())
    actor = cls(*arguments)
    with Listener(("127.0.0.1", 0)) as listener:
        (place / "port.new").write_text(str(listener.address[1]))
        (place / "port.new").replace(place / "port")
        while True:
            with listener.accept() as caller:
                caller.send(getattr(actor, caller.recv())())


def main(place: Path) -> None:
    child = 0

    def end(*_: object) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    (place / "pid.new").write_text(str(os.getpid()))
    (place / "pid.new").replace(place / "pid")
    while True:
        child = os.fork()
        if not child:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(place)
        os.waitpid(child, 0)
        (place / "port").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
