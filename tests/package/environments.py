# SPDX-License-Identifier: Apache-2.0
"""Environments without an OPP, and with what fla_npu uses but not the fla_npu that the tests run with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["VARIABLES", "link_dependencies"]

# Where an OPP may be named.
VARIABLES = ("FLA_NPU_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_OPP_PATH")


def link_dependencies(site: Path) -> None:
    """Everything installed here as links in another site-packages folder, which keeps what it has."""
    import click

    for entry in Path(click.__file__).parents[1].iterdir():
        name = entry.name.replace("-", "_")
        left_out = name.startswith(("fla_npu", "_fla_npu", "__")) or entry.suffix == ".pth"
        if not left_out and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
