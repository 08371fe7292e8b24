# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA (Kimi Delta Attention) operators for Ascend, with a CPU twin.

    fla_npu.torch.npu_chunk_kda       PyTorch
    fla_npu.mindspore.npu_chunk_kda   MindSpore
    fla_npu.ops.ascendc               the stage operators on PyTorch tensors
    fla_npu.build_info()              what the installed operator package contains

Importing this package imports no framework, opens no library and changes no environment variable;
submodules are imported when they are first used.
"""

__all__ = ["__version__", "build_info", "opp_path"]

_SUBMODULES = frozenset(
    (
        "aclnn",
        "check_symbols",
        "checks",
        "chunk_kda",
        "cli",
        "demo",
        "errors",
        "loader",
        "mindspore",
        "ops",
        "opp",
        "parallel",
        "spec",
        "torch",
        "vendors",
    )
)


def __getattr__(name: str):
    if name == "__version__":
        return _version()
    if name in _SUBMODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    from .owner import mixture

    # Half of another distribution's files ask for what is not ours: say whose they are.
    reason = mixture() if not name.startswith("__") else ""
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'" + (f": {reason}" if reason else ""))


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("fla-npu")
    except metadata.PackageNotFoundError:
        return "0+not.installed"


def opp_path() -> str:
    """Root of the operator package in use, as the first operator call would choose it."""
    from .opp import find

    return str(find().root)


def build_info() -> dict:
    """What the installed operator package was built from and for.

    Keys: version, backend ('twin', 'cann', or 'none' without an OPP), and, as far as its manifest
    says, build_id, socs, cann, git, ops. Opens no library and ignores the environment: it is about
    this installation, `fla-npu info` is about the OPP that would be used.
    """
    from .opp import own_root, read_manifest

    root = own_root()
    manifest = read_manifest(root) if root else {}
    known = {key: manifest[key] for key in ("build_id", "socs", "cann", "git") if key in manifest}
    return {
        "version": _version(),
        "backend": manifest.get("backend", "none"),
        "opp": str(root) if root else "",
        **known,
        "ops": sorted(manifest.get("ops", {})),
    }
