"""Ends what outlives a test process that is killed: daemons, namespaces, mounts, folders."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_WATCH = """
trap '' HUP INT TERM
while [ -d "$folder" ] && kill -0 "$owner" 2> /dev/null; do sleep 1; done
[ -d "$folder" ] || exit 0
{script}
rm -rf --one-file-system "$folder"
"""


def clean_up_after_us(folder: Path, script: str) -> None:
    """Once this process is gone, run a shell script, which knows ``$folder``, and remove that.

    Where the folder is gone by then, all has been ended in order, and nothing is run.
    """
    # No child of ours: it has to outlive us, and tests look for children that are left.
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh", "sh", "-c", _WATCH.format(script=script)],
        check=True, start_new_session=True, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "folder": str(folder), "owner": str(os.getpid()),
        },
    )  # fmt: skip
