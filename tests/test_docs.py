"""The examples in README and docs run, and promise what they say."""

import doctest
import json
import re
import runpy
import sys

import pytest
from pages import ROOT, run_examples


def test_the_readme_runs_and_its_guarantees_hold(capsys):
    names = run_examples("README.md")
    assert 2.9 < names["fitted"].guarantee.epsilon <= 3.0
    assert 2.9 < names["plan"].guarantee(delta=1e-4).epsilon <= 3.0
    assert names["budget"].guarantee(delta=1e-4).epsilon <= 4.0
    assert capsys.readouterr().out.count("zero-out") >= 2


@pytest.mark.usefixtures("quick_verification")
def test_the_quickstart_runs_and_its_guarantees_hold():
    names = run_examples("docs/quickstart.md")
    assert 2.9 < names["fitted"].guarantee.epsilon <= 3.0
    assert names["verdict"].passed


def test_the_page_about_hidden_states_runs():
    guarantee = run_examples("docs/hidden-state.md")["fitted"].guarantee
    assert 2.99 < guarantee.epsilon <= 3.0 and guarantee.accountant == "hidden-state"


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks transformers for it
def test_the_page_about_fine_tuning_runs_and_its_guarantees_hold(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_examples("docs/fine-tuning.md", commands=True)
    assert 7.9 < names["fitted"].guarantee.epsilon <= 8.0
    assert 2.9 < names["run"].guarantee(delta=1e-3).epsilon <= 3.0
    assert 2.9 < names["trainer"].guarantee.epsilon <= 3.0
    output = capsys.readouterr().out
    assert "NextTokenLoss(over_tokens='sum')" in output and "100.0% of the trained numbers are taped" in output
    assert names["trained"].config.id2label == {0: "bad", 1: "good"}
    assert (tmp_path / "runs/adapters/model/adapter_config.json").exists()


def test_the_page_about_training_runs():
    assert run_examples("docs/training.md")


def test_the_page_about_loops_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_examples("docs/own-loop.md")
    assert names["continued"].guarantee(delta=1e-3).epsilon > names["plan"].guarantee(delta=1e-3).epsilon


def test_the_page_about_pitfalls_runs_and_says_what_shuffled_batches_cost(capsys):
    names, page = run_examples("docs/pitfalls.md"), (ROOT / "docs" / "pitfalls.md").read_text()
    for plan in ("poisson", "shuffled"):
        assert f"{plan}.guarantee(delta=1e-5).epsilon)  # {names[plan].guarantee(delta=1e-5).epsilon:.1f}\n" in page
    of_runs = [float(number) for line in capsys.readouterr().out.splitlines()[2:4] for number in line.split()]
    assert all(0.9 < epsilon <= 1.0 for epsilon in of_runs[:3]) and 1.0 < of_runs[3] <= 2.0
    assert names["budget"].guarantee(delta=1e-4).epsilon <= 2.0


@pytest.mark.parametrize("page", ["data", "gradients"])
def test_a_page_with_an_example_and_no_promise_runs(page):
    assert run_examples(f"docs/{page}.md")


def test_the_examples_of_the_page_about_accounting_print_what_it_shows():
    found = doctest.testfile(str(ROOT / "docs" / "accounting.md"), module_relative=False)
    assert found.attempted >= 8 and not found.failed


def test_the_page_about_least_squares_runs_and_its_guarantee_holds(capsys):
    names = run_examples("docs/sufficient-statistics.md")
    assert 0.9 < names["fitted"].guarantee.epsilon <= 1.0 and names["predicted"].shape == (1000,)


@pytest.mark.usefixtures("quick_verification")
def test_the_page_about_verification_runs_and_refutes_nothing(capsys):
    names = run_examples("docs/verification.md")
    assert names["verdict"].passed and "not refuted" in names["page"]


def test_the_page_about_members_finds_those_of_a_model_without_privacy(capsys):
    assert all(roc.auc().low > 0.6 for roc in run_examples("docs/membership.md")["found"].values())


def test_the_page_about_audits_shows_less_than_is_claimed(capsys):
    names = run_examples("docs/auditing.md")
    assert set(names["shown"]) == {"one-run", "f-dp", "gaussian", "clopper-pearson"}
    assert max(names["shown"].values()) <= names["claimed"]


def test_the_page_about_reconstruction_runs():
    names = run_examples("docs/reconstruction.md")
    assert names["found"].low <= names["half"].expected_squared_error <= names["found"].high


def test_the_demo_reaches_ninety_percent_at_epsilon_three(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["digits.py"])
    runpy.run_path(str(ROOT / "examples" / "digits.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert float(re.search(r"Test accuracy ([\d.]+) %", output)[1]) >= 90
    assert "epsilon = 3.000" in output and "remove the noise" in output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks transformers for it
@pytest.mark.parametrize("example", ["synthetic_text", "low_rank_adapters"])
def test_a_language_model_learns_from_private_notes_and_writes_others(example, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="__main__")
    output = capsys.readouterr().out
    before, after = (int(share) for share in re.findall(r"(\d+)% of samples", output))
    assert before < 30 and after > 60
    assert "epsilon = 8.000" in output


def test_the_number_in_the_readme_is_that_of_its_result_file():
    result = json.loads((ROOT / "results" / "digits.json").read_text())
    assert f"{100 * result['mean_test_accuracy']:.1f} %" in (ROOT / "README.md").read_text()
    assert {"command", "commit", "seeds", "machine"} <= result.keys()


def test_the_accuracies_in_the_readme_are_those_of_their_result_file():
    result, readme = json.loads((ROOT / "results" / "accuracy.json").read_text()), (ROOT / "README.md").read_text()
    means = {(m["data"], m["target_epsilon"]): m for m in result["means"] if m["model"] == "scatter-linear"}
    for data in ("mnist", "fashion-mnist"):
        shown = [f"{100 * means[data, epsilon]['mean_test_accuracy']:.1f} %" for epsilon in (1.0, 3.0)]
        assert f"| {data} | {shown[0]} | {shown[1]} |" in readme
        assert all(means[data, epsilon]["seeds"] == 3 for epsilon in (1.0, 3.0))
    pixels = {m["data"]: m for m in result["means"] if m["model"] == "dp-cnn-s" and m["target_epsilon"] == 3.0}
    shown = [f"{100 * pixels[data]['mean_test_accuracy']:.1f} %" for data in ("mnist", "fashion-mnist")]
    assert f"`--model dp-cnn-s` reaches {shown[0]} and {shown[1]} at epsilon 3" in readme
    assert all(means[place]["most_seconds"] < 300 for place in means)
    assert all({"command", "commit", "seed", "machine", "recipe"} <= row.keys() for row in result["rows"])


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "papers").rglob("*.md")]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in sorted(PAGES)])
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_page_about_optimised_noise_runs_and_its_guarantees_hold(capsys):
    names = run_examples("docs/optimized-noise.md")
    assert names["released"].guarantee.epsilon <= 1.0
    assert 0.9 < names["fitted"].guarantee.epsilon <= 1.0
    assert "weighted laplace" in capsys.readouterr().out.lower()
