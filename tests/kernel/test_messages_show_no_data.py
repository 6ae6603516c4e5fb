"""No message shows what rows hold, whichever argument was given data by mistake."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from data_in_arguments import COUNT, DATA, NAME, NUMBER, betrayed, callables, full_message, messages
from torch import nn

import sordino as so
from sordino._input import validate
from sordino.errors import SordinoError
from sordino.kernel.augmentation import Flip
from sordino.training.evaluation import Evaluation, accuracy

FEW = ("inputs and target", "a pair of numbers", "rows by name", "an array of objects", "a data set")
SLOW_ONES = ("sordino.fit", "fit_hidden_state", "PrivateRun", "federated_sgd", "white_box_scores", "verify", "opacus")


@pytest.fixture(autouse=True)
def one_thread_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shown(kinds: tuple[str, ...], *, slow: bool) -> tuple[dict[str, str], int]:
    """The messages that show data, and how many there were in all."""
    found, number = dict[str, str](), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in callables():
            if slow == any(each in name for each in SLOW_ONES):
                for where, message in messages(name, function, kinds):
                    number += 1
                    if betrayed(message):
                        found[where] = message[-300:]
    return found, number


def test_no_message_shows_data_that_an_argument_was_given() -> None:
    found, number = shown(FEW, slow=False)
    assert not found
    assert number > 1500  # the walk goes where it should


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "slow"), [(tuple(DATA), False), (FEW, True)])
def test_no_message_at_all_shows_data_of_any_kind(kinds: tuple[str, ...], slow: bool) -> None:
    found, _ = shown(kinds, slow=slow)
    assert not found


ROWS = torch.full((20, 4), NUMBER), torch.full((20,), COUNT)
SETTINGS = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 5, "steps": 1, "progress": False}


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: so.fit(ROWS, nn.Linear(4, 3), **SETTINGS),
        lambda: so.fit(nn.Linear(4, 3), ROWS, **SETTINGS, evaluation=ROWS),
        lambda: Evaluation(at_end=ROWS),
        lambda: so.fit(nn.Linear(4, 3), ROWS, **(SETTINGS | {"epsilon": ROWS[0]})),
        lambda: so.fit(nn.Linear(4, 3), ROWS, **(SETTINGS | {"batch_size": np.float32(NUMBER)})),
        lambda: so.fit(nn.Linear(4, 3), ROWS, **SETTINGS, optimizer=lambda parameters: ROWS),
        lambda: accuracy(nn.Linear(4, 3), ROWS),
        lambda: accuracy(ROWS, so.Public(ROWS)),
        lambda: so.Charged(ROWS, 1.0, 1),
        lambda: so.release_moments(ROWS, noise_multiplier=5.0),
        lambda: so.as_records(ROWS, input_range=ROWS[0]),
        lambda: so.as_records(ROWS, input_range=[float(COUNT), NUMBER]),
        lambda: so.PrivateRun(ROWS, nn.Linear(4, 3), ROWS),
        lambda: so.Budget(ROWS, epsilon={NAME: NUMBER}, delta=1e-5),
        lambda: so.ClipPerLayer([-NUMBER, COUNT]),
    ],
)
def test_swapped_arguments_are_refused_without_a_word_about_the_rows(attempt) -> None:
    with pytest.raises(SordinoError) as refused:
        attempt()
    assert not betrayed(full_message(refused.value))


def test_a_message_that_quotes_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "described", repr)
    with pytest.raises(SordinoError) as refused:
        accuracy(nn.Linear(4, 3), ROWS)
    assert betrayed(full_message(refused.value))


def test_a_plain_number_that_is_wrong_is_shown_and_anything_else_is_described() -> None:
    given = (-0.5, np.float64(-0.5), torch.tensor(-0.5), 10**5000, True, None, "0.5", [0.5], Flip, torch.float16)
    assert [validate.shown(each) for each in given] == [
        "-0.5",
        "float64 of shape () and dtype float64",
        "Tensor of shape () and dtype torch.float32",
        "a whole number of 16610 bits",
        "True",
        "None",
        "str of length 3",
        "list of length 1",
        "type Flip",
        "torch.float16",
    ]


def test_an_object_that_tells_of_itself_is_not_asked() -> None:
    class Table:
        shape = (NAME, 3)

        def __repr__(self) -> str:
            return NAME

    assert validate.described(Table()) == "Table"
