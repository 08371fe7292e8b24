# SPDX-License-Identifier: Apache-2.0
"""What the generator makes from op.json: headers equal to the frozen ABI; what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from frozen import FROZEN, PHASE_TWO

ROOT = Path(__file__).resolve().parents[2]
GENERATE = ROOT / "ascendc/codegen/generate.py"
TWIN = ROOT / "ascendc/twin"


def generate(kind: str, spec: Path, out: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(GENERATE), kind, str(spec), str(out)]
    return subprocess.run(command, capture_output=True, text=True)


def op_json(op: str) -> Path:
    return ROOT / "ascendc/ops" / op / "op.json"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    out = tmp_path_factory.mktemp("generated")
    for kind in ("twin", "cann"):
        for op in FROZEN:
            done = generate(kind, op_json(op), out / kind / op)
            assert done.returncode == 0, done.stderr
    return out


def parameters(prototype: str) -> list[str]:
    """'const aclTensor *q' ... of the function, one per parameter, spaces normalised."""
    inside = re.search(r"\((.*)\)", prototype, re.S).group(1)
    return [
        re.sub(r"\s*\*\s*", " *", re.sub(r"\s+", " ", one)).strip().replace("* *", "**")
        for one in inside.split(",")
    ]


def declared(header: str, name: str) -> str:
    return re.search(rf"aclnnStatus {name}\([^;]*\);", header, re.S).group(0)


@pytest.mark.parametrize("kind", ["twin", "cann"])
@pytest.mark.parametrize("op", FROZEN)
def test_header_equals_frozen_prototype(generated, kind, op):
    header = (generated / kind / op / f"aclnn_{op}.h").read_text()
    frozen = FROZEN[op]
    name = re.search(r"(aclnn\w+)\(", frozen).group(1)
    assert parameters(declared(header, name)) == parameters(frozen)
    second = name.removesuffix("GetWorkspaceSize")
    assert parameters(declared(header, second)) == parameters(PHASE_TWO.format(name=second))


@pytest.mark.parametrize("op", FROZEN)
def test_compiler_takes_header_and_frozen_prototype_together(generated, op, tmp_path):
    """Two declarations of one extern "C" name: a compiler refuses any difference in a type."""
    source = f'#include "aclnn_{op}.h"\nextern "C" {FROZEN[op]}'
    for language, text in (("c++", source), ("c", source.replace('extern "C" ', ""))):
        command = ["g++" if language == "c++" else "gcc", "-x", language, "-fsyntax-only", "-Wall", "-Werror"]
        command += [f"-I{generated / 'twin' / op}", f"-I{TWIN / 'include'}", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("op", FROZEN)
def test_python_and_manifest_hash_agree(op):
    """The loader compares the hash of the manifest with its own: two computations, one value."""
    sys.path.insert(0, str(GENERATE.parent))
    try:
        from contract import load
    finally:
        sys.path.remove(str(GENERATE.parent))
    from fla_npu import spec

    assert load(op_json(op)).prototype_hash() == spec.spec(op).prototype_hash


def test_generation_writes_only_what_changes(tmp_path):
    op = "chunk_fwd_h"
    generate("twin", op_json(op), tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    generate("twin", op_json(op), tmp_path)
    assert before == {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}


@pytest.mark.parametrize("op", FROZEN)
def test_generated_code_is_laid_out_for_people(generated, op):
    for path in sorted(generated.rglob(f"*{op}*.*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120 and line == line.rstrip(), f"{path.name}:{number}: {line}"


@pytest.mark.parametrize("op", FROZEN)
def test_parameter_table_in_the_operator_page_is_fresh(op, tmp_path):
    page = ROOT / "ascendc/ops" / op / "README.md"
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    done = generate("docs", op_json(op), copy)
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == page.read_text(), (
        f"run: python ascendc/codegen/generate.py docs {op_json(op)} {page}"
    )


def test_a_gradient_like_its_input_doubles_no_combination(generated):
    """dbeta follows beta: column i of both dtype lists is the same."""
    text = (generated / "cann/chunk_kda_bwd_v2/chunk_kda_bwd_v2_def.cpp").read_text()
    lists = {
        name: re.findall(r"DT_\w+", re.search(rf'"{name}"\).*?DataType\((.*?)\)', text, re.S).group(1))
        for name in ("beta", "dbeta", "raw_g")
    }
    assert lists["beta"] == lists["dbeta"] and len(lists["beta"]) == 32
    assert lists["beta"] != lists["raw_g"] and set(lists["beta"]) == {"DT_FLOAT", "DT_BF16"}


def test_a_written_input_is_an_output_of_the_same_name(generated):
    """CANN's way to say so: one address under two port numbers; the twin hands the kernel the same."""
    op = "merge_fwd_bwd_kernel"
    ports = re.findall(r'this->(\w+)\("(\w+)"\)', (generated / f"cann/{op}/{op}_def.cpp").read_text())
    assert [p for p in ports if p[0] != "Attr"] == [("Input", "h"), ("Input", "ag_hm"), ("Output", "h")]
    assert "OP_INPUT(h, ag_hm),\n        OP_OUTPUT(h)," in (generated / f"cann/{op}/{op}_l0.cpp").read_text()
    assert (
        'InferShapes(fla::MergeFwdBwdKernelContract(), *context, {"h"})'
        in (generated / f"cann/{op}/{op}_infershape.cpp").read_text()
    )
    entry = re.sub(r"\s+", " ", (generated / f"twin/{op}/{op}_kernel_entry.cpp").read_text())
    assert "uint8_t *h, uint8_t *ag_hm, uint8_t *h_out, uint8_t *workspace, uint8_t *tiling" in entry


def bad(change) -> dict:
    data = json.loads(op_json("chunk_fwd_h").read_text())
    change(data)
    return data


BAD = {
    "unknown key": (lambda d: d.update(shape=1), "unknown keys ['shape']"),
    "other folder": (lambda d: d.update(name="fwd_h"), "differs from its folder"),
    "op type": (lambda d: d.update(op_type="ChunkFwdX"), "op_type ChunkFwdX makes chunk_fwd_x"),
    "capitals": (lambda d: d.update(op_type="ChunkFWDH"), "op_type ChunkFWDH"),
    "aclnn name": (lambda d: d.update(aclnn="aclnnFwdH"), "aclnn must be aclnnChunkFwdH"),
    "twice": (lambda d: d["params"].append(d["params"][0]), "a parameter name stands twice"),
    "letter": (lambda d: d["params"][0].update(dims="B X T K"), "k: letters ['X'] are not described"),
    "dtype": (lambda d: d["params"][0].update(dtypes=["int4"]), "k: dtypes are"),
    "no dims": (lambda d: d["params"][0].pop("dims"), "k: a tensor needs dims and dtypes"),
    "attr type": (lambda d: d["params"][6].update(type="float"), "output_final_state: types are"),
    "present_if": (lambda d: d["params"][-1].update(present_if="chunk_size"), "present_if names no bool"),
    "like": (lambda d: d["params"][-1].update(like="w"), "like names no required input of its dtypes"),
    "mutated": (lambda d: d.update(mutated=["h"]), "mutated names no input"),
    "modes": (lambda d: d.update(modes={"a": ["h"]}), "modes name outputs that are not optional"),
    "layout": (lambda d: d.update(layout="order"), "layout names no attribute"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_contract_is_refused(tmp_path, case):
    change, text = BAD[case]
    folder = tmp_path / "chunk_fwd_h"
    folder.mkdir()
    (folder / "op.json").write_text(json.dumps(bad(change)))
    done = generate("twin", folder / "op.json", tmp_path / "out")
    assert done.returncode == 1
    assert "chunk_fwd_h/op.json" in done.stderr and text in done.stderr
    assert not (tmp_path / "out").exists()
