# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda on one rank's tokens of longer sequences: the states that cross, and where they belong.

Between prepare and the state recurrence the last fragment is summarised as an affine map of the state,
the maps are exchanged, and what enters the first fragment becomes its initial state. The backward is
the mirror of it: the first fragment's map, and the gradient at the end of the last one. Fragments
between the two are sequences of their own. What recompute mode makes again it makes from the state
that came in, so that no exchange of the forward is repeated.

The batch (B > 1: every row is one sequence, all cut at the same places) goes with the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import chunk_kda, loader
from ..checks import check_state
from ..chunk_kda import Adapter, stages
from ..chunk_kda.compose import HEAD_AXIS, TOKENWISE
from ..errors import ArgumentError
from .engine import MOST_HEADS, Exchange, Transport
from .plan import Plan
from .program import MAP, STATE, Program

__all__ = ["Scan", "TOKEN_AXIS"]

LABEL = "parallel.npu_chunk_kda"
WIDTH = 128
TOKEN_AXIS = {"BNSD": 2, "BSND": 1, "NTD": 1, "TND": 0}
# What a training step may run on some rank. All are looked up before the first message.
OPERATORS = (
    *chunk_kda.BACKWARD_STAGES, "pre_process_fwd_kernel_merged", "pre_process_bwd_kernel_merged",
    "merge_fwd_bwd_kernel",
)  # fmt: skip


class Scan:
    """One call on one rank. `options`: keywords of npu_chunk_kda without tensors and metadata.

    `error` says why this rank cannot take part; the group is told before anything else, and nothing
    else is called then. `forward` and `backward` run on every rank of the group.
    """

    def __init__(
        self, adapter: Adapter, transport: Transport, plan: Plan, packed: bool, tensors: Mapping[str, Any],
        options: Mapping[str, Any],
    ):  # fmt: skip
        self.adapter, self.transport, self.plan = adapter, transport, plan
        self.shard = plan.shard(transport.rank)
        self.given = dict(options)
        # The summaries know base 2 only, and results do not depend on the base.
        cu = self.shard.cu_seqlens if packed and self.shard.tokens else None
        self.options = {**options, "use_exp2": True, "cu_seqlens": cu, "label": LABEL}
        self.v_first = options["state_v_first"] is True
        self.batch = self.key_heads = self.heads = 0
        self.bias = "None" if tensors["dt_bias"] is None else "given"
        self.error = self._refusal(tensors, packed)

    # arguments

    def _refusal(self, tensors: Mapping[str, Any], packed: bool) -> Exception | None:
        """Why this rank cannot take part, or None."""
        try:
            for op in OPERATORS:
                loader.bind(op)
            self._measure(tensors)
            self._check(tensors, packed)
        except Exception as error:  # whatever it is, the others must hear of it
            return error
        return None

    def _measure(self, tensors: Mapping[str, Any]) -> None:
        """Batch, heads and tokens, as far as shapes say."""
        layout, a = self.options["layout"], self.adapter
        if not isinstance(layout, str) or layout not in TOKEN_AXIS:
            return chunk_kda.check(a, tensors, {**self.options, "cu_seqlens": None})  # says what is wrong
        rank = 4 if layout in ("BNSD", "BSND") else 3
        shapes = {}
        for name in ("q", "v"):
            desc = a.describe(LABEL, name, tensors[name])
            if desc is None or len(desc.shape) != rank:
                return chunk_kda.check(a, tensors, {**self.options, "cu_seqlens": None})
            shapes[name] = desc.shape
        q, v = shapes["q"], shapes["v"]
        self.batch = q[0] if rank == 4 else 1
        self.key_heads, self.heads = q[HEAD_AXIS[layout]], v[HEAD_AXIS[layout]]
        tokens, shard = q[TOKEN_AXIS[layout]], self.shard
        if tokens != shard.tokens:
            raise ArgumentError(
                f"{LABEL}: q has {tokens} tokens, but rank {shard.rank} has {shard.tokens} of the context: "
                f"[{shard.start}, {shard.stop}) of {self.plan.cu_seqlens[-1]}; pass this rank's own tokens"
            )
        return None

    def _check(self, tensors: Mapping[str, Any], packed: bool) -> None:
        if packed and self.batch > 1:
            raise ArgumentError(
                f"{LABEL}: B = {self.batch} with a context that has cu_seqlens; packed sequences need B = 1 "
                "(lay them one after another along T)"
            )
        a, state, q = self.adapter, tensors["initial_state"], tensors["q"]
        desc = a.describe(LABEL, "initial_state", state)
        count = self._rows(len(self.shard.starts))
        if desc is not None and not count and desc.shape[0]:
            raise ArgumentError(
                f"{LABEL}: initial_state has shape {desc.shape}, but no sequence begins on rank "
                f"{self.shard.rank}: pass None there; a state is used once, on the rank of the beginning"
            )
        check_state(LABEL, desc, count, self.heads, self.v_first, a.describe(LABEL, "q", q).device)
        chunk_kda.check(a, self._stand_in(tensors), self.options)

    def _stand_in(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors as the stages take them; one token where this rank has none."""
        if self.shard.tokens:
            return self._local(tensors)
        out = {**tensors, "initial_state": None}
        for name in TOKENWISE:
            desc = self.adapter.describe(LABEL, name, tensors[name])
            axis = TOKEN_AXIS[self.options["layout"]]
            if desc is not None and len(desc.shape) > axis and desc.shape[axis] == 0:
                shape = (*desc.shape[:axis], 1, *desc.shape[axis + 1 :])
                out[name] = self.adapter.zeros(shape, desc.dtype, tensors[name])
        return out

    def facts(self) -> dict[str, object]:
        """What must be the same on every rank."""
        facts = {
            n: x if x is None or isinstance(x, (bool, int, float, str)) else repr(x)
            for n, x in self.given.items()
        }
        return {**facts, "B": self.batch, "HK": self.key_heads, "HV": self.heads, "dt_bias": self.bias}

    # rows of states: one per fragment here, one per sequence that begins or ends here outside

    def _rows(self, fragments: int) -> int:
        return fragments * self.batch

    def _local(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The initial state with a row for the fragment that begins elsewhere."""
        state, a = tensors["initial_state"], self.adapter
        if state is not None and not state.shape[0]:
            state = None
        if state is not None and self.shard.continues:
            dtype = a.describe(LABEL, "initial_state", state).dtype
            state = a.join([a.zeros((1, *tuple(state.shape)[1:]), dtype, state), state], 0)
        return {**tensors, "initial_state": state}

    def _cut(self, states, rows: int, first: int = 0):
        """`rows` states from `first` on; None for no rows."""
        if states is None or not rows:
            return None
        return states if rows == states.shape[0] else self.adapter.part(states, 0, first, rows)

    # both passes

    def forward(self, tensors: Mapping[str, Any], train: bool) -> tuple:
        """(attn_out or None without tokens, final_state or None, saved, incoming state or None).

        final_state has the rows of the sequences that end here. `saved` and the incoming state are what
        `backward` wants to see again.
        """
        boundary = self._boundary(tensors)
        if not self.shard.tokens:
            boundary.pass_on(backward=False)
            return None, None, (), None
        local, options = self._local(tensors), dict(self.options)
        ending = self._rows(len(self.shard.finishes))
        options["output_final_state"] = bool(options["output_final_state"] and ending)
        if train:
            out, final, saved = chunk_kda.save_forward(self.adapter, local, options, boundary)
        else:
            out, final, saved = *chunk_kda.forward(self.adapter, **local, **options, boundary=boundary), ()
        boundary.settle()
        return out, self._cut(final, ending), saved, boundary.incoming

    def backward(
        self, tensors: Mapping[str, Any], saved: Sequence[Any], incoming, d_out, d_final, needs: Sequence[str]
    ) -> dict[str, Any]:
        """Gradients as `chunk_kda.backward` gives them, of this rank's tokens and states.

        Those of a_log and dt_bias are this rank's part of a sum. An entry is None where it has no elements.
        """
        boundary = self._boundary(tensors, incoming, known=True)
        if not self.shard.tokens:
            # As often as the others: once, or once per slice of heads that they make again.
            parts = [boundary] if self.options["disable_recompute"] else list(self._parts(boundary))
            for part in parts:
                part.pass_on(backward=True)
            return dict.fromkeys(needs)
        local, shard, a = self._local(tensors), self.shard, self.adapter
        if d_final is not None and shard.goes_on:
            d_final = a.cast(d_final, "float32")
            blank = a.zeros((1, *tuple(d_final.shape)[1:]), "float32", d_final)
            d_final = a.join([d_final, blank], 0) if d_final.shape[0] else None
        grads = chunk_kda.backward(
            a,
            local,
            self.options,
            saved,
            d_out,
            d_final,
            [n for n in needs if local[n] is not None],
            boundary,
        )
        boundary.settle()
        if "initial_state" in grads and shard.continues:
            rows = self._rows(len(shard.starts))
            grads["initial_state"] = self._cut(grads["initial_state"], rows, 1)
        return {n: grads.get(n) for n in needs}

    def _parts(self, boundary: _Crossing):
        group = self.heads // self.key_heads
        for first, count in chunk_kda.head_slices(self.key_heads):
            yield boundary.part(first * group, count * group)

    def _boundary(self, tensors: Mapping[str, Any], incoming=None, known: bool = False) -> _Crossing:
        rank, like = self.transport.rank, tensors["q"]
        programs = self.plan.forward(rank), self.plan.backward(rank)
        crossing = _Crossing(self, programs, (self.batch, self.heads), like)
        crossing.incoming, crossing.known = incoming, known
        return crossing


class _Crossing:
    """The `Boundary` of one pass of a call, for all heads or for a slice of them.

    `incoming` is the state that enters the first fragment, K-first [B, HV, K, V]; `known` once the
    forward's exchange has been made.
    """

    def __init__(self, scan: Scan, programs: tuple[Program, Program], heads: tuple[int, int], like) -> None:
        self.scan, self.programs, self.sizes, self.like = scan, programs, heads, like
        self.adapter, self.incoming, self.known = scan.adapter, None, False
        self.pending: list[Callable[[], Any]] = []

    def part(self, first: int, count: int) -> _Crossing:
        part = _Crossing(self.scan, self.programs, (self.sizes[0], count), self.like)
        part.known, part.pending = self.known, self.pending
        if self.incoming is not None:
            part.incoming = self.adapter.part(self.incoming, 1, first, count)
        return part

    def entry(self, made: Mapping[str, Any], state):
        if not self.known:
            program = self.programs[0]
            own = self._forward_own(program, made, state) if program.gives else None
            self.incoming, self.known = self._exchange(program, own), True
        return self._place(self.incoming, state, first=True)

    def exit(self, made: Mapping[str, Any], d_out, dv_local, d_state):
        program = self.programs[1]
        own = self._backward_own(program, made, d_out, dv_local, d_state) if program.gives else None
        return self._place(self._exchange(program, own), d_state, first=False)

    def pass_on(self, backward: bool) -> None:
        """The exchange of a rank that has no tokens."""
        self._exchange(self.programs[backward], None)
        self.settle()

    def settle(self) -> None:
        """Waits for the messages that nothing here depended on."""
        while self.pending:
            self.pending.pop(0)()

    def _exchange(self, program: Program, own):
        """[B, HV, K, V], or None where nothing comes in. What was sent is on its way while the rank goes on."""
        batch, heads = self.sizes
        shape = (batch * heads, WIDTH, WIDTH)
        exchange = Exchange(
            program, self.adapter, self.scan.transport, shape=shape, like=self.like, label=LABEL
        ).begin(own)
        if not (program.takes or program.serves):
            self.pending.append(exchange.finish)
            return None
        state = exchange.arrive()
        self.pending.append(exchange.settle)
        return self.adapter.reshape(state, (batch, heads, WIDTH, WIDTH)) if program.takes else None

    def _forward_own(self, program: Program, made: Mapping[str, Any], state):
        """The last fragment's map, or, where it begins here, the state after it."""
        k, w, u, gk = (self._fold_batch(made[n]) for n in ("kg", "w", "u", "gk"))
        window = tuple(self.scan.shard.cu_seqlens[-2:])
        hm = stages.summarize(self.adapter, k, w, u, gk=gk, cu_seqlens=window, label=LABEL)
        hm = self.adapter.reshape(hm, tuple(hm.shape)[1:])
        return self._given(program, hm, state, -1)

    def _backward_own(self, program: Program, made: Mapping[str, Any], d_out, dv_local, d_state):
        """The first fragment's map, or, where it ends here, the gradient before it."""
        q, k, w, gk = (self._fold_batch(made[n]) for n in ("qg", "kg", "w", "gk"))
        d_out, dv_local = self._fold_batch(d_out), self._fold_batch(dv_local)
        scan = self.scan
        dhm = stages.summarize_backward(
            self.adapter, q, k, w, d_out, dv_local, gk=gk, scale=scan.options["scale"],
            cu_seqlens=tuple(scan.shard.cu_seqlens[:2]), label=LABEL,
        )  # fmt: skip
        return self._given(program, dhm, d_state, 0)

    def _fold_batch(self, tensor):
        batch, heads, *rest = tuple(tensor.shape)
        return tensor if batch == 1 else self.adapter.reshape(tensor, (1, batch * heads, *rest))

    def _given(self, program: Program, summary, states, row: int):
        """A summary as the program takes it: as it is, or applied to the state known at its open end."""
        a, (batch, heads) = self.adapter, self.sizes
        if program.gives == MAP:
            return summary
        assert program.gives == STATE
        if states is None:
            return a.dense(a.part(summary, 2, 0, WIDTH))
        if batch == 1:
            row = states.shape[0] - 1 if row else 0
            states = a.part(states, 0, row, 1)
        known = self._turn(a.cast(states, "float32"))
        known = a.reshape(a.dense(known), (batch * heads, WIDTH, WIDTH))
        parts = []
        for first in range(0, batch * heads, MOST_HEADS):
            count = min(MOST_HEADS, batch * heads - first)
            parts.append(self._applied(*(a.part(x, 0, first, count) for x in (summary, known))))
        return parts[0] if len(parts) == 1 else a.join(parts, 0)

    def _applied(self, summary, known):
        """What a map makes of a state, by the merge operator."""
        a, shape = self.adapter, tuple(known.shape)
        constant = a.join([known, a.zeros(shape, "float32", known)], 2)
        # The operator computes what enters a row after the last one: the third is not read.
        rows = [a.reshape(a.dense(x), (1, *tuple(x.shape))) for x in (constant, summary, constant)]
        out = a.zeros(shape, "float32", known)
        return stages.merge(a, out, a.join(rows, 0), 2, 2, label=LABEL)

    def _turn(self, states):
        """K-first to the call's orientation, or back."""
        return self.adapter.swap(states, 2, 3) if self.scan.v_first else states

    def _place(self, crossing, states, first: bool):
        """The state that crosses, among those of the other fragments."""
        if crossing is None:
            return states
        a, crossing = self.adapter, self.adapter.dense(self._turn(crossing))
        others = len(self.scan.shard.sequences) - 1
        if self.sizes[0] > 1 or not others:
            return crossing
        if states is None:
            rest = a.zeros((others, self.sizes[1], WIDTH, WIDTH), "float32", crossing)
        else:
            rest = a.part(a.cast(states, "float32"), 0, 1 if first else 0, others)
        return a.join([crossing, rest] if first else [rest, crossing], 0)
