"""Configuration from TOML files: dataclasses, overrides, and errors that name the line.

What to open, by what is to be changed:

- where a config's values come from; its keys; its errors: `layers.py`; `keys.py`; `origin.py`
"""

from monarch.config_file.keys import changed_keys, with_keys_of
from monarch.config_file.live import live, live_keys
from monarch.config_file.loader import LoadedConfig, load_config, resolve_config
from monarch.config_file.origin import ConfigError, Origin, check_range
from monarch.config_file.writer import to_toml

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
