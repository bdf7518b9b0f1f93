"""Configuration from TOML files: dataclasses, overrides, and errors that name the line.

What to open:

    loader      fills a config from its layers
    layers      the layers: a file, the environment, the command line
    keys        the dotted keys of a config
    types       the types that values may have, and how they are parsed
    live        keys that may change while a run goes on
    origin      where a value came from, and `ConfigError`
    toml_text   TOML, and the line of each key
    writer      a config as TOML
    notes       the comments and docstrings of a config's fields
"""

from monarch.config_file.keys import changed_keys, with_keys, with_keys_of
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
    "with_keys",
    "with_keys_of",
]
