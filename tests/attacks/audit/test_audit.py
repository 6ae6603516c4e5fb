"""Audits of recipes: every threat model, the verdict, the page, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import sordino as so
from sordino.attacks.audit.audit import audit, write_audit
from sordino.attacks.audit.black_box import InputCanaries, black_box_values, from_worst_start
from sordino.attacks.audit.last_iterate import last_iterate_scores, on_canaries_alone
from sordino.attacks.audit.lower_bounds import GAUSSIAN, METHODS
from sordino.attacks.audit.scores import Scores
from sordino.attacks.audit.threat_models import InGradients, InLastIterate, InRows
from sordino.cli import main
from sordino.cli.checks import audit as command
from sordino.convex import Linear, NoisyCGD
from sordino.errors import SordinoError, UsageError
from sordino.kernel.randomness import Key
from sordino.recipes import Recipe, carry_out
from sordino.recipes.prepared import prepare
from sordino.training.evaluation import accuracy

SMALL = Recipe("digits", "linear", epsilon=8.0, delta=1e-4, batch_size=200, steps=30)
HIDDEN = Recipe("digits", "gated-relu", epsilon=4.0, delta=1e-4, method="noisy-cgd", batch_size=300, epochs=3)


@pytest.fixture(scope="module")
def white():
    return audit(SMALL, canaries=400, repeats=4)  # one training alone may by chance show next to nothing


def test_the_white_box_comes_near_and_is_not_refuted(white):
    assert white.says == "not refuted" and white.epsilon == pytest.approx(8.0, rel=1e-3)
    bounds = {bound.method: bound for bound in white.bounds}
    assert bounds.keys() == METHODS.keys()
    assert 0.5 < bounds["one-run"].epsilon < bounds["f-dp"].epsilon < white.epsilon
    assert all(bound.epsilon <= bound.ceiling for bound in white.bounds)
    assert np.mean(white.inside) > np.mean(white.outside)


def test_the_same_seed_gives_the_same_audit_and_another_does_not():
    one, same, other = (audit(SMALL, canaries=200, seed=seed).inside for seed in (0, 0, 1))
    assert one == same != other


def test_too_few_canaries_are_said_to_be_too_few():
    assert any("200 canaries can show at most epsilon" in note for note in audit(SMALL, canaries=200).notes)


def test_a_claim_below_what_was_shown_is_refuted(white):
    wrong = replace(white, epsilon=0.5)
    assert wrong.refuted and wrong.says == "REFUTED"
    assert any("Method f-dp refutes epsilon 0.5, assuming a Gaussian" in note for note in wrong.notes)


def test_noise_that_is_too_small_is_refuted(monkeypatch):
    monkeypatch.setattr(so.Gaussian, "std", lambda self, bound: 0.05 * self.noise_multiplier * bound)
    found = audit(replace(SMALL, epsilon=1.0), canaries=300, method="gaussian")
    assert found.refuted and found.says == "REFUTED"


def test_repeats_have_canaries_that_count_together():
    found = audit(SMALL, canaries=50, repeats=3)
    assert found.canaries == 150 and found.trainings == 3


def test_the_black_box_trains_by_the_recipe_and_scores_the_final_model():
    found = audit(SMALL, canaries=60, box="black", worst_start=True)
    assert found.says == "not refuted" and found.canaries == 60
    assert found.score.startswith("loss of the canary at the first weights trained on public rows")


def test_canaries_of_the_black_box_are_noise_with_random_labels():
    prepared = prepare(SMALL, progress=False)
    canaries = InputCanaries.drawn(prepared, 1000, Key.from_seed(0).stream("canaries"))
    assert prepared.built.features is not None  # so that a canary is normal, and not an image in its range
    assert abs(float(canaries.inputs.mean())) < 0.05 and float(canaries.inputs.std()) == pytest.approx(1.0, abs=0.05)
    assert canaries.labels.unique().tolist() == list(range(10))


def test_scores_of_several_trainings_are_taken_beside_one_another():
    """The part of a score that is the same in all trainings says nothing about coins, and is subtracted."""
    found = audit(replace(SMALL, steps=3), canaries=30, box="black", repeats=3)
    assert sum(found.inside) + sum(found.outside) == pytest.approx(0.0, abs=1e-9)


def test_a_worst_case_start_knows_the_public_rows(monkeypatch):
    monkeypatch.setattr("sordino.effects.rare_examples._FEWEST_STEPS", 1000)  # other tests train for fewer
    prepared = prepare(replace(SMALL, seed=0), progress=False)
    first, started = prepared.built.module, from_worst_start(prepared, 0).built.module
    public = prepared.public_rows()
    assert accuracy(first, public) < 0.5 < 0.95 < accuracy(started, public)


def test_a_model_that_learns_without_privacy_gives_its_canaries_away():
    """With next to no noise, rows that are trained on for long are found in the final model."""
    recipe = replace(SMALL, epsilon=1500.0, allow_weak=True, steps=80, batch_size=1000, clip=10.0)
    prepared = prepare(replace(recipe, seed=0), progress=False)
    canaries = InputCanaries.drawn(prepared, 60, Key.from_seed(0).stream("canaries"))
    prepared = replace(prepared, examples=prepared.examples + 60)
    values, included = black_box_values(prepared, canaries, 0)
    assert values[included].mean() > values[~included].mean() + 0.8 * values.std()


def test_the_last_iterate_of_a_recipe_is_not_refuted():
    found = audit(HIDDEN, canaries=2000, method="gaussian")
    assert found.says == "not refuted" and found.epsilon <= 4.0 * (1 + 1e-9)
    assert 0 < found.bound.epsilon
    assert "last iterate" in found.score


@pytest.mark.parametrize("adjacency", [so.Adjacency.ZERO_OUT, so.Adjacency.REPLACE_ONE])
def test_the_last_iterate_comes_near_its_bound_and_stays_below(adjacency):
    plan = NoisyCGD(
        so.Cyclic(3, 8, adjacency),
        Linear(),
        clip=0.5,
        noise_multiplier=2.0,
        learning_rate=0.5,
        strength=0.02,
        trailing_steps=2,
    ).calibrated(epsilon=8.0, delta=1e-5)
    scores = last_iterate_scores(plan, canaries=1000, delta=1e-5, seed=0)
    bound = GAUSSIAN.bound(scores, np.random.default_rng(0), delta=1e-5, confidence=0.95)
    assert 4.0 < bound < 8.0


def test_a_plan_on_canaries_alone_promises_what_the_plan_does():
    plan = NoisyCGD(
        so.Cyclic(3, 8), Linear(), clip=0.5, noise_multiplier=2.0, learning_rate=0.5, radius=0.3, examples=600
    )
    promised = [each.guarantee(delta=1e-5).epsilon for each in (plan, on_canaries_alone(plan, 50))]
    assert promised[0] == pytest.approx(promised[1], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canaries": 0}, "canaries must be a whole number from 22 to 1000000, got 0"),
        ({"canaries": 21}, "canaries must be a whole number from 22 to 1000000, got 21"),
        ({"canaries": 5, "repeats": 4}, "canaries must be a whole number from 6"),
        ({"confidence": 95}, "confidence must be in"),
        ({"confidence": float("nan")}, "confidence must be in"),
        ({"delta": 2.0}, "delta"),
        ({"box": "grey"}, "box must be white or black, got 'grey'"),
        ({"method": "magic"}, "method must be one of one-run, f-dp, gaussian, clopper-pearson, got 'magic'"),
        ({"worst_start": True}, "is for the black box only"),
        ({"repeats": 0}, "repeats must be a whole number from 1"),
        ({"canaries": 700}, "canaries must be a whole number from 22 to 650"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(options, message):
    with pytest.raises(UsageError) as refused:
        audit(SMALL, **options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_without_a_number_there_are_as_many_canaries_as_fit_and_never_more_than_usual(monkeypatch):
    assert audit(replace(SMALL, steps=2)).canaries == 650  # the trainable weights of the network
    boxes = InGradients(), InRows(), InLastIterate()
    assert [box.most_canaries(HIDDEN if box is boxes[2] else SMALL) for box in boxes] == [
        650,
        10**6,
        14654,
    ]  # 5 batches

    monkeypatch.setattr(InRows, "attack", lambda *_, canaries, **__: pytest.fail(f"{canaries} canaries"))
    with pytest.raises(pytest.fail.Exception, match=r"^1000 canaries"):
        audit(SMALL, box="black")


def test_more_canaries_than_fit_are_refused_before_anything_is_prepared(monkeypatch):
    monkeypatch.setattr("sordino.attacks.audit.threat_models.prepare", lambda *_, **__: pytest.fail("was prepared"))
    with pytest.raises(UsageError, match="canaries must be a whole number from 22 to 650, got 651"):
        audit(SMALL, canaries=651)


def test_a_worst_start_of_weights_that_begin_at_zero_is_refused():
    with pytest.raises(UsageError, match="needs method dp-sgd, got noisy-cgd"):
        audit(HIDDEN, box="black", worst_start=True)


def test_the_page_says_that_it_is_internal_and_stays_out_of_runs(white, tmp_path):
    page = write_audit(white, tmp_path / "inside").read_text()
    assert "not private" in page and "not refuted" in page and "verified" not in page
    kept = json.loads((tmp_path / "inside" / "audit.json").read_text())
    assert kept["warning"].startswith("not private") and kept["epsilon"] == white.epsilon
    run = carry_out(replace(SMALL, steps=2, seed=0), tmp_path / "run", progress=False)
    before = sorted(path.name for path in run.path.iterdir())
    with pytest.raises(UsageError, match="lies in a run folder"):
        write_audit(white, run.path)
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_a_recipe_beside_which_nothing_lies_is_no_run(tmp_path):
    app = typer.Typer()
    app.command()(command)
    (tmp_path / "recipe.toml").write_text(replace(SMALL, steps=2).text())
    (tmp_path / "schema.toml").write_text("")
    called = CliRunner().invoke(app, [str(tmp_path / "recipe.toml"), "--canaries", "100", "--quiet"])
    assert called.exit_code == 0 and (tmp_path / "recipe.internal" / "audit.html").exists()


def test_an_audit_of_a_run_lies_beside_it_and_a_place_inside_is_refused_before_training(tmp_path, monkeypatch):
    run = carry_out(replace(SMALL, steps=2, seed=0), tmp_path / "run", progress=False)
    app = typer.Typer()
    app.command()(command)
    recipe, options = str(run.path / "recipe.toml"), ["--canaries", "100", "--quiet"]
    for named in (recipe, str(run.path)):
        assert CliRunner().invoke(app, [named, *options]).exit_code == 0
        (tmp_path / "run.internal" / "audit.json").unlink()
    assert "there is no run in" in str(CliRunner().invoke(app, [str(tmp_path)]).exception)
    monkeypatch.setattr("sordino.attacks.audit.audit.audit", lambda *_, **__: pytest.fail("was trained"))
    refused = CliRunner().invoke(app, [recipe, *options, "--out", str(run.path / "inside")])
    assert isinstance(refused.exception, UsageError) and "lies in a run folder" in str(refused.exception)


@pytest.fixture
def called(tmp_path):
    """Calls the command as a program, and returns its output and exit code."""
    app = typer.Typer()
    app.command()(command)
    recipe = tmp_path / "small.toml"
    recipe.write_text(SMALL.text())

    def call(*options):
        return CliRunner().invoke(app, [str(recipe), "--canaries", "100", "--quiet", *options])

    return call


def test_the_command_prints_the_proved_epsilon_and_the_lower_bound(called, tmp_path):
    done = called()
    assert done.exit_code == 0
    for text in ("epsilon proved     8.000", "epsilon by attack  at least", "0.95", "not refuted", "one-run"):
        assert text in done.output
    assert (tmp_path / "small.internal" / "audit.html").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--box", "foo"], "--box must be white or black, got 'foo'"), (["--canaries", "20"], "--canaries must be")],
)
def test_the_command_refuses_before_it_shows_a_progress_bar(options, said, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("rich.progress.Progress.start", lambda _: pytest.fail("a progress bar was shown"))
    (tmp_path / "small.toml").write_text(SMALL.text())
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(tmp_path / "small.toml"), *options])
    shown = capfd.readouterr()
    assert ended.value.code == 2 and said in shown.err and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize("number", [22, 23])
def test_the_fewest_canaries_are_enough_for_every_bound_and_fewer_are_not(number):
    def bounds(canaries):
        scores = Scores(np.arange(float(canaries)), np.arange(canaries) % 2 == 0)
        return [
            method.bound(scores, np.random.default_rng(seed), delta=1e-5, confidence=0.95)
            for method in METHODS.values()
            for seed in range(3)
        ]

    assert np.isfinite(bounds(number)).all()
    with pytest.raises(UsageError, match="canaries are too few"):
        bounds(21)


def test_the_command_says_how_many_canaries_fit(tmp_path):
    app = typer.Typer()
    app.command()(command)
    (tmp_path / "small.toml").write_text(replace(SMALL, steps=2).text())
    done = CliRunner().invoke(app, [str(tmp_path / "small.toml"), "--quiet"])
    assert "650 canaries in each training" in done.output


def test_the_command_prints_json_and_exits_with_one_if_refuted(called, monkeypatch):
    monkeypatch.setattr(so.Gaussian, "std", lambda self, bound: 0.02 * self.noise_multiplier * bound)
    done = called("--json", "--method", "gaussian", "--canaries", "600")
    assert done.exit_code == 1
    assert json.loads(done.output)["verdict"] == "REFUTED"


def test_the_command_refuses_before_data_is_touched(called, monkeypatch):
    monkeypatch.setattr("sordino.recipes.prepared.load", lambda *_, **__: pytest.fail("data was touched"))
    done = called("--confidence", "1.5")
    assert isinstance(done.exception, SordinoError) and done.exception.exit_code == 2
