import json
import sys
from types import SimpleNamespace

import pytest

from sordino.accounting import Adjacency, RandomAllocationDpEvent, privacy_of
from sordino.accounting import balls_in_bins as tight
from sordino.errors import UsageError

QUESTION = {"multiplier": 2.0, "bins": 60, "delta": 1e-5}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_an_answer_is_remembered():
    assert tight.recall(QUESTION) is None
    tight.remember(QUESTION, 1.5)
    assert tight.recall(QUESTION) == 1.5
    assert tight.recall({**QUESTION, "delta": 1e-6}) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"epsilon": "x"}', '{"epsilon": 1.0, "question": {}}', "null"])
def test_a_damaged_file_is_ignored(content):
    tight.remember(QUESTION, 1.5)
    (file,) = tight.cache_directory().iterdir()
    file.write_text(content)
    assert tight.recall(QUESTION) is None


def test_a_negative_epsilon_on_file_is_ignored():
    tight.remember(QUESTION, 1.5)
    (file,) = tight.cache_directory().iterdir()
    file.write_text(json.dumps({"question": QUESTION, "epsilon": -1.0}))
    assert tight.recall(QUESTION) is None


def test_nothing_but_the_answer_is_left_behind():
    tight.remember(QUESTION, 1.5)
    tight.remember(QUESTION, 1.5)
    assert [file.suffix for file in tight.cache_directory().iterdir()] == [".json"]


def test_the_package_is_asked_once_and_named(monkeypatch):
    asked = []

    def answer(**question):
        asked.append(question)
        return 0.5, 0.4

    monkeypatch.setitem(sys.modules, "PLD_accounting", SimpleNamespace(gaussian_allocation_epsilon_range=answer))
    monkeypatch.setattr(tight, "version", lambda name: "2.0")
    for _ in range(2):
        curve = privacy_of(RandomAllocationDpEvent(2.0, 60, 40), Adjacency.ZERO_OUT, tight=True)
        found = curve.answer(1e-5)
        assert (found.epsilon, found.accountant) == (0.5, "random-allocation-tight")
    assert asked == [{"delta": 1e-5, "sigma": 2.0, "num_steps": 60, "num_epochs": 40}]


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    def missing(name):
        raise tight.PackageNotFoundError(name)

    monkeypatch.setattr(tight, "version", missing)
    with pytest.raises(UsageError, match=r"pip install 'sordino\[tight\]'"):
        privacy_of(RandomAllocationDpEvent(2.0, 60, 40), Adjacency.ZERO_OUT, tight=True).epsilon(1e-5)
