"""Imported by each Python process that the tests start: what it may change is theirs."""

import os

import write_guard

if write_guard.ROOTS in os.environ:
    write_guard.install(
        os.environ[write_guard.ROOTS], os.environ.get(write_guard.REPORT, os.devnull)
    )
