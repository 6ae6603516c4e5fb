"""Freezing by magnitude: which coordinates are frozen, from which step, and that nothing moves them."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings
import torch
from contracts import LAYOUT, EncodingContract, stream
from small_runs import INPUTS, LABELS, PER_STEP, make_model, make_plan
from small_trainings import killed
from torch import nn
from training_commands import contents

import sordino as so
from sordino.encodings import Combined, Freeze, FreezeByMagnitude, Neurons
from sordino.encodings.codecs import MaskCodec
from sordino.encodings.freeze import rest_of
from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.encoding import Unchanged
from sordino.kernel.randomness import Key
from sordino.kernel.states import Dense, Layout, Private
from sordino.training.averaging import Ema
from sordino.training.loop import Training
from sordino.training.schedules import Constant
from sordino_papers.harness.ablations import AblationSettings, clipped_sgd

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1, amsgrad=True),
}


def network_of_two_by_three() -> nn.Module:
    return nn.Linear(3, 2)


class TestFreezeByMagnitude(EncodingContract):
    encoding = Freeze.by_magnitude(network_of_two_by_three(), stages=(0, 2), final=0.5)
    assert Layout.of(encoding.model) == LAYOUT


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in model.parameters()]).clone()


def training_of(model: nn.Module, encoding, optimizer="SGD", **changes) -> Training:
    run = so.PrivateRun(make_plan(encoding, steps=8), model, (INPUTS, LABELS), key=Key.from_seed(0))
    made = OPTIMIZERS[optimizer](model.parameters())
    return Training(model, made, run, divisor=12, **({"schedule": Constant(), "averaging": None} | changes))


def steps(training: Training, count: int) -> list[torch.Tensor]:
    found = []
    for _ in range(count):
        training.step()
        found.append(flat(training.model))
    return found


def frozen(training: Training) -> torch.Tensor:
    rest = rest_of(training.run.plan.encoding, training.run.coding_state)
    assert rest is not None
    return rest.frozen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("random", [False, True], ids=["alone", "with random masks"])
def test_a_frozen_coordinate_does_not_move_by_a_bit(optimizer: str, random: bool) -> None:
    model = make_model()
    freeze = Freeze.by_magnitude(model, stages=(3, 6))
    training = training_of(model, Combined(freeze, PER_STEP) if random else freeze, optimizer)
    first = steps(training, 3)
    assert bool((first[0] != first[2]).all())  # with weight decay every weight moves unless it is frozen
    after = steps(training, 1)
    early = frozen(training)
    after += steps(training, 4)
    late = frozen(training)
    assert 0 < int(early.sum()) < int(late.sum())
    assert all(torch.equal(each[early], first[2][early]) for each in after)
    assert all(torch.equal(each[late], after[2][late]) for each in after[3:])
    assert bool((after[-1][~late] != after[-2][~late]).all())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_forgets_what_it_knew_of_a_frozen_coordinate(optimizer: str) -> None:
    model = make_model()
    training = training_of(model, Freeze.by_magnitude(model, stages=(3,)), optimizer)
    steps(training, 4)
    remembered = []
    for name, mask in training.run.layout.split(frozen(training)).items():
        held = [
            value
            for what, value in training.optimizer.state[dict(model.named_parameters())[name]].items()
            if what != "step"
        ]
        assert held and all(bool((x[mask] == 0).all()) for x in held)
        remembered += [bool((x[~mask] != 0).any()) for x in held]
    assert any(remembered)


def test_the_smallest_weights_of_the_stage_are_frozen_and_stay_so() -> None:
    model = make_model()
    training = training_of(model, Freeze.by_magnitude(model, stages=(3, 6)))
    before = steps(training, 3)[-1].abs()
    steps(training, 1)
    first = frozen(training)
    assert before[first].max() <= before[~first].min()
    steps(training, 4)
    assert bool(frozen(training)[first].all())


@pytest.mark.parametrize(("final", "count"), [(0.77, 181), (0.29, 68), (0.5, 118)])
def test_the_final_share_is_exact(final: float, count: int) -> None:
    model = make_model()
    training = training_of(model, Freeze.by_magnitude(model, stages=(1, 2, 5), final=final))
    shares = []
    for _ in range(8):
        steps(training, 1)
        shares.append(int(frozen(training).sum()))
    assert [shares[0], shares[-1]] == [0, count] and shares == sorted(shares)
    assert count == round(final * 235) and len(set(shares)) == 4


def test_a_frozen_coordinate_gets_neither_gradient_nor_noise() -> None:
    model = make_model()
    run = so.PrivateRun(make_plan(Freeze.by_magnitude(model, stages=(0,))), model, (INPUTS, LABELS), seed=0)
    value = next(run).value
    keep = run.coding_state["keep"]
    assert torch.equal(value != 0, keep) and int(keep.sum()) == 235 - 181


def test_the_mask_comes_before_the_clip() -> None:
    model = network_of_two_by_three()
    freeze = FreezeByMagnitude(model, (0,), 0.5)
    codec = freeze.codec(freeze.init(LAYOUT), 0, stream())
    each = so.ClipByNorm(1.0)(codec.encode(Dense(100 * torch.ones(1, LAYOUT.size), LAYOUT)))
    assert float(each.value.norm()) == pytest.approx(SCALED_TO, rel=1e-5)


def test_freezing_costs_and_saves_no_privacy() -> None:
    model = make_model()
    assert make_plan(Freeze.by_magnitude(model, stages=(2,))).event == make_plan(Unchanged()).event


def test_neurons_are_frozen_whole_with_their_biases() -> None:
    model = make_model()
    training = training_of(model, Freeze.by_magnitude(model, stages=(2,), final=3 / 7, together=Neurons()))
    steps(training, 3)
    masks = training.run.layout.split(frozen(training))
    rows = [
        torch.stack([masks[f"{layer}.weight"].flatten(1).all(1), masks[f"{layer}.bias"]], dim=1) for layer in (0, 3)
    ]
    assert all(bool((row[:, 0] == row[:, 1]).all()) for row in rows)
    assert sum(int(row[:, 0].sum()) for row in rows) == 3  # of four filters and three outputs


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_are_zero_also_in_the_average(optimizer: str) -> None:
    model = make_model()
    freeze = Freeze.by_magnitude(model, stages=(2,), prune=True)
    training = training_of(model, freeze, optimizer, averaging=Ema(0.9))
    steps(training, 8)
    averaged = torch.cat([x.flatten() for x in training.weights().values()])
    assert torch.equal(flat(model) == 0, frozen(training))
    assert torch.equal(averaged == 0, frozen(training)) and not averaged.requires_grad


def test_an_average_is_where_a_frozen_coordinate_rests() -> None:
    model = make_model()
    training = training_of(model, Freeze.by_magnitude(model, stages=(2,)), averaging=Ema(0.9))
    steps(training, 8)
    averaged = torch.cat([x.flatten() for x in training.weights().values()])
    assert torch.equal(averaged == flat(model), frozen(training))


@pytest.mark.parametrize("stop", [30, 45])
def test_a_training_that_is_killed_goes_on_with_its_masks(tmp_path: Path, monkeypatch, stop: int) -> None:
    class Sequential(nn.Sequential):
        """The model that `trained` makes, with an encoding that refers to it."""

    made = []
    monkeypatch.setattr(small_trainings.nn, "Sequential", lambda *layers: made.append(Sequential(*layers)) or made[-1])
    fit = so.fit
    monkeypatch.setattr(
        so,
        "fit",
        lambda model, data, **more: fit(model, data, encoding=Freeze.by_magnitude(model, stages=(3, 7)), **more),
    )
    small_trainings.trained(tmp_path / "whole")
    assert killed(tmp_path / "run", stop)
    small_trainings.trained(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_named_parameters_rest_from_the_first_step_under_weight_decay() -> None:
    model = make_model()
    before = model[0].weight.detach().clone()
    steps(training_of(model, Freeze(["0.weight"]), "AdamW"), 3)
    assert torch.equal(model[0].weight, before)


def test_an_ablation_freezes_too() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    freeze = Freeze.by_magnitude(model, stages=(0,), prune=True)
    comparison = AblationSettings(so.Poisson(rate=0.3, steps=3), divisor=12, encoding=freeze)
    clipped_sgd(model, (INPUTS, LABELS), optimizer, comparison, clip=so.ClipByNorm(1.0))
    assert int((flat(model) == 0).sum()) == 181


@pytest.mark.parametrize(
    ("change", "message"),
    [({"stages": ()}, "increasing steps"), ({"stages": (3, 3)}, "increasing steps"),
     ({"stages": (-1,)}, r"stages\[0\]"),
     ({"final": 1.0}, "final"), ({"final": 0.0}, "final"), ({"stages": 5}, "stages must be a Sequence, got int"),
     ({"together": "neurons"}, "together must be a Together, got str"), ({"together": Neurons}, "got type"),
     ({"prune": "no"}, "prune must be a bool, got str")],
)  # fmt: skip
def test_what_cannot_be_frozen_is_refused(change, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Freeze.by_magnitude(make_model(), **({"stages": (3,)} | change))


def test_another_model_is_refused_before_anything_is_charged() -> None:
    with pytest.raises(UsageError, match="model must be the one that is trained"):
        so.PrivateRun(make_plan(Freeze.by_magnitude(nn.Linear(2, 2), stages=(1,))), make_model(), (INPUTS, LABELS))


def test_what_is_frozen_in_a_step_is_in_the_state_of_the_next() -> None:
    freeze = Freeze.by_magnitude(network_of_two_by_three(), stages=(1,), final=0.5)
    codec = freeze.codec(freeze.init(LAYOUT), 1, stream())
    _, state = codec.decode(Private(torch.zeros(LAYOUT.size), LAYOUT))
    assert int((~state["keep"]).sum()) == 4
    after = freeze.codec(state, 2, stream())
    assert isinstance(after, MaskCodec) and torch.equal(after.keep, state["keep"])
