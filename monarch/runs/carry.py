"""Sends the new files of a run's folder: a script that a host runs for a person.

``carry.py BASE UID``. Standard input is JSON with the files that the person has: the size and time
of each file by its path in BASE. Standard output is a tar archive of the files that differ, of the
run whose client is the program UID; checkpoints are not sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tarfile

_MAX_BYTES = 64 << 20


def run_of(base: str, uid: str) -> str:
    """Return the name of the run that the detached program ``uid`` has begun in the folder
    ``base``; "" if there is none yet.
    """
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        path = os.path.join(base, name, "detached.json")
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            if json.load(file).get("uid") == uid:
                return name
    return ""


def main(base: str, uid: str) -> None:
    """Write an archive of a run's files to stdout, without checkpoints and without files that the
    receiver has already, according to the list on stdin.

    The archive is empty if ``base`` has no run of the program ``uid``.
    """
    base = os.path.expanduser(base)
    sent = json.loads(sys.stdin.read() or "{}")
    name = run_of(base, uid)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz") as archive:
        for folder, folders, files in os.walk(os.path.join(base, name)) if name else ():
            folders[:] = [name for name in folders if name != "checkpoints"]
            for file in sorted(files):
                path = os.path.join(folder, file)
                inside = os.path.relpath(path, base)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    is_known = sent.get(inside) == [status.st_size, int(status.st_mtime)]
                    if not is_known and status.st_size <= _MAX_BYTES and os.path.isfile(path):
                        archive.add(path, inside, recursive=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
