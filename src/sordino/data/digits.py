"""The 1,797 handwritten digits that come with scikit-learn: 8 by 8 pixels from 0 to 16. Nothing is downloaded."""

from __future__ import annotations

import torch

from sordino.data.dataset import DataSet, Facts, Split

_NUM_TRAINING = 1437
_SPLIT_SEED = 0


def load_digits() -> DataSet:
    """Four fifths to train on and one fifth to test on, always the same.

    >>> digits = load_digits()
    >>> digits.train.inputs.shape, len(digits.test.target)
    (torch.Size([1437, 1, 8, 8]), 360)
    """
    from sklearn import datasets  # a second of import that other sets need not pay for

    pixels, labels = datasets.load_digits(return_X_y=True)
    inputs = torch.tensor(pixels, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    target = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    train, test = order[:_NUM_TRAINING], order[_NUM_TRAINING:]
    facts = Facts("digits", (1, 8, 8), 10, input_range=(0.0, 16.0), class_names=tuple("0123456789"))
    return DataSet(facts, Split(inputs[train], target[train]), Split(inputs[test], target[test]))
