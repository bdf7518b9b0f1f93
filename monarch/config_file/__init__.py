"""Configuration from TOML files: dataclasses, overrides, and errors that name the line."""

from monarch.config_file.checks import check_range
from monarch.config_file.live import live, live_keys
from monarch.config_file.loader import (
    ConfigError,
    LoadedConfig,
    Origin,
    changed_keys,
    load_config,
    resolve_config,
    to_toml,
    with_keys_of,
)

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "Origin",
    "changed_keys",
    "check_range",
    "live",
    "live_keys",
    "load_config",
    "resolve_config",
    "to_toml",
    "with_keys_of",
]
