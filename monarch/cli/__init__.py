"""The ``monarch`` command."""
