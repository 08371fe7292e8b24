# SPDX-License-Identifier: Apache-2.0
"""Train one KDA layer to recall, in MindSpore on the CPU twin: python examples/train_recall_mindspore.py"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from kda_layer_mindspore import KdaAttention, RmsNorm, projection
from mindspore import Tensor, nn, ops
from recall import Recall, Run, arguments


class Model(nn.Cell):
    """Embedding, one KDA layer with a residual, and a map to the vocabulary."""

    def __init__(self, vocabulary: int, dim: int, heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, embedding_table=ms.common.initializer.Normal(1.0))
        self.norm, self.attention = RmsNorm(dim), KdaAttention(dim, heads)
        self.last_norm, self.head = RmsNorm(dim), projection(dim, vocabulary)

    def construct(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary]."""
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x))
        return self.head(self.last_norm(x))


def train(task: Recall, steps: int, batch: int, dim: int, heads: int, rate: float, seed: int) -> Run:
    """Adam on fresh sequences, the rate falling to zero along a half cosine."""
    ms.set_seed(seed)  # of NumPy as well
    rng, model = np.random.default_rng(seed), Model(task.vocabulary, dim, heads)
    rates = [0.5 * rate * (1.0 + np.cos(np.pi * i / steps)) for i in range(steps)]
    optimizer = nn.Adam(model.trainable_params(), learning_rate=rates)

    def loss_of(tokens: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(tokens)[:, -task.pairs :]  # under the queries
        return ops.cross_entropy(logits.reshape(-1, task.vocabulary), answers.reshape(-1)), logits

    gradients = ms.value_and_grad(loss_of, None, optimizer.parameters, has_aux=True)
    run = Run(f"Recall of {task.pairs} pairs, MindSpore on the CPU twin")
    for _ in range(steps):
        tokens, answers = task.batch(rng, batch)
        (loss, logits), grads = gradients(Tensor(tokens), Tensor(answers))
        optimizer(grads)
        run.add(float(loss.asnumpy()), float((logits.asnumpy().argmax(-1) == answers).mean()))
    return run


def main() -> None:
    ms.runtime.launch_blocking()  # small operators on a CPU: handing them to other threads costs more
    given = arguments(steps=180, pairs=24)
    task = Recall(given.pairs)
    run = train(task, given.steps, given.batch, given.dim, given.heads, given.rate, given.seed)
    run.write(given.curve)


if __name__ == "__main__":
    main()
