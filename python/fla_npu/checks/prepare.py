# SPDX-License-Identifier: Apache-2.0
"""Rules of chunk_kda_fwd_prepare.

What the C layer checks as well (ranks, dtypes, letters) is checked here first, because a Python
message can name the argument as the caller spelled it and nothing has been allocated yet.
"""

from __future__ import annotations

import struct

from ..errors import ArgumentError
from ..spec import spec
from .common import Binder, Desc, Plan, finite, flag, one_of, only, remembered
from .metadata import read_chunk_indices, read_cu_seqlens

__all__ = ["bound_of_gate", "check_gate", "check_groups", "check_sigmoid", "plan_prepare"]

OP = "chunk_kda_fwd_prepare"
_ITEM = {"float32": 4, "bfloat16": 2}
_U32 = 0xFFFFFFFF


def plan_prepare(
    q: Desc | None,
    k: Desc | None,
    v: Desc | None,
    g: Desc | None,
    beta: Desc | None,
    *,
    scale: float,
    chunk_size: int = 64,
    layout: str = "BNSD",
    a_log: Desc | None = None,
    dt_bias: Desc | None = None,
    cu_seqlens=None,
    chunk_indices=None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
    backward_mode: str = "save",
    wide_relay: bool = False,
    label: str = OP,
) -> Plan:
    """Validates a call and says what to allocate. `label` is the function named in messages.

    `wide_relay`: u is float32 instead of the bfloat16 of the ABI.
    """
    attrs, letters, outputs, casts, reshapes = _static(
        label, (q, k, v, g, beta, a_log, dt_bias), layout, scale, chunk_size, epsilon,
        use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
        safe_gate, lower_bound, use_exp2, backward_mode, wide_relay,
    )  # fmt: skip
    cu = read_cu_seqlens(label, cu_seqlens, letters["T"], letters.get("B"))
    indices = read_chunk_indices(label, chunk_indices, cu)
    ints = {"cu_seqlens": cu, "chunk_indices": indices}
    return Plan(OP, attrs, ints, outputs, letters, casts, reshapes)


@remembered
def _static(
    label, tensors, layout, scale, chunk_size, epsilon, l2norm, gate_in_kernel, beta_sigmoid,
    neg_eigval, safe_gate, lower_bound, use_exp2, backward_mode, wide_relay,
):  # fmt: skip
    """Everything that does not depend on the metadata.

    Order matters for the reader of a message: words and numbers first, then which parameters go
    together, then the tensors, since a wrong layout would make every shape look wrong.
    """
    op = spec(OP)
    one_of(label, "layout", layout, op.param("layout").values)
    one_of(label, "backward_mode", backward_mode, tuple(op.modes))
    attrs = {
        "layout": layout,
        "scale": finite(label, "scale", scale),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, "the kernels work on chunks of 64 rows"),
        "epsilon": _epsilon(label, epsilon),
        "use_qk_l2norm_in_kernel": flag(label, "use_qk_l2norm_in_kernel", l2norm),
        "use_gate_in_kernel": flag(label, "use_gate_in_kernel", gate_in_kernel),
        "use_beta_sigmoid_in_kernel": flag(label, "use_beta_sigmoid_in_kernel", beta_sigmoid),
        "allow_neg_eigval": flag(label, "allow_neg_eigval", neg_eigval),
        "safe_gate": flag(label, "safe_gate", safe_gate),
        "lower_bound": bound_of_gate(label, lower_bound),
        "use_exp2": flag(label, "use_exp2", use_exp2),
    }
    check_sigmoid(label, beta_sigmoid, neg_eigval)
    q, k, v, g, beta, a_log, dt_bias = tensors
    check_gate(label, gate_in_kernel, safe_gate, a_log, dt_bias)

    bound = Binder(label, op, layout)
    for name, desc in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)):
        bound.bind(name, desc)
    letters = bound.letters
    _check_heads(label, layout, letters, g, beta)
    # Half-precision gate parameters are exact in float32, which is what the kernel reads.
    bound.bind("a_log", a_log, ("bfloat16",))
    bound.bind("dt_bias", dt_bias, ("bfloat16",))
    small = (("a_log", a_log), ("dt_bias", dt_bias))
    casts = {n: "float32" for n, d in small if d is not None and d.dtype != "float32"}
    reshapes = {}
    if dt_bias is not None and len(dt_bias.shape) != 1:
        reshapes["dt_bias"] = (letters["HV"] * letters["K"],)
    # Required slots always, optional ones as the mode lists them; the rest stays None.
    wanted = op.modes[backward_mode]
    types = {"u": "float32"} if wide_relay else {}
    outputs = tuple(
        bound.output(p.name, types.get(p.name)) if not p.optional or p.name in wanted else None
        for p in op.of("out")
    )
    return attrs, letters, outputs, casts, reshapes


def _epsilon(label: str, epsilon) -> float:
    """A normal float32 above 0: a zero row, also the padding of a tail, divided by a zero norm is NaN."""
    value = finite(label, "epsilon", epsilon)
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    if rounded <= 0:
        raise ArgumentError(f"{label}: epsilon = {epsilon!r}; it must be above 0 as float32")
    if rounded < 2**-126:
        raise ArgumentError(
            f"{label}: epsilon = {epsilon!r}; it must be at least 2**-126, the smallest normal float32, "
            "because smaller ones are flushed to 0"
        )
    return value


def bound_of_gate(label: str, lower_bound) -> float:
    """None is -5. The range is checked even where the bound is unused: 0 is not 'unset'."""
    if lower_bound is None:
        return -5.0
    value = finite(label, "lower_bound", lower_bound)
    if not -5.0 <= value < 0.0:
        raise ArgumentError(
            f"{label}: lower_bound = {lower_bound!r}; it must lie in [-5, 0), or be None for -5"
        )
    return value


def check_sigmoid(label: str, beta_sigmoid: bool, neg_eigval: bool) -> None:
    """The factor 2 belongs to the sigmoid."""
    if neg_eigval and not beta_sigmoid:
        raise ArgumentError(
            f"{label}: allow_neg_eigval = True doubles the sigmoid of beta, so it needs "
            "use_beta_sigmoid_in_kernel = True"
        )


def check_gate(label: str, in_kernel: bool, safe: bool, a_log, dt_bias) -> None:
    """Gate parameters go with the gate in the kernel; given without it they would be ignored."""
    if in_kernel:
        if a_log is None:
            raise ArgumentError(
                f"{label}: use_gate_in_kernel = True needs a_log (one value per value head); pass it, "
                "or pass ready decay steps as g with use_gate_in_kernel = False"
            )
        return
    for name, value in (("a_log", a_log), ("dt_bias", dt_bias)):
        if value is not None:
            raise ArgumentError(
                f"{label}: {name} is given, but use_gate_in_kernel = False takes g as the decay step "
                f"itself; drop {name} or set use_gate_in_kernel = True"
            )
    if safe:
        raise ArgumentError(
            f"{label}: safe_gate = True selects the bounded gate, which is computed in the kernel; it "
            "needs use_gate_in_kernel = True"
        )


def check_groups(label: str, letters: dict[str, int]) -> None:
    """Every key head serves the same number of value heads."""
    hk, hv = letters["HK"], letters["HV"]
    if hv < hk or hv % hk:
        raise ArgumentError(
            f"{label}: v has HV = {hv} value heads and q has HK = {hk} key heads; HV must be a multiple of HK"
        )


def _check_heads(label: str, layout: str, letters: dict[str, int], g: Desc, beta: Desc) -> None:
    """Grouped heads, and the strides that token-major copies can express."""
    check_groups(label, letters)
    hk, hv = letters["HK"], letters["HV"]
    if layout in ("BSND", "TND"):
        # Rows of one head are this far apart; the copy instructions hold the gap in 32 bits.
        gaps = {
            "q": (hk - 1) * 256,
            "v": (hv - 1) * 256,
            "g": (hv - 1) * 128 * _ITEM[g.dtype],
            "beta": (hv - 1) * _ITEM[beta.dtype],
        }
        for name, gap in gaps.items():
            if gap > _U32:
                raise ArgumentError(
                    f"{label}: {name} has {gap} bytes between rows of one head with layout "
                    f"'{layout}'; the limit is 2**32 - 1, use a head-major layout"
                )
