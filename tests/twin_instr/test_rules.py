# SPDX-License-Identifier: Apache-2.0
"""Rules of single instructions: kept they are silent, broken they name the rule, the line and the repair.

What can be known at compile time does not compile instead (test_refused_at_compile_time).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "twin"))

import probe_harness as harness  # noqa: E402


@dataclass(frozen=True)
class Case:
    """`good` and `bad` are the values of v; `line` is the comment of the line that must be blamed."""

    which: int
    good: int
    bad: int
    rule: str
    line: str
    says: tuple[str, ...]


CASES = [
    Case(1, 255, 256, "repeat-range", "// repeat", ("repeatTime is 256", "count form")),
    Case(2, 64, 65, "mask-range", "// mask", ("mask is 65", "64 lanes")),
    Case(3, 255, 256, "stride-range", "// stride", ("src1RepStride is 256", "at most 255")),
    Case(4, 1, 0, "dst-block-stride", "// dst block", ("dstBlkStride 0", "1 or more")),
    Case(5, 0, 8, "overlap", "// count overlap", ("overlap",)),
    Case(6, 0, 64, "overlap", "// repeat overlap", ("overlap partly", "own bytes")),
    Case(7, 0, 1, "overlap", "// accumulate", ("overlap partly",)),
    Case(8, 255, 256, "repeat-range", "// brcb repeat", ("repeatTime is 256", "split")),
    Case(9, 64, 8, "overlap", "// brcb overlap", ("overlap",)),
    Case(10, 64, 65, "mask-range", "// whole mask", ("mask is 65",)),
    Case(11, 8, 4096, "stride-range", "// copy stride", ("dstRepeatSize is 4096", "at most 4095")),
    Case(40, 1, 0, "cast-round-mode", "// mode", ("round mode 0", "CAST_RINT")),
    Case(41, 64, 60, "compare-multiple", "// compare count", ("60 elements", "256 bytes")),
    Case(42, 2, 0, "compare-type", "// compare mode", ("mode 0 on int32", "EQ only")),
    Case(43, 2, 1, "select-mode", "// select mode", ("VSEL_TENSOR_TENSOR_MODE",)),
    Case(44, 8, 7, "copy-multiple", "// copy count", ("28 bytes", "DataCopyPad")),
    Case(45, 4095, 4096, "copy-range", "// block count", ("blockCount is 4096",)),
    Case(46, 7, 9, "pad-range", "// pad", ("rightPadding 9", "32 bytes")),
    Case(47, 8, 6, "copy-multiple", "// pad bytes", ("blockLen 6", "element size 4")),
    Case(48, 4, 6, "gather-offset", "// gather", ("offset 6", "whole elements")),
    Case(49, 0, 1, "repeat-stride", "// transpose stride", ("repeatTimes is 1", "dst 1")),
    Case(50, 1, 8, "gather-pattern", "// pattern", ("pattern is 8", "1 to 7")),
    Case(100, 65535, 65536, "nd2nz-row-stride", "// row stride", ("srcDValue is 65536", "row by row")),
    Case(101, 1, 256, "copy-range", "// 2d repeat", ("repeatTimes is 256",)),
    Case(102, 0, 1, "load2d-transpose", "// 2d float", ("16-bit types", "LoadDataWithTranspose")),
    Case(103, 16, 8, "load3d-m", "// 3d rows", ("mExtension 8", "multiples of 16")),
    Case(104, 8, 4, "load3d-k", "// 3d columns", ("kExtension 4", "multiples of C0")),
    Case(105, 1, 2, "load3d-matrix", "// 3d filter", ("matrix", "set filters")),
    Case(106, 0, 1, "load-path", "// load path", ("L0A or L0B",)),
    Case(107, 0, 1, "fill-path", "// fill", ("can't be filled",)),
    Case(108, 0, 1, "copy-path", "// local path", ("no path",)),
    Case(120, 16, 15, "undefined-read", "// mmad rows", ("Mmad", "write it first")),
    Case(122, 16, 4096, "mmad-range", "// mmad range", ("m 4096", "4095")),
    Case(123, 256, 16, "alignment", "// mmad place", ("Mmad", "1024")),
    Case(124, 15, 16, "undefined-read", "// fixpipe", ("Fixpipe", "write it first")),
    Case(125, 16, 0, "fixpipe-range", "// fixpipe", ("nSize is 0",)),
    Case(126, 16, 0, "fixpipe-stride", "// fixpipe", ("dstStride 0",)),
    Case(127, 0, 1, "fixpipe-quant", "// fixpipe", ("quantPre 16", "NoQuant")),
]


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules live in the checked machine."""
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.rule}-{c.which}")
def test_kept_is_silent_and_broken_is_loud(case: Case) -> None:
    good = harness.run("instructions", case.which, fields=(case.good,))
    assert good.clean, good.message
    bad = harness.run("instructions", case.which, fields=(case.bad,))
    assert bad.status == 507015, "not noticed"
    assert bad.message.startswith(f"twin fault: {case.rule}: op instructions, core A"), bad.message
    source = (harness.PROBES / "instructions.cpp").read_text().splitlines()
    number = [n for n, text in enumerate(source, 1) if text.endswith(f" {case.line}")]
    assert f"instructions.cpp:{number[0]}" in bad.message, bad.message
    for words in case.says:
        assert words in bad.message, bad.message


def test_rows_that_nobody_wrote_do_not_matter_when_no_row_uses_them() -> None:
    report = harness.run("instructions", 121, fields=(15,))
    assert report.clean, report.message


# --- what the types alone decide ---

REFUSED = {
    "Add(u, u, u, 8)": "does not exist for this element type",
    "Exp(i, i, 8)": "does not exist for this element type",
    "Div(i, i, i, 8)": "does not exist for this element type",
    "Muls(u, u, bfloat16_t{0}, 8)": "does not exist for this element type",
    "Adds(f, f, 1, 8)": "no matching function",
    "Cast(h, u, RoundMode::CAST_RINT, 8)": "no such conversion",
    "Cast(u, i, RoundMode::CAST_RINT, 8)": "no such conversion",
    "WholeReduceSum(i, i, 8, 1, 1, 1, 8)": "reductions exist for half and float",
    "Select(i, b, i, i, SELMODE::VSEL_TENSOR_TENSOR_MODE, 8)": "Select exists for half and float",
    "Compare(b, u, u, CMPMODE::EQ, 8)": "Compare takes half, float or int32",
    "Mmad(f, u, f, MmadParams{})": "multiplies two bf16, half or float operands",
    "Mmad(h, h, h, MmadParams{})": "multiplies two bf16, half or float operands",
    "Fixpipe<float, float, CFG_NZ>(f, f, FixpipeParamsV220{})": "float has no path to L1",
    "Fixpipe<half, float>(h, f, FixpipeParamsV220{})": "pass CFG_NZ",
    "LoadData(b, b, LoadData2DParams{})": "works on bf16, half and float operands",
}


@pytest.mark.parametrize("call", REFUSED)
def test_refused_at_compile_time(call: str, tmp_path: Path) -> None:
    source = tmp_path / "call.cpp"
    source.write_text(
        '#include "kernel_operator.h"\nusing namespace AscendC;\n'
        "void f(LocalTensor<float> f, LocalTensor<half> h, LocalTensor<bfloat16_t> u,\n"
        "       LocalTensor<int32_t> i, LocalTensor<uint8_t> b)\n{\n"
        f"    (void)f, (void)h, (void)u, (void)i, (void)b;\n    {call};\n}}\n"
    )
    run = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", f"-I{harness.TWIN / 'include'}", str(source)],
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0 and REFUSED[call] in run.stderr, run.stderr
