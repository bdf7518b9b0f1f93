"""The version and the folder of this package, for layers below it."""

from __future__ import annotations

import os

__version__ = "0.2.0"

OUR_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""The folder of ``monarch``, with a separator at its end: files in it are not a user's code."""
