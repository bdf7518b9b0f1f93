"""Which file systems report every change to this machine's kernel.

If another machine, or a server in user space, changes a file behind a mount, there is no event
here. So events are trusted only of file systems whose changes all go through this kernel; others
are polled.
"""

from __future__ import annotations

import ctypes
import os

_LOCAL = frozenset({
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # xfs
    0x9123683E,  # btrfs
    0x01021994,  # tmpfs
    0x858458F6,  # ramfs
    0x794C7630,  # overlay: reports changes made through it; nobody may change its layers
    0xF2F52010,  # f2fs
    0x2FC12FC1,  # zfs
    0xCA451A4E,  # bcachefs
    0x3153464A,  # jfs
    0x3434,  # nilfs
    0xF15F,  # ecryptfs
    0x4D44,  # vfat
    0x2011BAB0,  # exfat
    0x7366746E,  # ntfs3
})  # fmt: skip


def tells_all(path: str) -> bool:
    """Return whether every change on the file system of ``path`` raises an event on this machine;
    False if its kind cannot be found out."""
    words = (ctypes.c_long * 64)()
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (AttributeError, TypeError, OSError):
        return False
    # The kind is the first word of `struct statfs`.
    return statfs(os.fsencode(path), words) == 0 and words[0] & 0xFFFFFFFF in _LOCAL
