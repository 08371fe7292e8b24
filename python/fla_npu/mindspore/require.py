# SPDX-License-Identifier: Apache-2.0
"""Which MindSpore this front end works with."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module, metadata

from ..errors import FlaNpuError

__all__ = [
    "CALLS_HAVE_NAMES",
    "MindSporeMissing",
    "mindspore_release",
    "mindspore_version",
    "require_mindspore",
]

MINIMUM = (2, 9)
CALLS_HAVE_NAMES = (2, 10)
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


def mindspore_release() -> tuple[int, ...]:
    """Its first two numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", mindspore_version())[:2])


def require_mindspore() -> None:
    """Refuse an absent or too old MindSpore with the command that repairs it."""
    if mindspore_release() < MINIMUM:
        raise MindSporeMissing(
            f"fla_npu.mindspore needs MindSpore {MINIMUM[0]}.{MINIMUM[1]} or newer (the bridge uses its "
            f"C++ extension interface), found {mindspore_version()}: {_INSTALL} --upgrade"
        )
