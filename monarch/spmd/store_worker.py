"""A host agent that ends with the process that started it: ``store_worker URL NAME PARENT``."""

from __future__ import annotations

import os
import sys

from monarch.runtime.ends.process_group import end_with
from monarch.runtime.host_main import serve_host
from monarch.runtime.hosts.directory import remove_directory


def main() -> None:
    url, name, parent = sys.argv[1:]
    end_with(int(parent))
    try:
        serve_host(url, name)
    finally:
        if url.startswith("ipc://"):
            remove_directory(os.path.dirname(url.removeprefix("ipc://")))


if __name__ == "__main__":
    main()
