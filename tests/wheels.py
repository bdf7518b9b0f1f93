"""Wheels of small packages, made on the spot."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any", more: str = ""
) -> None:
    """A package that is one module, which has ``VALUE``, its version."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {need}" for need in needs]
    files = {
        f"{name}.py": f"VALUE = {version!r}\n{more}",
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
