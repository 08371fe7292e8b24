# SPDX-License-Identifier: Apache-2.0
"""explain_route: Hyper-Parallel's rule, and the truth about the OPP in use."""

from __future__ import annotations

import inspect

import pytest
from fla_npu import chunk_kda, errors, loader
from fla_npu.chunk_kda import explain_route, route

SAFE = {"safe_gate": True, "a_log": 1}
STAGES = [
    SAFE,
    {**SAFE, "initial_state": 1},
    {"initial_state": 1},
    {"disable_recompute": False},
    {"state_v_first": True, "use_gate_in_kernel": False},
]
AGGREGATES = [
    {},
    {"a_log": 1},
    {**SAFE, "use_exp2": False},
    {"use_gate_in_kernel": False, "output_final_state": True, "cu_seqlens": [0, 1], "layout": "TND"},
]


class Library:
    """What is loaded; the route is asked for once for it."""


@pytest.fixture
def opp(monkeypatch):
    def use(missing=(), operators=(*chunk_kda.BACKWARD_STAGES, *route.AGGREGATES)):
        def bind(name):
            if name in missing:
                raise errors.SymbolMissing(f"{name} is not in the OPP")

        libraries = (Library(),)
        monkeypatch.setattr(loader, "libraries", lambda: libraries)
        monkeypatch.setattr(loader, "bind", bind)
        monkeypatch.setattr(route, "names", lambda: operators)

    return use


@pytest.mark.parametrize("options", STAGES)
def test_the_chain_of_stages(opp, options):
    opp()
    found = explain_route(**options)
    assert found.name == "stages"
    assert found.forward == chunk_kda.STAGES
    again = chunk_kda.STAGES[:2] if options.get("disable_recompute") is False else ()
    assert found.backward == (*again, *route.BACKWARD)
    assert found.reason


@pytest.mark.parametrize("options", AGGREGATES)
def test_the_aggregates(opp, options):
    opp()
    found = explain_route(**options)
    assert found == ("aggregates", route.AGGREGATES[:1], route.AGGREGATES[1:], found.reason)


def test_without_aggregates_it_says_so(opp):
    opp(missing=route.AGGREGATES[1:])
    found = explain_route()
    assert found.name == "stages" and f"the OPP in use lacks {route.AGGREGATES[1]}" in found.reason
    opp(operators=chunk_kda.BACKWARD_STAGES)
    found = explain_route()
    assert found.name == "stages" and f"no operator {route.AGGREGATES[0]}" in found.reason


def test_it_takes_the_arguments_of_the_call():
    known = set(inspect.signature(explain_route).parameters)
    assert {*chunk_kda.TENSORS, "scale", "cu_seqlens", "epsilon"} <= known
    with pytest.raises(TypeError, match="safe_gat"):
        explain_route(safe_gat=True)
