# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend of this project: scikit-build-core, with the project's options in one place.

FLA_NPU_BACKEND, _SOC, _OPS and _KERNEL_OPTIONS may come from the environment or as config settings
(`pip install . -C FLA_NPU_BACKEND=twin`, also spelled cmake.define.FLA_NPU_BACKEND). Both the version
label and CMake read them, so settings are turned into environment variables here. MAX_JOBS, known from
other packages, limits the build like CMAKE_BUILD_PARALLEL_LEVEL; without either the memory does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_config import OPTIONS, ConfigError, from_environment, jobs
from fla_npu import manylinux, owner
from scikit_build_core import build as backend


def _settings(config_settings: dict | None) -> dict:
    """The settings left for scikit-build-core, after ours went to the environment."""
    left = dict(config_settings or {})
    for key in [key for name in OPTIONS for key in (name, f"cmake.define.{name}") if key in left]:
        os.environ[key.removeprefix("cmake.define.")] = str(left.pop(key))
    manylinux.prepare_cross(left, os.environ)
    os.environ["CMAKE_BUILD_PARALLEL_LEVEL"] = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(jobs())
    return left


def _checked(config_settings: dict | None) -> dict:
    """The same, refusing options that describe no build before anything is compiled."""
    left = _settings(config_settings)
    if "inplace" in (left.get("editable.mode"), os.environ.get("SKBUILD_EDITABLE_MODE")):
        raise SystemExit("fla-npu: editable.mode = inplace leaves out the step that packs the OPP; drop it")
    owner.before_build(Path(__file__).resolve().parents[1] / "python/fla_npu")
    try:
        from_environment()
    except ConfigError as error:
        raise SystemExit(f"fla-npu cannot be built, step 'options' failed: {error}") from None
    return left


def _hook(name: str, place: int, prepare: Callable[[dict | None], dict]) -> Callable:
    """The backend's hook `name`, with its config settings (argument number `place`) gone through."""

    def call(*arguments, config_settings: dict | None = None, **others):
        values = list(arguments)
        if len(values) > place:
            values[place] = prepare(values[place])
        else:
            others["config_settings"] = prepare(config_settings)
        made = getattr(backend, name)(*values, **others)
        return manylinux.retag(Path(values[0], made)).name if name == "build_wheel" else made

    return call


for kind, prepare in {"wheel": _checked, "editable": _checked, "sdist": _settings}.items():
    globals()[f"get_requires_for_build_{kind}"] = _hook(f"get_requires_for_build_{kind}", 0, _settings)
    globals()[f"build_{kind}"] = _hook(f"build_{kind}", 1, prepare)
    if kind != "sdist":
        name = f"prepare_metadata_for_build_{kind}"
        globals()[name] = _hook(name, 1, prepare)
