# SPDX-License-Identifier: Apache-2.0
"""The parts of the demo that need no operator: its own float64 recurrence, and the picture."""

from __future__ import annotations

import pytest

numpy = pytest.importorskip("numpy")
demo = pytest.importorskip("fla_npu.demo")


def test_recurrence_follows_the_definition():
    rng = numpy.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 5, 128)) for _ in range(3))
    step, beta = -rng.uniform(size=(2, 5, 128)), rng.uniform(size=(2, 5))
    out, state = demo.recurrence(q, k, v, step, beta, 0.5)
    for h in range(2):
        s = numpy.zeros((128, 128))
        for t in range(5):
            s = numpy.exp(step[h, t])[:, None] * s
            s = s + numpy.outer(k[h, t], beta[h, t] * (v[h, t] - s.T @ k[h, t]))
            assert numpy.allclose(out[h, t], 0.5 * s.T @ q[h, t])
        assert numpy.allclose(state[h], s)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    rng = numpy.random.default_rng(4)
    series = {
        "decay": rng.uniform(size=(3, 150)),
        "state_norm": rng.uniform(size=(3, 3)),
        "token_error": rng.uniform(0.001, 0.01, size=(3, 150)),
    }
    outcome = demo.Outcome("torch", 1.0, 1.0, 1.0, {}, series)
    path = tmp_path / "new" / "picture.png"
    demo.draw(outcome, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    short = {**series, "decay": series["decay"][:, :10]}
    demo.draw(demo.Outcome("torch", 1.0, 1.0, 1.0, {}, short), path)
