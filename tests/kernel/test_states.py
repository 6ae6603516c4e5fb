"""A gradient's privacy state is its type, and no state has arithmetic that could undo it."""

import math

import pytest
import torch
from torch import nn

from sordino import Private
from sordino.errors import UsageError
from sordino.kernel.states import NUMBERS_AT_A_TIME, BoundedSum, Dense, Layout

LAYOUT = Layout(("w",), ((2,),))


def bounded(bound=1.0):
    return BoundedSum(torch.ones(2, dtype=torch.float64), bound, LAYOUT)


def test_sums_over_disjoint_units_add_up_and_keep_their_bound():
    both = bounded() + bounded()
    assert both.value.tolist() == [2.0, 2.0]
    assert both.bound == 1.0


def test_a_sum_can_grow_in_its_own_memory():
    total = bounded()
    memory = total.value
    total += bounded()
    assert total.value is memory and memory.tolist() == [2.0, 2.0]
    assert total.bound == 1.0


def test_sums_with_different_bounds_do_not_add_up():
    with pytest.raises(UsageError, match=r"different bounds cannot be added: 1.0 and 2.0"):
        bounded(1.0) + bounded(2.0)
    total = bounded(1.0)
    with pytest.raises(UsageError, match=r"different bounds cannot be added: 1.0 and 2.0"):
        total += bounded(2.0)
    assert total.value.tolist() == [1.0, 1.0]


def test_sums_in_float32_add_up_in_float64_and_are_left_as_they_were():
    size = NUMBERS_AT_A_TIME + 3
    ones, tiny = (BoundedSum(torch.full((size,), value), 1.0, LAYOUT) for value in (1.0, 2.0**-40))
    together = ones + tiny
    assert torch.equal(together.value, torch.full((size,), 1 + 2.0**-40, dtype=torch.float64))
    total = ones
    total += tiny
    assert torch.equal(total.value, together.value)
    assert torch.equal(ones.value, torch.ones(size))


@pytest.mark.parametrize(
    "operation", ["__mul__", "__rmul__", "__truediv__", "__sub__", "__neg__", "__matmul__", "__pow__"]
)
def test_a_bounded_sum_cannot_be_rescaled(operation):
    assert not hasattr(bounded(), operation)


def test_a_state_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        bounded().bound = 2.0


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf")])
def test_a_private_gradient_is_divided_by_a_positive_public_number(number):
    with pytest.raises(UsageError, match="public_number must be a finite number above 0"):
        Private(torch.ones(2), LAYOUT).divide(number)


def test_a_private_gradient_is_written_where_it_belongs():
    model = nn.Linear(3, 2)
    private = Private(torch.arange(8, dtype=torch.float64), Layout.of(model))
    private.divide(2).write_to(model)
    assert model.weight.grad.tolist() == [[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]
    assert model.bias.grad.tolist() == [3.0, 3.5]
    assert model.weight.grad.dtype == torch.float32


def test_a_gradient_is_written_over_the_last_one_in_its_memory():
    model = nn.Linear(3, 2)
    Private(torch.ones(8, dtype=torch.float64), Layout.of(model)).write_to(model)
    place = model.weight.grad.data_ptr()
    Private(torch.full((8,), 3.0, dtype=torch.float64), Layout.of(model)).divide(2).write_to(model)
    assert model.weight.grad.data_ptr() == place
    assert model.weight.grad.tolist() == [[1.5] * 3] * 2


def test_a_gradient_that_is_written_later_leaves_an_earlier_release_alone():
    model = nn.Linear(3, 2).double()
    first = Private(torch.ones(8, dtype=torch.float64), Layout.of(model))
    first.write_to(model)
    Private(torch.zeros(8, dtype=torch.float64), Layout.of(model)).write_to(model)
    assert first.value.tolist() == [1.0] * 8


@pytest.mark.parametrize("left", ["sparse", "differentiable", "inference"])
def test_what_was_left_in_a_gradient_does_not_stand_in_the_way(left):
    model = nn.Linear(3, 2)
    if left == "sparse":
        model.weight.grad = torch.zeros(2, 3).to_sparse()
    elif left == "differentiable":
        model.weight.grad = model.weight * 2
    else:
        with torch.inference_mode():
            Private(torch.zeros(8), Layout.of(model)).write_to(model)
    Private(torch.ones(8), Layout.of(model)).write_to(model)
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2


def test_a_quotient_is_a_release_like_any_other():
    whole = Private(torch.tensor([3.0, 5.0], dtype=torch.float64), Layout(("w",), ((2,),)), noise_square=4.0)
    half = whole.divide(2).divide(2)
    assert half.value.tolist() == [0.75, 1.25]
    assert half.tensors()["w"].tolist() == [0.75, 1.25]
    assert half.noise_square == 0.0
    assert "noise_square" not in repr(half)
    other = half.lift(lambda value: torch.tensor([1.0, 2.0]))
    assert other.value.tolist() == [1.0, 2.0] and other.divide(2).value.tolist() == [0.5, 1.0]


def test_a_private_gradient_of_another_model_is_refused():
    with pytest.raises(UsageError, match="other trainable parameters"):
        Private(torch.zeros(8), Layout.of(nn.Linear(3, 2))).write_to(nn.Linear(2, 3))


def test_rows_beyond_the_bound_are_scaled_down_and_the_others_left_as_they_are():
    rows = torch.tensor([[3.0, 4.0], [0.25, 0.5], [math.nan, 0.0], [math.inf, 1.0], [1e300, 0.0], [0.0, 0.0]])
    for kept in range(len(rows)):
        one = BoundedSum.of_rows(rows[kept : kept + 1].double(), 1.0, LAYOUT)
        assert float(one.value.norm()) <= one.bound == 1.0
    assert BoundedSum.of_rows(rows[1:4], 1.0, LAYOUT).value.tolist() == [0.25, 0.5]
    torch.testing.assert_close(BoundedSum.of_rows(rows[:1], 1.0, LAYOUT).value, torch.tensor([0.6, 0.8]).double())
    assert BoundedSum.of_rows(rows[:0], 1.0, LAYOUT).value.tolist() == [0.0, 0.0]


def test_a_sum_that_was_rounded_on_the_wire_is_within_the_bound_that_it_then_has():
    """Two neighboring sums, each rounded to float32: of 1000 units, and of 999."""
    units = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units = 100 * units / units.norm(dim=1, keepdim=True) * units[:1].sign()
    both = [
        BoundedSum.from_wire(x.sum(dim=0).float(), 100.0, LAYOUT, units=1000) for x in (units.abs(), units.abs()[1:])
    ]
    assert 100.0 < both[0].bound < 100.02
    assert float((both[0].value.double() - both[1].value.double()).norm()) <= both[0].bound


def test_a_map_of_a_release_has_a_layout_of_its_own_and_keeps_no_noise_that_nobody_says():
    released = Private(torch.tensor([1.0, 2.0]), LAYOUT, noise_square=4.0)
    one = Layout(("norm",), ((1,),))
    lifted = released.divide(2).lift(lambda value: value.sum()[None], one)
    assert lifted.value.tolist() == [1.5] and lifted.layout == one and lifted.noise_square == 0.0
    assert type(lifted) is type(released.divide(2)) is Private
    with pytest.raises(UsageError, match=r"mapped must return a vector of length 2, got shape \(1,\)"):
        released.lift(lambda value: value.sum()[None])


def test_frozen_parameters_have_no_place_in_the_layout():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert Layout.of(model).names == ("weight",)


def test_a_tied_parameter_counts_once():
    model = nn.Module()
    model.first = nn.Linear(3, 3, bias=False)
    model.second = nn.Linear(3, 3, bias=False)
    model.second.weight = model.first.weight
    assert Layout.of(model).names == ("first.weight",)


@pytest.mark.parametrize("many", [1, 20])
def test_no_repr_shows_a_value(many):
    layout = Layout(tuple(f"layer{i}" for i in range(many)), ((2,),) * many)
    values = torch.full((2 * many,), 0.6180339)
    private = Private(values, layout)
    states = [Dense(values[None], layout), BoundedSum(values.double(), 1.5, layout), private, private.divide(4.0)]
    for state in states:
        shown = repr(state)
        assert shown.startswith(f"{type(state).__name__.replace('_Quotient', 'Private')}(")
        assert "layer0" in shown and f"{2 * many}" in shown and "torch.float" in shown and len(shown) < 200
        assert "0.6" not in shown and "0.15" not in shown
    assert ("12 more" in repr(private)) == (many == 20)
    assert "bound=1.5" in repr(states[1])
    assert "value" not in vars(states[3])  # nothing was computed to show it
