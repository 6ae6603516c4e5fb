"""The Opacus page and its example run, and state correct results."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from sordino.data.dataset import DataSet, Facts, Split
from sordino.data.standard import is_complete, root

ROOT = Path(__file__).parents[2]
PAGE, SCRIPT, RESULT = ROOT / "docs/opacus.md", ROOT / "examples/opacus_mnist.py", ROOT / "results/opacus_mnist.json"


def noise_like_mnist(name):
    """Random images in the shape of MNIST."""
    generator = torch.Generator().manual_seed(0)

    def split(rows):
        pictures = torch.randint(0, 256, (rows, 1, 28, 28), dtype=torch.uint8, generator=generator)
        return Split(pictures, torch.randint(0, 10, (rows,), generator=generator))

    return DataSet(Facts(name, (1, 28, 28), 10), split(120), split(30))


@pytest.fixture
def torchvision(monkeypatch):
    """Makes the stand-in for torchvision importable during a test."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "stand_ins"))
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torchvision"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    from torchvision import datasets

    yield datasets
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules.update(before)


def output_of(script, capsys, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", [script.name, "--epochs", "1", *options])
    runpy.run_path(str(script), run_name="__main__")
    message = capsys.readouterr().out
    return float(re.search(r"epsilon ([\d.]+)", message)[1]), float(re.search(r"accuracy ([\d.]+)", message)[1])


def test_the_example_runs(torchvision, capsys, monkeypatch):
    monkeypatch.setattr(torchvision, "load", noise_like_mnist)
    epsilon, accuracy = output_of(SCRIPT, capsys, monkeypatch, "--batch-size", "30")
    assert 0 < epsilon < 20 and 0 <= accuracy <= 1


@pytest.mark.filterwarnings("ignore")
def test_the_example_runs_on_opacus_with_one_import_changed(torchvision, capsys, monkeypatch, tmp_path):
    pytest.importorskip("opacus", reason="Opacus is in the environment of the peers: make peers-test")
    monkeypatch.setattr(torchvision, "load", noise_like_mnist)
    theirs = tmp_path / SCRIPT.name
    source = SCRIPT.read_text()
    assert source.count("sordino.opacus") == 1
    theirs.write_text(source.replace("sordino.opacus", "opacus"))
    epsilon, accuracy = output_of(theirs, capsys, monkeypatch, "--batch-size", "30")
    assert 0 < epsilon < 20 and 0 <= accuracy <= 1


@pytest.mark.slow
@pytest.mark.skipif(not is_complete("mnist", root()), reason="MNIST is not there: sordino data fetch mnist")
def test_the_example_learns_mnist(torchvision, capsys, monkeypatch):
    epsilon, accuracy = output_of(SCRIPT, capsys, monkeypatch)
    assert epsilon < 0.2 and accuracy > 0.8


def test_the_page_runs_and_its_guarantee_holds(capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert 2.9 < names["guarantee"].epsilon <= 3.0
    assert "keeps raw batches" in capsys.readouterr().out


def test_every_test_that_the_page_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    written = set(
        re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in Path(__file__).parent.glob("*.py")), re.M)
    )
    assert len(named) > 20
    assert named <= written


def test_the_numbers_on_the_page_are_those_of_the_result_file():
    result, page = json.loads(RESULT.read_text()), PAGE.read_text()
    assert {"command", "commit", "seeds", "machine"} <= result.keys()
    for row in result["rows"]:
        line = next(x for x in page.splitlines() if x.startswith(f"| {row['batch-size']} | `{row['library']}`"))
        assert f"{row['processor_seconds_median']:.1f} s" in line
        assert f"{100 * row['accuracy_mean']:.1f} %" in line
        assert f"| {row['epsilon']:.3f} |" in line
