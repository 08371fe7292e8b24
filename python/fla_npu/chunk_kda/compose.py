# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda out of its stages: forward, what it saves, and the gradient.

Save mode keeps what the backward stages read; recompute mode keeps the inputs only, and makes the
rest again for one slice of key heads after another. Every value head is computed by itself, so both
modes and any slicing give the same bits.

Peak of the backward pass in bytes per token and value head, beside inputs and cotangents (HK = HV,
float32 g and beta, K = V = 128; a chunk's two state matrices count as 1 KiB per token):

    saved        gk 512, aqk akk 256, w qg kg 768, hats 512, norms and beta 12, v_new 512, h 512  3084
    made         d_aqk 256, dv_local dv_scan 512, dq_raw 512, dh 512                               1792
    gradients    dq dk dv 768, dg 512, dbeta 4                                                     1284

    save         3084 + 1792 + 1284                                                                6160
    recompute    1284 + (3084 + 768 (u, qg_scaled) + 1792 + 1284) / slices, 4 slices               3016
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..checks import check_state, plan_prepare
from ..checks.common import flag
from ..checks.metadata import flat_pairs, host_ints
from . import route
from .adapter import Adapter, launch
from .boundary import Boundary
from .route import BACKWARD, FORWARD
from .stages import backward_finalize, backward_prepare, dhu, finalize, fwd_h, whole_backward, whole_forward

__all__ = [
    "BACKWARD_STAGES", "HEAD_AXIS", "SAVED", "STAGES", "TENSORS", "TOKENWISE", "backward", "check", "forward",
    "head_slices", "save_forward", "settled",
]  # fmt: skip

# Operators of one forward, and of one training step. A front end looks all of them up before it
# launches the first.
STAGES = FORWARD
BACKWARD_STAGES = (*FORWARD, *BACKWARD)
# Tensor arguments of npu_chunk_kda, each of which may be given a gradient.
TENSORS = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")
# What save mode keeps, in this order. All head-major and of rank 4 and up; v_new in two planes.
SAVED = (
    "gk", "aqk", "akk", "w", "qg", "kg", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff", "h", "v_new",
)  # fmt: skip
# Most slices of key heads that recompute mode walks. More would save little memory beside the
# gradients themselves, and leave cores without a head to work on.
SLICES = 4

# Arguments with a token axis, and where the layouts have their heads.
TOKENWISE = ("q", "k", "v", "g", "beta")
HEAD_AXIS = {"BNSD": 1, "BSND": 2, "NTD": 0, "TND": 1}

_PREPARED = (
    "gk", "aqk", "akk", "w", "u", "qg", "kg", "qg_scaled", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff",
)  # fmt: skip
_BY_HEAD = ("a_log", "dt_bias")
# The arguments whose gradients the last backward stage finds, in its order.
_FOUND = ("q", "k", "v", "beta", "g", "a_log", "dt_bias")


class _Call:
    """A validated call: its tensors, its options, and what follows from both.

    The methods run stages. `made` holds stage tensors by name, head-major with a batch axis. With a
    `boundary` the stages run one by one, and it is asked for the states at the ends of the tokens.
    """

    def __init__(
        self, adapter: Adapter, tensors: Mapping[str, Any], options: Mapping[str, Any], mode: str,
        boundary: Boundary | None = None,
    ):  # fmt: skip
        self.adapter, self.tensors, self.options, self.boundary = adapter, tensors, options, boundary
        self._read(**options)
        descs = {name: adapter.describe(self.label, name, tensors[name]) for name in TENSORS}
        state = descs.pop("initial_state")
        self.plan = plan_prepare(**descs, **self.preparing, backward_mode=mode, wide_relay=True)
        self.cu, letters = self.plan.ints["cu_seqlens"], self.plan.letters
        self.packed = "B" not in letters
        self.batch, self.tokens = letters.get("B", 1), letters["T"]
        self.key_heads, self.heads = letters["HK"], letters["HV"]
        count = len(self.cu) - 1 if self.cu is not None else self.batch
        check_state(self.label, state, count, self.heads, self.v_first, descs["q"].device)
        self.descs = {**descs, "initial_state": state}
        # What the later stages are told. Canonical chunk indices say nothing that cu_seqlens does not:
        # validated above, not passed on.
        self.later = {"cu_seqlens": self.cu, "state_v_first": self.v_first, "label": self.label}
        gate = self.gate["safe_gate"], self.gate["use_gate_in_kernel"]
        chosen = route.rule(*gate, self.use_exp2, tensors["a_log"], state, self.keep, self.v_first)[0]
        # The same in the forward and in its backward, since both see the same arguments.
        self.whole = boundary is None and chosen == "aggregates" and not route.aggregates_missing()

    def _read(
        self, scale, chunk_size=64, *, layout="BNSD", output_final_state=False, safe_gate=False,
        lower_bound=-5.0, use_gate_in_kernel=True, cu_seqlens=None, chunk_indices=None,
        disable_recompute=True, state_v_first=False, epsilon=1e-6, use_qk_l2norm_in_kernel=False,
        use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, use_exp2=True, label="npu_chunk_kda",
    ) -> None:  # fmt: skip
        """The keywords of npu_chunk_kda that are no tensors; prepare's plan checks those it takes."""
        self.label, self.scale, self.layout, self.use_exp2 = label, scale, layout, use_exp2
        self.final = flag(label, "output_final_state", output_final_state)
        self.keep = flag(label, "disable_recompute", disable_recompute)
        self.v_first = flag(label, "state_v_first", state_v_first)
        self.norm = use_qk_l2norm_in_kernel
        self.sigmoid, self.factor = use_beta_sigmoid_in_kernel, 2.0 if allow_neg_eigval else 1.0
        self.gate = {
            "safe_gate": safe_gate, "lower_bound": lower_bound, "use_gate_in_kernel": use_gate_in_kernel,
        }  # fmt: skip
        self.preparing = {
            "scale": scale, "chunk_size": chunk_size, "layout": layout, "epsilon": epsilon,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel, "use_exp2": use_exp2,
            "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel, "allow_neg_eigval": allow_neg_eigval,
            "cu_seqlens": cu_seqlens, "chunk_indices": chunk_indices, "label": label, **self.gate,
        }  # fmt: skip

    # forward

    def run(self, save: bool) -> dict[str, Any]:
        """attn_out and final_state; with `save` also what a backward reads."""
        if self.whole:
            return self._run_whole(save)
        made = self.states(planes=save)
        if not save:
            for name in ("gk", "w", "kg"):
                del made[name]
        made["attn_out"] = self.attention(made)
        return made

    def _run_whole(self, save: bool) -> dict[str, Any]:
        wanted = (*(SAVED if save else ()), *(("final_state",) if self.final else ()))
        made = whole_forward(
            self.adapter, dict(self.tensors), wanted=wanted, planes=save, state_v_first=self.v_first,
            **self.preparing,
        )  # fmt: skip
        lifted = {name: self._lift(x) for name, x in made.items() if name in SAVED and name != "v_new"}
        return {"final_state": None, **made, **lifted}

    def states(self, planes: bool) -> dict[str, Any]:
        """Prepare and the state recurrence. `planes`: v_new as the sum of two bfloat16 tensors."""
        a, state = self.adapter, self.tensors["initial_state"]
        inputs = {name: self.tensors[name] for name in TENSORS if name != "initial_state"}
        outputs = zip(_PREPARED, launch(a, self.plan, inputs))
        made = {name: self._lift(x) for name, x in outputs if x is not None}
        if state is not None and self.descs["initial_state"].dtype != "float32":
            # The final state is float32 whatever the initial one was; widening is exact.
            state = a.cast(state, "float32")
        if self.boundary is not None:
            state = self.boundary.entry(made, state)
        made["h"], made["v_new"], made["final_state"] = fwd_h(
            a, made["kg"], made["w"], made.pop("u"), gk=made["gk"], initial_state=state,
            output_final_state=self.final, use_exp2=self.use_exp2, wide_relay=planes, **self.later,
        )  # fmt: skip
        return made

    def attention(self, made: dict[str, Any]):
        """attn_out, token-major."""
        tensors = [made[n] for n in ("qg_scaled", "aqk")] + [self._v_new(made), made["h"]]
        out = finalize(self.adapter, *tensors, output_layout="BSND", **self.later)
        return self._drop(out)

    def _lift(self, tensor):
        return self.adapter.reshape(tensor, (1, *tensor.shape)) if self.packed else tensor

    def _drop(self, tensor):
        return self.adapter.reshape(tensor, tuple(tensor.shape)[1:]) if self.packed else tensor

    def _v_new(self, made: dict[str, Any]):
        """v_new as the ABI has it: of two planes, the first."""
        v_new, a = made["v_new"], self.adapter
        if len(v_new.shape) == 4:
            return v_new
        return a.reshape(a.part(v_new, 0, 0, 1), tuple(v_new.shape)[1:])

    # backward

    def gradients(self, made: dict[str, Any], d_out, d_state, needs: tuple[str, ...]) -> dict[str, Any]:
        """Gradients of the inputs in `needs`; those with tokens head-major, rank 4, beta's of beta_eff."""
        if d_out is not None:
            d_out = self.adapter.dense(
                self.adapter.swap(self._lift(self.adapter.cast(d_out, "bfloat16")), 1, 2)
            )
        grads = (self._whole_gradients if self.whole else self._stage_gradients)(made, d_out, d_state, needs)
        keep = ("beta",)  # float32 until its sigmoid is undone
        return {n: grads[n] if n in keep else self.adapter.cast(grads[n], self.descs[n].dtype) for n in needs}

    def _backward_tensors(self, made: dict[str, Any]) -> dict[str, Any]:
        """What both forms of the backward read."""
        tensors = {n: made[n] for n in ("gk", "akk", "v_new", "h")}
        tensors |= {"q": made["q_hat"], "k": made["k_hat"], "beta": made["beta_eff"]}
        tensors |= {"v": self._head_major("v"), "raw_g": self._head_major("g")}
        tensors |= {n: self.tensors[n] for n in ("a_log", "dt_bias")}
        return tensors | {n: made[n] if self.norm else None for n in ("q_rstd", "k_rstd")}

    def _stage_gradients(self, made, d_out, d_state, needs) -> dict[str, Any]:
        a, wants_state = self.adapter, "initial_state" in needs
        if d_out is None:
            d_out, partial = self._no_output(made["h"])
        else:
            partial = backward_prepare(
                a, made["aqk"], self._v_new(made), d_out, made["h"], scale=self.scale, **self.later
            )
        d_aqk, dv_local, dq_raw = partial
        if self.boundary is not None:
            d_state = self.boundary.exit(made, d_out, dv_local, d_state)
            if not needs:
                return {}
        dh, dh0, dv_scan = dhu(
            a, made["qg"], made["kg"], made["w"], d_out, dv_local, gk=made["gk"], dht=d_state,
            h0=self.tensors["initial_state"] if wants_state else None,
            scale=self.scale, use_exp2=self.use_exp2, **self.later,
        )  # fmt: skip
        if needs == ("initial_state",):
            return {"initial_state": dh0}
        del d_out, dv_local, partial
        found = backward_finalize(
            a, **self._backward_tensors(made), dh=dh, dv_scan=dv_scan, d_aqk=d_aqk, dq_raw=dq_raw,
            scale=self.scale, use_exp2=self.use_exp2, **self.gate, **self.later,
        )  # fmt: skip
        return {**dict(zip(_FOUND, found)), "initial_state": dh0}

    def _whole_gradients(self, made, d_out, d_state, needs) -> dict[str, Any]:
        """In one launch. There is no initial state on this route, and nothing to recompute."""
        if d_out is None:
            d_out = self.adapter.zeros((self.batch, self.heads, self.tokens, 128), "bfloat16", made["h"])
        tensors = {**self._backward_tensors(made), **{n: made[n] for n in ("aqk", "w", "qg", "kg")}}
        found = whole_backward(
            self.adapter, {**tensors, "d_o": d_out, "initial_state": None, "dht": d_state},
            scale=self.scale, use_exp2=self.use_exp2, **self.gate, **self.later,
        )  # fmt: skip
        return dict(zip(_FOUND, (*found[:5], *found[6:])))

    def _no_output(self, like) -> tuple:
        """d_out and what backward_prepare would make of it, all zero."""
        a, rows = self.adapter, (self.batch, self.heads, self.tokens)
        half = a.zeros((*rows, 128), "bfloat16", like)
        return half, (a.zeros((*rows, 64), "float32", like), half, a.zeros((*rows, 128), "float32", like))

    def _head_major(self, name: str):
        tensor = self._lift(self.tensors[name])
        return self.adapter.swap(tensor, 1, 2) if self.layout in ("BSND", "TND") else tensor

    def given_back(self, name: str, grad):
        """A gradient as `gradients` gives it, as that of the argument: layout, and beta before its sigmoid.

        The sigmoid comes last, on whole tensors: a framework's own may depend on where an element stands.
        """
        if name not in TOKENWISE:
            return grad
        if name == "beta":
            if self.sigmoid:
                grad = self.adapter.sigmoid_grad(grad, self._head_major(name), self.factor)
            grad = self.adapter.cast(grad, self.descs[name].dtype)
        return self._drop(self.adapter.swap(grad, 1, 2) if self.layout in ("BSND", "TND") else grad)

    # slices of key heads

    def cut(self, tensor, axis: int, here: tuple[int, int], unit: int):
        """The part of a tensor that belongs to a slice; `unit` entries of the axis per key head."""
        if tensor is None:
            return None
        return self.adapter.part(tensor, axis, here[0] * unit, here[1] * unit)

    def at(self, here: tuple[int, int]) -> _Call:
        """The call on a slice of the heads."""
        group, bias = self.heads // self.key_heads, self.descs["dt_bias"]
        units = dict.fromkeys(TENSORS, group) | {"q": 1, "k": 1}
        if bias is not None and len(bias.shape) == 1:
            units["dt_bias"] = group * 128
        axes = dict.fromkeys(TOKENWISE, HEAD_AXIS[self.layout])
        axes |= {"a_log": 0, "dt_bias": 0, "initial_state": 1}
        tensors = {n: self.cut(self.tensors[n], axes[n], here, units[n]) for n in TENSORS}
        boundary = self.boundary and self.boundary.part(here[0] * group, here[1] * group)
        return _Call(self.adapter, tensors, self.options, "save", boundary)


def head_slices(key_heads: int) -> list[tuple[int, int]]:
    """(first, length) in key heads of the slices that recompute mode walks."""
    step = -(-key_heads // SLICES)
    return [(i, min(step, key_heads - i)) for i in range(0, key_heads, step)]


def check(adapter: Adapter, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises what a call with these arguments would raise before its first stage is launched."""
    _Call(adapter, tensors, options, "save")


def forward(
    adapter: Adapter, q, k, v, g, beta, scale, chunk_size=64, *, a_log=None, dt_bias=None,
    initial_state=None, boundary: Boundary | None = None, **options,
) -> tuple:  # fmt: skip
    """(attn_out token-major, final_state float32 or None): npu_chunk_kda without a gradient.

    `options` are its keywords. Everything is validated before the first stage is launched. `boundary`:
    see there; None where the call computes its sequences from end to end.
    """
    tensors = dict(zip(TENSORS, (q, k, v, g, beta, a_log, dt_bias, initial_state)))
    options |= {"scale": scale, "chunk_size": chunk_size}
    made = _Call(adapter, tensors, options, "none", boundary).run(save=False)
    return made["attn_out"], made["final_state"]


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their metadata read: a later backward must not see a refilled buffer."""
    options, label = dict(options), options.get("label", "npu_chunk_kda")
    if options.get("cu_seqlens") is not None:
        options["cu_seqlens"] = host_ints(label, "cu_seqlens", options["cu_seqlens"])
    if options.get("chunk_indices") is not None:
        options["chunk_indices"] = flat_pairs(label, options["chunk_indices"])
    return options


def save_forward(
    adapter: Adapter, tensors: Mapping[str, Any], options: Mapping[str, Any], boundary: Boundary | None = None
) -> tuple:
    """(attn_out, final_state or None, saved): forward that a backward will follow.

    `tensors` has every name of TENSORS. `saved` are the tensors of SAVED, or nothing in recompute mode.
    """
    if not options.get("disable_recompute", True):
        return *forward(adapter, **tensors, boundary=boundary, **options), ()
    made = _Call(adapter, tensors, options, "save", boundary).run(save=True)
    return made["attn_out"], made["final_state"], tuple(made[name] for name in SAVED)


def backward(
    adapter: Adapter,
    tensors: Mapping[str, Any],
    options: Mapping[str, Any],
    saved: Sequence[Any],
    d_out,
    d_state,
    needs: Collection[str],
    boundary: Boundary | None = None,
) -> dict[str, Any]:
    """Gradients of the inputs named in `needs`, each in the shape, layout and dtype of its input.

    `saved` as save_forward returned it. `d_out` and `d_state` are the cotangents of attn_out and
    final_state, None for an output nobody used. Work that serves no gradient in `needs` is left out,
    unless a `boundary` needs it: the gradient of the first state may be somebody else's.
    """
    call = _Call(adapter, tensors, options, "save", boundary)
    needs = tuple(name for name in TENSORS if name in needs and tensors[name] is not None)
    if boundary is None and d_out is None and d_state is None:
        return {n: adapter.zeros(call.descs[n].shape, call.descs[n].dtype, tensors[n]) for n in needs}
    if saved:
        grads = call.gradients(dict(zip(SAVED, saved)), d_out, d_state, needs)
    else:
        grads = _recompute(call, d_out, d_state, needs)
    return {name: call.given_back(name, grad) for name, grad in grads.items()}


def _recompute(call: _Call, d_out, d_state, needs: tuple[str, ...]) -> dict[str, Any]:
    """Slice by slice: make what was not saved, and use it up."""
    slices = head_slices(call.key_heads)
    if len(slices) == 1:
        return call.gradients(call.states(planes=True), d_out, d_state, needs)
    parts: dict[str, list] = {name: [] for name in needs}
    group, token_major = call.heads // call.key_heads, 1 if call.packed else 2
    for here in slices:
        cotangents = call.cut(d_out, token_major, here, group), call.cut(d_state, 1, here, group)
        part = call.at(here)
        for name, grad in part.gradients(part.states(planes=True), *cotangents, needs).items():
            parts[name].append(grad)
    # One at a time, so that pieces and whole exist twice for one gradient only.
    return {name: call.adapter.join(parts.pop(name), 0 if name in _BY_HEAD else 1) for name in needs}
