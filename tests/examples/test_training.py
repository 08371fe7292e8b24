# SPDX-License-Identifier: Apache-2.0
"""The training scripts: the task, the record of a run, and that a loss falls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from in_step import in_step
from recall import Recall, curve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_answers_are_the_values_shown_with_the_keys():
    task = Recall(6)
    tokens, answers = task.batch(np.random.default_rng(0), 5)
    assert tokens.shape == (5, 18) and answers.shape == (5, 6)
    for row, wanted in in_step(tokens, answers):
        shown = dict(in_step(row[:12:2], row[1:12:2]))
        assert sorted(shown) == sorted(row[12:]) == list(range(6))
        assert [shown[key] for key in row[12:]] == list(wanted)
        assert min(wanted) >= 6 and max(wanted) < task.vocabulary


def test_curve_is_an_svg():
    root = ElementTree.fromstring(curve("a run", [3.0, 2.0, 1.0], [0.0, 0.5, 1.0]))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4 and all(len(x.get("points").split()) == 3 for x in lines)


def run(script: str, path: Path, *options: str) -> str:
    """Output of a training script on 12 pairs, with its curve at `path`."""
    command = [sys.executable, str(EXAMPLES / script), "--pairs", "12", "--curve", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith("<svg")
    return done.stdout


def last(output: str) -> tuple[float, float]:
    """(loss, accuracy) of the last line of a run, means over twenty steps."""
    words = [line for line in output.splitlines() if line.startswith("step")][-1].split()
    return float(words[3]), float(words[5].rstrip("%")) / 100


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_training_learns_to_recall(framework, tmp_path):
    """Guessing is a loss of log(12) = 2.48 and an accuracy of 8 %."""
    pytest.importorskip(framework)
    loss, accuracy = last(run(f"train_recall_{framework}.py", tmp_path / "curve.svg", "--steps", "60"))
    assert loss < 2.0 and accuracy > 0.25, (loss, accuracy)
