# SPDX-License-Identifier: Apache-2.0
"""What describes an OPP: its manifest, its config.ini, a wheel's RECORD, read from files that may be anything.

A file is read only when it is one, and only as far as any file of an OPP goes. A manifest carries a digest of
itself: with it, and the hashes in it, every change of a packed file shows. Standard library only.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from pathlib import Path

__all__ = [
    "MAX_CONFIG",
    "MAX_FILE",
    "MAX_JSON",
    "digest",
    "kind_of",
    "parse_manifest",
    "parse_object",
    "parse_priority",
    "read_file",
    "record_hash",
    "vendors_of",
]

# Far beyond what an OPP has: what is larger is not read into memory.
MAX_FILE, MAX_JSON, MAX_CONFIG = 256 << 20, 8 << 20, 1 << 20
KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}


def kind_of(mode: int) -> str:
    """'' for a regular file, or in words what something else is."""
    return "" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "a device")


def read_file(path: Path | str, limit: int = MAX_FILE) -> bytes:
    """A regular file's bytes; OSError says why it has none. Never waits: a pipe is refused, not opened."""
    kind = kind_of(os.stat(path).st_mode)
    if kind:
        code = errno.EISDIR if kind == "a directory" else errno.EINVAL
        raise OSError(code, f"it is {kind}", str(path))
    if os.stat(path).st_size == 0:
        return b""  # also of what the kernel shows as files: its log would wait for the next message
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = file.read(limit + 1)
            if len(data) <= limit:
                return data
    raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB, as no file of an OPP has", str(path))


def _pairs(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return found


def _number(text: str) -> int | float:
    # int() of a million digits takes minutes where Python sets no limit; NaN and Infinity are no JSON.
    if len(text) > 30 or text.strip("+-.eE0123456789") or abs(float(text)) == float("inf"):
        raise ValueError(f"{text[:30]} is no number that JSON has")
    return float(text) if text.strip("-0123456789") else int(text)


def parse_object(text: str | bytes) -> dict:
    """A JSON object, read strictly: no key twice, no NaN, no endless number. ValueError says what is wrong."""
    if len(text) > MAX_JSON:
        raise ValueError(f"it has more than {MAX_JSON >> 20} MiB")
    hooks = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), _number)
    try:
        found = json.loads(text, object_pairs_hook=_pairs, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__} where an object must be")
    return found


def digest(manifest: dict) -> str:
    """What a manifest says of itself: sha256 of everything else in it, keys sorted."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def record_hash(data: bytes, algorithm: str = "sha256") -> str:
    """What RECORD says of a file: 'sha256=' and the digest, in base64 for addresses, without padding."""
    raw = hashlib.new(algorithm, data).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


# A type, [of what a list consists], or {what each object of an object has}.
STRUCTURE = {
    "schema": int,
    **dict.fromkeys(
        ("build_id", "version", "backend", "arch", "cann", "git", "compiler", "build_type", "digest"), str
    ),
    "socs": [str],
    "kernel_options": [str],
    "placeholder": bool,
    "ops": {"aclnn": str, "prototype": str, "prototype_hash": str, "kernels": dict},
    "files": {"sha256": str, "size": int},
}


def _check_types(value: object, kind: object, name: str) -> None:
    wanted = kind if isinstance(kind, type) else type(kind)
    if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
        raise ValueError(f"'{name}' is a {type(value).__name__}, not a {wanted.__name__}")
    if isinstance(kind, list):
        for entry in value:
            _check_types(entry, kind[0], name)
    if isinstance(kind, dict):
        for key, entry in value.items():
            if not isinstance(entry, dict):
                raise ValueError(f"'{name}' has no object for {key}")
            for inner in kind.keys() & entry.keys():
                _check_types(entry[inner], kind[inner], f"{name}/{key}/{inner}")


def parse_manifest(text: str | bytes) -> dict:
    """The manifest, whole: known keys have their types, its digest is right. ValueError says what is wrong."""
    manifest = parse_object(text)
    known = STRUCTURE.keys() & manifest.keys()
    for key in known:
        _check_types(manifest[key], STRUCTURE[key], key)
    if not known:
        raise ValueError("it describes no OPP")
    # An older manifest (schema 1) has no digest.
    if ("digest" in manifest or manifest.get("schema", 1) > 1) and manifest.get("digest") != digest(manifest):
        raise ValueError("it was changed after it was packed; 'fla-npu check-symbols' says what else was")
    return manifest


def vendors_of(manifest: dict) -> set[str]:
    """Names of the vendor directories whose files a manifest lists."""
    return {name.split("/")[1] for name in manifest.get("files", {}) if name.count("/") > 1}


def parse_priority(text: bytes) -> list[str] | None:
    """The names behind `load_priority=` in a config.ini; None when it has no such line."""
    for line in text[:MAX_CONFIG].decode("utf-8", "replace").splitlines():
        key, found, value = line.partition("=")
        if found and key.strip() == "load_priority":
            return [name.strip() for name in value.split(",")]
    return None
