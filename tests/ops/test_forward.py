# SPDX-License-Identifier: Apache-2.0
"""The three operators in a row against the token recurrence, over the whole domain."""

from __future__ import annotations

import kda_run
import pytest
from goldens import forward_golden
from kda_compare import judge
from kda_inputs import case_seed, make_inputs, to_bf16
from recurrence import kda_recurrence, to_head_major

GATES = ("none", "softplus", "bounded")
LAYOUTS = ("BNSD", "BSND", "NTD", "TND")
TAILS = (1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 66, 71, 79, 127, 128, 129)

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid"}
SWEEP = {
    "state_fp32": {"T": 130, "HV": 2, "state": "float32", **MODEL},
    "state_bf16": {"T": 130, "HV": 2, "state": "bfloat16", **MODEL},
    "v_first": {"T": 130, "HV": 2, "state": "float32", "state_v_first": True, **MODEL},
    "v_first_no_state": {"T": 130, "HV": 2, "state_v_first": True, **MODEL},
    "natural_exponent": {"T": 130, "HV": 2, "state": "float32", "use_exp2": False, **MODEL},
    "batch": {"B": 3, "T": 100, "HK": 2, "HV": 2, "state": "float32", **MODEL},
    "negative_eigenvalues": {"T": 130, "HV": 2, "l2norm": True, "gate": "softplus", "beta": "negative"},
    "scale_zero": {"T": 66, "HV": 1, "scale": 0.0},
    "scale_large_negative": {"T": 66, "HV": 1, "scale": -37.5},
    "packed": {"cu": [0, 65, 131, 202, 281], "HV": 2, "state": "float32", **MODEL},
    "packed_empty": {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": "TND", "state": "float32", **MODEL},
    "packed_all_rows_single": {"cu": list(range(12)), "HV": 2, "state": "float32", **MODEL},
    "packed_natural_v_first": {
        "cu": [0, 63, 64, 128, 129], "HK": 2, "HV": 4, "layout": "NTD", "use_exp2": False,
        "state": "bfloat16", "state_v_first": True, "gate": "softplus",
    },
    "bf16_gate_and_beta": {"T": 100, "HV": 2, "g_dtype": "bfloat16", "beta_dtype": "bfloat16", **MODEL},
    "decay_strong": {"T": 130, "HV": 2, "g_scale": 5.0, "state": "float32"},
    "decay_twenty": {"T": 130, "HV": 1, "g_scale": 20.0, "state": "float32"},
    "decay_mild": {"T": 200, "HV": 1, "g_scale": 0.001, "state": "float32"},
    "resets": {"T": 130, "HV": 2, "mask": 0.4, "state": "float32"},
    "bound_weak": {"T": 130, "HV": 2, **MODEL, "lower_bound": -0.001},
}  # fmt: skip


def truth_of(inputs):
    """(exact, slot-rounded) o token-major and final_state."""
    truth = kda_recurrence(**inputs.recurrence_kwargs())
    layout = inputs.options["layout"]
    rank3 = layout in ("NTD", "TND")
    o = to_head_major(truth["o"], layout).swapaxes(1, 2)
    model = forward_golden(
        inputs.golden_kwargs(),
        initial_state=inputs.initial_state,
        state_v_first=inputs.state_v_first,
        round_slots=True,
    )
    final = model["final_state"]
    if inputs.initial_state is not None and inputs.state_dtype == "bfloat16":
        final = to_bf16(final)
    pick = (lambda x: x[0]) if rank3 else (lambda x: x)
    return {"o": (pick(o), pick(model["o"])), "final_state": (truth["final_state"], final)}


def check_forward(inputs, factor=1.5) -> dict:
    """Run the chain and hold o and final_state to their floors; returns the stages."""
    stages = kda_run.forward(inputs)
    for name, (exact, model) in truth_of(inputs).items():
        dtype = str(stages[name].dtype)[6:]
        judge(name, kda_run.array(stages[name]), exact, model, dtype, factor)
    return stages


@pytest.mark.parametrize("name", SWEEP)
def test_sweep(name):
    check_forward(make_inputs(SWEEP[name], case_seed(name)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gate", GATES)
def test_layout_and_gate(layout, gate):
    case = {"T": 100, "HK": 2, "HV": 4, "layout": layout, "gate": gate, "l2norm": True}
    check_forward(make_inputs(case, case_seed(layout + gate)))


@pytest.mark.parametrize(
    "heads", [(1, 1), (1, 2), (2, 6), (1, 4), (1, 8)], ids=lambda h: f"HK{h[0]}-HV{h[1]}"
)
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_grouped_heads(heads, layout):
    case = {
        "T": 66,
        "HK": heads[0],
        "HV": heads[1],
        "layout": layout,
        "gate": "softplus",
        "state": "float32",
    }
    check_forward(make_inputs(case, case_seed(f"{heads}{layout}")))


@pytest.mark.parametrize("state", ["float32", None], ids=["state", "no_state"])
@pytest.mark.parametrize("tokens", TAILS)
def test_every_tail(tokens, state):
    check_forward(make_inputs({"T": tokens, "HV": 2, "state": state, "gate": "softplus"}, tokens))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
@pytest.mark.parametrize("beta", ["raw", "negative"])
@pytest.mark.full
def test_whole_domain(gate, layout, packed, v_first, exp2, beta):
    name = f"{gate}{layout}{packed}{v_first}{exp2}{beta}"
    case = {
        "HK": 1, "HV": 3, "layout": layout, "gate": gate, "use_exp2": exp2, "beta": beta,
        "state": "bfloat16" if exp2 else "float32", "state_v_first": v_first, "l2norm": beta == "negative",
    }  # fmt: skip
    case |= {"cu": [0, 1, 1, 66, 80, 145]} if packed else {"T": 145}
    check_forward(make_inputs(case, case_seed(name)))


@pytest.mark.full
@pytest.mark.parametrize("gate", ["bounded", "softplus"])
@pytest.mark.parametrize("tokens", [2048, 4000], ids="T{}".format)
def test_model_like(gate, tokens):
    """o and final_state at most 1.5 x what the published bf16 slots cost, at a model's size."""
    case = {"T": tokens, "HK": 4, "HV": 8, "layout": "BSND", "l2norm": True, "gate": gate}
    case |= {"beta": "sigmoid", "state": "float32"}
    check_forward(make_inputs(case, case_seed(f"{gate}{tokens}")))


@pytest.mark.parametrize("gate", GATES)
def test_model_like_short(gate):
    case = {
        "T": 512,
        "HK": 2,
        "HV": 4,
        "layout": "BSND",
        "l2norm": True,
        "gate": gate,
        "beta": "sigmoid",
    }
    check_forward(make_inputs(case, case_seed(gate)))


@pytest.mark.parametrize("name", ["state_fp32", "v_first", "packed_natural_v_first", "packed_empty", "batch"])
def test_composed_call_has_the_bits_of_the_stages(name):
    """fla_npu.torch.npu_chunk_kda runs the same three operators with u relayed in float32; its final state is
    always float32."""
    from fla_npu.torch import npu_chunk_kda

    inputs = make_inputs(SWEEP[name], case_seed(name))
    inputs.state_dtype = "float32"
    stages = kda_run.relayed(inputs, True)
    stages["v_new"] = stages["v_new"][0]
    o, final_state = npu_chunk_kda(
        **kda_run.tensors_of(inputs),
        **{"use_gate_in_kernel": False, **inputs.options},
        initial_state=kda_run.tensor(inputs.initial_state, "float32"),
        state_v_first=inputs.state_v_first,
        output_final_state=True,
    )
    assert kda_run.same_bits(o, kda_run.finalize(stages, inputs))
    assert kda_run.same_bits(final_state, stages["final_state"])
