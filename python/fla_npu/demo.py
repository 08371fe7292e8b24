# SPDX-License-Identifier: Apache-2.0
"""`fla-npu demo`: one real-sized forward through the installed OPP, against the float64 recurrence.

The input looks like a model's: normalised keys, bounded gate, sigmoid beta. Printed are times and
relative errors; the picture shows how fast heads forget, how large their states grow, and how the
error behaves along the sequence.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ArgumentError

__all__ = ["Outcome", "pick_framework", "recurrence", "run"]

WIDTH = 128
CHUNK = 64
LOWER_BOUND = -5.0
REPEATS = 5


@dataclass
class Outcome:
    """What the demo measured; `series` holds the curves of the picture."""

    framework: str
    first_ms: float
    median_ms: float
    reference_s: float
    errors: dict[str, float]
    series: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Front:
    """The few things the demo needs of a framework."""

    tensor: Callable[[np.ndarray, str], Any]
    array: Callable[[Any], np.ndarray]
    kda: Callable[..., tuple]
    prepare: Callable[..., tuple]
    fwd_h: Callable[..., tuple]


def pick_framework(wanted: str) -> str:
    """'torch' or 'mindspore'; 'auto' takes torch when it is installed."""
    have = [name for name in ("torch", "mindspore") if importlib.util.find_spec(name)]
    if wanted != "auto":
        if wanted not in have:
            raise ArgumentError(
                f"--framework {wanted}: {wanted} is not installed: pip install 'fla-npu[{wanted}]'"
            )
        return wanted
    if not have:
        raise ArgumentError("neither torch nor mindspore is installed: pip install 'fla-npu[torch]'")
    return have[0]


def _torch_front() -> _Front:
    """PyTorch, with the one keyword that its stage functions spell differently."""
    import torch

    from .ops import ascendc
    from .torch import npu_chunk_kda

    def prepare(*args, a_log, **options):
        return ascendc.chunk_kda_fwd_prepare(*args, A_log=a_log, **options)

    return _Front(
        tensor=lambda x, dtype: torch.from_numpy(x).to(getattr(torch, dtype)),
        array=lambda t: t.detach().double().numpy(),
        kda=npu_chunk_kda,
        prepare=prepare,
        fwd_h=ascendc.chunk_fwd_h,
    )


def _mindspore_front() -> _Front:
    """MindSpore; its CPU operators lack bf16 in places, so arrays go through float32 (exact)."""
    import mindspore

    from . import mindspore as front
    from .mindspore import bridge

    bridge.load()  # compiled at its very first use, which is no time of the operator
    return _Front(
        tensor=lambda x, dtype: mindspore.Tensor(x).astype(getattr(mindspore, dtype)),
        array=lambda t: t.float().asnumpy().astype(np.float64),
        kda=front.npu_chunk_kda,
        prepare=front.npu_chunk_kda_fwd_prepare,
        fwd_h=front.npu_chunk_kda_fwd_h,
    )


def _inputs(front: _Front, tokens: int, heads: int) -> dict[str, Any]:
    """BNSD tensors; gate rates differ per head, so some heads remember and some forget."""
    rng = np.random.default_rng(20)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    row = (1, heads, tokens)
    return {
        "q": front.tensor(normal(*row, WIDTH), "bfloat16"),
        "k": front.tensor(normal(*row, WIDTH), "bfloat16"),
        "v": front.tensor(normal(*row, WIDTH), "bfloat16"),
        "g": front.tensor(normal(*row, WIDTH) - 5.0, "bfloat16"),
        "beta": front.tensor(normal(*row), "float32"),
        "a_log": front.tensor(np.log(np.linspace(0.5, 1.5, heads)).astype(np.float32), "float32"),
        "dt_bias": front.tensor(0.1 * normal(heads, WIDTH), "float32"),
    }


def recurrence(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    step: np.ndarray,
    beta: np.ndarray,
    scale: float,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Token by token in float64, all heads at once: the definition, not an algorithm.

    q, k, v, step are [H, T, 128], beta is [H, T]. Returns o [H, T, 128] and S [H, 128, 128].
    """
    heads, tokens, _ = q.shape
    state = np.zeros((heads, WIDTH, WIDTH))
    out = np.empty((heads, tokens, WIDTH))
    decay = np.exp(step)
    for t in range(tokens):
        state *= decay[:, t, :, None]
        seen = np.einsum("hkv,hk->hv", state, k[:, t])
        state += k[:, t, :, None] * (beta[:, t, None] * (v[:, t] - seen))[:, None, :]
        out[:, t] = scale * np.einsum("hkv,hk->hv", state, q[:, t])
        if t % 64 == 63:
            progress(t + 1)
    progress(tokens)
    return out, state


def _activated(x: dict[str, np.ndarray], epsilon: float) -> dict[str, np.ndarray]:
    """What the kernel's options do to the raw inputs, in float64."""

    def unit(a: np.ndarray) -> np.ndarray:
        return a / np.sqrt((a * a).sum(-1, keepdims=True) + epsilon)

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-a))

    rate = np.exp(x["a_log"])[:, None, None]
    step = LOWER_BOUND * sigmoid(rate * (x["g"][0] + x["dt_bias"][:, None, :]))
    return {
        "q": unit(x["q"][0]),
        "k": unit(x["k"][0]),
        "v": x["v"][0],
        "step": step,
        "beta": sigmoid(x["beta"][0]),
    }


def _decay_in_chunk(step: np.ndarray) -> np.ndarray:
    """[H, rows]: what is left of the state after so many tokens of a chunk, averaged over chunks."""
    heads, tokens, _ = step.shape
    rows = min(CHUNK, tokens)
    whole = step.mean(axis=-1)[:, : tokens // rows * rows].reshape(heads, -1, rows)
    return np.exp(np.cumsum(whole, axis=-1)).mean(axis=1)


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def run(
    framework: str, tokens: int, heads: int, stage: Callable[[str, int], Callable[[int], None]]
) -> Outcome:
    """Runs and measures. `stage(text, total)` starts a progress line and returns its updater."""
    load = stage(f"loading {framework}", 1)
    front = _torch_front() if framework == "torch" else _mindspore_front()
    tensors = _inputs(front, tokens, heads)
    load(1)

    scale, epsilon = WIDTH**-0.5, 1e-6
    options = {
        "layout": "BNSD",
        "safe_gate": True,
        "lower_bound": LOWER_BOUND,
        "use_gate_in_kernel": True,
        "epsilon": epsilon,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
    }
    names = ("q", "k", "v", "g", "beta")
    main = [tensors[n] for n in names]
    gate = {n: tensors[n] for n in ("a_log", "dt_bias")}

    times = []
    # The first call opens the libraries and touches fresh memory; it is reported by itself.
    tick = stage("npu_chunk_kda through the OPP", REPEATS + 1)
    for i in range(REPEATS + 1):
        start = time.perf_counter()
        out, final = front.kda(*main, scale, output_final_state=True, **gate, **options)
        out_array = front.array(out)[0].transpose(1, 0, 2)
        times.append(1e3 * (time.perf_counter() - start))
        tick(i + 1)

    # The stages by themselves, for the state on entry of every chunk.
    slots = front.prepare(*main, scale, backward_mode="none", **gate, **options)
    h, *_ = front.fwd_h(slots[6], slots[3], slots[4], gk=slots[0], use_exp2=True)

    exact = _activated({n: front.array(t) for n, t in tensors.items()}, epsilon)
    start = time.perf_counter()
    want, state = recurrence(**exact, scale=scale, progress=stage("float64 recurrence", tokens))
    reference_s = time.perf_counter() - start

    token_error = np.linalg.norm(out_array - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return Outcome(
        framework=framework,
        first_ms=times[0],
        median_ms=float(np.median(times[1:])),
        reference_s=reference_s,
        errors={
            "attn_out": _relative(out_array, want),
            "final_state": _relative(front.array(final)[0], state),
        },
        series={
            "decay": _decay_in_chunk(exact["step"]),
            "state_norm": np.linalg.norm(front.array(h)[0], axis=(-2, -1)).T,
            "token_error": token_error,
        },
    )


def draw(outcome: Outcome, path: Path) -> None:
    """The picture: gate decay, state norm over chunks, error per token; one line per head."""
    import matplotlib

    matplotlib.use("Agg")  # a file, on machines without a display too
    from matplotlib import pyplot

    series = outcome.series
    heads = series["decay"].shape[0]
    colours = pyplot.get_cmap("viridis")(np.linspace(0.05, 0.9, heads))
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 9), constrained_layout=True)
    panels = (
        (
            "gate decay: share of the state left, counted from the start of a chunk",
            "decay",
            "token of the chunk",
        ),
        ("state norm on entry of each chunk", "state_norm", "chunk"),
        ("relative error of attn_out per token, against float64", "token_error", "token"),
    )
    for axis, (title, key, xlabel) in zip(axes, panels):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(xlabel, fontsize=9)
        axis.grid(alpha=0.3)
        if key == "token_error":
            _draw_errors(axis, series[key])
            continue
        for head in range(heads):
            label = f"head {head}" if heads <= 8 else None
            axis.plot(series[key][head], color=colours[head], linewidth=1.1, label=label)
    axes[0].set_yscale("log")
    if heads <= 8:
        axes[0].legend(fontsize=7, ncol=4, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_errors(axis, errors: np.ndarray) -> None:
    """Median and range over heads; one line per head would hide both."""
    tokens = np.arange(errors.shape[1])
    axis.fill_between(
        tokens, errors.min(axis=0), errors.max(axis=0), color="#9ecae1", label="range over heads"
    )
    axis.plot(tokens, np.median(errors, axis=0), color="#08519c", linewidth=0.8, label="median over heads")
    axis.axhline(2.0**-8, color="black", linewidth=0.8, linestyle="--", label="spacing of bf16, 2^-8")
    axis.set_yscale("log")
    axis.legend(fontsize=7, loc="upper right")
