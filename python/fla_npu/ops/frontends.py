# SPDX-License-Identifier: Apache-2.0
"""Finds the front end of a tensor without importing any framework.

A tensor exists only after its framework was imported, so its type says whose it is; the front end
registers under the framework's module name and is imported at the first use.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from ..chunk_kda import Adapter
from ..errors import ArgumentTypeError

__all__ = ["adapter_of"]

FRONTENDS = ("torch",)


@lru_cache(maxsize=64)
def _adapter_of_type(kind: type) -> Adapter | None:
    for base in kind.__mro__:
        framework = base.__module__.split(".")[0]
        if framework in FRONTENDS:
            return importlib.import_module(f"fla_npu.{framework}.adapter").ADAPTER
    return None


def adapter_of(label: str, name: str, value: Any) -> Adapter:
    """The adapter for a tensor argument; ArgumentTypeError when it is no tensor of a front end."""
    adapter = _adapter_of_type(type(value))
    if adapter is None:
        what = "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}"
        raise ArgumentTypeError(
            f"{label}: {name} is {what}; it must be a torch.Tensor (MindSpore tensors: fla_npu.mindspore)"
        )
    return adapter
