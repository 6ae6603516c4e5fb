"""What a linear probe on CIFAR-10 gains from a network that has learnt from made-up pictures.

python -m bench.transfer > results/transfer.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

import sordino as so
from bench.step import origin
from sordino.data import load
from sordino.data.dataset import DataSet
from sordino.training.evaluation import Evaluation, Public
from sordino.training.transfer import LinearProbe, PretrainedNetwork, pretrain

MODEL, SHAPE, PICTURES = "resnet-20", (3, 32, 32), 60_000
TRAIN, TEST, EPSILON, DELTA, SEEDS = 4_000, 2_000, 2.0, 1e-5, (0, 1, 2)


def main() -> None:
    data = load("cifar10")
    begun = time.perf_counter()
    learnt = pretrain(MODEL, SHAPE, pictures=PICTURES, progress=False)
    seconds = time.perf_counter() - begun
    found = {
        "model": MODEL,
        "pictures": PICTURES,
        "pretraining_seconds": round(seconds),
        "random": accuracies(PretrainedNetwork.fresh(MODEL, SHAPE), data),
        "learnt": accuracies(learnt, data),
    }
    print(json.dumps(origin("bench.transfer") | found, indent=2))


def accuracies(pretrained: PretrainedNetwork, data: DataSet) -> dict[str, object]:
    """On public test rows, without privacy and with it, by seed."""
    if data.test is None:
        raise SystemExit("CIFAR-10 has test rows.")
    built = LinearProbe().built(pretrained, data.facts, seed=0)
    rows, labels = built.prepare(data.train.inputs[:TRAIN], progress=False), data.train.target[:TRAIN]
    test, truth = built.prepare(data.test.inputs[:TEST], progress=False), data.test.target[:TEST]
    scaler = StandardScaler().fit(rows)
    plain = LogisticRegression(C=0.1, max_iter=500).fit(scaler.transform(rows), labels)
    private = [_private(pretrained, data, (rows, labels), Public((test, truth)), seed) for seed in SEEDS]
    return {
        "without_privacy": float(plain.score(scaler.transform(test), truth)),
        "private": private,
        "epsilon": EPSILON,
        "delta": DELTA,
        "seeds": list(SEEDS),
    }


def _private(
    pretrained: PretrainedNetwork, data: DataSet, rows: tuple[torch.Tensor, torch.Tensor], test: Public, seed: int
) -> float:
    module = LinearProbe().built(pretrained, data.facts, seed=seed).module
    fitted = so.fit(
        module,
        rows,
        epsilon=EPSILON,
        delta=DELTA,
        batch_size=400,
        epochs=20,
        clip=0.1,
        optimizer=_sgd,
        evaluation=Evaluation(at_end=test),
        seed=seed,
        progress=False,
    )
    return float(fitted.metrics[-1]["test_accuracy"])


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0, momentum=0.9)


if __name__ == "__main__":
    main()
