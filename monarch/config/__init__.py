"""Settings of the runtime, in upstream's call style: ``configure(heartbeat_seconds=2.0)``.

Upstream's own names are accepted too: some are aliases of our settings
(``configure(cleanup_timeout="5s")``), the others are kept and have no effect. In tests, ``with
configured(...)`` and ``@parametrize_config(...)`` change settings for a while.

What to open:

    settings      the settings, their defaults, and how they are changed
    upstream      upstream's names for settings
    transport     kinds of transport, in upstream's words
    duration      durations as people write them: "1h 30m"
    parametrize   `@parametrize_config`, for tests
"""

from monarch.config.parametrize import parametrize_config, parametrize_config_pointwise
from monarch.config.settings import (
    Settings,
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    inherit_config,
    inherited_config,
    runtime_dir,
    settings,
    upstream_value,
)
from monarch.config.transport import BindSpec, ChannelTransport
from monarch.config.upstream import Encoding

__all__ = [
    "BindSpec",
    "ChannelTransport",
    "Encoding",
    "Settings",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "inherit_config",
    "inherited_config",
    "parametrize_config",
    "parametrize_config_pointwise",
    "runtime_dir",
    "settings",
    "upstream_value",
]
