"""What the pages for users say was measured is what the result files say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

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


def test_what_the_page_about_methods_says_of_features_and_transfer():
    text, means = page("choosing-a-method.md"), result("accuracy.json")["means"]
    at_three = {(m["model"], m["data"]): 100 * m["mean_test_accuracy"] for m in means if m["target_epsilon"] == 3.0}
    features, pixels = (
        [f"{at_three[model, data]:.1f} %" for data in ("mnist", "fashion-mnist")]
        for model in ("scatter-linear", "dp-cnn-s")
    )
    assert f"`scatter-linear` reaches {features[0]} on MNIST and {features[1]} on Fashion-MNIST" in text
    assert f"`dp-cnn-s` on pixels {pixels[0]} and {pixels[1]}" in text
    seconds = {(m["model"], m["data"]): m["most_seconds"] for m in means if m["target_epsilon"] == 3.0}
    for data in ("mnist", "fashion-mnist"):
        assert 5.5 < seconds["dp-cnn-s", data] / seconds["scatter-linear", data] < 6.5  # "about a sixth"
    probe = result("transfer.json")
    learnt, random = (f"{100 * fmean(probe[weights]['private']):.1f} %" for weights in ("learnt", "random"))
    assert f"reaches {learnt} with weights pretrained on synthetic images, and {random} with random weights" in text


def test_what_the_page_about_methods_says_of_convex_models():
    text = page("choosing-a-method.md")
    hidden, seen, fourier = (
        [f"{ours('hidden-state', method, 'mnist', epsilon):.1f} %" for epsilon in (1.33, 4.76)]
        for method in ("NoisyCGD, convex", "DP-SGD, convex", "SSP, random Fourier")
    )
    said = f"reaches {hidden[0]} at epsilon 1.33 and {hidden[1]} at 4.76, DP-SGD {seen[0]} and {seen[1]}"
    assert said in text
    assert f"random Fourier features reach {fourier[0]}, below {seen[0]} of DP-SGD on the convex model" in text
    curves = {
        (curve["method"], curve["setting"]["noise_multiplier"]): curve["epsilons"]
        for curve in result("hidden-state/epsilon-cpu.json")["curves"]
    }
    for (method, multiplier), epsilons in curves.items():
        if method == "hidden state, trailing steps":  # "about as much as Poisson batches"
            assert epsilons == pytest.approx(curves["Poisson sampling", multiplier], rel=0.02)


def test_what_the_page_about_methods_says_of_noise_and_tuning():
    text, tuning = page("choosing-a-method.md"), result("tuning.json")
    costs = result("optimized-noise/cost-by-dimension.json")["costs"]
    (one,) = [c for c in costs if (c["dimension"], c["epsilon"], c["spread"]) == (1, 1.0, 0.0)]
    assert f"Laplace noise costs {one['over_gaussian']['blocks']:.2f} times what Gaussian" in text
    (noise,) = [n for n in tuning["noise"] if (n["data"], n["epsilon"]) == ("fashion-mnist", 3.0)]
    assert f"need {noise['factors']['compose, 5 candidates']:.2f} times the noise at epsilon 3" in text
    untuned, composed = (f"{100 * tuning['digits'][way]['mean']:.1f} %" for way in ("untuned", "compose"))
    assert f"on digits the defaults reach {untuned}, and {composed} after composed tuning" in text


def test_what_the_page_about_methods_says_of_extras():
    text, gains = page("choosing-a-method.md"), result("sparsification/gains-cpu.json")["gains"]
    small = {g["epsilon"]: f"{g['mean']:+.1f} ± {g['half_width']:.1f}" for g in gains if g["method"] == "DP-CNN/S, RS"}
    large = {g["epsilon"]: f"{g['mean']:.1f}" for g in gains if g["method"] == "DP-CNN, RS" and g["data"] == "cifar10"}
    assert f"on Fashion-MNIST {small[3.0]} points at epsilon 3 and {small[1.0]} at epsilon 1 (five seeds)" in text
    assert f"on CIFAR-10 gains {large[3.0]} and {large[1.0]} points (one seed)" in text
    for name, said in (("freezing", "LeNet on MNIST: {}"), ("augmentation", "LeNet on CIFAR-10: {}")):
        (gain,) = [g for g in result(f"{name}/gains-cpu.json")["gains"] if g["mean"] is not None]
        assert said.format(f"{gain['mean']:+.1f} ± {gain['half_width']:.1f} points at epsilon 3") in text
    masks = [row["per_epoch_adds"] for row in result("bench_sparsify.json")["rows"]]
    assert "about 5 % of time" in text and all(0.04 < added < 0.06 for added in masks)
