"""New uids and job secrets, from the system's randomness."""

from __future__ import annotations

import secrets

from monarch.wire.address import Uid
from monarch.wire.keys import SECRET_BYTES


def new_uid() -> Uid:
    """Return a name that no other process or mesh has: 12 hexadecimal digits."""
    return secrets.token_hex(6)


def new_secret() -> bytes:
    """Return a new secret for a job, of ``SECRET_BYTES`` bytes."""
    return secrets.token_bytes(SECRET_BYTES)
