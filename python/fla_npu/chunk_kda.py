# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA forward, independent of the framework.

`prepare`, `fwd_h` and `finalize` run one stage each; `forward` composes them into npu_chunk_kda:

    prepare   gate, norms, chunk scores, WY operands        -> gk aqk w u kg qg_scaled
    fwd_h     state recurrence over chunks                  -> h v_new final_state
    finalize  qg_scaled @ h + tril(aqk) @ v_new             -> attn_out (token-major)

A front end hands in an `Adapter`, which knows the framework's tensors and how to launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .checks import Desc, Plan, check_state, plan_finalize, plan_fwd_h, plan_prepare
from .checks.common import flag

__all__ = ["STAGES", "Adapter", "finalize", "forward", "fwd_h", "prepare"]

# Operators of one forward. A front end looks all of them up before it launches the first.
STAGES = ("chunk_kda_fwd_prepare", "chunk_fwd_h", "chunk_kda_fwd_finalize")


class Adapter(Protocol):
    """What a front end provides for its tensor type."""

    def describe(self, label: str, name: str, value: Any) -> Desc | None:
        """Shape, dtype and device of a tensor; None for None; ArgumentTypeError for the rest."""

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor converted to `dtype` (a contract dtype name)."""

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        """The tensor with another shape; a view where the framework can."""

    def run(self, plan: Plan, tensors: Mapping[str, Any]) -> tuple:
        """Allocates `plan.outputs`, launches, and returns one entry per output slot."""


def _launch(adapter: Adapter, plan: Plan, tensors: dict[str, Any]) -> tuple:
    """Applies the conversions a plan asks for, then runs it."""
    for name, dtype in plan.casts.items():
        tensors[name] = adapter.cast(tensors[name], dtype)
    for name, shape in plan.reshapes.items():
        tensors[name] = adapter.reshape(tensors[name], shape)
    return adapter.run(plan, tensors)


def prepare(adapter: Adapter, q, k, v, g, beta, *, a_log=None, dt_bias=None, **options) -> tuple:
    """13 outputs in contract order, None in the slots `backward_mode` leaves out.

    `options` are the keywords of `checks.plan_prepare` (scale, chunk_size, layout, ...).
    """
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": a_log, "dt_bias": dt_bias}
    label = options.setdefault("label", "chunk_kda_fwd_prepare")
    plan = plan_prepare(**{n: adapter.describe(label, n, t) for n, t in tensors.items()}, **options)
    return _launch(adapter, plan, tensors)


def fwd_h(adapter: Adapter, k, w, u, *, g=None, gk=None, initial_state=None, **options) -> tuple:
    """(h, v_new, final_state or None). `options` are the keywords of `checks.plan_fwd_h`."""
    tensors = {"k": k, "w": w, "u": u, "g": g, "gk": gk, "initial_state": initial_state}
    label = options.setdefault("label", "chunk_fwd_h")
    plan = plan_fwd_h(**{n: adapter.describe(label, n, t) for n, t in tensors.items()}, **options)
    return _launch(adapter, plan, tensors)


def finalize(adapter: Adapter, qg_scaled, aqk, v_new, h, **options):
    """attn_out. `options` are the keywords of `checks.plan_finalize`."""
    tensors = {"qg_scaled": qg_scaled, "aqk": aqk, "v_new": v_new, "h": h}
    label = options.setdefault("label", "chunk_kda_fwd_finalize")
    plan = plan_finalize(**{n: adapter.describe(label, n, t) for n, t in tensors.items()}, **options)
    return _launch(adapter, plan, tensors)[0]


def forward(
    adapter: Adapter,
    q,
    k,
    v,
    g,
    beta,
    scale,
    chunk_size=64,
    *,
    layout="BNSD",
    output_final_state=False,
    safe_gate=False,
    lower_bound=-5.0,
    use_gate_in_kernel=True,
    a_log=None,
    dt_bias=None,
    cu_seqlens=None,
    chunk_indices=None,
    initial_state=None,
    disable_recompute=True,
    state_v_first=False,
    epsilon=1e-6,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    use_exp2=True,
    label="npu_chunk_kda",
) -> tuple:
    """(attn_out token-major, final_state float32 or None): forward of npu_chunk_kda.

    Everything is validated before the first stage is launched.
    """
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": a_log, "dt_bias": dt_bias}
    descs = {name: adapter.describe(label, name, t) for name, t in tensors.items()}
    for name, value in (
        ("output_final_state", output_final_state),
        ("disable_recompute", disable_recompute),
        ("state_v_first", state_v_first),
    ):
        flag(label, name, value)
    plan = plan_prepare(
        **descs,
        scale=scale,
        chunk_size=chunk_size,
        layout=layout,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        use_gate_in_kernel=use_gate_in_kernel,
        epsilon=epsilon,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        use_exp2=use_exp2,
        backward_mode="none",
        label=label,
    )
    letters, cu = plan.letters, plan.ints["cu_seqlens"]
    sequences = len(cu) - 1 if cu is not None else letters.get("B", 1)
    state = adapter.describe(label, "initial_state", initial_state)
    check_state(label, state, sequences, letters["HV"], state_v_first, descs["q"].device)
    if state is not None and state.dtype != "float32":
        # The final state is float32 whatever the initial one was; widening is exact.
        initial_state = adapter.cast(initial_state, "float32")

    gk, aqk, _, w, u, _, kg, qg_scaled, *_ = _launch(adapter, plan, tensors)
    packed = "B" not in letters
    lift = (lambda t: adapter.reshape(t, (1, *t.shape))) if packed else (lambda t: t)
    # Canonical chunk indices say nothing that cu_seqlens does not: validated above, not passed on.
    h, v_new, final_state = fwd_h(
        adapter,
        lift(kg),
        lift(w),
        lift(u),
        gk=lift(gk),
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu,
        use_exp2=use_exp2,
        state_v_first=state_v_first,
        label=label,
    )
    attn_out = finalize(
        adapter,
        qg_scaled,
        aqk,
        v_new,
        h,
        output_layout="TND" if packed else "BSND",
        state_v_first=state_v_first,
        cu_seqlens=cu,
        label=label,
    )
    return attn_out, final_state
