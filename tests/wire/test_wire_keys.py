from __future__ import annotations

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from monarch.wire.keys import JobKeys, new_secret

secrets = st.binary(min_size=32, max_size=32)


@given(secret=secrets)
def test_the_same_secret_gives_the_same_keys_everywhere(secret: bytes) -> None:
    one, other = JobKeys(secret), JobKeys(secret)
    assert (one.listener, one.connector) == (other.listener, other.connector)


@given(secret=secrets)
def test_the_keys_are_curve_pairs_and_all_differ(secret: bytes) -> None:
    keys = JobKeys(secret)
    for pair in (keys.listener, keys.connector):
        assert zmq.curve_public(pair.private) == pair.public
        assert len(z85.decode(pair.public)) == 32
    assert len({*keys.listener, *keys.connector}) == 4


@given(one=secrets, other=secrets)
def test_different_secrets_give_different_keys(one: bytes, other: bytes) -> None:
    is_same = JobKeys(one).connector == JobKeys(other).connector
    assert is_same == (one == other)


def test_no_key_gives_the_secret_away() -> None:
    secret = new_secret()
    keys = JobKeys(secret)
    assert secret not in {z85.decode(half) for half in (*keys.listener, *keys.connector)}


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_secret_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"32 bytes, not {size}"):
        JobKeys(bytes(size))


def test_new_secrets_differ() -> None:
    assert new_secret() != new_secret()
