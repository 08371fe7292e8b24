# SPDX-License-Identifier: Apache-2.0
"""Train one KDA layer to recall, in PyTorch on the CPU twin: python examples/train_recall_torch.py"""

from __future__ import annotations

import numpy as np
import torch
from kda_layer_torch import KdaAttention, RmsNorm, projection
from recall import Recall, Run, arguments
from torch import Tensor, nn


class Model(nn.Module):
    """Embedding, one KDA layer with a residual, and a map to the vocabulary."""

    def __init__(self, vocabulary: int, dim: int, heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.norm, self.attention = RmsNorm(dim), KdaAttention(dim, heads)
        self.last_norm, self.head = RmsNorm(dim), projection(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary]."""
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x))
        return self.head(self.last_norm(x))


def train(task: Recall, steps: int, batch: int, dim: int, heads: int, rate: float, seed: int) -> Run:
    """Adam on fresh sequences, the rate falling to zero along a half cosine."""
    torch.manual_seed(seed)
    rng, model = np.random.default_rng(seed), Model(task.vocabulary, dim, heads)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run = Run(f"Recall of {task.pairs} pairs, PyTorch on the CPU twin")
    for _ in range(steps):
        tokens, answers = (torch.from_numpy(x).long() for x in task.batch(rng, batch))
        logits = model(tokens)[:, -task.pairs :]  # under the queries
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.add(loss.item(), (logits.argmax(-1) == answers).float().mean().item())
    return run


def main() -> None:
    torch.set_num_threads(1)  # the model is small: more threads would wait for each other, not for work
    given = arguments(steps=240, pairs=32)
    task = Recall(given.pairs)
    run = train(task, given.steps, given.batch, given.dim, given.heads, given.rate, given.seed)
    run.write(given.curve)


if __name__ == "__main__":
    main()
