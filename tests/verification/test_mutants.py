"""Known bugs, planted one at a time: a check must find each, and find nothing in the correct kernel."""

from collections.abc import Iterator

import pytest
from mutants import MUTANTS, OF_OPTIMIZED_NOISE, OF_PLACES, Mutant, planted

from sordino.kernel.records import as_records
from sordino.optimized_noise import best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import FromReleases
from sordino.verification import Finding, Verdict, neighbor_replay, noise_checks, sampler_checks, step_count
from sordino_papers.attacks import which_tool
from sordino_papers.attacks.which_tool import (
    AuditBounds,
    BugDetection,
    findings_on_noise,
    findings_on_places,
    run_audits,
    small_run,
    verify_noise,
    verify_small_run,
)
from sordino_papers.harness.entry import RunScale

# What yields the findings of each check of `verify`, so that a bug need not wait for all the others.
CHECKS = {
    neighbor_replay.GRADIENTS: lambda plan, *run: neighbor_replay.compare_gradients(plan, *run),
    neighbor_replay.NAME: lambda plan, *run: neighbor_replay.replay(plan, *run, seed=0),
    noise_checks.SCALE: lambda plan, *run: noise_checks.examine(plan, *run, seed=0, delta=1e-5),
    noise_checks.INDEPENDENCE: lambda plan, *run: noise_checks.examine(plan, *run, seed=0, delta=1e-5),
    noise_checks.TAIL: lambda plan, *run: noise_checks.examine(plan, *run, seed=0, delta=1e-5),
    sampler_checks.NAME: lambda plan, *run: sampler_checks.examine(plan.sampler, seed=0),
    step_count.STEPS: lambda plan, *run: step_count.count_steps(plan, *run, seed=0),
    step_count.CONSTANTS: lambda plan, *run: step_count.compare_constants(plan, *run, seed=0),
    step_count.RELEASES: lambda plan, *run: step_count.compare_releases(plan, *run, seed=0),
    step_count.ACCOUNTANT: lambda plan, *run: step_count.compare_golden_epsilons(),
}


def findings_of(check: str) -> Iterator[Finding]:
    plan, model, data = small_run()
    return CHECKS[check](plan, model, as_records(data))


def finds(check: str, findings: Iterator[Finding]) -> bool:
    """Whether the check fails. Does not compute what comes after the first failure."""
    return any(finding.check == check and not finding.passed for finding in findings)


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
        assert finds(mutant.caught_by, findings_of(mutant.caught_by))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_refutes_a_whole_verification(mutant):
    with planted(mutant):
        found = verify_small_run()
    assert not found.passed
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("mutant", OF_OPTIMIZED_NOISE, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught_in_optimized_noise(mutant):
    with planted(mutant):
        assert finds(mutant.caught_by, findings_on_noise(OptimizedNoise(1.0)))


@pytest.mark.parametrize("mutant", OF_PLACES, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught_in_a_model_of_places(mutant):
    with planted(mutant):
        assert finds(mutant.caught_by, findings_on_places())


def test_a_clean_model_of_places_raises_no_alarm():
    found = Verdict(tuple(findings_on_places()))
    assert found.passed, str(found)


@pytest.fixture
def fewer_draws(monkeypatch):
    """Float32, which is not there, is looked for in 3 % of the draws."""
    monkeypatch.setattr(noise_checks, "_ROOT_OF_DRAWS", 300)


@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize("fit", [best_blocks, weighted_laplace, isotropic])
def test_clean_optimized_noise_raises_no_alarm(fit):
    found = verify_noise(OptimizedNoise(1.0, FromReleases(0.8), fit=fit))
    assert found.passed, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("fit", [best_blocks, weighted_laplace, isotropic])
def test_clean_optimized_noise_raises_no_alarm_in_as_many_draws_as_are_verified(fit):
    found = verify_noise(OptimizedNoise(1.0, FromReleases(0.8), fit=fit))
    assert found.passed, str(found)


@pytest.mark.usefixtures("fewer_draws")
def test_a_whole_verification_of_optimized_noise_raises_no_alarm():
    found = verify_small_run(noise=OptimizedNoise(1.0, FromReleases(0.8)))
    assert found.passed, str(found)


def test_a_clean_kernel_raises_no_alarm_in_any_check():
    found = verify_small_run()
    assert found.passed, str(found)
    assert {check.name for check in found.checks} == set(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, *range(100, 140)])
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
