"""The version of this package, for layers that say it: the package itself is above them."""

__version__ = "0.2.0"
