# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md quotes what is printed: every quoted symptom is in the sources, every code has a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
FOREIGN = {
    "Killed",
    "fla-npu @ URL",
    "is not a supported wheel on this platform",
    "has inconsistent version",
}  # what others print


def sources() -> str:
    """Every source that prints, with literals joined as the compiler joins them, fields left out."""
    files = [*(ROOT / "python/fla_npu").rglob("*.py"), *(ROOT / "opp_package").glob("*.py")]
    text = re.sub(r'"\s*\n\s*f?"', "", "\n".join(p.read_text() for p in files))
    return re.sub(r"\{[^{}]*\}", "\0", text) + (ROOT / "python/fla_npu/installer.sh").read_text()


def quoted() -> list[str]:
    """The code of the first column, in pieces between what differs."""
    found = []
    for row in re.findall(r"^\| (.*?) \| ", PAGE, re.M):
        for symptom in re.findall(r"`([^`]+)`", row):
            found += [piece.strip(" '") for piece in symptom.split("...")]
    return [piece for piece in found if len(piece) > 3 and piece not in FOREIGN]


def test_every_quoted_symptom_is_printed_somewhere():
    text = sources()
    words = {"aarch64", "x86_64", "/dev/davinci0"}  # filled in when printed
    lost = []
    for piece in quoted():
        pattern = re.escape(piece)
        for word in words:
            pattern = pattern.replace(re.escape(word), r"(?:\0|\$\w+)")
        pattern = pattern.replace("fla_npu", r"(?:fla_npu|\0)")
        if not re.search(pattern, text):
            lost.append(piece)
    assert not lost


def test_every_code_and_error_class_has_its_words():
    from fla_npu import aclnn, errors

    for code in [161001, 161002, 361001, aclnn.TWIN_FAULT, *aclnn._HINTS]:
        assert f"| {code} | " in PAGE
    for name in (
        "SymbolMissing",
        "LaunchError",
        "TwinFault",
        "ArgumentError",
        "NotServed",
        "GradientUnavailable",
        "ParallelError",
    ):
        assert hasattr(errors, name) and f"`{name}" in PAGE
