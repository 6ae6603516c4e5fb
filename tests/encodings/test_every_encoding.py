"""Properties of every encoding, alone and combined."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
import torch
from contracts import LAYOUT, EncodingContract, stream
from small_runs import ENCODINGS, INPUTS, LABELS, make_model, make_plan, released
from small_trainings import killed, trained
from torch import nn
from training_commands import contents

import sordino as so
from sordino import encodings
from sordino.encodings import (
    Combined,
    ConstantRate,
    Freeze,
    Matched,
    MatchedBought,
    Project,
    ProjectBiased,
    RandomSparsify,
    RankedSparsify,
)
from sordino.encodings.project import Subspace
from sordino.errors import UsageError
from sordino.kernel.encoding import Unchanged
from sordino.kernel.records import as_records
from sordino.kernel.states import Dense
from sordino.optimized_noise.sources import Fixed, FromReleases
from sordino.verification import neighbor_replay, noise_checks

PUBLIC_ROWS = Dense(torch.randn(5, LAYOUT.size, generator=torch.Generator().manual_seed(3)), LAYOUT)
SUBSPACE = Subspace(lambda step, randomness: PUBLIC_ROWS, directions=3, groups=2)


EVERY = pytest.mark.parametrize("make", ENCODINGS.values(), ids=ENCODINGS)
DIFFERENT = [
    "random",
    "random and project",
    "matched by public rows",
    "matched by bought sizes",
]  # the other encodings share the codecs of these


# One of each class, for gradients of `LAYOUT`. Those below the line change the coordinates.
KINDS = {
    "Unchanged": Unchanged(),
    "Freeze": Freeze(["bias"]),
    "FreezeByMagnitude": Freeze.by_magnitude(nn.Linear(3, 2), stages=(0, 2), final=0.5),
    "RandomSparsify": RandomSparsify(0.5, epochs=2, steps_per_epoch=3, schedule=ConstantRate()),
    "RankedSparsify": RankedSparsify(0.5, epochs=4, steps_per_epoch=1),
    "Matched": Matched(FromReleases(0.5)),
    # ---
    "MatchedBought": MatchedBought(memory=0.5),
    "Project": Project(SUBSPACE),
    "ProjectBiased": ProjectBiased(SUBSPACE),
}
CHANGING = {"MatchedBought", "Project", "ProjectBiased"}
PAIRS = [(first, second) for first in KINDS for second in KINDS if first not in CHANGING or second == "Unchanged"]
REFUSED = sorted({(first, second) for first in KINDS for second in KINDS} - set(PAIRS))

# Each kind is first in a pair and second in a pair. The other pairs are slow tests.
FIRST = [kind for kind in KINDS if kind not in CHANGING]
FAST = {*zip(cycle(FIRST), KINDS), *((kind, "Unchanged") for kind in CHANGING)}

for _name, _kind in KINDS.items():
    globals()[f"Test{_name}"] = type(f"Test{_name}", (EncodingContract,), {"encoding": _kind})
for _first, _second in PAIRS:
    _name, _marks = f"Test{_first}And{_second}", [] if (_first, _second) in FAST else [pytest.mark.slow]
    _class = {"encoding": Combined(KINDS[_first], KINDS[_second]), "pytestmark": _marks}
    globals()[_name] = type(_name, (EncodingContract,), _class)


class TestMatchedByFixedWeights(EncodingContract):
    encoding = Matched(Fixed(torch.arange(1.0, 9.0)))


class TestThree(EncodingContract):
    encoding = Combined(Freeze(["bias"]), Combined(RandomSparsify(0.5, 2, 3), Project(SUBSPACE)))


def test_every_class_of_encodings_keeps_the_contract() -> None:
    classes = {x for x in vars(encodings).values() if isinstance(x, type) and {"init", "codec"} <= vars(x).keys()}
    assert classes - {Combined, *map(type, KINDS.values())} == set()


@pytest.mark.parametrize(("first", "second"), REFUSED)
def test_all_other_pairs_are_refused(first: str, second: str) -> None:
    codec = (both := Combined(KINDS[first], KINDS[second])).codec(both.init(LAYOUT), 0, stream())
    with pytest.raises(UsageError, match="put an encoding that changes the coordinates last"):
        codec.encode(Dense(torch.ones(1, LAYOUT.size), LAYOUT))


@pytest.mark.parametrize("name", DIFFERENT)
def test_no_hostile_unit_moves_the_sum_by_more_than_the_bound(name: str) -> None:
    model = make_model()
    findings = list(
        neighbor_replay.replay(make_plan(ENCODINGS[name](model)), model, as_records((INPUTS, LABELS)), seed=0)
    )
    assert [finding for finding in findings if not finding.passed] == []


@EVERY
def test_the_event_is_that_of_the_plan_without_an_encoding(make) -> None:
    """Theorem 3.1 of Zhu and Blaschko (2023), and post-processing."""
    assert make_plan(make(make_model())).event == make_plan(Unchanged()).event


@EVERY
def test_a_run_that_is_continued_releases_what_it_would_have_released(make) -> None:
    assert torch.equal(released(make, stop=3), released(make))


@pytest.mark.parametrize(
    "second", [RankedSparsify(0.4, epochs=3, steps_per_epoch=4), Matched(FromReleases(0.8)), MatchedBought(memory=0.8)]
)
def test_a_training_that_is_killed_goes_on_with_what_its_encodings_had_learnt(tmp_path: Path, second) -> None:
    encoding = Combined(RandomSparsify(0.4, epochs=6, steps_per_epoch=2), second)
    trained(tmp_path / "whole", encoding=encoding)
    assert killed(tmp_path / "run", 40, encoding=encoding)
    trained(tmp_path / "run", encoding=encoding, resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@EVERY
def test_micro_batches_change_nothing(make) -> None:
    torch.testing.assert_close(released(make, physical=3), released(make, physical=40), rtol=0, atol=1e-3)


@pytest.mark.usefixtures("quick_verification")
@pytest.mark.parametrize("name", DIFFERENT)
def test_noise_on_what_is_encoded_is_what_the_event_says(name: str) -> None:
    model = make_model()
    records = as_records((INPUTS, LABELS))
    findings = list(noise_checks.examine(make_plan(ENCODINGS[name](model)), model, records, seed=0, delta=1e-5))
    assert [finding for finding in findings if not finding.passed] == []


@pytest.mark.parametrize("make_optimizer", [torch.optim.Adam, torch.optim.SGD], ids=["Adam", "SGD"])
@pytest.mark.parametrize("name", ["random, cooling", "ranked", "freeze and random"])
def test_training_works_with_any_optimizer(name: str, make_optimizer) -> None:
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fitted = so.fit(
        model, (INPUTS, LABELS), epsilon=3.0, delta=1e-3, batch_size=12, steps=6, seed=0, progress=False,
        encoding=ENCODINGS[name](model), optimizer=lambda parameters: make_optimizer(parameters, lr=0.01),
    )  # fmt: skip
    assert fitted.guarantee.epsilon <= 3.0
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == ([True, False, True, False] if "freeze" in name else [True] * 4)
