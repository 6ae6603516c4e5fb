"""A noisy-cgd recipe gives the plan that it describes, in a run folder that every command reads."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import sordino as so
from sordino._input.safetensors_file import load_tensors
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.model import PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.data import Facts, load
from sordino.errors import DataError, UsageError
from sordino.models import Built
from sordino.models.features import ScatteringFeatures, Spectrum
from sordino.recipes import Recipe, SavedRun, carry_out, names
from sordino.recipes.networks import CONVEX_NAMES, build
from sordino.report.evidence import Evidence
from sordino.training.evaluation import Public
from sordino.training.metrics import measured_at_end
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import Cosine

DIGITS = {"data": "digits", "model": "gated-relu", "method": "noisy-cgd", "epsilon": 3.0, "delta": 1e-4, "seed": 0}
DIGITS |= {"gates": 4, "batch_size": 200, "epochs": 3.0}


def carried_out(path: Path, **settings: object) -> RunFolder:
    return carry_out(Recipe(**(DIGITS | settings)), path / "run", progress=False)


def test_the_run_is_the_plan_that_the_recipe_describes(tmp_path: Path) -> None:
    chosen = {
        "learning_rate": 1.0,
        "clip": 0.3,
        "weight_decay": 0.05,
        "schedule": "cosine:0.5",
        "adjacency": "replace-one",
    }
    folder = carried_out(tmp_path, **chosen, trailing_steps=4, radius=2.0, initial_seed=7)
    plan = NoisyCGD(
        so.Cyclic(7, 3, so.Adjacency.REPLACE_ONE),
        PairedReLU(4, seed=7),
        clip=0.3,
        noise_multiplier=1.0,
        learning_rate=1.0,
        strength=0.05,
        radius=2.0,
        schedule=Cosine(final=0.5),
        trailing_steps=4,
        examples=1437,
    )
    rows = load("digits").train
    by_hand = fit_hidden_state(
        plan.calibrated(epsilon=3.0, delta=1e-4),
        (Spectrum((1, 8, 8), power=0.75, below=10.0, input_range=(0.0, 16.0))(rows.inputs), rows.target),
        outputs=10,
        delta=1e-4,
        seed=0,
        progress=False,
    )
    weights = load_tensors(folder.path / "model.safetensors").tensors
    torch.testing.assert_close(weights, dict(by_hand.model.state_dict()), rtol=0, atol=1e-5)
    promised = folder.privacy()
    assert promised["epsilon"] == by_hand.guarantee.epsilon
    assert (promised["adjacency"], promised["view"], promised["steps"]) == ("replace-one", "final-model", 25)


def test_test_rows_are_measured_once_on_the_final_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(model: torch.nn.Module, public: Public) -> dict[str, float]:
        seen.append([x.detach().clone() for x in model.parameters()])
        return measured_at_end(model, public)

    monkeypatch.setattr("sordino.convex.hidden_run.measured_at_end", noting)
    folder = carried_out(tmp_path)
    ((maps,),) = seen
    assert torch.equal(maps, load_tensors(folder.path / "model.safetensors").tensors["maps.weight"])
    (row,) = folder.metrics()
    assert row.keys() >= {"step", "epsilon", "delta", "test_accuracy", "test_auc"}


def test_a_ball_keeps_the_weights_in_it(tmp_path: Path) -> None:
    folder = carried_out(tmp_path, radius=0.01)
    norm = load_tensors(folder.path / "model.safetensors").tensors["maps.weight"].norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("batch_size", [100, 200, 1437])
def test_a_card_is_made_of_batches_that_do_not_divide_the_examples(batch_size: int, tmp_path: Path) -> None:
    folder = carried_out(tmp_path, batch_size=batch_size, epochs=1.0)
    run = Evidence.read(folder.path)
    assert run.question.batch_size == -(-1437 // round(1437 / batch_size))
    assert str(run.guarantee.view) == "final-model" and run.guarantee.epsilon <= 3.0


def test_what_a_run_says_about_classes_are_scores_and_no_probabilities(tmp_path: Path) -> None:
    saved = SavedRun.read(carried_out(tmp_path).path)
    first, *_ = saved.predict("digits")
    assert [name for name in first if name.startswith("score(")] == [f"score({label})" for label in range(10)]
    assert first[f"score({first['prediction']})"] == max(first[f"score({label})"] for label in range(10))
    assert not any(name.startswith("p(") for name in first)


@pytest.mark.parametrize("name", CONVEX_NAMES)
def test_dp_sgd_trains_the_same_networks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "sets"))
    folder = carried_out(tmp_path, method="dp-sgd", model=name, epochs=None, steps=4, momentum=0.9)
    assert folder.privacy()["view"] == "every-step"
    first, *_ = SavedRun.read(folder.path).predict("digits")
    assert sum(value for key, value in first.items() if key.startswith("p(")) == pytest.approx(1)


def test_gates_open_over_scattering_features_of_norm_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "sets"))
    folder = carried_out(tmp_path, model="scatter-gated", gates=2)
    assert folder.metrics()[-1]["test_accuracy"] > 0.5
    built = build("scatter-gated", load("digits").facts, seed=0, gates=2)
    rows = built.prepare(load("digits").test.inputs[:3], progress=False).float()
    assert isinstance(built.features, ScatteringFeatures)
    for row in rows:  # the gradient of an output is the feature vector, half of whose gates are open on average
        built.module.zero_grad()
        built.module(row[None])[0, 0].backward()
        assert float(built.module.maps.weight.grad.norm()) <= 1 + 1e-6


SCHEMA = """
confirmed_public = true
columns.age = {kind = "number", bounds = [0, 100]}
columns.sex = {kind = "category", categories = ["f", "m"]}
"""
TARGETS = {
    "ill": 'target = {column = "ill", classes = ["no", "yes"]}',
    "pay": 'target = {column = "pay", bounds = [0, 1000]}',
}


def people(folder: Path, facts: str) -> dict[str, object]:
    """Settings of a training on a table of people who are ill from age fifty on. Each person has two rows."""
    (folder / "people.toml").write_text(facts + SCHEMA)
    for name in ("people", "public"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", "ill", "pay", "person"])
            for row in range(600):
                age = row * 37 % 100
                writer.writerow([age, "fm"[row % 2], "yes" if age >= 50 else "no", 10 * age, f"p{row // 2}"])
    return {
        "data": str(folder / "people.csv"),
        "schema": str(folder / "people.toml"),
        "batch_size": 100,
        "epochs": 20.0,
        "gates": 8,
        "delta": 1e-3,
    }


def test_a_table_of_classes_is_learnt_with_an_offset(tmp_path: Path) -> None:
    settings = people(tmp_path, 'test = "public.csv"\n' + TARGETS["ill"])
    folder = carried_out(tmp_path, **settings)
    assert folder.metrics()[-1]["test_accuracy"] > 0.85
    (tmp_path / "new.csv").write_text("sex,age\nf,5\nm,95\nf,unknown\n")
    predictions = SavedRun.read(folder.path).predict(str(tmp_path / "new.csv"))
    assert [row["prediction"] for row in predictions] == ["no", "yes", ""]


@pytest.mark.parametrize("method", ["noisy-cgd", "dp-sgd"])
def test_a_table_of_numbers_is_learnt_in_their_own_unit(method: str, tmp_path: Path) -> None:
    settings = people(tmp_path, 'test = "public.csv"\n' + TARGETS["pay"]) | {"method": method}
    folder = carried_out(tmp_path, **(settings if method == "noisy-cgd" else settings | {"learning_rate": 0.5}))
    assert folder.metrics()[-1]["test_mse"] < 0.2
    (tmp_path / "new.csv").write_text("sex,age\nf,5\nm,95\n")
    low, high = SavedRun.read(folder.path).predict(str(tmp_path / "new.csv"))
    assert low["prediction"] < 400 < 600 < high["prediction"]


def test_users_with_several_rows_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    settings = people(tmp_path, 'user = "person"\nrows_per_user = 2\n' + TARGETS["ill"])
    with pytest.raises(UsageError, match="hidden-state training needs one row per unit, got up to 2 rows per user"):
        carried_out(tmp_path, **settings)
    assert not (tmp_path / "run").exists() and not (tmp_path / "run.private").exists()


def test_a_clipped_sum_of_two_gradients_pushes_apart() -> None:
    """This is why such users are refused: a step V -> V - eta clip(g1 + g2) does not contract for any eta."""
    features = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    target = torch.tensor([1.0, -3.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)

    def clipped(weights: torch.Tensor) -> torch.Tensor:
        gradients = (weights @ features.T - target) @ features
        return gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)

    one, other = 3 * torch.randn(2, 20_000, 2, generator=generator, dtype=torch.float64)
    assert float(((clipped(one) - clipped(other)) * (one - other)).sum(dim=1).min()) < -0.01


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_size": 1438}, UsageError, "batch_size"),
        ({"delta": 0.01}, UsageError, "delta"),
        ({"epochs": 1e8}, UsageError, "steps must be a whole number from 1 to 1000000"),
        ({"data": "./nowhere"}, DataError, "nowhere"),
    ],
)
def test_a_run_that_cannot_begin_leaves_no_folder(
    settings: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        carried_out(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_scattering_needs_pictures() -> None:
    with pytest.raises(UsageError, match="scattering needs images"):
        build("scatter-gated", Facts("people", (7,), 2), seed=0, gates=2)


def test_the_seed_decides_the_gates_and_columns_are_held_to_their_range() -> None:
    facts = Facts("people", (3,), 2, (-1.0, 1.0))
    one, same, other = (build("gated-relu", facts, seed=seed, gates=6) for seed in (1, 1, 2))
    assert isinstance(one, Built)
    assert torch.equal(one.module.gates, same.module.gates) and not torch.equal(one.module.gates, other.module.gates)
    assert one.module.gates.shape == (3, 4)
    rows = torch.tensor([[-9.0, 0.5, torch.nan]])
    torch.testing.assert_close(one.prepare(rows), torch.tensor([[-1.0, 0.5, torch.nan, 1.0]]), equal_nan=True)


def test_convex_networks_are_named_after_the_others() -> None:
    assert tuple(name for name, _ in names())[-2:] == CONVEX_NAMES
    assert all(sentence and len(sentence) < 120 for _, sentence in names())


def test_the_seed_of_the_noise_does_not_stay_in_the_folder(tmp_path: Path) -> None:
    folder = carried_out(tmp_path)
    assert Recipe.of_run(folder).seed is None and Recipe.of_run(folder).initial_seed is not None
    assert "the seed stays secret" in json.dumps(folder.privacy())


def test_nothing_in_a_finished_folder_follows_from_the_seed_alone(tmp_path: Path) -> None:
    """A file that depends on the seed alone could be compared with that of every likely seed."""
    first, second = (carried_out(tmp_path / str(seed), seed=seed) for seed in (5, 6))
    assert Recipe.of_run(first) == Recipe.of_run(second)
    for name in ("recipe.toml", "facts.json"):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
