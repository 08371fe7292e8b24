# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda inside autograd: modes, checkpoints, transforms, what is kept, what is refused."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from fla_npu import errors
from in_step import in_step
from torch.utils.checkpoint import checkpoint
from torch_calls import TOKENWISE, gradients, kda, leaves, make, same_bits, seeds


def test_the_forward_does_not_depend_on_gradients():
    t = make(tokens=130)
    want = kda(t)
    for recompute in (False, True):
        got = kda(leaves(t), disable_recompute=not recompute)
        assert got[0].requires_grad and got[1].requires_grad
        assert same_bits([x.detach() for x in got], want)
    with torch.no_grad():
        out, final = kda(leaves(t))
    assert same_bits((out, final), want) and not out.requires_grad


def test_autocast_changes_nothing():
    t = make()
    want = gradients(t)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(t)
    assert all(same_bits(got[n], want[n]) for n in t)


def test_no_gradient_where_none_is_required():
    out, final = kda(make())
    assert out.grad_fn is None and final.grad_fn is None


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_checkpoint(reentrant, recompute):
    t = make()
    want = gradients(t)

    def checkpointed(inputs, **options):
        names = list(inputs)
        return checkpoint(
            lambda *x: kda(dict(in_step(names, x)), **options),
            *inputs.values(),
            use_reentrant=reentrant,
        )

    got = gradients(t, call=checkpointed, disable_recompute=not recompute)
    assert all(same_bits(got[n], want[n]) for n in t)


def test_backward_twice_over_one_graph():
    t = make()
    inputs = leaves(t)
    out, final = kda(inputs)
    pair = list(seeds(out, final))
    first = torch.autograd.grad([out, final], list(inputs.values()), pair, retain_graph=True)
    second = torch.autograd.grad([out, final], list(inputs.values()), pair)
    assert same_bits(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad([out, final], list(inputs.values()), pair)


def test_double_backward_is_refused():
    t = make()
    want = gradients(t, {"q"})["q"]
    inputs = leaves(t, {"q"})
    out, final = kda(inputs)
    (grad,) = torch.autograd.grad([out, final], [inputs["q"]], list(seeds(out, final)), create_graph=True)
    assert same_bits(grad.detach(), want)
    with pytest.raises(errors.GradientUnavailable, match="npu_chunk_kda cannot be differentiated again"):
        grad.float().square().sum().backward()


def loss(t):
    out, final = kda(t)
    return (out.float() * seeds(out, final)[0]).sum() + (final * seeds(out, final)[1]).sum()


def test_function_transforms():
    t = make()
    want = gradients(t, {"k"})["k"]
    assert same_bits(torch.func.grad(lambda k: loss({**t, "k": k}))(t["k"]), want)
    with pytest.raises(errors.GradientUnavailable):
        torch.func.grad(lambda k: torch.func.grad(lambda x: loss({**t, "k": x}))(k).float().sum())(t["k"])
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(lambda k: kda({**t, "k": k})[0])(torch.stack([t["k"]] * 2))
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda k: kda({**t, "k": k})[0], (t["k"],), (t["k"],))


def test_a_constant_inside_a_transform():
    t = make()
    grad = torch.func.grad(lambda k: kda({**t, "k": k.detach()})[0].float().sum() + k.float().sum())(t["k"])
    assert torch.equal(grad, torch.ones_like(grad))


def test_metadata_is_read_at_the_forward():
    t = make(tokens=128)
    cu = torch.tensor([0, 64, 128])
    want = gradients(t, cu_seqlens=[0, 64, 128])
    inputs = leaves(t)
    out, final = kda(inputs, cu_seqlens=cu, disable_recompute=False)
    cu[1] = 32
    torch.autograd.backward([out, final], list(seeds(out, final)))
    assert all(same_bits(x.grad, want[n]) for n, x in inputs.items())


def test_an_input_changed_in_place_is_noticed():
    t = make()
    for recompute, name in ((False, "v"), (True, "q")):
        inputs = {n: x.clone() for n, x in t.items()} | {"beta": t["beta"].clone().requires_grad_()}
        out, _ = kda(inputs, disable_recompute=not recompute)
        inputs[name].zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def kept_bytes(t, **options) -> int:
    total = 0

    def pack(x):
        nonlocal total
        total += x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kda(leaves(t), **options)
    return total


def test_what_is_kept():
    """Recompute mode keeps the inputs alone; save mode 3 KiB per token and value head beside v, g, beta."""
    t = make(tokens=640, hk=2, hv=2)
    inputs = sum(x.numel() * x.element_size() for x in t.values())
    assert kept_bytes(t, disable_recompute=False) == inputs
    keys = sum(t[n].numel() * 2 for n in "qk")
    assert kept_bytes(t) - (inputs - keys) == 640 * 2 * (3084 - 1024) + 10 * 2 * 2 * 128 * 128 + 640 * 2 * 512


def test_inputs_and_cotangents_are_not_written():
    t = make()
    inputs = leaves(t)
    out, final = kda(inputs)
    pair = seeds(out, final)
    before = [x.clone() for x in pair]
    torch.autograd.backward([out, final], list(pair))
    assert same_bits(list(pair), before)
    assert all(same_bits(inputs[n].detach(), t[n]) for n in t)


def resident() -> int:
    with open("/proc/self/statm") as handle:
        return int(handle.read().split()[1]) * 4096


def test_memory_is_flat_over_300_lengths():
    longest = make(tokens=300, hk=1, hv=1)

    def train(lengths):
        for tokens in lengths:
            t = {n: (x[:, :, :tokens].clone() if n in TOKENWISE else x) for n, x in longest.items()}
            gradients(t, disable_recompute=bool(tokens % 2))

    train(range(1, 301, 10))
    gc.collect()
    before = resident()
    train(range(1, 301))
    gc.collect()
    assert resident() - before < 24 << 20


def test_training_in_threads():
    cases = [make(tokens=60 + 7 * i, seed=i) for i in range(4)]
    want = [gradients(t) for t in cases]
    got: list = [None] * len(cases)

    def work(i):
        for _ in range(2):
            got[i] = gradients(cases[i], disable_recompute=bool(i % 2))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in in_step(got, want):
        assert all(same_bits(a[n], b[n]) for n in b)


def test_gradients_are_bitwise_repeatable(twin):
    t = make(tokens=143, hk=2, hv=6)
    want = gradients(t)
    for threads in (1, 2, 3):
        twin(threads=threads)
        got = gradients(t)
        assert all(same_bits(got[n], want[n]) for n in t)


def test_a_missing_backward_operator_is_named_at_the_forward(monkeypatch):
    from fla_npu import aclnn, loader

    launched = []
    monkeypatch.setattr(aclnn, "call", lambda op, *_, **__: launched.append(op))
    bind = loader.bind

    def without(name):
        if name == "chunk_kda_bwd_finalize":
            raise errors.SymbolMissing(f"{name} is not in the OPP")
        return bind(name)

    monkeypatch.setattr(loader, "bind", without)
    with pytest.raises(errors.SymbolMissing, match="chunk_kda_bwd_finalize"):
        kda(leaves(make()))
    assert launched == []
