"""Keeps the state of a job on a host of it, for a detached run: a script, which the host runs for
the job's client.

``receive_state.py PATH``. Standard input is the state, as the client has it, signed with a key that
this machine does not know: the host runs this for nobody but a client with the job's secret, which
is what vouches for it. Standard output is the absolute path that names the state here.
"""

from __future__ import annotations

import os
import sys


def main(path: str, data: bytes) -> str:
    """Keep it, signed with the key of this user here. Raises ``JobError``."""
    from monarch.job.job import job_from_client

    whole = os.path.abspath(os.path.expanduser(path))
    os.makedirs(os.path.dirname(whole), mode=0o700, exist_ok=True)
    job_from_client(data).dump(whole)
    return whole


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], sys.stdin.buffer.read()) + "\n")
