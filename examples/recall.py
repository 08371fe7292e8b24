# SPDX-License-Identifier: Apache-2.0
"""Associative recall, the task that the two training scripts share, and the record of a run.

A sequence shows every key with a value, then asks for every key, in other orders:

    k3 v1 k2 v1 k0 v5 ..  |  k0 k2 k3 ..        expected under the queries:  v5 v1 v1 ..

Orders and values are drawn anew for each sequence: nothing is to be learned by heart. What a model
learns is to write values under keys, and to look them up.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Recall:
    """`pairs` keys, tokens 0 and up, and as many values, the tokens after those."""

    pairs: int

    @property
    def vocabulary(self) -> int:
        return 2 * self.pairs

    def batch(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens [size, 3 pairs], answers [size, pairs]), int32. The queries are the last `pairs` tokens."""
        every = np.tile(np.arange(self.pairs), (size, 1))
        keys, queries = rng.permuted(every, axis=1), rng.permuted(every, axis=1)
        value_of = rng.integers(self.pairs, 2 * self.pairs, (size, self.pairs))
        values, answers = (np.take_along_axis(value_of, x, axis=1) for x in (keys, queries))
        shown = np.stack([keys, values], axis=-1).reshape(size, -1)
        return np.concatenate([shown, queries], axis=1).astype(np.int32), answers.astype(np.int32)


@dataclass
class Run:
    """Loss and accuracy of the steps; prints as it goes."""

    title: str
    every: int = 20
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)

    def add(self, loss: float, accuracy: float) -> None:
        self.losses.append(loss)
        self.accuracies.append(accuracy)
        if len(self.losses) % self.every == 0:
            print(self.line(), flush=True)

    def line(self) -> str:
        """Means over the last `every` steps."""
        loss, accuracy = (np.mean(x[-self.every :]) for x in (self.losses, self.accuracies))
        seconds = time.perf_counter() - self.start
        return f"step {len(self.losses):4d}   loss {loss:6.3f}   accuracy {accuracy:6.1%}   {seconds:6.1f} s"

    def write(self, path: Path) -> None:
        path.write_text(curve(self.title, self.losses, self.accuracies))
        print(f"curve: {path}")


def arguments(steps: int, pairs: int) -> argparse.Namespace:
    """Command line of a training script."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--pairs", type=int, default=pairs, help="keys, each with a value")
    parser.add_argument("--dim", type=int, default=128, help="width of the model")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", type=Path, default=Path("recall.svg"), help="where the curve goes")
    return parser.parse_args()


def curve(title: str, losses: list[float], accuracies: list[float]) -> str:
    """Loss (left axis) and accuracy (right axis) over steps as an SVG; raw values pale, means of ten strong."""
    left, top, width, height = 60, 40, 560, 260
    most = max(losses) * 1.05
    rows = [(losses, most, "#1f5fa8"), (accuracies, 1.0, "#b3541e")]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 350" '
        'font-family="Helvetica,Arial,sans-serif" font-size="13">',
        f'<title>{title}</title><rect width="680" height="350" fill="#fff"/>',
        f'<text x="340" y="24" text-anchor="middle" font-size="15">{title}</text>',
    ]
    for i in range(5):
        y = top + height * i / 4
        parts += [
            f'<path d="M{left} {y}h{width}" stroke="#ddd"/>',
            f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" fill="#1f5fa8">{most * (1 - i / 4):.1f}</text>',
            f'<text x="{left + width + 6}" y="{y + 4}" fill="#b3541e">{100 - 25 * i} %</text>',
            f'<text x="{left + width * i / 4}" y="{top + height + 18}" text-anchor="middle">'
            f"{round(len(losses) * i / 4)}</text>",
        ]
    for values, full, colour in rows:
        for points, style in ((values, 'stroke-opacity="0.25"'), (smooth(values), 'stroke-width="2"')):
            xs = left + width * (np.arange(len(points)) + 0.5) / len(points)
            ys = top + height * (1 - np.asarray(points) / full)
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" {style}/>')
    parts += [
        f'<text x="{left}" y="{top + height + 38}" fill="#1f5fa8">loss (cross entropy, nats)</text>',
        f'<text x="340" y="{top + height + 38}" text-anchor="middle">step</text>',
        f'<text x="{left + width}" y="{top + height + 38}" text-anchor="end" fill="#b3541e">accuracy</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def smooth(values: list[float], window: int = 10) -> np.ndarray:
    """Mean of each value and the up to nine before it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(total))
    first = np.maximum(end - window, 0)
    return (total[end] - total[first]) / (end - first)
