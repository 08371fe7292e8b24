# SPDX-License-Identifier: Apache-2.0
"""Calls in a process of their own: a crash or a hang is an outcome there."""

from __future__ import annotations

import os
import signal

SECONDS = 60  # of one case; they take some milliseconds on a quiet machine


def in_a_process(*calls) -> list[str]:
    """What each call returned or raised, or how the process died in it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        for call in calls:
            try:
                text = call()
            except BaseException as error:
                text = f"CRASH {type(error).__name__}: {error}"
            os.write(write, text.encode("utf-8", "replace")[:2000] + b"\0")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode().split("\0")[:-1]
    status = os.waitpid(child, 0)[1]
    return [*said, f"DEAD by signal {os.WTERMSIG(status)}"] if os.WIFSIGNALED(status) else said
