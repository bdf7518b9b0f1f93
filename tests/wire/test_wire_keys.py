from __future__ import annotations

import hmac

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from monarch.net.identifiers import new_secret
from monarch.wire.keys import JobKeys

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


@pytest.mark.parametrize(
    ("secret", "listener", "connector"),
    [
        (
            bytes(32),
            "Hj@pTfwc@<L+*:ILvRx$mopDA.<zPv:YguDHJXR*",
            "sspJ#nG@&aS6yDCw@p3ya$&YNL0$NQI!e5q<He>}",
        ),
        (
            bytes(range(32)),
            "KD2<h:^CEg3pfp=Z7SCamyri{4iZEXyHxSBe{qd)",
            "{z+:}.T]S3@D7$IXdsu5Q8?NAls*v8z.qfAN^Ht$",
        ),
    ],
    ids=["zeros", "counting"],
)
def test_the_derivation_is_the_one_that_others_agreed_on(
    secret: bytes, listener: str, connector: str
) -> None:
    """Public keys, as any release must derive them, or members of one job would not meet."""
    keys = JobKeys(secret)
    assert keys.listener.public.decode() == listener
    assert keys.connector.public.decode() == connector
    private = hmac.digest(secret, b"monarch curve listener", "sha256")
    assert z85.decode(keys.listener.private) == private


@given(secret=secrets)
def test_no_key_shows_itself_when_it_is_printed(secret: bytes) -> None:
    keys = JobKeys(secret)
    for shown in (repr(keys), str(keys.listener), f"{keys.connector}", repr([keys.connector])):
        for half in (keys.listener.private.decode(), keys.connector.private.decode()):
            assert half not in shown
        assert secret.hex() not in shown
