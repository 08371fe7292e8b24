# SPDX-License-Identifier: Apache-2.0
"""Parameter tables for the documentation, from the same contract as the code."""

from __future__ import annotations

from contract import Op, Param


def _shape(p: Param) -> str:
    if not p.is_tensor:
        return "int64 array" if p.role == "ints" else p.type
    if len(p.shapes()) == 1:
        return f"`{p.shapes()[0]}`"
    by_layout: dict[str, list[str]] = {}
    for layout, letters in p.dims:
        by_layout.setdefault("[" + letters.replace(" ", ", ") + "]", []).append(layout)
    return "; ".join(
        f"`{shape}`" + (f" {'/'.join(names)}" if any(names) else "") for shape, names in by_layout.items()
    )


def _default(p: Param) -> str:
    if p.role != "attr":
        return "null allowed" if p.optional else ""
    return f"`{str(p.default).lower() if isinstance(p.default, bool) else p.default}`"


def table(op: Op) -> str:
    """A Markdown table of every parameter, in the order of the aclnn prototype."""
    rows = [
        "| parameter | C name | kind | shape or type | dtype | default | meaning |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    kinds = {"in": "input", "out": "output", "ints": "input", "attr": "attribute"}
    for p in op.params:
        kind = "input, written" if p.name in op.mutated else kinds[p.role]
        kind = "not served" if p.refused else kind
        rows.append(
            f"| `{p.name}` | `{p.c}` | {kind} | {_shape(p)} | {', '.join(p.dtypes)} "
            f"| {_default(p)} | {p.doc} |"
        )
    letters = "; ".join(
        f"`{k}` {v}" + (f" ({op.fixed[k]})" if k in op.fixed else "") for k, v in op.letters.items()
    )
    modes = "".join(
        f"\n* `{mode}`: {', '.join(f'`{o}`' for o in outs) or 'none of them'}"
        for mode, outs in op.modes.items()
    )
    modes = f"\nOptional outputs come in these sets only:\n{modes}\n" if modes else ""
    return "\n".join(rows) + f"\n\nLetters: {letters}.\n{modes}"


def refresh(page: str, op: Op) -> str:
    """The page with the text between its table markers replaced; a page without markers is an error."""
    begin, end = "<!-- parameters: from op.json -->", "<!-- end of parameters -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page needs the lines {begin} and {end}")
    head, rest = page.split(begin, 1)
    return f"{head}{begin}\n{table(op)}{end}{rest.split(end, 1)[1]}"
