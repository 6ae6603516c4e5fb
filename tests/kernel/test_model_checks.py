"""Models that mix examples or keep state are refused by name, and could not raise the sensitivity anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.kernel.contribution import LossGradient
from sordino.kernel.model_checks import check_isolation
from sordino.kernel.records import Records, as_records
from sordino.models.batchnorm import replace_batchnorm


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


class Applying(nn.Module):
    """Any function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Averaging(nn.Module):
    """Keeps a moving average of what it sees, added in place or assigned."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        new = 0.9 * self.average + 0.1 * x.detach().mean(0)
        if self.in_place:
            self.average.copy_(new)
        else:
            self.average = new
        return x


class Counting(nn.Module):
    """Keeps a count outside any buffer, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        return x * len(self.calls)


class Reaching(nn.Module):
    """Changes the buffer of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Averaging(in_place=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.average.add_(1)
        return self.head(x)


def vectors(width: int = 4) -> Records:
    generator = torch.Generator().manual_seed(0)
    return as_records((torch.randn(8, width, generator=generator), torch.arange(8) % 3))


def pictures() -> Records:
    generator = torch.Generator().manual_seed(0)
    return as_records((torch.randn(8, 2, 5, 5, generator=generator), torch.arange(8) % 3))


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 3))


def convolutional(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), layer, nn.Flatten(), nn.Linear(54, 3))


def check(model: nn.Module, records: Records) -> None:
    LossGradient(F.cross_entropy).check(model, records)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: F.softmax(x, dim=0),
        lambda x: x / x.norm(),
        lambda x: x[torch.tensor([1, 2, 3, 4, 0])[: len(x)]],
        lambda x: x + 1e-2 * x.amax(0),
        lambda x: x if len(x) < 2 or x[0, 0] < x[1, 0] else -x,
    ],
)
def test_a_layer_that_mixes_examples_is_named(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UsageError, match=r"layer '1' \(Applying\) mixes the examples of a batch"):
        check(around(Applying(function)), vectors())


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(6), nn.SyncBatchNorm(6), nn.BatchNorm2d(6, affine=False)])
def test_batchnorm_in_training_mode_is_named_with_its_replacement(layer: nn.Module) -> None:
    model = convolutional(layer)
    with pytest.raises(UsageError, match=rf"layer '1' \({type(layer).__name__}\).*sordino\.replace_batchnorm"):
        check(model, pictures())
    check(replace_batchnorm(model), pictures())


def test_batchnorm_with_public_statistics_in_eval_mode_is_allowed() -> None:
    model = convolutional(nn.BatchNorm2d(6))
    model[1].eval()
    check(model, pictures())


def test_batchnorm_without_statistics_is_refused_in_eval_mode_too() -> None:
    with pytest.raises(UsageError, match=r"layer '1' \(BatchNorm2d\)"):
        check(convolutional(nn.BatchNorm2d(6, track_running_stats=False)).eval(), pictures())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Averaging(in_place=True), r"layer '1' \(Averaging\) changes its own 'average'"),
        (Averaging(in_place=False), r"layer '1' \(Averaging\) changes its own 'average'"),
        (Counting(), "gives different outputs for equal inputs"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), r"layer '1.*SpectralNorm\) changes its buffer '_u'"),
    ],
)
def test_a_layer_that_keeps_state_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(around(layer), vectors())


def test_state_that_a_hook_changes_before_the_layer_runs_is_seen() -> None:
    model = around(Averaging(in_place=True))
    model[0].register_buffer("seen", torch.zeros(()))
    model[0].register_forward_pre_hook(lambda module, inputs: module.seen.add_(inputs[0].sum()) and None)
    with pytest.raises(UsageError, match=r"layer '0' \(Linear\) changes its own 'seen'"):
        check(model, vectors())


def test_the_answer_does_not_depend_on_the_global_generator() -> None:
    drawn: list[float] = []

    def noisy(x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        drawn.append(float(noise.sum()))
        return x + noise

    model, template = around(Applying(noisy)), vectors().template(6)
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            check_isolation(model, F.cross_entropy, template)
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]


def test_a_layer_that_changes_the_state_of_another_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the model \(Reaching\) changes its own 'inner\.average'"):
        check(Reaching(), vectors())


def test_running_statistics_of_instances_are_refused() -> None:
    with pytest.raises(UsageError, match=r"layer '1' \(InstanceNorm2d\) keeps running statistics"):
        check(convolutional(nn.InstanceNorm2d(6, track_running_stats=True)), pictures())
    check(convolutional(nn.InstanceNorm2d(6)), pictures())


@pytest.mark.parametrize(
    ("layer", "message"),
    [(nn.Embedding(5, 4, sparse=True), "sparse=False"), (nn.Embedding(5, 4, max_norm=1.0), "max_norm")],
)
def test_embeddings_that_show_or_change_their_ids_are_refused(layer: nn.Module, message: str) -> None:
    records = as_records((torch.zeros(8, 3, dtype=torch.int64), torch.arange(8) % 3))
    with pytest.raises(UsageError, match=message):
        check(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3)), records)


def test_hooks_on_gradients_are_refused() -> None:
    model = around(nn.ReLU())
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(UsageError, match=r"parameter '0\.weight' has a gradient hook"):
        check(model, vectors())
    model = around(nn.ReLU())
    model[1].register_full_backward_hook(lambda *_: None)
    with pytest.raises(UsageError, match=r"layer '1' \(ReLU\) has a backward hook"):
        check(model, vectors())


def test_a_lazy_layer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"parameter '0\.weight' has no shape yet"):
        check(nn.Sequential(nn.LazyLinear(3)), vectors())


def test_a_model_that_does_not_fit_the_data_is_refused_with_its_own_message_in_one_line() -> None:
    with pytest.raises(
        UsageError, match=r"layer '0' \(Linear\) fails on synthetic inputs of shape \(5, 7\): (addmm: )?mat1"
    ) as info:
        check(around(nn.ReLU()), vectors(width=7))
    assert "\n" not in str(info.value)


def test_an_output_without_one_row_per_example_is_refused() -> None:
    with pytest.raises(UsageError, match=r"one output per example, got shape \(\) for 5 examples"):
        check(nn.Sequential(nn.Linear(4, 3), Applying(lambda x: x.sum())), vectors())


def test_an_output_whose_shape_changes_for_a_batch_of_one_is_refused() -> None:
    records = as_records((torch.randn(8, 4), torch.rand(8)))
    model = nn.Sequential(nn.Linear(4, 1), Applying(lambda x: x.squeeze()))
    with pytest.raises(UsageError, match=r"gives shape \(\) for a batch of one, expected \(1,\)"):
        LossGradient(F.mse_loss).check(model, records)
    model[1] = Applying(lambda x: x.squeeze(-1))
    LossGradient(F.mse_loss).check(model, records)


@pytest.mark.parametrize("layer", [Averaging(in_place=True), Applying(lambda x: x - x.mean(0)), Counting()])
def test_a_refused_model_is_left_as_it_was(layer: nn.Module) -> None:
    model, records = around(layer).eval(), vectors()
    model[0].train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    with pytest.raises(UsageError):
        check(model, records)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_check_sees_no_data() -> None:
    class Untouchable(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            if structure_is_known:
                raise AssertionError("data was read")
            return torch.full((4,), float("nan")), 99

    structure_is_known = False
    records = as_records(Untouchable())
    structure_is_known = True
    check(around(nn.Dropout(0.5)), records)


@pytest.mark.parametrize(
    "function", [lambda x: x - x.mean(0), lambda x: x + x.sum(0), lambda x: x.cumsum(0), lambda x: x / (1 + x.norm())]
)
def test_a_mixing_model_that_was_not_checked_still_keeps_examples_apart(function: Callable[[Tensor], Tensor]) -> None:
    model, records = around(Applying(function)), vectors()
    contribution, seeds = LossGradient(F.cross_entropy), torch.arange(8)
    each = torch.cat(list(contribution.of(model, records.gather(torch.arange(8)), seeds).rows(8)))
    without_the_last = torch.cat(list(contribution.of(model, records.gather(torch.arange(7)), seeds[:7]).rows(7)))
    torch.testing.assert_close(each[:7], without_the_last, rtol=1e-5, atol=1e-7)
