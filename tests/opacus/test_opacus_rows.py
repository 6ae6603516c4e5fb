"""Rows as a `collate_fn` makes them: one at a time, with names and sizes of their own."""

import pytest
import torch
import torch.nn.functional as F
from opacus_script import ROWS, gradient, made_private
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from sordino.errors import UsageError
from sordino.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention

WORDS, LONGEST = 12, 9


class Sentences(Dataset):
    """Rows of 1 to 9 words; `changed` has other rows by index, or errors to raise."""

    def __init__(self, changed=None):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, LONGEST + 1, (ROWS,), generator=generator).tolist()
        self.rows = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]
        self.labels = torch.randint(0, 3, (ROWS,), generator=generator)
        self.changed = changed or {}

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        row = self.changed.get(index, self.rows[index])
        if isinstance(row, Exception):
            raise row
        return row, self.labels[index]


def padded(rows):
    return pad_sequence([row for row, _ in rows], batch_first=True), torch.stack([label for _, label in rows])


class MeanOfWords(nn.Module):
    """Averages words. With `skip_zeros`, zeros are padding and are left out."""

    def __init__(self, skip_zeros=False):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.classes, self.skip_zeros = nn.Embedding(WORDS, 6), nn.Linear(6, 3), skip_zeros

    def forward(self, ids):
        if not self.skip_zeros:
            return self.classes(self.words(ids).mean(dim=1))
        real = (ids > 0)[..., None]
        return self.classes((self.words(ids) * real).sum(dim=1) / real.sum(dim=1))


class LastWord(nn.Module):
    """Depends on how far its row is padded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.classes = nn.Embedding(WORDS, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.classes(self.words(ids)[:, -1])


def first_gradient(model, dataset, collate, **options):
    loader = DataLoader(dataset, batch_size=ROWS, collate_fn=collate)
    _, module, optimizer, loader = made_private(model=model, loader=loader, **options)
    for ids, labels in loader:
        F.cross_entropy(module(ids), labels).backward()
        optimizer.step()
    return gradient(module)


def test_each_row_has_the_gradient_of_its_own_length():
    def padded_to_one_length(rows):
        ids, labels = padded(rows)
        return F.pad(ids, (0, LONGEST - ids.shape[1])), labels

    own = first_gradient(MeanOfWords(), Sentences(), padded)
    masked = first_gradient(MeanOfWords(skip_zeros=True), Sentences(), padded_to_one_length)
    assert torch.allclose(own, masked, atol=1e-6)


def test_a_long_row_moves_the_sum_by_its_own_contribution_only():
    """If the batch was padded to its longest row, each other row would have another gradient."""
    without = first_gradient(LastWord(), Sentences({7: ValueError("unreadable")}), padded)
    long = first_gradient(LastWord(), Sentences({7: torch.ones(40, dtype=torch.int64)}), padded)
    assert 0 < torch.linalg.vector_norm(ROWS * (long - without)) <= 1.0 + 1e-5  # the clip norm is 1


@pytest.mark.parametrize("row", [torch.zeros(0, dtype=torch.int64), torch.tensor([99]), torch.ones(2, 2), "text"])
def test_a_row_on_which_collate_fn_or_model_fails_counts_as_absent(row):
    class Neighbors(LastWord):
        def forward(self, ids):
            return super().forward(F.pad(ids, (0, 1))[:, :-1])

    without = first_gradient(Neighbors(), Sentences({7: ValueError("unreadable")}), padded)
    assert torch.allclose(first_gradient(Neighbors(), Sentences({7: row}), padded), without, atol=1e-6)


def test_outputs_of_own_sizes_are_refused_before_any_data_is_used():
    with pytest.raises(UsageError, match="sizes of their own"):
        first_gradient(nn.Sequential(nn.Embedding(WORDS, 3), nn.Linear(3, 3)), Sentences(), padded)


def test_a_collate_fn_that_needs_several_rows_is_refused():
    with pytest.raises(UsageError, match="list of one row"):
        first_gradient(MeanOfWords(), Sentences(), lambda rows: padded(rows[:-1]))


def test_the_size_of_the_longest_row_does_not_enter_a_loss():
    loader = DataLoader(Sentences(), batch_size=ROWS, collate_fn=padded)
    _, module, _, loader = made_private(model=MeanOfWords(), loader=loader)
    ids, labels = next(iter(loader))
    longest = ids.shape[1]
    with pytest.raises(UsageError, match="read as Python values"):
        (F.cross_entropy(module(ids), labels) / longest).backward()


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words, self.classes = nn.Embedding(WORDS, 6), nn.Linear(6, 3)
        self.layer = kind(6, 6, batch_first=True)

    def forward(self, ids, hidden=None):
        return self.classes(self.layer(self.words(ids), hidden)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.classes = nn.Embedding(WORDS, 6), nn.Linear(6, 3)
        self.layer = DPMultiheadAttention(6, 2, batch_first=True)

    def forward(self, ids):
        x = self.words(ids)
        return self.classes(self.layer(x, x, x)[0].mean(dim=1))


@pytest.mark.parametrize("kind", [DPLSTM, DPGRU, DPRNN, None])
def test_layers_with_names_of_opacus_train_on_rows_of_own_sizes(kind):
    model = Attentive() if kind is None else Recurrent(kind)
    assert first_gradient(model, Sentences(), padded).isfinite().all()


class Tokens(Dataset):
    """Rows that are dictionaries, as those of Hugging Face."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, WORDS, (5,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones(5), "label": torch.tensor(index % 3)}


class TakesNames(nn.Module):
    """Returns a dictionary, and its own loss if it gets labels."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.body, self.reduction = MeanOfWords(), reduction

    def forward(self, input_ids, attention_mask=None, other=None, labels=None):
        logits = self.body(input_ids) * attention_mask.mean(dim=1, keepdim=True)
        if labels is None:
            return {"logits": logits, "cache": object()}
        return {"loss": F.cross_entropy(logits, labels, reduction=self.reduction), "logits": logits}


def gradients_by_name(loss_of, **options):
    loader = DataLoader(Tokens(), batch_size=8, shuffle=True)
    _, module, optimizer, loader = made_private(model=TakesNames(**options), loader=loader)
    for batch in loader:
        loss_of(module, {name: x.to("cpu") for name, x in batch.items()}).backward()
        optimizer.step()
    return gradient(module)


def loss_of_logits(module, batch):
    outputs = module(attention_mask=batch["attention_mask"], input_ids=batch["input_ids"])
    return F.cross_entropy(outputs["logits"], batch["label"])


def own_loss(module, batch):
    return module(batch["input_ids"], batch["attention_mask"], labels=batch["label"])["loss"]


def test_rows_may_be_dictionaries_and_inputs_have_names():
    assert torch.allclose(gradients_by_name(loss_of_logits), gradients_by_name(own_loss), atol=1e-6)


def test_a_loss_of_the_model_that_is_not_the_mean_over_rows_is_refused():
    with pytest.raises(UsageError, match="must be the mean"):
        gradients_by_name(own_loss, reduction="sum")


class Squeezed(nn.Module):
    def __init__(self, across=False):
        super().__init__()
        self.body, self.across = MeanOfWords(), across

    def forward(self, ids):
        words = self.body.words(ids).transpose(1, 2)
        pooled = F.adaptive_avg_pool1d(words, 1).squeeze()
        return self.body.classes(pooled)


def test_squeeze_keeps_the_axis_of_rows():
    loose = first_gradient(Squeezed(), Sentences(), padded)
    assert torch.allclose(loose, first_gradient(MeanOfWords(), Sentences(), padded), atol=1e-6)
