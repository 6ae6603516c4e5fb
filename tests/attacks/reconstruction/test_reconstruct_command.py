"""`sordino attack reconstruct`, and the table of reconstruction."""

import json
from dataclasses import replace

import pytest
import typer

from sordino.attacks.reconstruction import GradientInversion
from sordino.attacks.reconstruction.linear_layer import FirstLayer
from sordino.cli.attacks import reconstruct as attack_reconstruct
from sordino.errors import DataError, UsageError
from sordino_papers.attacks.reconstruction import BENCHES, RECONSTRUCTION
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce


def test_a_linear_layer_is_attacked_and_written_down(tmp_path, capsys):
    attack_reconstruct(attack="linear", data="digits", pictures=3, out=tmp_path, quiet=True)
    shown = capsys.readouterr().out
    kept = json.loads((tmp_path / "reconstruction.json").read_text())
    assert [one["row"] for one in kept["pictures"]] == [0, 1, 2]
    assert max(one["mse"] for one in kept["pictures"]) < 1e-10
    assert "No epsilon" in shown and "over 3 images" in shown
    page = (tmp_path / "reconstruction.html").read_text()
    assert "No epsilon" in page and page.count("<image") == 6


def test_noise_and_masks_make_it_worse(capsys):
    errors = []
    for rate in (0.0, 0.9):
        attack_reconstruct(attack="linear", data="digits", pictures=4, noise=0.03, rate=rate, as_json=True)
        found = json.loads(capsys.readouterr().out)
        errors.append(sum(one["mse"] for one in found["pictures"]))
    assert 0 < errors[0] < errors[1]


def test_a_network_is_inverted(capsys):
    attack_reconstruct(model="two-layer", data="digits", pictures=1, iterations=100, as_json=True)
    (one,) = json.loads(capsys.readouterr().out)["pictures"]
    assert one["mse"] < 0.01 and one["ssim"] > 0.9


def test_what_is_there_is_shown_when_somebody_stops_it(monkeypatch, capsys):
    usual, taken = FirstLayer.reconstruct, []

    def stopped(*arguments):
        if taken:
            raise KeyboardInterrupt
        taken.append(1)
        return usual(*arguments)

    monkeypatch.setattr(FirstLayer, "reconstruct", stopped)
    attack_reconstruct(attack="linear", data="digits", pictures=3, as_json=True)
    assert len(json.loads(capsys.readouterr().out)["pictures"]) == 1
    with pytest.raises(typer.Exit):
        attack_reconstruct(attack="linear", data="digits", pictures=3, as_json=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attack": "guess"}, "attack must be one of inverting, rgap, linear, got 'guess'"),
        ({"pictures": 0}, "pictures must be a whole number"),
        ({"pictures": 10**6}, "pictures must be at most"),
        ({"rate": 1.0}, "rate must be in"),
        ({"noise": -1.0}, "noise must be in"),
        ({"model": "cnn6"}, "'cnn6' needs color images of 32 x 32 pixels"),
        ({"model": "scatter-linear"}, "scattering features, not pixels"),
        ({"model": "lenet"}, "'lenet' needs"),
        ({"attack": "rgap", "model": "linear"}, "needs the logistic loss"),
        ({"attack": "linear", "model": "resnet-20"}, "begins with a linear layer"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        attack_reconstruct(**{"data": "digits", "quiet": True} | wrong)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written to"):
        attack_reconstruct(attack="linear", data="digits", pictures=1, out=tmp_path / "file", quiet=True)


def test_the_table_shows_errors_that_rise_with_the_rate(tmp_path, monkeypatch):
    fewer = replace(BENCHES[RunScale.QUICK], pictures=4, attack=GradientInversion(60))
    monkeypatch.setitem(BENCHES, RunScale.QUICK, fewer)
    found = reproduce(RECONSTRUCTION, tmp_path, scale=RunScale.QUICK, seeds=1, progress=False)
    plain, *lines = (row.ours for row in found.rows)
    by_variance = lines[:3]
    assert by_variance == sorted(by_variance) and by_variance[2] > 2 * by_variance[0] > 2 * plain
    kept = json.loads((tmp_path / "theorem-quick.json").read_text())["rates"]
    assert all(one["measured"]["low"] <= one["expected"] <= one["measured"]["high"] for one in kept)
    assert all(one["bound"] <= one["expected"] * (1 + 1e-9) for one in kept)
    assert {side.files[0].name for side in found.sides} == {
        "theorem-quick.json",
        "by-rate-quick.svg",
        "gallery-quick.svg",
    }
    assert all(file.exists() for side in found.sides for file in side.files)
