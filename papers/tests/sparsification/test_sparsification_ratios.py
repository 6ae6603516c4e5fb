"""The experiment on ratios: noise follows its law, gradients lie between one and theirs."""

from __future__ import annotations

import json
import math

import pytest

from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.sparsification import ratios
from sordino_papers.sparsification.ratios import SPARSIFICATION_RATIOS


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratios")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ratios, "SIZE", 40_000)
        return folder, reproduce(SPARSIFICATION_RATIOS, folder, scale=RunScale.QUICK, seeds=1, progress=False)


def test_noise_falls_as_the_root_of_what_is_kept(found) -> None:
    _, table = found
    noise, law = table.sides[0].lines[1:3]
    assert (noise[0], law[0]) == ("noise", "sqrt(1 - r)")
    # sqrt(r / (2 (1 - r) size)) of the ratio is a standard deviation: six of them at rate 0.95, and at 0.9.
    assert [float(x) for x in noise[1:]] == pytest.approx([float(x) for x in law[1:]], rel=0.09)
    assert table.rows[0].ours == pytest.approx(100 * math.sqrt(0.1), rel=0.07)


def test_kept_coordinates_are_as_before_at_rate_zero_and_longer_the_fewer_are_kept(found) -> None:
    _, table = found
    lines = [line for line in table.sides[0].lines if line[0].startswith("kept")]
    assert [line[0] for line in lines] == [
        f"kept coordinates, clip {clip}, epoch {epoch}" for epoch in (0, 1) for clip in ("0.1", "1")
    ]
    for line in lines:
        values = [float(x) for x in line[1:]]
        assert values[0] == 1.0 and values == sorted(values) and values[-1] > 2


def test_nothing_has_an_epsilon_and_what_saw_gradients_says_so(found) -> None:
    _, table = found
    assert all(row.epsilon is None for row in table.rows)
    picture, numbers = table.sides[0].files
    assert NOT_PRIVATE in picture.read_text()
    written = json.loads(numbers.read_text())
    assert {"command", "commit", "machine", "seeds"} <= written.keys()
    assert all(one["warning"] == NOT_PRIVATE for look in written["gradients"][0]["looks"] for one in look["ratios"])
