"""Keeps the state of a job on one of its hosts, for a detached run: a script for the job's client.

``receive_state.py PATH``. Standard input is the client's state, signed with a key that this machine
does not know. The host runs this only for a client that has the job's secret, so the state can be
trusted. Standard output is the absolute path that names the state here.
"""

from __future__ import annotations

import os
import sys


def main(path: str, data: bytes) -> str:
    """Keep the job's state ``data`` at ``path``, signed with this user's key on this host.

    Return the absolute path. Raises ``JobError`` if the data cannot be used.
    """
    from monarch.job.job import job_from_client

    whole = os.path.abspath(os.path.expanduser(path))
    os.makedirs(os.path.dirname(whole), mode=0o700, exist_ok=True)
    job_from_client(data).dump(whole)
    return whole


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], sys.stdin.buffer.read()) + "\n")
