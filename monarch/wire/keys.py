"""All keys of a job, computed from its one secret.

Any 32 bytes are a valid CURVE secret key, so each key is HMAC(secret, label): only the secret has
to be distributed. A process that has the secret may send messages; any other fails in the
handshake, before a byte of a message is read.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from typing import NamedTuple

SECRET_BYTES = 32


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves as 40 Z85 characters."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public.decode()}, private)"


class JobKeys:
    """The key pairs of a job: one for listeners, one for connecting processes."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a job secret has {SECRET_BYTES} bytes, not {len(secret)}")
        self.secret = secret

    @functools.cached_property
    def listener(self) -> KeyPair:
        return self._pair(b"listener")

    @functools.cached_property
    def connector(self) -> KeyPair:
        return self._pair(b"connector")

    def _pair(self, label: bytes) -> KeyPair:
        # Only processes that speak over TCP come here: the others save the import.
        from zmq import curve_public
        from zmq.utils import z85

        private = hmac.new(self.secret, b"monarch curve " + label, hashlib.sha256).digest()
        encoded: bytes = z85.encode(private)
        return KeyPair(curve_public(encoded), encoded)
