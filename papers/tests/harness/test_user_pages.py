"""What the pages for users say was measured is what the result files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def result(name: str):
    return json.loads((ROOT / "results" / name).read_text())


def ours(experiment: str, method: str, data: str, epsilon: float) -> float:
    rows = result(f"{experiment}/table-cpu.json")["rows"]
    (found,) = [row["ours"] for row in rows if (row["method"], row["data"], row["epsilon"]) == (method, data, epsilon)]
    return found


@pytest.mark.parametrize("epsilon", [3.0, 1.0])
def test_the_gain_of_masks(epsilon):
    gains = result("sparsification/gains-cpu.json")["gains"]
    (gain,) = [g for g in gains if g["method"].startswith("DP-CNN/S") and g["epsilon"] == epsilon]
    with_masks = ours("sparsification", gain["method"], "fashion-mnist", epsilon)
    without = with_masks - gain["mean"]
    shown = f"| DP-CNN/S | {epsilon:g} | {without:.1f} % | {with_masks:.1f} % | {gain['mean']:+.1f} ± "
    assert shown + f"{gain['half_width']:.1f} |" in page("sparsification.md") and gain["seeds"] == 5


def test_the_gain_of_masks_in_the_larger_network():
    gains = result("sparsification/gains-cpu.json")["gains"]
    found = {g["epsilon"]: g for g in gains if g["method"].startswith("DP-CNN,") and g["data"] == "cifar10"}
    said = f"gains {found[3.0]['mean']:.1f} points at epsilon 3 and {found[1.0]['mean']:.1f} at epsilon 1 (one seed)"
    assert said in page("sparsification.md") and {one["seeds"] for one in found.values()} == {1}


@pytest.mark.parametrize(
    ("name", "said"), [("freezing", "gains {} points"), ("augmentation", "as many steps: {} points")]
)
def test_the_gain_of_freezing_and_of_augmentation(name, said):
    (gain,) = [gain for gain in result(f"{name}/gains-cpu.json")["gains"] if gain["mean"] is not None]
    assert said.format(f"{gain['mean']:.1f} ± {gain['half_width']:.1f}") in page("fairness.md") and gain["seeds"] == 3


def test_the_accuracy_of_hidden_states_and_of_seen_steps():
    hidden, seen = (
        [f"{ours('hidden-state', method, 'mnist', epsilon):.1f} %" for epsilon in (1.33, 4.76)]
        for method in ("NoisyCGD, convex", "DP-SGD, convex")
    )
    said = (
        f"reaches {hidden[0]} at epsilon 1.33 and {hidden[1]} at 4.76, where DP-SGD on the same model reaches {seen[0]}"
    )
    assert f"{said} and {seen[1]}" in page("hidden-state.md")


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("white box, DP-CNN/S", "white box, DP-CNN/S on MNIST, 100 steps"),
        ("last iterate, NoisyCGD", "last iterate of NoisyCGD"),
    ],
)
def test_the_bounds_of_audits(attack, shown):
    points = [p for p in result("audit/bounds-cpu.json")["points"] if (p["attack"], p["theory"]) == (attack, 8.0)]
    bounds = {point["method"]: f"{point['mean']:.2f}" for point in points}
    assert f"| {shown} | {bounds['one-run']} | {bounds['f-dp']} | {bounds['gaussian']} |" in page("auditing.md")


def test_the_bugs_that_audits_notice():
    kept = result("audit/which-tool-cpu.json")
    _, *bugs = kept["noticed"]
    audited = [bug["audit"] for bug in bugs if bug["audit"]]
    methods = audited[0]["bounds"]
    most = max(sum(one["bounds"][method] > one["claim"] for one in audited) for method in methods)
    assert all(bug["checks"] for bug in bugs) and most == 4
    said = f"Of {len(bugs)} planted bugs a verification notices all; of the {len(audited)} that were audited"
    assert said in page("auditing.md")


def test_the_error_of_reconstructed_images():
    curves = result("reconstruction/by-rate-cpu.json")
    errors = dict(zip(curves["rates"], (one["value"] for one in curves["mse"]["std 1e-3"]), strict=True))
    text = page("reconstruction.md")
    assert f"mean squared error of {curves['plain']['value']:.3f}" in text
    assert f"the error is {errors[0.0]:.4f} without a mask and {errors[0.9]:.4f} where a tenth" in text


def test_optimized_noise_in_one_release_and_in_a_network():
    costs = result("optimized-noise/cost-by-dimension.json")["costs"]
    (one,) = [c for c in costs if (c["dimension"], c["epsilon"], c["spread"]) == (1, 1.0, 0.0)]
    text = page("optimized-noise.md")
    assert f"Laplace noise costs {one['over_gaussian']['blocks']:.2f} times what Gaussian" in text
    blocks, gaussian = (
        ours("optimized-noise", f"projected head, {way}", "mnist", 3.0) for way in ("blocks", "Gaussian")
    )
    assert f"blocks reach {blocks:.1f} % at epsilon 3, where Gaussian noise reaches {gaussian:.1f} %" in text
