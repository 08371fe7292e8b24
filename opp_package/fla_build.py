# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend of this project: scikit-build-core, with the project's options in one place.

FLA_NPU_BACKEND, FLA_NPU_SOC and FLA_NPU_OPS may come from the environment or as config settings
(`pip install . -C FLA_NPU_BACKEND=twin`, also spelled cmake.define.FLA_NPU_BACKEND). Both the version
label and CMake read them, so settings are turned into environment variables here. MAX_JOBS, known from
other packages, limits the build like CMAKE_BUILD_PARALLEL_LEVEL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_config import ConfigError, decide  # noqa: E402
from scikit_build_core import build as backend  # noqa: E402

OPTIONS = ("FLA_NPU_BACKEND", "FLA_NPU_SOC", "FLA_NPU_OPS")


def _settings(config_settings: dict | None) -> dict:
    """The settings left for scikit-build-core, after ours went to the environment."""
    left = dict(config_settings or {})
    for name in OPTIONS:
        for key in (name, f"cmake.define.{name}"):
            if key in left:
                os.environ[name] = str(left.pop(key))
    jobs = os.environ.get("MAX_JOBS")
    if jobs:
        os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", jobs)
    return left


def _checked(config_settings: dict | None) -> dict:
    """The same, refusing options that describe no build before anything is compiled."""
    left = _settings(config_settings)
    try:
        decide(*(os.environ.get(name, "") for name in OPTIONS))
    except ConfigError as error:
        raise SystemExit(f"fla-npu cannot be built: {error}") from None
    return left


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    return backend.get_requires_for_build_wheel(_settings(config_settings))


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    return backend.get_requires_for_build_editable(_settings(config_settings))


def get_requires_for_build_sdist(config_settings: dict | None = None) -> list[str]:
    return backend.get_requires_for_build_sdist(_settings(config_settings))


def prepare_metadata_for_build_wheel(directory: str, config_settings: dict | None = None) -> str:
    return backend.prepare_metadata_for_build_wheel(directory, _checked(config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: dict | None = None) -> str:
    return backend.prepare_metadata_for_build_editable(directory, _checked(config_settings))


def build_wheel(directory: str, config_settings: dict | None = None, metadata: str | None = None) -> str:
    return backend.build_wheel(directory, _checked(config_settings), metadata)


def build_editable(directory: str, config_settings: dict | None = None, metadata: str | None = None) -> str:
    return backend.build_editable(directory, _checked(config_settings), metadata)


def build_sdist(directory: str, config_settings: dict | None = None) -> str:
    return backend.build_sdist(directory, _settings(config_settings))
