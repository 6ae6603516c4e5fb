"""Recurrent layers and cells of every kind are taped, and agree with a loop over single examples."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract
from hypothesis import given, settings
from hypothesis import strategies as st
from products import product_of
from taped_models import gradients, random
from torch import nn

import sordino as so
from sordino.gradients.loop import why_alone
from sordino.gradients.recurrent import Recurrence
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.tape import record, survey
from sordino.gradients.taped import TapedGradients
from sordino.gradients.vmapped import gradients_of_rows
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records

ROWS, STEPS, INPUTS, WIDTH = 7, 5, 4, 6
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
VARIANTS = {
    "plain": {},
    "sequences first": {"batch_first": True},
    "without bias": {"bias": False},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "with dropout that is off": {"num_layers": 2, "dropout": 0.5},
}
# Torch says that projections are slower than the rest, which no test of ours asks about.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")


class Reader(nn.Module):
    """Uses all results of a layer: outputs and last states."""

    def __init__(self, layer, state=lambda x: None):
        super().__init__()
        self.layer, self.state, self.out = layer, state, nn.LazyLinear(3)

    def forward(self, x):
        outputs, last = self.layer(x if self.layer.batch_first else x.transpose(0, 1), self.state(x))
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        ends = last if isinstance(last, tuple) else (last,)
        return self.out(torch.cat([outputs.flatten(1), *(end.transpose(0, 1).flatten(1) for end in ends)], dim=1))


class Using(nn.Module):
    """A recurrent layer with a function `call` that calls it, followed by a linear layer."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call, self.out = layer, call, nn.LazyLinear(3)

    def forward(self, x):
        return self.out(self.call(self.layer, x))


class TrainedStart(nn.Module):
    """An initial state that is a trained parameter."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(INPUTS, WIDTH, batch_first=True)
        self.hidden, self.memory = nn.Parameter(random(1, 1, WIDTH)), nn.Parameter(random(1, 1, WIDTH, seed=2))
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.out(self.layer(x, (self.hidden, self.memory))[0][:, -1])


class Decoder(nn.Module):
    """A model in which only the initial state depends on the row; the input is the same for all rows."""

    def __init__(self, inputs):
        super().__init__()
        self.layer, self.inputs, self.out = nn.GRU(2, INPUTS, batch_first=True), inputs, nn.Linear(INPUTS, 3)

    def forward(self, x):
        return self.out(self.layer(self.inputs, x[:, 0][None])[0][:, -1])


class Stepping(nn.Module):
    """A user-written loop over a cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.out = cell, nn.Linear(WIDTH, 3)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] * torch.sigmoid(state[1]) if isinstance(state, tuple) else state)


class Speaker(nn.Module):
    """An embedding below and a norm between: gradients must go through the recurrence."""

    def __init__(self):
        super().__init__()
        self.table, self.first = nn.Embedding(9, INPUTS), nn.GRU(INPUTS, WIDTH, batch_first=True)
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, tokens):
        return self.out(self.second(self.norm(self.first(self.table(tokens))[0]))[0].mean(dim=1))


def frozen(layer, *names):
    for name in names:
        getattr(layer, name).requires_grad_(False)
    return layer


def tied(layer):
    layer.weight_hh_l1, layer.bias_ih_l1 = layer.weight_hh_l0, layer.bias_hh_l0
    return layer


def outputs_of(layer, x):
    return layer(x)[0].flatten(1)


SEQUENCES = random(ROWS, STEPS, INPUTS)
MODELS = {
    f"{kind}, {variant}": (lambda make=make, options=options: Reader(make(INPUTS, WIDTH, **options)), SEQUENCES)
    for kind, make in KINDS.items()
    for variant, options in VARIANTS.items()
}
MODELS |= {
    f"{kind}, {name}": (lambda make=make, build=build: build(make), inputs)
    for kind, make in KINDS.items()
    for name, build, inputs in (
        (
            "a hidden state of zeros that is given",
            lambda make: Reader(make(INPUTS, WIDTH, batch_first=True), lambda x: _zeros(make, x)),
            SEQUENCES,
        ),
        (
            "several sequences in a row",
            lambda make: Using(
                make(INPUTS, WIDTH, batch_first=True),
                lambda layer, x: layer(x.flatten(0, 1))[0].sum(dim=1).reshape(1, -1),
            ),
            random(ROWS, 3, STEPS, INPUTS),
        ),
        (
            "without a batch axis",
            lambda make: Using(make(INPUTS, WIDTH), lambda layer, x: layer(x[0])[0].reshape(1, -1)),
            SEQUENCES,
        ),
        ("a single step", lambda make: Using(make(INPUTS, WIDTH, batch_first=True), outputs_of), SEQUENCES[:, :1]),
        (
            "called twice",
            lambda make: Using(
                make(INPUTS, WIDTH, batch_first=True), lambda layer, x: outputs_of(layer, x) * outputs_of(layer, -x)
            ),
            SEQUENCES,
        ),
        (
            "weights tied between layers",
            lambda make: Using(tied(make(INPUTS, WIDTH, num_layers=2, batch_first=True)), outputs_of),
            SEQUENCES,
        ),
        (
            "a frozen recurrence",
            lambda make: Using(frozen(make(INPUTS, WIDTH, batch_first=True), "weight_hh_l0", "bias_hh_l0"), outputs_of),
            SEQUENCES,
        ),
        (
            "a frozen input",
            lambda make: Using(frozen(make(INPUTS, WIDTH, batch_first=True), "weight_ih_l0", "bias_ih_l0"), outputs_of),
            SEQUENCES,
        ),
        (
            "a frozen second layer",
            lambda make: Using(
                frozen(
                    make(INPUTS, WIDTH, num_layers=2, batch_first=True),
                    *(f"{kind}_{side}_l1" for kind in ("weight", "bias") for side in ("ih", "hh")),
                ),
                outputs_of,
            ),
            SEQUENCES,
        ),
    )
}
MODELS |= {
    "lstm, projected": (lambda: Reader(nn.LSTM(INPUTS, WIDTH, proj_size=3)), SEQUENCES),
    "lstm, projected, both ways without bias": (
        lambda: Reader(nn.LSTM(INPUTS, WIDTH, 2, proj_size=2, bidirectional=True, bias=False)),
        SEQUENCES,
    ),
    "lstm, a frozen projection": (
        lambda: Reader(frozen(nn.LSTM(INPUTS, WIDTH, proj_size=3), "weight_hr_l0")),
        SEQUENCES,
    ),
    "lstm, only the last memory is read": (
        lambda: Using(nn.LSTM(INPUTS, WIDTH, batch_first=True), lambda layer, x: layer(x)[1][1][0]),
        SEQUENCES,
    ),
    "lstm, an initial state of the row": (
        lambda: Reader(
            nn.LSTM(INPUTS, INPUTS, batch_first=True), lambda x: (x[:, 0][None].contiguous(), x[:, 1][None] * 2)
        ),
        SEQUENCES,
    ),
    "gru, the row is the initial state": (lambda: Decoder(random(1, 3, 2)), SEQUENCES),
    "lstm cell": (lambda: Stepping(nn.LSTMCell(INPUTS, WIDTH)), SEQUENCES),
    "gru cell": (lambda: Stepping(nn.GRUCell(INPUTS, WIDTH)), SEQUENCES),
    "tanh cell": (lambda: Stepping(nn.RNNCell(INPUTS, WIDTH)), SEQUENCES),
    "relu cell without bias": (lambda: Stepping(nn.RNNCell(INPUTS, WIDTH, bias=False, nonlinearity="relu")), SEQUENCES),
    "speaker": (Speaker, torch.randint(0, 9, (ROWS, STEPS), generator=torch.Generator().manual_seed(3))),
}


def _zeros(make, x):
    zeros = torch.zeros(1, len(x), WIDTH)
    return (zeros, zeros) if make is nn.LSTM else zeros


def built(build, inputs):
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        model(inputs[:1])  # lazy layers learn their size
    return model


@cache
def computed(name):
    build, inputs = MODELS[name]
    return gradients(built(build, inputs), inputs)


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_taped(name):
    build, inputs = MODELS[name]
    assert survey(built(build, inputs), (inputs[:1],)).direct == ()
    assert isinstance(computed(name)[0], TapedGradients)


@pytest.mark.parametrize(("name", "norm"), product_of(MODELS, [0.01, 1.0, 100.0]))
def test_the_clipped_sum_is_that_of_the_loop(name, norm):
    each, expected = computed(name)
    rows = expected.double()
    clipped = (rows * (norm * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    assert float((so.ClipByNorm(norm)(each).value - clipped).norm()) < 1e-5 * float(clipped.norm())


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_each_row_is_that_of_the_loop(name):
    each, expected = computed(name)
    torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["lstm, projected", "gru, both ways", "relu, weights tied between layers", "lstm cell"]
)
class TestTaped(PerExampleContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name

    def make(self):
        return computed(self.name)[0]


@settings(max_examples=25)
@given(st.data())
def test_random_recurrent_networks_agree_with_the_loop(data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kind = data.draw(st.sampled_from(list(KINDS)))
    options = {"num_layers": draw(1, 3), "bidirectional": bool(draw(0, 1)), "bias": bool(draw(0, 1))}
    width = draw(2, 7)
    if kind == "lstm":
        options["proj_size"] = draw(0, width - 1)
    inputs = random(4, draw(1, 9), draw(1, 5))
    torch.manual_seed(draw(0, 99))
    model = Reader(KINDS[kind](inputs.shape[2], width, batch_first=True, **options))
    with torch.no_grad():
        model(inputs[:1])
    each, expected = gradients(model, inputs)
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(torch.cat(list(each.rows(2))), expected, rtol=1e-3, atol=1e-5)


def test_only_a_trained_initial_state_is_differentiated_directly():
    torch.manual_seed(0)
    model = TrainedStart()
    each, expected = gradients(model, SEQUENCES)
    assert survey(model, (SEQUENCES[:1],)).direct == ("hidden", "memory")
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


def test_a_layer_of_one_direction_is_one_linear_layer_and_one_recurrence():
    build, inputs = MODELS["gru, both ways"]
    rules = [type(use.rule).__name__ for use in survey(built(build, inputs), (inputs[:1],)).uses]
    assert rules == ["LinearOperation", "Recurrence"] * 4 + ["LinearOperation"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_go_through_a_layer_in_which_nothing_is_trained(kind):
    torch.manual_seed(0)
    layer = KINDS[kind](INPUTS, WIDTH, num_layers=2, batch_first=True).requires_grad_(False)
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), Using(layer, outputs_of))
    with torch.no_grad():
        model(SEQUENCES[:1])
    assert not any(isinstance(use.rule, Recurrence) for use in survey(model, (SEQUENCES[:1],)).uses)
    each, expected = gradients(model, SEQUENCES)
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["lstm, both ways", "gru, both ways", "relu, both ways", "lstm, projected"])
def test_a_row_is_the_same_to_the_last_bit_whatever_the_others_are(name):
    build, inputs = MODELS[name]
    model = built(build, inputs)
    plan = survey(model, (inputs[:1],))

    def row(others):
        rows = torch.full_like(inputs, others)
        rows[3] = inputs[3]
        labels, seeds = torch.zeros(ROWS, dtype=torch.int64), torch.arange(ROWS)
        tape = record(model, RowLoss.of(F.cross_entropy), (rows,), labels, seeds, plan)
        return [x[3] for x in (*tape.saved, *tape.output_gradients)]

    quiet, loud, broken = row(0.0), row(1e6), row(float("nan"))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(quiet, loud, broken, strict=True))
    assert all(bool(x.isfinite().all()) for x in quiet)


def test_recording_leaves_what_it_is_given_as_it_was():
    for name in ("lstm, both ways", "gru, the row is the initial state", "relu, a frozen input"):
        build, inputs = MODELS[name]
        model, given = built(build, inputs), inputs.clone()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        constant = model.inputs.clone() if isinstance(model, Decoder) else None
        gradients(model, given)
        assert torch.equal(given, inputs)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert constant is None or torch.equal(model.inputs, constant)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_draws_from_the_seed_of_the_row(kind):
    torch.manual_seed(0)
    model = Using(KINDS[kind](INPUTS, WIDTH, num_layers=3, dropout=0.5, batch_first=True), outputs_of)
    with torch.no_grad():
        model(SEQUENCES[:1])
    batch = as_records((SEQUENCES, torch.zeros(ROWS, dtype=torch.int64))).gather(torch.arange(ROWS))
    seeds = torch.arange(ROWS) + 100
    of = so.LossGradient(F.cross_entropy).of
    each, again, other = (of(model, batch, s) for s in (seeds, seeds, seeds + 1))
    rows, same, different = (torch.cat(list(x.rows(ROWS))) for x in (each, again, other))
    assert isinstance(each, TapedGradients)
    assert torch.equal(rows, same)
    assert (rows != different).any(dim=1).all()
    alone = as_records((SEQUENCES, batch.target)).gather(torch.tensor([4]))
    torch.testing.assert_close(rows[4:5], torch.cat(list(of(model, alone, seeds[4:5]).rows(1))))
    by_row, _ = gradients_of_rows(model, RowLoss.of(F.cross_entropy), batch.inputs, batch.target, seeds)
    torch.testing.assert_close(rows, torch.cat([x.flatten(1) for x in by_row], dim=1), rtol=1e-4, atol=1e-6)


def gru():
    return nn.GRU(INPUTS, WIDTH, batch_first=True)


UNRECORDED = {
    "a weight that is a function of parameters": lambda: Using(nn.utils.weight_norm(gru(), "weight_hh_l0"), outputs_of),
    "a weight that something else uses": lambda: Using(
        gru(), lambda layer, x: outputs_of(layer, x) * layer.weight_hh_l0.sum()
    ),
    "outputs that are changed in place": lambda: Using(gru(), lambda layer, x: layer(x)[0].relu_().flatten(1)),
    "last states that are changed in place": lambda: Using(gru(), lambda layer, x: layer(x)[1].mul_(2)[0]),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", UNRECORDED)
def test_what_cannot_be_recorded_is_right_all_the_same(name):
    torch.manual_seed(0)
    model = UNRECORDED[name]()
    with torch.no_grad():
        model(SEQUENCES[:1])
    each, expected = gradients(model, SEQUENCES)
    assert not isinstance(each, TapedGradients)
    torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


def test_packed_sequences_are_run_one_example_at_a_time():
    def packed(layer, x):
        return layer(nn.utils.rnn.pack_padded_sequence(x, [STEPS] * len(x), batch_first=True))[1][0]

    model = Using(nn.GRU(INPUTS, WIDTH, batch_first=True), packed)
    with torch.no_grad():
        model(SEQUENCES[:1])
    so.LossGradient(F.cross_entropy).check(model, as_records((SEQUENCES, torch.zeros(ROWS, dtype=torch.int64))))
    assert why_alone(model)
    each, expected = gradients(model, SEQUENCES)
    torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


def test_a_private_step_of_a_recurrent_layer_is_that_of_single_examples_whatever_the_micro_batches():
    build, inputs = MODELS["lstm, both ways"]
    model = built(build, inputs)
    labels = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(0))  # as in `gradients`
    plan = so.Plan(so.Cyclic(1, 1), so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5), so.Gaussian(1.0))
    rows = computed("lstm, both ways")[1].double()
    clipped = (rows * (0.5 * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    noise = torch.from_numpy(Key.from_seed(0).of_release(0).stream("noise").normals(len(clipped), step=0)).double()
    for size in (2, ROWS):
        run = so.PrivateRun(plan, model, (inputs, labels), seed=0, physical_batch_size=size)
        torch.testing.assert_close(next(run).value, clipped + 0.5 * noise, rtol=0, atol=2e-5)
