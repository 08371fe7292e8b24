# SPDX-License-Identifier: Apache-2.0
"""Which MindSpore this front end works with."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module, metadata

from ..errors import FlaNpuError

__all__ = ["MindSporeMissing", "mindspore_version", "require_mindspore"]

MINIMUM = (2, 10)
_INSTALL = "pip install 'fla-npu[mindspore]'"


class MindSporeMissing(FlaNpuError, ImportError):
    """MindSpore is not installed, or is too old for the bridge."""


@lru_cache(maxsize=1)
def mindspore_version() -> str:
    """Version of the installed MindSpore, without importing it where the release wheel is installed."""
    try:
        return metadata.version("mindspore")
    except metadata.PackageNotFoundError:
        pass
    try:  # nightly wheels have other names
        return import_module("mindspore").__version__
    except ImportError:
        raise MindSporeMissing(
            f"fla_npu.mindspore needs MindSpore {MINIMUM[0]}.{MINIMUM[1]} or newer, which is not "
            f"installed: {_INSTALL}"
        ) from None


def require_mindspore() -> None:
    """Refuse an absent or too old MindSpore with the command that repairs it."""
    version = mindspore_version()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM:
        raise MindSporeMissing(
            f"fla_npu.mindspore needs MindSpore {MINIMUM[0]}.{MINIMUM[1]} or newer (the bridge uses its "
            f"C++ extension interface), found {version}: {_INSTALL} --upgrade"
        )
