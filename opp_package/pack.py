# SPDX-License-Identifier: Apache-2.0
"""Build outputs -> the package tree: opp/ with its manifest, _contract/ with every op.json, _built with the version.

    pack.py --build <build dir> --source <checkout> --out <build dir>/package

layout.json says what an OPP consists of; for CANN it starts from the tree that the toolkit's own build
installed, which must have what the run time looks for. The result holds exactly the files of this build:
what an earlier one left is removed, what is missing is an error. Files are rewritten only when they change.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT.parent / "ascendc/codegen"), str(ROOT.parent / "python")]

import emit_info  # noqa: E402
from contract import Op, load  # noqa: E402
from fla_npu.manifest import digest  # noqa: E402

IMPL = "op_impl/ai_core/tbe"


class Packer:
    """Collects path -> bytes, then makes the folder equal to it."""

    def __init__(self, build: Path, source: Path) -> None:
        self.build, self.source = build, source
        self.config = json.loads((build / "build_config.json").read_text())
        specs = sorted((source / "ascendc/ops").glob("*/op.json"))
        self.specs = {path.parent.name: path for path in specs}
        self.ops = [load(self.specs[name]) for name in self.config["ops"]]
        artifacts = json.loads((build / "artifacts.json").read_text())
        self.artifacts = {name: Path(path) for name, path in artifacts.items()}
        self.files: dict[str, bytes] = {}

    def add_layout(self) -> None:
        """Every entry of the backend's layout, per operator and per chip."""
        backend = self.config["backend"]
        socs = self.config["socs"][:1] if backend == "twin" else self.config["socs"]
        for entry in json.loads((ROOT / "layout.json").read_text())[backend]:
            path = entry["path"]
            for op in self.ops if "{op}" in path or "{op_type}" in path else [None]:
                for soc in socs if "{soc}" in path else socs[:1]:
                    names = {"arch": self.config["arch"], "soc": soc, "cann": self.config["cann"]}
                    names |= {"op": op.name, "op_type": op.op_type} if op else {}
                    self._add_entry(entry, names, op)

    def _add_entry(self, entry: dict, names: dict, op: Op | None) -> None:
        if "source" in entry:
            for path in sorted((self.source / entry["source"]).iterdir()):
                self._add(entry["path"].format(name=path.name, **names), path.read_bytes())
            return
        place = entry["path"].format(**names)
        if "built" in entry or "made" in entry:
            if fnmatch.filter(self.files, f"opp/{place}"):
                return
            if "built" in entry:
                raise KeyError(f"{place} is not in the tree that the toolkit installed")
        if "target" in entry:
            data = self.artifacts[entry["target"].format(**names)].read_bytes()
        elif "generated" in entry:
            data = (self.build / "generated" / entry["generated"].format(**names)).read_bytes()
        elif "text" in entry:
            data = entry["text"].format(**names).encode()
        else:
            kernel = op and self.artifacts.get(f"kernel_{op.name}")
            made = emit_info.make(
                entry.get("make") or entry["made"], self.ops, op, names["soc"], self.files, kernel
            )
            data = (json.dumps(made, indent=2) + "\n").encode()
        self._add(place, data)

    def add_tree(self, tree: Path) -> None:
        """The OPP that CANN's build installed; symbolic links become the files they name."""
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                self._add(path.relative_to(tree).as_posix(), path.read_bytes())

    def _add(self, path: str, data: bytes) -> None:
        self.files["opp/" + path] = data

    def add_manifest(self) -> None:
        """manifest.json: what this OPP is, what each operator's prototype was, every file's hash."""
        files = {
            path[4:]: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for path, data in sorted(self.files.items())
            if path.startswith("opp/")
        }
        head = {
            key: self.config[key]
            for key in ("version", "backend", "socs", "arch", "cann", "git", "compiler", "build_type")
        }
        # A recorded toolkit's objects hold no code: such an OPP must not pass for one that runs.
        marked = any(emit_info.PLACEHOLDER in data for data in self.files.values())
        more = {"kernel_options": self.config["kernel_options"], "placeholder": marked}
        head |= {key: value for key, value in more.items() if value}
        libraries = {name: data for name, data in self.files.items() if name.endswith((".so", ".o"))}
        self.bom = json.dumps(emit_info.bom(head, libraries), indent=1) + "\n"
        manifest = {
            "schema": 2,  # from 2 on with a digest of itself: fla_npu/manifest.py
            "build_id": self._build_id(),
            **head,
            "ops": {op.name: self._op_entry(op, files) for op in self.ops},
            "files": files,
        }
        manifest["digest"] = digest(manifest)
        self._add("manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())

    def _build_id(self) -> str:
        source = (self.build / "build_id.cpp").read_text()
        return re.search(r'fla_build_id\[33\] = "([0-9a-f]{32})"', source).group(1)

    def _op_entry(self, op: Op, files: dict) -> dict:
        kernels = {
            soc: [path for path in files if f"/kernel/{soc}/{op.name}/" in path]
            for soc in self.config["socs"]
        }
        return {
            "op_type": op.op_type,
            "aclnn": op.aclnn,
            "prototype": ", ".join(op.prototype()),
            "prototype_hash": op.prototype_hash(),
            "kernels": kernels,
        }

    def add_contracts(self) -> None:
        """Every contract, also of those left out, and a file beside the folders: pip leaves a folder without one."""
        self.files |= {f"_contract/{name}.json": path.read_bytes() for name, path in self.specs.items()}
        self.files["_built"] = f"{self.config['version']}\n".encode()

    def write(self, out: Path) -> None:
        for path in sorted(out.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(out).as_posix() not in self.files:
                path.unlink()
        for name, data in self.files.items():
            path = out / name
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # a process may run the old library: never write into it
                path.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Pack the OPP.")
    for name in ("build", "source", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    packer = Packer(asked.build, asked.source)
    try:
        if packer.config["backend"] == "cann":
            packer.add_tree(asked.build / "cann/install/packages")
        packer.add_layout()
        packer.add_contracts()
        packer.add_manifest()
    except (OSError, KeyError) as error:
        print(f"fla-npu: step 'pack' failed: the build left something out: {error}", file=sys.stderr)
        return 1
    packer.write(asked.out)
    (asked.build / "sbom").mkdir(exist_ok=True)
    (asked.build / "sbom/fla-npu.cdx.json").write_text(packer.bom)
    return 0


if __name__ == "__main__":
    sys.exit(main())
