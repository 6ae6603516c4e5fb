"""A run on view is the run it shows, says that it is not private, and leaves no trace where promises are kept."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from exposed_runs import INPUTS, LABELS, make_exposed, make_model, make_plan, rows_one_by_one
from torch import nn

import sordino as so
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.errors import UsageError
from sordino.training.not_private import NOT_PRIVATE, ExposedResult, NotPrivate
from sordino_papers.sparsification.diagnostics.symmetry import Symmetry

HALF = RandomSparsify(0.5, epochs=6, steps_per_epoch=1, schedule=ConstantRate())


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("at", [(), (0, 3), range(6)])
def test_looking_changes_no_step(at) -> None:
    watched, unwatched = make_model(), make_model()
    for shown in make_exposed(make_plan(HALF), at=at, model=watched):
        assert shown.step in at
    optimizer = torch.optim.SGD(unwatched.parameters(), lr=0.3)
    for private in so.PrivateRun(make_plan(HALF), unwatched, (INPUTS, LABELS), seed=0):
        private.divide(30).write_to(unwatched)
        optimizer.step()
    torch.testing.assert_close(weights(watched), weights(unwatched), rtol=0, atol=1e-6)


def test_what_is_shown_are_the_gradients_of_each_unit_at_the_weights_of_the_step() -> None:
    model = make_model()
    for shown in make_exposed(make_plan(rate=1.0), at=(0, 4), model=model):
        rows = torch.cat([chunk for each in shown.raw() for chunk in each.rows(7)])
        torch.testing.assert_close(rows, rows_one_by_one(model))
        assert shown.units == 60


def test_encoded_gradients_are_what_the_mask_leaves_of_them() -> None:
    for shown in make_exposed(make_plan(HALF), at=(2,)):
        raw, encoded = (torch.cat([c for each in part(9) for c in each.rows(9)]) for part in (shown.raw, shown.encoded))
        assert raw.shape == (9, 57)
        torch.testing.assert_close(encoded, raw * shown.codec.keep)
        assert int((~shown.codec.keep).sum()) == 28


def test_a_step_that_is_over_cannot_be_looked_at() -> None:
    (shown,) = list(make_exposed(make_plan()))
    with pytest.raises(UsageError, match="step 0 is over"):
        next(shown.raw())


def test_nothing_that_it_hands_out_has_a_guarantee_and_all_of_it_says_so() -> None:
    exposed = make_exposed(make_plan())
    shown = next(iter(exposed))
    trained = exposed.trained
    for value in (exposed, shown, trained, Symmetry(0.0, 0.0, 1.0, 3)):
        assert not {"guarantee", "epsilon", "event", "budget", "checkpoint"} & set(dir(value))
        assert "not private" in f"{value!r} {value!s}" and "epsilon" not in repr(value)
    assert isinstance(trained, NotPrivate)


def test_rows_that_have_a_budget_are_refused() -> None:
    budget = so.Budget((INPUTS, LABELS))
    with pytest.raises(UsageError, match="data must be rows, got a Budget"):
        make_exposed(make_plan(), data=budget)
    assert budget.releases == ()


@pytest.mark.parametrize("step", [-1, 6])
def test_only_steps_of_the_plan_can_be_looked_at(step) -> None:
    with pytest.raises(UsageError, match=r"at\[0\] must be a whole number from 0 to 5"):
        make_exposed(make_plan(), at=(step,))


@pytest.mark.parametrize("keep", [copy.deepcopy, pickle.dumps])
def test_it_can_be_neither_copied_nor_saved(keep) -> None:
    exposed = make_exposed(make_plan())
    for value in (exposed, next(iter(exposed))):
        with pytest.raises(UsageError, match="cannot be copied, saved or sent"):
            keep(value)


def test_what_is_written_carries_the_warning(tmp_path) -> None:
    Symmetry(0.25, 0.0, 0.5, 9).write(tmp_path / "symmetry.json")
    written = json.loads((tmp_path / "symmetry.json").read_text())
    assert written == {"warning": NOT_PRIVATE, "energy": 0.25, "by_chance": 0.0, "p_value": 0.5, "points": 9}


@pytest.mark.parametrize("place", ["found.json", "inner/found.json"])
def test_nothing_is_written_into_the_folder_of_a_run(tmp_path, place) -> None:
    out = tmp_path / "run"
    so.fit(make_model(), (INPUTS, LABELS), epsilon=3.0, delta=1e-3, batch_size=30, steps=1, out=out, progress=False)
    before = sorted(path.name for path in out.iterdir())
    (tmp_path / "link").symlink_to(out)
    for path in (out / place, tmp_path / "link" / place):
        with pytest.raises(UsageError, match="lies in a run folder, but the result is not private"):
            ExposedResult().write(path)
    assert sorted(path.name for path in out.iterdir()) == before
