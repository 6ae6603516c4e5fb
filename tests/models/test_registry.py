"""Every network has its exact size, fits the data it is for, and has per-example gradients."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import sordino as so
from sordino import models
from sordino.data.dataset import Facts
from sordino.errors import UsageError
from sordino.gradients.taped import TapedGradients
from sordino.kernel.records import as_records
from sordino.models import build, names

GREY = Facts("mnist", (1, 28, 28), 10, (0.0, 255.0), (0.1307,), (0.3081,))
COLOUR = Facts("cifar10", (3, 32, 32), 10, (0.0, 255.0), (0.49, 0.48, 0.45), (0.2, 0.2, 0.2))
DIGITS = Facts("digits", (1, 8, 8), 10, (0.0, 16.0))
TABLE = Facts("adult", (104,), 2, (-1.0, 1.0))
HOUSES = Facts("houses", (8,), None, (-1.0, 1.0))

SIZES = [
    ("linear", GREY, 7_850),
    ("linear", TABLE, 210),
    ("linear", HOUSES, 9),
    ("two-layer", GREY, 407_050),
    ("mlp", TABLE, 11_010),
    ("mlp", HOUSES, 4_801),
    ("scatter-linear", GREY, 39_700),
    ("scatter-linear", COLOUR, 155_530),
    ("scatter-linear", DIGITS, 3_250),
    ("h-cnn-s", GREY, 33_066),
    ("h-cnn", COLOUR, 187_210),
    ("dp-cnn-s", GREY, 26_010),
    ("dp-cnn", COLOUR, 550_570),
    ("cnn", Facts("stamps", (1, 16, 16), 10, (0.0, 255.0)), 21_546),
    ("lenet", GREY, 61_706),
    ("lenet", COLOUR, 62_006),
    ("vit-s", GREY, 104_970),
    ("vit", COLOUR, 809_098),
    ("vit", GREY, 803_082),
    ("resnet-20", COLOUR, 269_722),
]
LARGE = [("resnet-18", COLOUR, 11_173_962), ("resnet-34", COLOUR, 21_282_122)]


def raw_rows(facts, count=2):
    """Raw inputs in the public range, and targets."""
    generator = torch.Generator().manual_seed(0)
    low, high = facts.input_range
    inputs = low + (high - low) * torch.rand(count, *facts.input_shape, generator=generator)
    inputs = inputs.to(torch.uint8) if high > 1 else inputs
    if facts.num_classes is None:
        return inputs, torch.rand(count, generator=generator)
    return inputs, torch.randint(0, facts.num_classes, (count,), generator=generator)


def prepared_rows(built, facts):
    inputs, target = raw_rows(facts)
    return (inputs if built.features is None else built.features(inputs)), target


@pytest.mark.parametrize(("name", "facts", "size"), SIZES + LARGE)
def test_a_network_has_its_exact_size_and_one_output_per_class(name, facts, size):
    built = build(name, facts, seed=0)
    assert sum(p.numel() for p in built.module.parameters()) == size
    outputs = built.module(prepared_rows(built, facts)[0])
    assert outputs.shape == ((2, facts.num_classes) if facts.num_classes else (2,))
    assert outputs.isfinite().all()


@pytest.mark.parametrize(("name", "facts"), list({name: (name, facts) for name, facts, _ in SIZES}.values()))
def test_the_private_engine_has_the_gradients_of_a_loop(name, facts):
    built = build(name, facts, seed=0)
    loss = F.cross_entropy if facts.num_classes else F.mse_loss
    batch = as_records(prepared_rows(built, facts)).gather(torch.arange(2))
    each = so.LossGradient(loss).of(built.module, batch, torch.arange(2))
    assert isinstance(each, TapedGradients)
    expected = []
    for row in range(2):
        built.module.zero_grad()
        loss(built.module(batch.inputs[0][row : row + 1]), batch.target[row : row + 1]).backward()
        expected.append(torch.cat([p.grad.flatten() for p in built.module.parameters()]))
    expected = torch.stack(expected)
    scale = expected.norm(dim=1)
    torch.testing.assert_close(each.squared_norms().sum(dim=1).sqrt().float(), scale, rtol=1e-4, atol=0)
    difference = each.weighted_sum(torch.tensor([1.0, -2.0])) - (expected[0] - 2 * expected[1])
    assert difference.norm() < 1e-4 * scale.sum()


@pytest.mark.parametrize("name", ["scatter-linear", "vit", "resnet-20"])
def test_the_seed_alone_decides_the_weights_and_nothing_else_is_drawn_from(name):
    state = torch.random.get_rng_state()
    one, same = (build(name, COLOUR, seed=3).module.state_dict() for _ in range(2))
    other = build(name, COLOUR, seed=4).module.state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_pixels_reach_a_network_normalised_and_a_table_as_it_is():
    pictures, _ = raw_rows(GREY)
    expected = (pictures / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(build("dp-cnn-s", GREY, seed=0).prepare(pictures), expected)
    table, _ = raw_rows(TABLE)
    assert build("mlp", TABLE, seed=0).prepare(table) is table


def test_scattering_features_are_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    built, (pictures, _) = build("scatter-linear", DIGITS, seed=0), raw_rows(DIGITS)
    prepared = built.prepare(pictures, progress=False)
    assert torch.equal(prepared, built.features(pictures))
    assert len(list((tmp_path / "features").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scatter-liner", "there is no model 'scatter-liner': did you mean 'scatter-linear'?"),
        ("dp_cnn", "did you mean 'dp-cnn'?"),
        ("xyz", "there is no model 'xyz': there are linear, two-layer, mlp"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name, message):
    with pytest.raises(UsageError) as refused:
        build(name, GREY, seed=0)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("dp-cnn", GREY, "'dp-cnn' needs color images of shape (3, 32, 32), but the inputs of 'mnist' have"),
        ("h-cnn", TABLE, "the inputs of 'adult' have shape (104,)"),
        ("h-cnn-s", COLOUR, "'h-cnn-s' needs gray images of shape (1, 28, 28)"),
        ("scatter-linear", TABLE, "'scatter-linear' needs images with 1 or 3 channels"),
        ("lenet", DIGITS, "'lenet' needs images of 28x28 or 32x32 pixels"),
        ("vit", Facts("odd", (1, 30, 30), 2), "sides divisible by 4"),
        ("vit-s", COLOUR, "'vit-s' needs gray images of shape (1, 28, 28)"),
        ("resnet-20", Facts("many", (5, 32, 32), 2), "'resnet-20' needs images with 1 or 3 channels"),
        ("lenet", Facts("ages", (1, 28, 28), None), "'lenet' needs classes, but the target of 'ages' is a number."),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused_by_both_names(name, facts, message):
    with pytest.raises(UsageError) as refused:
        build(name, facts, seed=0)
    assert message in str(refused.value)


def test_a_seed_must_be_a_whole_number():
    with pytest.raises(UsageError, match="seed must be a whole number"):
        build("linear", TABLE, seed=0.5)


def test_every_name_has_a_sentence_and_a_documented_size():
    assert {name for name, _ in names()} == {name for name, _, _ in SIZES + LARGE}
    assert all(sentence and len(sentence) < 120 for _, sentence in names())


def test_the_two_layer_network_takes_a_width():
    assert models.two_layer(3, 2, width=5)(torch.zeros(1, 3)).shape == (1, 2)
    assert sum(p.numel() for p in models.two_layer(3, 2, width=5).parameters()) == 32


def test_the_example_of_the_page_on_models_runs_and_its_sizes_are_true():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    defined = {}
    exec(compile(example, "docs/models.md", "exec"), defined)
    assert defined["outputs"].shape == (5, 10)
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert rows.keys() == {name for name, _ in names()}
    told = [(name, f"{size:,}") for name, facts, size in SIZES + LARGE if facts in (GREY, COLOUR)]
    assert all(size in rows[name] for name, size in told)
