# SPDX-License-Identifier: Apache-2.0
"""Operators by name. `fla_npu.ops.ascendc` holds the stage functions of Chunk KDA."""

__all__ = ["ascendc"]


def __getattr__(name: str):
    if name == "ascendc":
        import importlib

        return importlib.import_module(f"{__name__}.ascendc")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
