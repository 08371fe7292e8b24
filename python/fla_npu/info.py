# SPDX-License-Identifier: Apache-2.0
"""What `fla-npu info` tells: which OPP would be used, why, from where, and what is missing.

Unlike `check-symbols`, which only reads files, this opens the libraries as a call would: what it
says is what a call meets.
"""

from __future__ import annotations

import ctypes
import os
from importlib import metadata
from typing import Any

from . import build_info, loader, opp
from .errors import FlaNpuError
from .spec import names

__all__ = ["TWIN_SETTINGS", "collect"]

BESIDE = ("numpy", "torch", "torch_npu", "mindspore")
# Variables the twin reads at each launch, with what happens when they are not set.
TWIN_SETTINGS = {
    "FLA_NPU_TWIN": "fast",
    "FLA_NPU_TWIN_THREADS": "all CPUs of the process",
    "FLA_NPU_TWIN_CORES": "from the thread count (fast), the chip's (checked)",
    "FLA_NPU_TWIN_SOC": "an Ascend 910B",
    "FLA_NPU_TWIN_SEED": "fixed",
    "FLA_NPU_TWIN_COPIES": "late",
    "FLA_NPU_TWIN_ISA": "the best of this CPU",
    "FLA_NPU_TWIN_TRACE": "no trace",
}


def isa_name() -> str:
    """'baseline', 'avx2' or 'avx512'; '' when the OPP in use is not a twin."""
    try:
        path = loader.current().twin_library
        function = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL).fla_twin_isa
    except (FlaNpuError, OSError, AttributeError, UnicodeDecodeError):
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode()


def beside() -> dict[str, str]:
    """Versions of what works with this package, as installed; nothing is imported."""
    found = {}
    for name in BESIDE:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def advice(backend: str, versions: dict[str, str]) -> str:
    """What is known to go wrong with these versions, or ''."""
    numpy = versions["numpy"]
    if backend == "cann" and numpy.partition(".")[0].isdigit() and int(numpy.partition(".")[0]) >= 2:
        return (
            f"NumPy {numpy} is installed: the Python parts of CANN up to 8.3 need an older one, and fail with 500001 "
            "or with a name that NumPy 2 has no more. If they do: pip install 'numpy<2'"
        )
    return ""


def operators() -> dict[str, str]:
    """Operator -> '' when it can be called, else the reason."""
    state = {}
    for name in names():
        try:
            loader.bind(name)
            state[name] = ""
        except FlaNpuError as error:
            state[name] = str(error).splitlines()[0]
    return state


def collect() -> dict[str, Any]:
    """Everything as plain data (`--json`)."""
    problem = ""
    used = None
    try:
        used = opp.find()
    except FlaNpuError as error:
        problem = str(error)
    places = []
    for place in opp.survey():
        taken = used is not None and place.opp is not None and place.source == used.source
        hidden = used is not None and place.opp is not None and not taken
        state = f"{place.state}, but {used.source} comes first" if hidden else place.state
        places.append({"source": place.source, "path": place.path, "state": state, "used": taken})
    result: dict[str, Any] = {
        "build": build_info(),
        "places": places,
        "problem": problem,
        "beside": beside(),
        "operators": operators() if used else {},
    }
    if used is not None:
        result["opp"] = {
            "root": str(used.root),
            "chosen_by": used.source,
            "backend": used.backend,
            "build_id": used.build_id,
            "socs": used.manifest.get("socs", []),
            "libraries": [str(path) for path in used.libraries],
        }
        result["advice"] = advice(used.backend, result["beside"])
        if used.backend == "twin":
            result["twin"] = {
                "isa": isa_name(),
                "settings": {name: os.environ.get(name, "") for name in TWIN_SETTINGS},
            }
    return result
