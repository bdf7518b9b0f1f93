"""Settings: ours and upstream's names, who wins, and how they reach procs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import monarch
from monarch.actor import Actor, endpoint, this_host
from monarch.config import (
    BindSpec,
    ChannelTransport,
    Encoding,
    Settings,
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
    settings,
)
from monarch.config.upstream import UPSTREAM
from monarch.config_file.notes import notes_of
from monarch.testing import in_process

SECONDS = 60.0


def test_the_package_gives_what_its_modules_do() -> None:
    """Its list is one of several: a name that is added to a module must be reachable."""
    modules = [
        importlib.import_module(f"monarch.config.{name}")
        for name in ("settings", "parametrize", "transport")
    ]
    package = importlib.import_module("monarch.config")
    assert set(package.__all__) == {"Encoding"}.union(*map(public_names, modules))
    assert all(hasattr(package, name) for name in package.__all__)


def public_names(module: ModuleType) -> set[str]:
    """What the module defines for others."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


@pytest.fixture(autouse=True)
def nothing_is_configured() -> Iterator[None]:
    before = get_global_config()
    yield
    assert get_global_config() == before
    assert get_runtime_config() == {}


def test_a_setting_of_ours_lasts_as_long_as_its_block() -> None:
    default = settings().stop_timeout_seconds
    with configured(stop_timeout_seconds=3, log_tail_lines=5) as config:
        assert (config["stop_timeout_seconds"], config["log_tail_lines"]) == (3, 5)
        assert settings().stop_timeout_seconds == 3
        assert get_runtime_config() == {"stop_timeout_seconds": 3, "log_tail_lines": 5}
        with configured(log_tail_lines=6):
            assert settings().log_tail_lines == 6
            assert settings().stop_timeout_seconds == 3
        assert settings().log_tail_lines == 5
    assert settings().stop_timeout_seconds == default


def test_a_block_that_raises_restores_too() -> None:
    with pytest.raises(KeyError), configured(log_tail_lines=6):
        raise KeyError
    assert settings().log_tail_lines != 6


def test_what_was_configured_can_be_cleared() -> None:
    configure(stop_timeout_seconds=3.5, cleanup_timeout="5s")
    assert get_runtime_config() == {"stop_timeout_seconds": 3.5, "cleanup_timeout": "5s"}
    clear_runtime_config()
    assert settings().stop_timeout_seconds == 10.0


def test_changing_what_was_returned_changes_nothing() -> None:
    with configured(log_tail_lines=6) as config:
        config["log_tail_lines"] = 7
        get_runtime_config()["log_tail_lines"] = 8
        assert settings().log_tail_lines == 6


@pytest.mark.parametrize("name", ["clean_up_timeout", "log_tail_line", "heartbeat_second"])
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown setting '{name}'; did you mean '\w+'\?"):
        configure(**{name: 1})


def test_a_name_that_is_like_no_other_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'zzz'\. Known ones: .*log_tail_lines"):
        configure(zzz=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_timeout_seconds", "soon"),
        ("stop_timeout_seconds", True),
        ("stop_timeout_seconds", None),
        ("log_tail_lines", 1.5),
        ("log_tail_lines", True),
        ("runtime_dir", 3),
        ("cleanup_timeout", 3),
        ("cleanup_timeout", 3.5),
        ("message_ack_every_n_messages", "100"),
        ("message_ack_every_n_messages", True),
        ("enable_log_forwarding", "true"),
        ("enable_log_forwarding", 1),
        ("message_latency_sampling_rate", "0.5"),
        ("default_encoding", "bincode"),
        ("default_encoding", 123),
        ("default_transport", 42),
        ("default_transport", {}),
        ("rdma_max_nics_per_buffer", "4"),
        ("rdma_max_nics_per_buffer", True),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        configure(**{name: value})


def test_one_wrong_value_keeps_the_others_out() -> None:
    with pytest.raises(TypeError):
        configure(log_tail_lines=7, cleanup_timeout=3)
    assert settings().log_tail_lines != 7


@pytest.mark.parametrize("text", ["invalid", "30", "abc123", "", "5 parsecs", "-3s", "3s 4"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(TypeError, match="Invalid duration format"):
        configure(cleanup_timeout=text)


def test_durations_of_ours_may_be_texts_too() -> None:
    with configured(heartbeat_seconds="1m 30s") as config:
        assert config["heartbeat_seconds"] == 90.0


@pytest.mark.parametrize(
    ("theirs", "value", "ours", "means"),
    [
        ("cleanup_timeout", "1m 5s", "cleanup_timeout_seconds", 65.0),
        ("process_exit_timeout", "500ms", "stop_timeout_seconds", 0.5),
        ("host_spawn_ready_timeout", "2m", "attach_timeout_seconds", 120.0),
        ("mesh_attach_config_timeout", "500ms", "attach_timeout_seconds", 0.5),
        ("message_delivery_timeout", "1h", "heartbeat_timeout_seconds", 3600.0),
        ("codec_max_frame_length", 1000, "max_message_bytes", 1000),
        ("tail_log_lines", 3, "log_tail_lines", 3),
    ],
)
def test_upstreams_name_for_a_setting_of_ours(
    theirs: str, value: Any, ours: str, means: Any
) -> None:
    with configured(**{theirs: value}) as config:
        assert config[theirs] == value
        assert config[ours] == getattr(settings(), ours) == means
        with configured(**{ours: means * 2}) as config:
            assert getattr(settings(), ours) == means * 2
            assert config[theirs] == UPSTREAM[theirs].from_ours(means * 2)


def test_every_setting_of_upstream_takes_and_gives_back_its_default() -> None:
    for name, default in ((name, one.default) for name, one in UPSTREAM.items()):
        with configured(**{name: default}) as config:
            assert config[name] == default


@pytest.mark.parametrize(
    ("transport", "means"),
    [
        (ChannelTransport.TcpWithLocalhost, BindSpec(ChannelTransport.TcpWithLocalhost)),
        (BindSpec("tcp"), BindSpec(ChannelTransport.TcpWithHostname)),
        ("tcp", BindSpec(ChannelTransport.TcpWithHostname)),
        ("ipc", BindSpec(ChannelTransport.Unix)),
        ("unix", BindSpec(ChannelTransport.Unix)),
        ("tcp://127.0.0.1:8080", BindSpec("tcp://127.0.0.1:8080")),
        ("ipc:///tmp/x", BindSpec("ipc:///tmp/x")),
    ],
)
def test_a_transport_is_a_kind_or_a_url(transport: Any, means: BindSpec) -> None:
    with configured(default_transport=transport) as config:
        assert config["default_transport"] == means
        assert get_runtime_config() == {"default_transport": means}
    assert get_global_config()["default_transport"] == BindSpec(ChannelTransport.Unix)


@pytest.mark.parametrize("transport", ["invalid://scheme", "random_string"])
def test_other_texts_are_no_transport(transport: str) -> None:
    with pytest.raises(ValueError, match="neither a kind of transport nor an address"):
        configure(default_transport=transport)


def test_a_limit_may_be_none_and_is_at_least_one() -> None:
    with configured(rdma_max_nics_per_buffer=4) as config:
        assert config["rdma_max_nics_per_buffer"] == 4
        with configured(rdma_max_nics_per_buffer=None) as config:
            assert config["rdma_max_nics_per_buffer"] is None
    with pytest.raises(ValueError, match="at least 1"):
        configure(rdma_max_nics_per_buffer=0)


class Reads(Actor):
    @endpoint
    def read(self, *names: str) -> list[Any]:
        config = get_global_config()
        return [config[name] for name in names]

    @endpoint
    def read_deeper(self, *names: str) -> list[Any]:
        procs = this_host().spawn_procs()
        answer = procs.spawn("reads", Reads).read.call_one(*names).get()
        procs.stop().get()
        return answer


@pytest.mark.long
def test_procs_take_over_what_their_owner_has_configured() -> None:
    set_here = {
        "stop_timeout_seconds": 3.5,
        "default_encoding": Encoding.Json,
        "default_transport": BindSpec("tcp"),
        "rdma_ibverbs_target": "nic:a",
    }
    names = (*set_here, "log_tail_lines")
    with configured(**set_here):
        reads = this_host().spawn_procs().spawn("reads", Reads)
        expected = [*set_here.values(), settings().log_tail_lines]
        assert reads.read.call_one(*names).get(timeout=SECONDS) == expected
        assert reads.read_deeper.call_one(*names).get(timeout=SECONDS) == expected
    later = this_host().spawn_procs().spawn("reads", Reads)
    assert later.read.call_one("rdma_ibverbs_target").get(timeout=SECONDS) == [""]


def test_the_environment_is_below_what_is_configured() -> None:
    script = (
        "from monarch.config import *; before = get_global_config()['log_tail_lines'];"
        "configure(log_tail_lines=4); now = get_global_config()['log_tail_lines'];"
        "clear_runtime_config(); print(before, now, get_global_config()['log_tail_lines'])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "MONARCH_LOG_TAIL_LINES": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert output.stdout.split() == ["3", "4", "3"]


seen: list[tuple[Any, ...]] = []


@parametrize_config(log_tail_lines={1, 2}, enable_log_forwarding={True, False})
@pytest.mark.parametrize("more", ["a", "b"])
def test_under_every_combination(more: str) -> None:
    config = get_global_config()
    seen.append((config["log_tail_lines"], config["enable_log_forwarding"], more))


def test_all_combinations_were_run() -> None:
    assert len(seen) == len(set(seen)) == 8


points: list[tuple[Any, ...]] = []


@parametrize_config_pointwise(log_tail_lines=[1, 2], cleanup_timeout=["1s", "2s"])
def test_point_by_point() -> None:
    config = get_global_config()
    points.append((config["log_tail_lines"], config["cleanup_timeout"]))


def test_all_points_were_run() -> None:
    assert points == [(1, "1s"), (2, "2s")]


def test_what_cannot_be_parametrized() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parametrize_config()
    with pytest.raises(ValueError, match="at least one"):
        parametrize_config_pointwise()
    with pytest.raises(ValueError, match="the same number"):
        parametrize_config_pointwise(log_tail_lines=[1, 2], cleanup_timeout=["1s"])


def test_async_tests_run_under_the_settings_too() -> None:
    import asyncio

    async def body(value: int) -> int:
        return value * settings().log_tail_lines

    wrapped = parametrize_config(log_tail_lines={7})(body)
    assert asyncio.run(wrapped(6, _config_overrides={"log_tail_lines": 7})) == 42


def test_the_names_at_the_top() -> None:
    with monarch.configured(log_tail_lines=6) as config:
        assert monarch.get_global_config() == config
        assert monarch.get_runtime_config() == {"log_tail_lines": 6}


def test_in_process_procs_have_the_settings_of_the_test() -> None:
    with configured(log_tail_lines=6), in_process() as world:
        reads = world.host.spawn_procs().spawn("reads", Reads)
        assert reads.read.call_one("log_tail_lines").get(timeout=SECONDS) == [6]


def test_every_setting_says_in_one_line_what_it_does() -> None:
    notes = notes_of(Settings)
    assert [name for name in Settings.__struct_fields__ if not notes[name].text] == []
    page = (Path(__file__).parents[2] / "docs/reference.md").read_text(encoding="utf-8")
    for name in Settings.__struct_fields__:
        assert f"| `{name}` |" in page
        assert notes[name].text in page
