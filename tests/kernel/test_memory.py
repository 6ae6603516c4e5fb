"""A model or a loss cannot use what it kept of an earlier batch: one row would change what others contribute."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from sordino.errors import UsageError
from sordino.gradients import loop, torch_state
from sordino.gradients.loop import why_alone
from sordino.gradients.torch_state import attributes_kept
from sordino.kernel.augmentation import Flip
from sordino.kernel.records import as_records
from sordino.training import evaluation

ROWS, DECISIVE, PATIENCE = 80, 30, 20  # a check makes fewer passes than the model has patience

MODULE_LEVEL: dict[str, Any] = {}
latest: Any = None


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    MODULE_LEVEL.clear()
    Class.memory.clear()
    globals()["latest"] = None


@pytest.fixture(autouse=True, params=["together", "alone"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are run together, and, as rows of a large model are, one at a time."""
    if request.param == "alone":
        monkeypatch.setattr(loop, "_LARGE_ROW", 0)


class Remembering(nn.Module):
    """Multiplies its inputs by the sign of the sum of all that it has seen. It begins to remember after some calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3, bias=False)

    def kept(self) -> Any:
        """(number, sum) of what was seen before, or None if nothing was seen. The sum may be None too."""
        raise NotImplementedError

    def keep(self, number: int, total: Tensor | None) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        number, total = self.kept() or (0, None)
        if number < PATIENCE:
            self.keep(number + 1, None)
            return self.layer(x)
        self.keep(number + 1, x.sum() if total is None else total + x.sum())
        return self.layer(x if total is None else x * total.sign())


class Dict(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Any] = {}

    def kept(self) -> Any:
        return self.cache.get("seen")

    def keep(self, number: int, total: Tensor | None) -> None:
        self.cache["seen"] = number, total


class InOrder(Dict):
    def __init__(self) -> None:
        super().__init__()
        self.cache = OrderedDict()


class Default(Dict):
    def __init__(self) -> None:
        super().__init__()
        self.cache = defaultdict(lambda: None)


class List(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.memory: Any = []

    def kept(self) -> Any:
        return self.memory[-1] if self.memory else None

    def keep(self, number: int, total: Tensor | None) -> None:
        self.memory.append((number, total))


class Queue(List):
    def __init__(self) -> None:
        super().__init__()
        self.memory = deque(maxlen=3)


class Set(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.memory: set[Any] = set()

    def kept(self) -> Any:
        return max(self.memory, key=lambda pair: pair[0], default=None)

    def keep(self, number: int, total: Tensor | None) -> None:
        self.memory.add((number, total))


class Nested(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.state = SimpleNamespace(inner={"deeper": [SimpleNamespace(seen=None)]})

    def kept(self) -> Any:
        return self.state.inner["deeper"][0].seen

    def keep(self, number: int, total: Tensor | None) -> None:
        self.state.inner["deeper"][0].seen = number, total


@dataclass
class Memory:
    seen: list[Any] = field(default_factory=list)


class DataClass(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()

    def kept(self) -> Any:
        return self.memory.seen[0] if self.memory.seen else None

    def keep(self, number: int, total: Tensor | None) -> None:
        self.memory.seen[:] = [(number, total)]


class Slotted:
    __slots__ = ("seen",)


class Slots(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.memory = (Slotted(),)

    def kept(self) -> Any:
        return getattr(self.memory[0], "seen", None)

    def keep(self, number: int, total: Tensor | None) -> None:
        self.memory[0].seen = number, total


class InALayer(Remembering):
    """Keeps the sum in a dictionary of a torch layer."""

    def __init__(self) -> None:
        super().__init__()
        vars(self.layer)["cache"] = {}

    def kept(self) -> Any:
        return vars(self.layer)["cache"].get(0)

    def keep(self, number: int, total: Tensor | None) -> None:
        vars(self.layer)["cache"][0] = number, total


class Buffer(Remembering):
    """Replaces a buffer directly in `_buffers`."""

    def __init__(self) -> None:
        super().__init__()
        self.number = [0]
        self.register_buffer("total", None)

    def kept(self) -> Any:
        return self.number[0], self._buffers["total"]

    def keep(self, number: int, total: Tensor | None) -> None:
        self.number[0], self._buffers["total"] = number, total


class Closure(Remembering):
    def __init__(self) -> None:
        super().__init__()
        seen = None

        def kept() -> Any:
            return seen

        def keep(number: int, total: Tensor | None) -> None:
            nonlocal seen
            seen = number, total

        self.__dict__.update(kept=kept, keep=keep)


class DefaultArgument(Remembering):
    def __init__(self) -> None:
        super().__init__()
        shared: list[Any] = []
        self.__dict__.update(
            kept=lambda memory=shared: memory[-1] if memory else None,
            keep=lambda number, total, memory=shared: memory.append((number, total)),
        )


class Global(Remembering):
    def kept(self) -> Any:
        return MODULE_LEVEL.get("seen")

    def keep(self, number: int, total: Tensor | None) -> None:
        MODULE_LEVEL["seen"] = number, total


class GlobalName(Remembering):
    def kept(self) -> Any:
        return latest

    def keep(self, number: int, total: Tensor | None) -> None:
        global latest
        latest = number, total


class Class(Remembering):
    memory: list[Any] = []  # noqa: RUF012  # shared by all instances, which is the point

    def kept(self) -> Any:
        return self.memory[-1] if self.memory else None

    def keep(self, number: int, total: Tensor | None) -> None:
        self.memory.append((number, total))


class Mapped(Global):
    """Uses a parameter in a way that the tape cannot record."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.vmap(lambda row: row + 0 * self.layer.weight.sum())(x))


RESTORED = [Dict, InOrder, Default, List, Queue, Set, Nested, DataClass, Slots, InALayer, Buffer]
OUT_OF_REACH = [Closure, DefaultArgument, Global, GlobalName, Class, Mapped]


def records(decisive: bool) -> tuple[Tensor, Tensor]:
    """Rows of which the first decides the sign of the sum, or is absent."""
    inputs, labels = torch.full((ROWS, 4), 0.1), torch.zeros(ROWS, dtype=torch.int64)
    inputs[DECISIVE], labels[DECISIVE] = (-1e6, 0) if decisive else (0.0, 99)
    return inputs, labels


def moved(make_model: Callable[[], nn.Module], loss: Any = None) -> float:
    """The distance by which one row moves the clipped sum, in clip norms, with micro-batches of one row."""
    sums = []
    for decisive in (True, False):
        _forgotten_by_hand()
        gradient = so.LossGradient(loss() if loss else F.cross_entropy)
        plan = so.Plan(so.Poisson(1.0, 1), gradient, so.ClipByNorm(1e-3), so.Gaussian(1.0))
        model = make_model()
        run = so.PrivateRun(plan, model, records(decisive), seed=0)
        begun = run.begin()
        rows = (run.bounded(begun, gradient.of(model, *run.drawn(begun, row))) for row in torch.split(begun.indices, 1))
        sums.append(sum(rows, next(rows)).value)
    return float((sums[0] - sums[1]).norm()) / 1e-3


def _forgotten_by_hand() -> None:
    MODULE_LEVEL.clear()
    Class.memory.clear()
    globals()["latest"] = None


@pytest.mark.parametrize("model", RESTORED)
def test_what_a_model_keeps_in_its_attributes_is_gone_with_the_micro_batch(model: type[Remembering]) -> None:
    assert moved(model) <= 1


@pytest.mark.parametrize("model", OUT_OF_REACH)
def test_what_a_model_keeps_elsewhere_cannot_be_used_on_other_rows(model: type[Remembering]) -> None:
    with pytest.raises(UsageError, match="kept from earlier rows"):
        moved(model)


@pytest.mark.parametrize("model", [Dict, Queue])
def test_a_memory_beside_dropout_is_gone_as_well(model: type[Remembering]) -> None:
    def with_dropout() -> nn.Module:
        made = model()
        made.register_module("drop", nn.Dropout(0.5))
        made.layer.register_forward_pre_hook(lambda layer, inputs: made.get_submodule("drop")(*inputs))
        return made

    assert moved(with_dropout) <= 1


def remembering_loss() -> Callable[[Tensor, Tensor], Tensor]:
    """A loss with a memory bank of outputs, as contrastive losses have."""
    bank: list[Tensor] = []

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        bank.append(outputs.detach().sum())
        sign = torch.stack(bank[PATIENCE:-1]).sum().sign() if len(bank) > PATIENCE + 1 else 1.0
        return F.cross_entropy(outputs * sign, target, reduction="sum")

    return loss


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class PlainMapped(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: F.linear(row, self.layer.weight))(x)


@pytest.mark.parametrize("model", [Plain, PlainMapped])
def test_what_a_loss_keeps_cannot_be_used_on_other_rows(model: type[nn.Module]) -> None:
    with pytest.raises(UsageError, match="kept from earlier rows"):
        moved(model, remembering_loss)


class Counting(Plain):
    """Keeps a Python float computed from its rows."""

    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.read, self.number, self.passes = read, [0.0], [0]

    def forward(self, x: Tensor) -> Tensor:
        MODULE_LEVEL["passes"] = MODULE_LEVEL.get("passes", 0) + 1
        if MODULE_LEVEL["passes"] > PATIENCE:
            MODULE_LEVEL["number"] = MODULE_LEVEL.get("number", 0.0) + float(self.read(x.sum()))
        return self.layer(x * (-1.0 if MODULE_LEVEL.get("number", 0.0) < 0 else 1.0))


@pytest.mark.parametrize(
    "read",
    [Tensor.item, float, Tensor.tolist, Tensor.numpy, lambda x: x.detach().clone().item(), lambda x: bool(x > 0)],
)
def test_a_number_that_a_model_reads_of_its_rows_does_not_leave_a_pass(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UsageError, match=r"cannot be differentiated example by example|on a tensor of an exampl"):
        moved(lambda: Counting(read))


def test_what_a_transform_keeps_cannot_be_used_on_other_rows() -> None:
    bank: list[Tensor] = []

    class Mixing(Flip):
        def apply(self, picture: Tensor) -> Tensor:
            bank.append(picture)
            return picture * bank[0].sum().sign()

    views = so.Views(1, (Mixing(),))
    views._made(torch.ones(3, 1, 2, 2), torch.arange(3))
    with pytest.raises(UsageError, match="kept from earlier rows"):
        views._made(torch.ones(3, 1, 2, 2), torch.arange(3))


def test_what_is_kept_while_scores_are_taken_cannot_be_used_in_training() -> None:
    model = Global()
    MODULE_LEVEL["seen"] = PATIENCE, None
    batch = as_records(records(True)).gather(torch.arange(DECISIVE, DECISIVE + 1))
    evaluation._scores(model, batch)
    with pytest.raises(UsageError, match="kept from earlier rows"):
        so.LossGradient(F.cross_entropy).of(model, batch, torch.zeros(1, dtype=torch.int64))


def test_containers_are_put_back_by_identity_and_stay_what_they_were() -> None:
    model = Dict()
    shared: list[Any] = [1, [2]]
    model.cache.update(one=shared, other=shared)
    inner, before = shared[1], model.cache
    with attributes_kept(model):
        shared.append(3)
        inner.clear()
        model.cache["one"] = None
        del model.cache["other"]
        model.cache, model.more = {}, 1  # type: ignore[assignment]
    assert model.cache is before and not hasattr(model, "more")
    assert model.cache["one"] is model.cache["other"] is shared
    assert shared == [1, [2]] and shared[1] is inner


def test_what_a_script_changes_between_passes_stays() -> None:
    model = Nested()
    for number in range(3):
        model.state.inner["deeper"].append([number])
        with attributes_kept(model):
            model.state.inner["deeper"][-1].append(number)
    assert model.state.inner["deeper"][1:] == [[0], [1], [2]]


class Seldom:
    """An object that refuses to be written to."""

    def __init__(self) -> None:
        vars(self)["writes"] = 0

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("was written to")


def test_objects_that_did_not_change_are_left_alone() -> None:
    model = Dict()
    model.cache["object"] = Seldom()
    with attributes_kept(model):
        pass


CONSTANTS: dict[int, Tensor] = {}


class Positions(Plain):
    """Keeps constants that depend on a shape only, like rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        for table in (CONSTANTS, self.own):
            width = x.shape[-1]
            if width not in table:
                table[width] = torch.arange(width) / 10
            x = x + table[width]
        return self.layer(x)


class Dense(Plain):
    """Keeps what it computes in a list, and clears the list at each call."""

    def forward(self, x: Tensor) -> Tensor:
        self.features = [x]
        for _ in range(2):
            self.features.append(torch.cat(self.features, 1)[:, :4].tanh())
        return self.layer(torch.stack(self.features).sum(0))


class Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return 2 * gradient * x


class OfAFunction(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(Square.apply(x))  # type: ignore[no-untyped-call]


class Mixing(torch.autograd.Function):
    """Mixes nothing in a plain batch, and everything under `vmap`."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
        return x * x.sum().sign(), axes[0]


@pytest.mark.parametrize("base", [Plain, PlainMapped])
def test_a_function_with_a_vmap_of_its_own_is_never_called_with_many_examples(base: type[nn.Module]) -> None:
    class Mixed(base):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Any:
            return super().forward(Mixing.apply(x))  # type: ignore[no-untyped-call]

    made: list[nn.Module] = []

    def noted() -> nn.Module:
        made.append(Mixed())
        return made[-1]

    assert moved(noted) <= 1
    assert all(why_alone(model) == "Mixing has a vmap method of its own" for model in made)


class KeyedByText(Plain):
    """Finds a sign by the text of a row, which shows the values of all rows of a `vmap`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * (1.0 if len(f"{x}" + str(x)) % 2 else -1.0))


class FromUnfilledMemory(Plain):
    """Uses memory that it did not write to, which may hold values of other rows."""

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.empty(8, 4), torch.empty_like(x), x.new_empty(3, 4)
        return self.layer(x + sum(part.nan_to_num().clamp(-9, 9).sum() for part in parts))


def test_a_model_that_reads_the_text_of_a_row_gets_that_of_its_own_row() -> None:
    assert moved(KeyedByText) <= 1


def test_memory_that_was_not_written_to_holds_zeros() -> None:
    x = torch.ones(3, 4)
    gradient, plain = so.LossGradient(F.cross_entropy), Plain()
    batch = as_records((x, torch.zeros(3, dtype=torch.int64))).gather(torch.arange(3))
    each, others = (gradient.of(model, batch, torch.arange(3)) for model in (FromUnfilledMemory(), plain))
    assert torch.equal(each.squared_norms(), others.squared_norms())


@pytest.mark.parametrize("model", [Positions, Dense, OfAFunction])
def test_a_model_that_keeps_nothing_of_rows_is_trained(model: type[nn.Module]) -> None:
    CONSTANTS.clear()
    assert moved(model) <= 1


def test_a_model_with_a_memory_is_not_slower_to_put_back_than_a_walk_of_its_modules() -> None:
    """If nothing has changed, nothing is copied."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))
    with attributes_kept(model):
        first = torch_state._known[model]
    with attributes_kept(model):
        assert torch_state._known[model] is first


def test_a_script_for_opacus_has_a_model_without_memory_and_a_criterion_without() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    from sordino.opacus import PrivacyEngine

    def sums(decisive: bool, look: bool) -> Tensor:
        model = Dict()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = DataLoader(TensorDataset(*records(decisive)), batch_size=ROWS)
        module, optimizer, loader = PrivacyEngine(seed=0).make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1e-3
        )
        total = None
        for _ in range(PATIENCE + 5):
            for inputs, labels in loader:
                if look:
                    with torch.no_grad():
                        module(inputs)
                F.cross_entropy(module(inputs), labels).backward()
                total = loader.session._total
                optimizer.step()
        assert total is not None
        return total.value

    for look in (False, True):
        assert float((sums(True, look) - sums(False, look)).norm()) <= 1e-3
