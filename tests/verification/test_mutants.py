"""Known bugs, planted one at a time: a check must find each, and find nothing in the correct kernel."""

import pytest
from mutants import MUTANTS, OF_OPTIMIZED_NOISE, OF_PLACES, Mutant, planted

from sordino.optimized_noise import best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import FromReleases
from sordino.verification import Verdict
from sordino_papers.attacks import which_tool
from sordino_papers.attacks.which_tool import (
    AuditBounds,
    BugDetection,
    run_audits,
    verify_noise,
    verify_places,
    verify_small_run,
)
from sordino_papers.harness.entry import RunScale


def test_what_was_planted_is_gone_afterwards_also_after_an_error():
    class Kernel:
        def add(self):
            return "honest"

    class Special(Kernel):
        pass

    def plant(patch):
        patch.set(Special, "add", lambda self: "mutated")
        patch.set(Kernel, "add", lambda self: "mutated too")

    with pytest.raises(ZeroDivisionError), planted(Mutant("a mutant", "a check", plant)):
        assert Special().add() == "mutated" and Kernel().add() == "mutated too"
        _ = 1 / 0
    assert Special().add() == Kernel().add() == "honest"
    assert "add" not in vars(Special)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant):
    with planted(mutant):
        found = verify_small_run()
    assert not found.passed
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("mutant", OF_OPTIMIZED_NOISE, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught_in_optimized_noise(mutant):
    with planted(mutant):
        found = verify_noise(OptimizedNoise(1.0))
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("mutant", OF_PLACES, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught_in_a_model_of_places(mutant):
    with planted(mutant):
        found = verify_places()
    assert mutant.caught_by in found.failed_checks


def test_a_clean_model_of_places_raises_no_alarm():
    assert verify_places().passed, str(verify_places())


@pytest.mark.parametrize("fit", [best_blocks, weighted_laplace, isotropic])
def test_clean_optimized_noise_raises_no_alarm(fit):
    found = verify_noise(OptimizedNoise(1.0, FromReleases(0.8), fit=fit))
    assert found.passed, str(found)


def test_a_whole_verification_of_optimized_noise_raises_no_alarm():
    found = verify_small_run(noise=OptimizedNoise(1.0, FromReleases(0.8)))
    assert found.passed, str(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_kernel_raises_no_alarm(seed):
    found = verify_small_run(seed=seed)
    assert found.passed, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_clean_kernels_raise_no_alarm(seed):
    found = verify_small_run(seed=seed)
    assert found.passed, str(found)


def test_an_audit_of_the_clean_kernel_stays_below_the_claim_and_sees_noise_that_is_missing():
    clean = run_audits(canaries=500, repeats=2)
    assert 5.14 < clean.claim < 5.15  # Poisson at 0.1, noise 1, 50 steps, delta 1e-5
    assert not any(clean.refutes(method) for method in clean.bounds)
    with planted(next(mutant for mutant in MUTANTS if mutant.name == "noise divided by the batch size")):
        broken = run_audits(canaries=500, repeats=2)
    assert broken.refutes("gaussian") and broken.claim == clean.claim


def test_an_audit_does_not_see_the_same_noise_in_every_step():
    with planted(next(mutant for mutant in MUTANTS if mutant.name == "the same noise in every step")):
        found = run_audits(canaries=500, repeats=2)
    assert not any(found.refutes(method) for method in found.bounds)


def test_a_line_of_the_table_marks_bounds_that_exceed_the_claim():
    audit = AuditBounds(2.0, {"one-run": 1.0, "f-dp": 2.5, "gaussian": 2.0}, 1.0)
    assert BugDetection("a bug", ("one check", "another"), 1.25, audit).line() == (
        "a bug",
        "one check; another",
        "1.2",
        "2.00",
        "1.00",
        "2.50*",
        "2.00",
    )
    assert BugDetection("a bug", (), 1.0, None).line() == ("a bug", "-", "1.0", "-", "-", "-", "-")


def test_what_was_measured_of_bugs_is_kept_and_not_measured_again(tmp_path, monkeypatch):
    bug = BugDetection(
        "a bug", ("noise scale and shape",), 0.5, AuditBounds(5.0, {"one-run": 1.0, "f-dp": 6.0, "gaussian": 2.0}, 3.0)
    )
    clean = BugDetection("no bug", (), 0.5, None)
    monkeypatch.setattr(which_tool, "detect_bugs", lambda audit: [clean, bug])
    monkeypatch.setattr(which_tool, "verify_small_run", lambda seed: Verdict(()))
    assert which_tool.MUTANT_TABLE.side(RunScale.QUICK, tmp_path).lines == (("not measured yet",),)
    which_tool.MUTANT_TABLE.measure(RunScale.QUICK, tmp_path, "a command")
    first = which_tool.MUTANT_TABLE.side(RunScale.QUICK, tmp_path)
    monkeypatch.setattr(which_tool, "detect_bugs", lambda audit: pytest.fail("measured again"))
    which_tool.MUTANT_TABLE.measure(RunScale.QUICK, tmp_path, "another command")
    again = which_tool.MUTANT_TABLE.side(RunScale.QUICK, tmp_path)
    assert again == first and "6.00*" in again.lines[2]
