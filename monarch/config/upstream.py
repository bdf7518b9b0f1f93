"""Upstream's settings that have other names or no meaning in this project.

Programs set them, so each is accepted with upstream's type, kept, and returned. ``ours`` names the
setting of ours that follows it; if it is empty, the setting has no effect.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from monarch.config.duration import format_duration, parse_duration
from monarch.config.transport import BindSpec, ChannelTransport


class Encoding(enum.Enum):
    """How upstream encodes messages. This project has a single encoding, so the value has no
    effect.
    """

    Bincode = "bincode"
    Json = "json"
    Multipart = "multipart"


class UpstreamSetting(NamedTuple):
    """The type and default of a setting: ``kind`` is "duration", "transport", "count" (1 or more,
    or ``None``), or a type.
    """

    kind: Any
    default: Any
    ours: str = ""

    def accept(self, name: str, value: Any) -> Any:
        """Return the value to store for this setting.

        Raises ``TypeError`` for a value of another type, and ``ValueError`` for an invalid one.
        """
        if self.kind == "duration":
            return _duration(name, value)
        if self.kind == "transport":
            return _transport(name, value)
        if self.kind == "count":
            return _count(name, value)
        check_type(name, value, self.kind)
        return value

    def for_ours(self, value: Any) -> Any:
        """Convert upstream's value to a value of our setting."""
        return parse_duration(value) if self.kind == "duration" else value

    def from_ours(self, value: Any) -> Any:
        """Convert a value of our setting to upstream's value."""
        return format_duration(value) if self.kind == "duration" else value


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise ``TypeError`` unless a setting's value is of this type; a number may be an integer."""
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"setting {name!r} takes {kind.__name__}, not {type(value).__name__}")


def _duration(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"setting {name!r} takes a duration like '30s', not {type(value).__name__}")
    try:
        return format_duration(parse_duration(value))
    except ValueError as error:
        raise TypeError(f"Invalid duration format for {name!r}: {error}") from None


def _count(name: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"setting {name!r} takes int or None, not {type(value).__name__}")
    if value is not None and value < 1:
        raise ValueError(f"setting {name!r} is at least 1, or None for no limit; not {value}")
    return value


def _transport(name: str, value: Any) -> BindSpec:
    if isinstance(value, BindSpec):
        return value
    if not isinstance(value, (ChannelTransport, str)):
        raise TypeError(
            f"setting {name!r} takes a ChannelTransport or a URL, not {type(value).__name__}"
        )
    return BindSpec(value)


UPSTREAM: dict[str, UpstreamSetting] = {
    # Settings that we have too.
    "cleanup_timeout": UpstreamSetting("duration", "3s", "cleanup_timeout_seconds"),
    "process_exit_timeout": UpstreamSetting("duration", "10s", "stop_timeout_seconds"),
    "host_spawn_ready_timeout": UpstreamSetting("duration", "30s", "attach_timeout_seconds"),
    "mesh_attach_config_timeout": UpstreamSetting("duration", "1m", "attach_timeout_seconds"),
    "message_delivery_timeout": UpstreamSetting("duration", "30s", "heartbeat_timeout_seconds"),
    "codec_max_frame_length": UpstreamSetting(int, 10 * 2**30, "max_message_bytes"),
    "tail_log_lines": UpstreamSetting(int, 0, "log_tail_lines"),
    # Settings with the same meaning here.
    "rdma_allow_tcp_fallback": UpstreamSetting(bool, True),
    "rdma_disable_ibverbs": UpstreamSetting(bool, False),
    "rdma_max_chunk_size_mb": UpstreamSetting(int, 64),
    # Settings that have no meaning here.
    "actor_queue_dispatch": UpstreamSetting(bool, True),
    "actor_spawn_max_idle": UpstreamSetting("duration", "30s"),
    "channel_net_rx_buffer_full_check_interval": UpstreamSetting("duration", "5s"),
    "channel_tcp_congestion": UpstreamSetting(str, ""),
    "default_encoding": UpstreamSetting(Encoding, Encoding.Multipart),
    "default_transport": UpstreamSetting("transport", BindSpec(ChannelTransport.Unix)),
    "enable_dest_actor_reordering_buffer": UpstreamSetting(bool, True),
    "enable_file_capture": UpstreamSetting(bool, False),
    "enable_log_forwarding": UpstreamSetting(bool, False),
    "force_file_log": UpstreamSetting(bool, False),
    "get_actor_state_max_idle": UpstreamSetting("duration", "30s"),
    "get_proc_state_max_idle": UpstreamSetting("duration", "1m"),
    "max_cast_dimension_size": UpstreamSetting(int, 16),
    "mesh_admin_addr": UpstreamSetting(str, "[::]:1729"),
    "mesh_bootstrap_enable_pdeathsig": UpstreamSetting(bool, True),
    "mesh_orphan_timeout": UpstreamSetting("duration", "1m"),
    "mesh_proc_spawn_max_idle": UpstreamSetting("duration", "30s"),
    "mesh_terminate_concurrency": UpstreamSetting(int, 16),
    "mesh_terminate_timeout": UpstreamSetting("duration", "10s"),
    "message_ack_every_n_messages": UpstreamSetting(int, 1000),
    "message_ack_time_interval": UpstreamSetting("duration", "500ms"),
    "message_latency_sampling_rate": UpstreamSetting(float, 0.01),
    "message_ttl_default": UpstreamSetting(int, 64),
    "proc_stop_max_idle": UpstreamSetting("duration", "30s"),
    "pyspy_bin": UpstreamSetting(str, ""),
    "rdma_cq_poller_per_device": UpstreamSetting(bool, True),
    "rdma_ibverbs_target": UpstreamSetting(str, ""),
    "rdma_max_nics_per_buffer": UpstreamSetting("count", None),
    "rdma_min_stripe_size_kb": UpstreamSetting(int, 512),
    "rdma_peer_device_affinity": UpstreamSetting(str, ""),
    "rdma_qps_per_cq": UpstreamSetting(int, 64),
    "rdma_runtime_worker_threads": UpstreamSetting(int, 4),
    "read_log_buffer": UpstreamSetting(int, 100),
    "remote_alloc_allowed_port_range": UpstreamSetting(slice, slice(0, 65535)),
    "remote_alloc_bind_to_inaddr_any": UpstreamSetting(bool, False),
    "remote_alloc_bootstrap_addr": UpstreamSetting(str, ""),
    "remote_allocator_heartbeat_interval": UpstreamSetting("duration", "5m"),
    "shared_asyncio_runtime": UpstreamSetting(bool, False),
    "small_write_threshold": UpstreamSetting(int, 256),
    "split_max_buffer_age": UpstreamSetting("duration", "50ms"),
    "split_max_buffer_size": UpstreamSetting(int, 5),
    "stop_actor_timeout": UpstreamSetting("duration", "10s"),
    "supervision_watchdog_timeout": UpstreamSetting("duration", "2m"),
}
