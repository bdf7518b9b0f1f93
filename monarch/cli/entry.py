"""Starts the command, and handles Ctrl-C before the rest of it has been imported."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the ``monarch`` command: this is its entry point."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Takes most of the time until the command does something; nothing is there to tidy up yet.
    from monarch.cli.main import main as run_command
    from monarch.cli.terminal.interrupts import at_once_from_here

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command()
    finally:
        at_once_from_here()


def _leave(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
