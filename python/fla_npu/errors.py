# SPDX-License-Identifier: Apache-2.0
"""Every error this package raises on purpose.

One tree, so that `except FlaNpuError` catches all of it. Argument errors are also the built-in
exceptions a Python user expects. A message always says what was passed, what it clashes with and
what to do next.
"""

from __future__ import annotations

__all__ = [
    "AbiMismatch",
    "ArgumentError",
    "ArgumentTypeError",
    "FlaNpuError",
    "FlaNpuWarning",
    "GradientUnavailable",
    "LaunchError",
    "NotServed",
    "OppNotFound",
    "ParallelError",
    "SymbolMissing",
    "TwinFault",
]


class FlaNpuError(Exception):
    """Base of every error raised by fla_npu."""


class OppNotFound(FlaNpuError):
    """No usable operator package (OPP) where one was looked for."""


class SymbolMissing(FlaNpuError):
    """The OPP in use lacks an operator; only calls of that operator fail."""


class AbiMismatch(FlaNpuError):
    """Pieces of different builds met: library, manifest, contract or a shadowing copy."""


class LaunchError(FlaNpuError):
    """An aclnn call failed for a reason that is not an argument. `status` is the code."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TwinFault(LaunchError):
    """The checked CPU twin refused what a kernel did; the message names the source line."""


class ArgumentError(FlaNpuError, ValueError):
    """An argument has a value, shape or combination that the operator does not take."""


class ArgumentTypeError(FlaNpuError, TypeError):
    """An argument has a type or dtype that the operator does not take."""


class NotServed(ArgumentError, NotImplementedError):
    """An argument that the interface has, for something that no kernel here does."""


class GradientUnavailable(FlaNpuError, RuntimeError):
    """A derivative was asked for that is not computed: a second one, or of what is written in place."""


class ParallelError(FlaNpuError, RuntimeError):
    """Ranks of a group disagree, or one of them failed, left or did not answer.

    `rank` is the rank that raises, `peers` are those it had to do with, `step` says what for; all
    ranks are ranks in the group. What the transport said is the `__cause__`.
    """

    def __init__(self, message: str, *, rank: int | None = None, peers: tuple[int, ...] = (), step: str = ""):
        super().__init__(message)
        self.rank = rank
        self.peers = tuple(peers)
        self.step = step


class FlaNpuWarning(UserWarning):
    """Something works now but will not do what the user expects."""
