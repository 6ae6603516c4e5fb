"""`sordino plan` from end to end: what it prints can be signed, typed in again, and read by a program."""

import json
import re
import subprocess
import sys

import pytest

from sordino import Adjacency
from sordino.accounting import Unit, View
from sordino.recipes.planning import Question, SamplerName, solve

MNIST = ["plan", "--examples", "60000", "--batch-size", "256", "--steps", "14062", "--delta", "1e-5"]
SMALL = ["plan", "--examples", "1000", "--batch-size", "100", "--delta", "1e-5"]
ADJACENCIES = {str(adjacency) for adjacency in Adjacency}
ACCOUNTANTS = {"exact-gaussian", "pld", "rdp", "random-allocation", "composition-without-amplification"}


def shown(text, name):
    """The value that a printed plan shows beside a name, without the mark of what was solved."""
    (line,) = [line for line in text.splitlines() if line.startswith(name + "  ")]
    return line.removeprefix(name).removesuffix("<- solved").strip()


def in_a_process_of_its_own(*arguments):
    command = [sys.executable, "-W", "error", "-c", "from sordino.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_answers_the_standard_question():
    ended = in_a_process_of_its_own(*MNIST, "--noise-multiplier", "1.1", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert 2.3714 <= json.loads(ended.stdout)["epsilon"] <= 2.3918


def test_the_command_refuses_in_one_line():
    ended = in_a_process_of_its_own(*MNIST, "--noise-multiplier", "nan")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "sordino: --noise-multiplier must be a finite number above 0, got nan.\n"


def test_json_holds_everything_that_an_epsilon_means_nothing_without(run):
    plan = json.loads(run(*MNIST, "--noise-multiplier", 1.1, "--json"))
    assert 2.3714 <= plan["epsilon"] <= 2.3918
    assert (plan["delta"], plan["noise_multiplier"], plan["steps"]) == (1e-5, 1.1, 14062)
    assert plan["sample_rate"] == 256 / 60000
    assert plan["sampler"] in set(SamplerName)
    assert plan["adjacency"] in ADJACENCIES
    assert plan["unit"] in set(Unit)
    assert plan["view"] in set(View)
    assert plan["accountant"] in ACCOUNTANTS
    assert isinstance(plan["assumptions"], list)
    assert "group of four" in plan["statement"] and "At 1 % false alarms" in plan["statement"]


@pytest.mark.parametrize("sampler", list(SamplerName))
def test_each_sampler_answers_in_text_and_in_json(run, sampler):
    arguments = [*SMALL, "--epochs", 2, "--noise-multiplier", 2, "--sampler", sampler]
    plan = json.loads(run(*arguments, "--json"))
    text = run(*arguments)
    assert plan["sampler"] == shown(text, "sampler") == sampler
    expected = "replace-one" if sampler is SamplerName.FIXED_SIZE else "zero-out"
    assert plan["adjacency"] == shown(text, "adjacency") == expected
    printed, adjacency = re.fullmatch(r"([\d.]+) under (\S+)", shown(text, "epsilon")).groups()
    assert adjacency == expected
    assert plan["epsilon"] <= float(printed) <= plan["epsilon"] * 1.0001


UNKNOWNS = {
    "noise multiplier": ["--steps", 50, "--epsilon", 2],
    "epsilon": ["--steps", 50, "--noise-multiplier", 1.5],
    "steps": ["--epsilon", 2, "--noise-multiplier", 1.5],
    "delta": ["--epsilon", 3, "--noise-multiplier", 2, "--steps", 50],
    "batch size": ["--epsilon", 2, "--noise-multiplier", 1.5, "--steps", 50],
}


@pytest.mark.parametrize("unknown", UNKNOWNS)
def test_each_unknown_is_solved_and_marked(run, unknown):
    known = [argument for argument in SMALL if not (unknown == "delta" and argument in ("--delta", "1e-5"))]
    known = [argument for argument in known if not (unknown == "batch size" and argument in ("--batch-size", "100"))]
    text = run(*known, *UNKNOWNS[unknown])
    (marked,) = [line for line in text.splitlines() if line.endswith("<- solved")]
    assert marked.startswith(unknown + " ")
    assert json.loads(run(*known, *UNKNOWNS[unknown], "--json"))["solved_for"] == unknown


@pytest.mark.parametrize("target", [0.5, 3.0])
def test_a_printed_noise_multiplier_typed_in_again_meets_the_target(run, target):
    printed = shown(run(*SMALL, "--steps", 50, "--epsilon", target), "noise multiplier")
    again = json.loads(run(*SMALL, "--steps", 50, "--noise-multiplier", printed, "--json"))
    assert 0.999 * target <= again["epsilon"] <= target


def test_the_printed_epsilon_is_never_below_the_exact_one(run):
    for multiplier in (0.7, 1.3, 2.9):
        text = run(*SMALL, "--steps", 20, "--noise-multiplier", multiplier)
        question = Question(1000, 100, steps=20, noise_multiplier=multiplier, delta=1e-5)
        exact = solve(question).guarantee.epsilon
        printed = float(shown(text, "epsilon").split()[0])
        signed = float(re.search(r"with epsilon = ([\d.]+) and", text).group(1))
        assert exact <= printed <= exact * 1.0001
        assert exact <= signed <= exact * 1.01


def test_what_was_given_is_shown_as_it_was_given(run):
    text = run(*MNIST, "--noise-multiplier", 1.1)
    assert shown(text, "noise multiplier") == "1.1"
    assert shown(text, "delta") == "1e-05"


def test_without_a_delta_the_usual_one_is_taken_and_said(run):
    text = run("plan", "--examples", 60000, "--batch-size", 256, "--epochs", 1, "--noise-multiplier", 1)
    assert shown(text, "delta") == "1e-05"
    assert "(delta was not given: 1e-05 is the largest power of ten below 1 / examples)" in text


def test_epochs_and_steps_exclude_each_other(refused):
    said = refused(*SMALL, "--epochs", 2, "--steps", 20, "--noise-multiplier", 1)
    assert said == "sordino: --epochs and --steps exclude each other: give one of them.\n"


def test_epochs_are_as_many_steps_as_they_need(run):
    plan = json.loads(run(*SMALL, "--epochs", 3, "--noise-multiplier", 2, "--json"))
    assert (plan["steps"], plan["epochs"]) == (30, 3.0)


def test_a_statement_is_one_plain_paragraph(run):
    *_, before, paragraph = run(*SMALL, "--steps", 10, "--noise-multiplier", 1).splitlines()
    assert before == ""
    assert paragraph.startswith("The output is differentially private")
    assert "group of four" in paragraph and "no membership attack finds more than" in paragraph
    assert "\x1b" not in paragraph


def test_a_comparison_shows_every_sampler_and_accountant_with_its_adjacency(run):
    arguments = [*SMALL, "--epochs", 2, "--noise-multiplier", 2, "--compare"]
    _, empty, headings, *lines = run(*arguments).splitlines()
    assert empty == "" and headings.split() == ["sampler", "adjacency", "accountant", "epsilon"]
    rows = [line.split() for line in lines]
    assert {row[0] for row in rows} == set(SamplerName)
    assert {row[1] for row in rows} == {"zero-out", "replace-one"}
    assert {row[2] for row in rows} == ACCOUNTANTS
    compared = json.loads(run(*arguments, "--json"))
    assert compared["delta"] == 1e-5 and compared["noise_multiplier"] == 2
    same = [[row["sampler"], row["adjacency"], row["accountant"]] for row in compared["rows"]]
    assert same == [row[:3] for row in rows]
    for row, exact in zip(rows, compared["rows"], strict=True):
        assert exact["epsilon"] <= float(row[3]) <= exact["epsilon"] * 1.0001


def test_no_word_is_cut_in_a_narrow_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = run(*SMALL, "--epochs", 2, "--noise-multiplier", 2, "--compare")
    assert "composition-without-amplification" in text and "…" not in text


@pytest.mark.parametrize("batch_size", [1000, 100])
def test_ten_gaussians_under_replace_one_never_cost_less_than_they_do(run, batch_size):
    """The trap: an accountant that forgets the adjacency says 2.81 where 5.76 is right."""
    numbers = ["--batch-size", batch_size, "--epochs", 10, "--noise-multiplier", 5, "--delta", 1e-5]
    arguments = ["plan", "--examples", 1000, *numbers, "--sampler", "shuffled", "--adjacency", "replace-one"]
    rows = json.loads(run(*arguments, "--compare", "--json"))["rows"]
    assert {row["adjacency"] for row in rows} == {"replace-one"}
    partitions = [row for row in rows if batch_size == 1000 or row["sampler"] in ("shuffled", "cyclic")]
    assert len(partitions) >= 6
    assert all(row["epsilon"] > 5.75 for row in partitions)
    assert 5.75 < json.loads(run(*arguments, "--json"))["epsilon"] < 5.77


def test_a_comparison_falls_back_to_the_adjacency_that_a_sampler_has(run):
    arguments = [*SMALL, "--epochs", 1, "--noise-multiplier", 2, "--adjacency", "add-or-remove", "--compare", "--json"]
    found = {row["sampler"]: row["adjacency"] for row in json.loads(run(*arguments))["rows"]}
    assert found["poisson"] == found["balls-in-bins"] == "add-or-remove"
    assert found["shuffled"] == found["cyclic"] == found["truncated-poisson"] == "zero-out"
    assert found["fixed-size"] == "replace-one"


def test_every_epsilon_printed_carries_its_adjacency(run):
    arguments = [*SMALL, "--epochs", 1, "--noise-multiplier", 2]
    for line in run(*arguments, "--adjacency", "replace-one").splitlines():
        if "epsilon" in line:
            assert "replace-one" in line


def test_a_weak_epsilon_is_called_so(run):
    assert "an epsilon above 20 is next to no protection" in run(*SMALL, "--steps", 10, "--noise-multiplier", 0.3)


def test_an_unknown_sampler_is_answered_with_the_known_ones(refused):
    said = refused(*SMALL, "--steps", 10, "--noise-multiplier", 1, "--sampler", "shuffle")
    assert f"--sampler must be one of {', '.join(SamplerName)}, got 'shuffle'" in said


def test_a_misspelt_flag_is_answered_with_a_suggestion(refused):
    assert "--noise-multiplier" in refused(*SMALL, "--steps", 10, "--noise-multiplyer", 1)
    assert "plan" in refused("plam")


def test_two_unknowns_are_named(refused):
    assert "got steps and epsilon left out" in refused(*SMALL, "--noise-multiplier", 1)
    assert "got none left out" in refused(*SMALL, "--steps", 10, "--noise-multiplier", 1, "--epsilon", 1)


def test_a_solved_delta_that_is_too_large_is_refused(refused):
    arguments = ["plan", "--examples", 1000, "--batch-size", 100, "--steps", 10, "--noise-multiplier", 1]
    assert "delta must be below 1 / examples = 0.001, got 0.00" in refused(*arguments, "--epsilon", 1)


def test_help_names_every_option(run):
    text = run("plan", "--help")
    options = ("--examples", "--batch-size", "--epochs", "--steps", "--noise-multiplier", "--epsilon", "--delta")
    for option in (*options, "--sampler", "--adjacency", "--unit", "--compare", "--tight", "--json"):
        assert option in text
    assert "plan" in run() and run() == run("--help")
