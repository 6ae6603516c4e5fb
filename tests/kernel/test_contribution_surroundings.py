"""Computing gradients leaves model and generator unchanged, and does not depend on torch's global settings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from row_gradients import gathered, loop, matrix, rows_of
from small_networks import MODELS, ROWS, convolutional, labels, mlp, pictures, vectors
from small_networks import reseeded as reseeded
from torch import Tensor, nn

from sordino.gradients.torch_state import in_full_precision, pinned, rounded_products
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import as_records
from sordino.kernel.states import Layout


@pytest.mark.parametrize("name", MODELS)
def test_the_model_and_the_global_generator_are_left_as_they_were(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, records = make_model(), as_records((*make_inputs(), labels()))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = [dict(vars(module)) for module in model.modules()]
    generator = torch.get_rng_state()
    contribution = LossGradient(F.cross_entropy)
    contribution.check(model, records)
    contribution.of(model, records.gather(torch.arange(ROWS)), torch.arange(ROWS))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [list(vars(module)) for module in model.modules()] == [list(names) for names in attributes]
    assert all(p.grad is None for p in model.parameters())


def test_an_activation_stored_by_the_model_does_not_stay_there() -> None:
    class Storing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return self.layer(x)

    model = Storing()
    matrix(model, F.cross_entropy, gathered(*vectors(), labels()))
    assert not hasattr(model, "last")


def test_what_is_set_around_changes_nothing() -> None:
    model, batch = convolutional(), gathered(*pictures(), labels())
    plain = matrix(model, F.cross_entropy, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
    with torch.no_grad():
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
    with torch.inference_mode():
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
        LossGradient(F.cross_entropy).check(model, as_records((*pictures(), labels())))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def told_to_round() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def test_norms_and_sums_are_of_unrounded_products_whatever_torch_is_told(told_to_round: None) -> None:
    """If products were rounded, a sum could be longer than the norms by which it was clipped."""
    seen = []

    class Looking:
        @in_full_precision
        def look(self) -> None:
            seen.append(rounded_products())

    around = rounded_products()
    Looking().look()
    assert around["matrices on cpu"] == "bf16"
    not_in_use = set() if torch.cuda.is_initialized() else {name for name in around if name.endswith("cuda")}
    assert [set(rounded) for rounded in seen] == [not_in_use]
    assert rounded_products() == around
    assert torch.get_float32_matmul_precision() == "medium"


def test_one_setting_for_all_products_is_heeded_after_a_step_as_before() -> None:
    backends: Any = torch.backends
    one = backends.fp32_precision
    try:
        backends.fp32_precision = "tf32"
        LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(ROWS)).squared_norms()
        assert rounded_products()["convolutions on cpu"] == "tf32"
        backends.fp32_precision = "ieee"
        assert "convolutions on cpu" not in rounded_products()
    finally:
        backends.fp32_precision = one


def test_a_tensor_made_inside_the_model_has_the_precision_of_its_parameters() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3, dtype=torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + torch.ones(4))  # in double precision, the layer would fail

    torch.set_default_dtype(torch.float64)
    try:
        assert matrix(Offset(), F.cross_entropy, gathered(*vectors(), labels())).any()
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_in_double_precision_stays_there() -> None:
    model, (x,), y = mlp().double(), vectors(), labels()
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert got.dtype == torch.float64
    assert (got - loop(model, F.cross_entropy, (x.double(),), y)).abs().max() < 1e-12


def test_a_compiled_model_gives_the_gradients_of_the_original() -> None:
    model, batch = mlp(), gathered(*vectors(), labels())
    compiled = torch.compile(model, backend="eager")
    each = LossGradient(F.cross_entropy).of(compiled, batch, torch.arange(ROWS))
    assert torch.equal(rows_of(each), matrix(model, F.cross_entropy, batch))
    assert each.layout == Layout.of(compiled)


def test_threads_restore_the_settings_of_the_process() -> None:
    """Each thread finds its own settings inside, and the last one leaves those that were there before the first."""
    before = torch.backends.cuda.flash_sdp_enabled(), torch.get_default_dtype()
    found = list[bool]()

    def work(dtype: torch.dtype) -> None:
        for _ in range(50):
            with pinned(nn.Linear(2, 1, dtype=dtype)):
                time.sleep(1e-4)
                found.append(torch.get_default_dtype() == dtype)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in (torch.float32, torch.float64) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert all(found)
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.get_default_dtype()) == before
