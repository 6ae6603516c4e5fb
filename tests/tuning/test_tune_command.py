"""`sordino tune` from end to end: what it promises, what it leaves, what it refuses, and how it goes on."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from sordino.cli import main
from sordino.recipes import Recipe
from sordino.training.run_folder import RunFolder
from sordino.tuning import Task
from sordino.tuning.search import Search
from sordino.tuning.search_state import SearchCheckpoint

TARGET = ["--data", "digits", "--model", "linear", "--epsilon", "3", "--delta", "1e-4"]
# All rows in each batch: the accountant answers for a random number of such trainings a hundred times as fast.
TUNE = ["tune", *TARGET, "--batch-size", "1437", "--steps", "3", "--rule", "clip-momentum", "--quiet"]
SMALL = ["--momenta", "0,0.9", "--factors", "2"]
REPEAT = ["--payment", "repeat", "--trials", "2", "--shape", "0"]
FILES = {"recipe.toml", "facts.json", "metrics.jsonl", "model.safetensors", "privacy.json", "tuning.json"}


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def tuned_by(payment, folder):
    with pytest.raises(SystemExit) as ended:
        main([*TUNE, *SMALL, *payment, "--seed", "0", "--out", str(folder)])
    assert ended.value.code == 0
    return folder


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    return tuned_by(["--payment", "compose"], tmp_path_factory.mktemp("composed") / "run")


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    return tuned_by(REPEAT, tmp_path_factory.mktemp("repeated") / "run")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def privacy(folder):
    return json.loads((folder / "privacy.json").read_text())


@pytest.mark.parametrize("payment", ["composed", "repeated"])
def test_the_promise_counts_every_trial_and_meets_the_target(payment, request):
    folder = request.getfixturevalue(payment)
    promised = privacy(folder)
    assert 2.9 < promised["epsilon"] <= 3
    assert promised["tuning"]["candidates"] == [2, 1]
    assert ("RepeatAndSelectDpEvent" in promised["event"]) == (payment == "repeated")
    assert {path.name for path in folder.iterdir()} == FILES and not RunFolder(folder).private.exists()


def test_the_noise_is_larger_than_that_of_one_training(composed, repeated, run):
    run("train", composed / "recipe.toml", "--quiet", "--out", "once")
    once = privacy(Path("once"))["noise_multiplier"]
    assert privacy(composed)["noise_multiplier"] > 1.1 * once
    assert privacy(repeated)["noise_multiplier"] > 1.1 * once


@pytest.mark.parametrize("payment", ["composed", "repeated"])
def test_no_command_shows_a_smaller_epsilon(payment, request, run):
    folder = request.getfixturevalue(payment)
    full = privacy(folder)["epsilon"]
    [row] = json.loads(run("runs", folder, "--json"))["rows"]
    assert row["epsilon"] == full and row["state"] == "finished"
    assert all(json.loads(line)["epsilon"] == full for line in (folder / "metrics.jsonl").read_text().splitlines())
    run("report", folder, "--out", "card")
    card = json.loads(Path("card/report.json").read_text())
    assert card["guarantee"]["epsilon"] == full
    assert "spending" not in card  # its lines would be those of one trial
    found = [
        float(number) for number in re.findall(r"(?:ε|epsilon)\s*=\s*([\d.]+)", Path("card/report.html").read_text())
    ]
    assert found and min(found) >= full


def test_a_promise_that_leaves_trials_out_is_refused(composed, refused, tmp_path):
    for name, content in contents(composed).items():
        (tmp_path / name).write_bytes(content)
    promised = privacy(tmp_path)
    promised["epsilon"] /= 2
    (tmp_path / "privacy.json").write_text(json.dumps(promised))
    assert "its event proves" in refused("report", tmp_path, code=5)


def test_with_a_random_number_nothing_in_the_folder_tells_how_many_trials_there_were(repeated):
    kept = json.loads((repeated / "tuning.json").read_text())
    assert kept.keys() == {"search"} and len((repeated / "metrics.jsonl").read_text().splitlines()) == 1


def test_composed_trials_may_all_be_seen(composed):
    rows = json.loads((composed / "tuning.json").read_text())["trials"]
    best = max(rows, key=lambda row: row["score"])
    recipe = Recipe.of_run(RunFolder(composed))
    assert len(rows) == 3 and (recipe.clip, recipe.momentum) == (best["clip"], best["momentum"])
    assert recipe.seed is None


def test_the_best_settings_and_the_whole_statement_are_printed(repeated, run):
    printed = run("tune", "--resume", repeated)
    recipe = Recipe.of_run(RunFolder(repeated))
    assert f"clip      {recipe.clip:.6g}" in printed and f"momentum  {recipe.momentum:.6g}" in printed
    assert printed.splitlines()[-1] == privacy(repeated)["statement"]
    assert "stay secret" in printed and "the final model only" in printed


def test_nobody_hears_of_trials_whose_number_is_secret(capsys):
    shown = []
    for seed in range(3):
        with pytest.raises(SystemExit):
            main([*TUNE[:-1], *SMALL, *REPEAT, "--seed", str(seed), "--out", f"run {seed}"])
        shown.append(capsys.readouterr())
    assert {each.err for each in shown} == {""}
    assert len({len(each.out.splitlines()) for each in shown}) == 1


def stopped_before(trial, monkeypatch, *arguments):
    """Runs a tuning that ends as soon as this trial would begin its work."""
    begun, original = 0, Task.attempt

    def attempt(self, wanted):
        nonlocal begun
        begun += 1
        if begun > trial:
            raise Killed
        return original(self, wanted)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Task, "attempt", attempt)
        main([str(argument) for argument in arguments])


@pytest.mark.parametrize("trial", [0, 2])
def test_a_tuning_that_was_killed_goes_on_to_the_same_end(trial, composed, run, refused, monkeypatch):
    stopped_before(trial, monkeypatch, *TUNE, *SMALL, "--seed", 0, "--out", "killed")
    assert RunFolder("killed").private.stat().st_mode & 0o777 == 0o700
    assert privacy(Path("killed")) == privacy(composed)
    assert "no run" in refused("train", "--resume", "killed")  # one training would promise less than was spent
    assert "no run" in refused("runs", "killed")
    assert "is not empty" in refused(*TUNE, "--out", "killed")
    run("tune", "--resume", "killed", "--quiet")
    assert contents("killed") == contents(composed)


def test_a_tuning_that_was_asked_to_stop_says_how_to_go_on_and_not_how_far_it_came(refused, run, monkeypatch):
    original = SearchCheckpoint.before_trial

    def asked(self, standing):
        self._asked.to_stop = standing.scores != ()
        original(self, standing)

    with monkeypatch.context() as patch:
        patch.setattr(SearchCheckpoint, "before_trial", asked)
        said = refused(*TUNE, *SMALL, *REPEAT, "--seed", 2, "--out", "out", code=75)
    assert said == ("sordino: stopped between two trials; nothing is lost, resume it. sordino tune --resume 'out'\n")
    run("tune", "--resume", "out", "--quiet")
    assert RunFolder("out").is_finished


def test_a_tuning_without_its_private_folder_is_never_begun_again(refused, monkeypatch):
    stopped_before(0, monkeypatch, *TUNE, *SMALL, "--out", "out")
    Path("out.private").rename("elsewhere")
    assert "cannot be continued" in refused("tune", "--resume", "out", code=5)


def public_rows(path):
    """Arrays with test rows, which anybody may see."""
    inputs = np.random.default_rng(0).standard_normal((400, 8))
    target = (inputs[:, 0] > 0).astype(np.int64)
    arrays = {"inputs": inputs[:300], "target": target[:300], "test_inputs": inputs[300:], "test_target": target[300:]}
    np.savez(path, **arrays)
    facts = "confirmed_public = true\n[inputs]\nshape = [8]\nrange = [-5, 5]\n[target]\nclasses = 2"
    Path("public.toml").write_text(facts)
    return ["--payment", "public", "--public-data", str(path), "--public-schema", "public.toml"]


def test_what_is_tuned_on_public_rows_is_trained_on_private_ones_once(run):
    run(*TUNE, *SMALL, *public_rows("rows.npz"), "--batch-size", 200, "--seed", 0, "--out", "public")
    promised, trials = privacy(Path("public")), json.loads(Path("public/tuning.json").read_text())["trials"]
    assert 2.9 < promised["epsilon"] <= 3 and promised["event"].count("count=3)") == 1
    best = max(trials, key=lambda row: row["score"])
    assert Recipe.of_run(RunFolder("public")).clip == pytest.approx(best["clip"])


def test_a_whole_grid_is_one_stage_of_a_random_number_of_trials(run):
    run(*TUNE, *SMALL, *REPEAT, "--one-stage", "--seed", 0, "--out", "grid")
    promised = privacy(Path("grid"))
    assert promised["tuning"]["candidates"] == [4] and promised["event"].count("RepeatAndSelectDpEvent") == 1


def test_adam_is_tuned_and_its_momentum_reaches_the_recipe(run):
    run(
        *TUNE, "--optimizer", "adam", "--lr", "0.01", "--momenta", "0.5", "--factors", "2", "--seed", 0, "--out", "adam"
    )
    assert Recipe.of_run(RunFolder("adam")).momentum in (0.5, 0.9)
    assert privacy(Path("adam"))["tuning"]["candidates"] == [2, 1]


def test_the_card_of_a_tuned_model_says_what_was_searched_and_that_there_was_a_seed(run, composed):
    run("report", composed, "--out", "card")
    page = next(path for path in Path("card").rglob("*.html")).read_text()
    search = "of 2 and then 1 candidates by the rule clip-momentum, accounted for by compose"
    assert f"a whole search for settings ({search})" in page
    assert "with 3 steps and a score in each trial" in page and "steps that were planned" not in page
    assert "anyone who knows the seed of this run" in page and "fresh randomness" not in page


@pytest.mark.parametrize("private", ["rows.npz", "./rows.npz", "linked.npz"])
def test_private_rows_are_not_public_by_another_name(private, refused, monkeypatch):
    options = public_rows("rows.npz")
    Path("linked.npz").symlink_to("rows.npz")
    monkeypatch.setattr("sordino.tuning.recipe_search.prepare", lambda *_, **__: pytest.fail("data was touched"))
    said = refused(*TUNE, "--data", private, "--schema", "public.toml", *options, "--out", "out")
    assert "--public-data must be another dataset than the private one, got 'rows.npz' for both" in said


def test_public_rows_are_tried_in_their_own_number(run):
    search = Search(payment="public", public_data="rows.npz")
    recipe = Recipe("mnist", "linear", 3.0, 1e-5, adjacency="add-or-remove", expected_examples=60_000)
    tried = search.on_public_rows(recipe)
    assert (tried.data, tried.adjacency, tried.expected_examples) == ("rows.npz", None, None)
    other = search.on_public_rows(recipe.changed(adjacency="replace-one", expected_examples=None))
    assert other.adjacency == "replace-one"


@pytest.mark.parametrize(
    "nothing_to_vary", [["--factors", "1"], ["--optimizer", "adam", "--lr", "0.01", "--momenta", "0.9"]]
)
def test_a_stage_without_candidates_is_neither_tried_nor_paid_for(nothing_to_vary, run):
    run(*TUNE, *REPEAT, *nothing_to_vary, "--seed", 0, "--out", "one")
    promised = privacy(Path("one"))
    assert promised["tuning"]["candidates"][1] == 0 and promised["event"].count("RepeatAndSelectDpEvent") == 1


@pytest.mark.parametrize("change", ["rows", "search"])
def test_what_is_refused_to_go_on_leaves_the_promise_as_it_was(change, refused, monkeypatch):
    public_rows("rows.npz")
    data = ["--data", "rows.npz", "--schema", "public.toml", "--delta", "1e-3", "--batch-size", "50"]
    stopped_before(1, monkeypatch, *TUNE, *SMALL, *data, "--out", "out")
    before = Path("out/privacy.json").read_bytes()
    if change == "rows":
        arrays = dict(np.load("rows.npz"))
        np.savez("rows.npz", **{name: np.concatenate([rows, rows]) for name, rows in arrays.items()})
    else:
        path = Path("out/tuning.json")
        path.write_text(path.read_text().replace('"score_std": 0.01', '"score_std": 0.02'))
    assert "belongs to another run" in refused("tune", "--resume", "out", "--quiet", code=5)
    assert Path("out/privacy.json").read_bytes() == before


def test_two_commands_do_not_tune_into_one_folder(refused, monkeypatch):
    Path("out.private").mkdir()
    Path("out.private/key.json").write_text("of another")
    monkeypatch.setattr(RunFolder, "is_free", True)  # it was, when both of them looked
    assert "another command is searching in 'out'" in refused(*TUNE, *SMALL, "--out", "out")
    assert Path("out.private/key.json").read_text() == "of another"


LAST = {"composed": 3, "repeated": 4}  # trials with seed 0: 2 + 1 candidates; 1 and then 3 are drawn


def signalled(trial, number, patch):
    """Somebody asks to stop while this trial, counted from 1, is at work. Gives the trials that began."""
    begun, original = [], Task.attempt

    def attempt(self, wanted):
        begun.append(wanted.candidate)
        if len(begun) == trial:
            os.kill(os.getpid(), number)
        return original(self, wanted)

    patch.setattr(Task, "attempt", attempt)
    return begun


def again(payment, folder):
    return [*TUNE, *SMALL, *(REPEAT if payment == "repeated" else []), "--seed", "0", "--out", folder]


@pytest.mark.parametrize("payment", ["composed", "repeated"])
def test_a_signal_in_the_last_trial_stops_nothing_and_is_passed_on_when_all_is_said(
    payment, request, monkeypatch, capsys
):
    whole = request.getfixturevalue(payment)
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        begun = signalled(LAST[payment], signal.SIGINT, patch)
        main(again(payment, "out"))
    assert getattr(ended.value, "code", 130) != 0 and len(begun) == LAST[payment]
    assert privacy(whole)["statement"] in capsys.readouterr().out
    assert contents("out") == contents(whole) and not RunFolder("out").private.exists()


@pytest.mark.parametrize("payment", ["composed", "repeated"])
def test_a_second_signal_in_the_last_trial_ends_at_once_and_the_trial_is_repeated(payment, request, run, monkeypatch):
    whole = request.getfixturevalue(payment)
    with monkeypatch.context() as patch:
        begun = signalled(LAST[payment], signal.SIGINT, patch)
        once = Task.attempt

        def twice(self, wanted):
            if len(begun) == LAST[payment] - 1:
                os.kill(os.getpid(), signal.SIGINT)  # the first; `signalled` sends the second
            return once(self, wanted)

        patch.setattr(Task, "attempt", twice)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(again(payment, "out"))
    assert not Path("out/recipe.toml").exists() and RunFolder("out").private.exists()
    run("tune", "--resume", "out", "--quiet")
    assert contents("out") == contents(whole)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rule", "grid"], "rule must be one of clip-momentum"),
        (["--payment", "free"], "payment must be one of compose, repeat, public"),
        (["--trials", "0"], "--trials must be in [1, 500], got 0.0"),
        (["--trials", "4"], "--trials needs --payment repeat, got --trials 4.0 with --payment compose, which tries"),
        (["--payment", "repeat", "--trials", "0.5"], "--trials must be in [1, 500], got 0.5"),
        (["--payment", "public"], "--public-data and --payment public need each other, got --payment public: give"),
        (["--public-data", "mnist"], "--public-data and --payment public need each other, got --payment compose"),
        (["--public-schema", "a.toml"], "--public-schema needs --public-data"),
        (["--momenta", "0,1"], "--momenta[1] must be in [0, 1)"),
        (["--momenta", "0,x"], "must be numbers separated by commas"),
        (["--factors", "0"], "--factors[0] must be a finite number above 0"),
        (["--score-std", "0"], "--score-std must be in"),
        (["--epsilon", "0"], "epsilon must be"),
        (["--resume", "out"], "give no settings besides --resume"),
        (["--payment", "public", "--public-data", "digits"], "another dataset than the private one, got 'digits'"),
        (["--payment", "repeat", "--shape", "inf"], "--shape must be in"),
    ],
)
def test_bad_input_gets_one_line_before_data_is_touched(options, said, refused, monkeypatch):
    monkeypatch.setattr("sordino.tuning.recipe_search.prepare", lambda *_, **__: pytest.fail("data was touched"))
    assert said in refused(*TUNE, *options)
    assert list(Path().iterdir()) == []


def test_methods_without_momentum_are_refused(refused):
    Path("recipe.toml").write_text(Recipe("digits", "gated-relu", 3.0, 1e-4, method="noisy-cgd").text())
    assert "method must be dp-sgd" in refused("tune", "recipe.toml")


def test_a_search_on_public_rows_that_cannot_begin_leaves_no_folder(refused):
    refused(*TUNE, "--payment", "public", "--public-data", "nothing.npz")
    assert [path for path in Path().rglob("*") if path.name != "runs"] == []


def test_a_tuning_that_cannot_begin_leaves_no_folder(refused):
    refused(*TUNE, "--data", "nothing.csv", "--out", "out", code=2)
    refused(*TUNE, "--delta", "0.5", "--out", "out")
    assert list(Path().iterdir()) == []


def test_resuming_what_is_no_tuning_is_refused(refused):
    assert "no search" in refused("tune", "--resume", "nowhere")
    Path("out").mkdir()
    Path("out/tuning.json").write_text("{}")
    assert "is damaged" in refused("tune", "--resume", "out", code=5)
