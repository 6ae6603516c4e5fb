"""Models that use torch in unusual ways, and models that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.architecture_models.dense import FEATURES, mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, vectors, weights


class ClampWithGradient(torch.autograd.Function):
    """A clamp whose gradient passes everywhere, in the older form of a function."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Swish(torch.autograd.Function):
    """Swish that keeps its input only, in the newer form, which `vmap` may take apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        (x,) = context.saved_tensors
        opened = torch.sigmoid(x)
        return gradient * opened * (1 + x * (1 - opened))


class Doubled(torch.autograd.Function):
    """A function with a rule for `vmap` of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        """Saves nothing."""

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient

    @staticmethod
    def vmap(info: Any, axes: Any, x: Tensor) -> Any:
        return 2 * x, axes[0]


class OwnLinear(torch.autograd.Function):
    """A linear layer with a backward pass of its own, in the older form."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.t() @ x


def around(function: Callable[[Tensor], Any]) -> nn.Module:
    """A function between two layers."""
    run = lambda m, x: m.head(function(m.first(x)))  # noqa: E731
    return Net(run, first=nn.Linear(FEATURES, 16), head=nn.Linear(16, CLASSES))


@kind()
def own_function(rows: int) -> Case:
    return vectors(around(ClampWithGradient.apply), rows, FEATURES)


@kind()
def own_function_with_generated_rule(rows: int) -> Case:
    return vectors(around(Swish.apply), rows, FEATURES)


@kind()
def own_function_with_own_rule(rows: int) -> Case:
    return vectors(around(Doubled.apply), rows, FEATURES)


@kind()
def own_linear_function(rows: int) -> Case:
    model = Net(lambda m, x: m.head(torch.tanh(OwnLinear.apply(x, m.weight))), weight=weights(16, FEATURES),
                head=nn.Linear(16, CLASSES))  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def checkpointed(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return m.head(x)

    blocks = nn.ModuleList(mlp(FEATURES, 16, FEATURES) for _ in range(3))
    return vectors(Net(run, blocks=blocks, head=nn.Linear(FEATURES, CLASSES)), rows, FEATURES)


@kind()
def checkpointed_reentrant(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.first(x)
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return m.head(x)

    blocks = nn.ModuleList(mlp(FEATURES, 16, FEATURES) for _ in range(3))
    model = Net(run, first=nn.Linear(FEATURES, FEATURES), blocks=blocks, head=nn.Linear(FEATURES, CLASSES))
    return vectors(model, rows, FEATURES)


@kind(refused="compiled by torch.jit")
def scripted_layer(rows: int) -> Case:
    scripted = torch.jit.script(mlp(FEATURES, 16, 16))
    return vectors(Net(lambda m, x: m.head(m.scripted(x)), scripted=scripted, head=nn.Linear(16, 3)), rows, FEATURES)


@kind(refused="compiled by torch.jit")
def scripted_model(rows: int) -> Case:
    return vectors(torch.jit.script(mlp(FEATURES, 16, CLASSES)), rows, FEATURES)


@kind(refused="compiled by torch.jit")
def traced_model(rows: int) -> Case:
    return vectors(torch.jit.trace(mlp(FEATURES, 16, CLASSES), torch.randn(1, FEATURES)), rows, FEATURES)


@kind()
def scripted_function(rows: int) -> Case:
    scripted = torch.jit.script(fused_gelu)
    return vectors(around(scripted), rows, FEATURES)


def fused_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@kind()
def compiled_layer(rows: int) -> Case:
    inner = torch.compile(mlp(FEATURES, 16, 16), backend="eager")
    return vectors(Net(lambda m, x: m.head(m.inner(x)), inner=inner, head=nn.Linear(16, CLASSES)), rows, FEATURES)


@kind()
def compiled_function(rows: int) -> Case:
    return vectors(around(torch.compile(fused_gelu, backend="eager")), rows, FEATURES)


@kind()
def symbolically_traced(rows: int) -> Case:
    return vectors(torch.fx.symbolic_trace(mlp(FEATURES, 16, CLASSES)), rows, FEATURES)


@kind()
def outputs_in_a_dictionary(rows: int) -> Case:
    """Several outputs, and a loss of two tasks."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = F.relu(m.first(x))
        return {"class": m.of_class(hidden), "size": m.of_size(hidden).squeeze(-1)}

    def loss(outputs: Any, target: Tensor) -> Any:
        return F.cross_entropy(outputs["class"], target, reduction="sum") + outputs["size"].square().sum()

    model = Net(run, first=nn.Linear(FEATURES, 16), of_class=nn.Linear(16, CLASSES), of_size=nn.Linear(16, 1))
    return vectors(model, rows, FEATURES, loss=loss)


@kind()
def keyword_inputs(rows: int) -> Case:
    def run(m: Any, *, picture: Tensor, words: Tensor) -> Any:
        return m.head(torch.cat([m.seen(picture.flatten(1)), m.read(words).mean(dim=1)], dim=-1))

    model = Net(run, seen=nn.Linear(16, 8), read=nn.Embedding(9, 8), head=nn.Linear(16, CLASSES))
    inputs = {"picture": torch.randn(rows, 4, 4), "words": torch.randint(9, (rows, 5))}
    return Case(model, inputs, classes(rows))


@kind()
def hooks(rows: int) -> Case:
    """Features are taken out by a forward hook, as in perceptual losses."""

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp(FEATURES, 16, 8), nn.Linear(24, CLASSES)
            self.features: list[Tensor] = []
            self.body[0].register_forward_hook(self.keep)

        def keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
            self.features.append(output)

        def forward(self, x: Tensor) -> Any:
            self.features = []
            output = self.body(x)
            return self.head(torch.cat([output, *self.features], dim=-1))

    return vectors(Hooked(), rows, FEATURES)


@kind()
def tensor_hook(rows: int) -> Case:
    """The gradient of an activation is scaled by a hook on the tensor."""

    def scaled(x: Tensor) -> Tensor:
        x.register_hook(partial(torch.mul, other=0.5))
        return torch.tanh(x)

    return vectors(around(scaled), rows, FEATURES)


def solving() -> nn.Module:
    """The solution of a small linear system with a learned matrix."""

    def run(m: Any, x: Tensor) -> Any:
        matrix = m.factor @ m.factor.t() + torch.eye(6)
        return m.head(torch.linalg.solve(matrix, m.first(x).unsqueeze(-1)).squeeze(-1))

    return Net(run, first=nn.Linear(FEATURES, 6), factor=weights(6, 6), head=nn.Linear(6, CLASSES))


@kind()
def linear_system(rows: int) -> Case:
    return vectors(solving(), rows, FEATURES)


@kind()
def linear_system_summed(rows: int) -> Case:
    """A loss that does not notice if a layer returns several copies of an example."""

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target.unsqueeze(-1)).square().sum()

    return vectors(solving(), rows, FEATURES, loss=loss)


@kind()
def rolled_number(rows: int) -> Case:
    """`torch.roll` of one number, which does nothing, and for which `vmap` of torch 2.13 has a rule that mixes rows."""
    return vectors(around(lambda x: torch.stack([row * torch.roll(row.mean(), 1) for row in x])), rows, FEATURES)


@kind(refused="torch.cond")
def branch_of_torch(rows: int) -> Case:
    """`torch.cond` instead of a branch of Python."""

    def each(x: Tensor) -> Tensor:
        return torch.stack([torch.cond(row.sum() > 0, torch.tanh, torch.relu, (row,)) for row in x])

    return vectors(around(each), rows, FEATURES)


@kind()
def deep_equilibrium(rows: int) -> Case:
    """A fixed point that is found without gradients, and one more step with them."""

    def run(m: Any, x: Tensor) -> Any:
        injected = m.inject(x)
        with torch.no_grad():
            state = torch.zeros_like(injected)
            for _ in range(30):
                state = torch.tanh(m.step(state) + injected)
        return m.head(torch.tanh(m.step(state) + injected))

    model = Net(run, inject=nn.Linear(FEATURES, 8), step=nn.Linear(8, 8), head=nn.Linear(8, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def deep_equilibrium_until_converged(rows: int) -> Case:
    """The fixed point is reached after a number of steps that depends on the example."""

    def run(m: Any, x: Tensor) -> Any:
        injected = m.inject(x)
        with torch.no_grad():
            state, before = torch.tanh(injected), torch.zeros_like(injected)
            while (state - before).abs().max() > 1e-6:
                state, before = torch.tanh(0.5 * m.step(state) + injected), state
        return m.head(torch.tanh(0.5 * m.step(state) + injected))

    model = Net(run, inject=nn.Linear(FEATURES, 8), step=nn.Linear(8, 8), head=nn.Linear(8, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def neural_ode(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        state, step = m.first(x), 0.2
        for number in range(5):
            time = torch.full_like(state[:, :1], number * step)
            slope = m.field(torch.cat([state, time], dim=-1))
            middle = m.field(torch.cat([state + 0.5 * step * slope, time + 0.5 * step], dim=-1))
            state = state + step * middle
        return m.head(state)

    model = Net(run, first=nn.Linear(FEATURES, 8), field=mlp(9, 16, 8, activation=nn.Tanh), head=nn.Linear(8, CLASSES))
    return vectors(model, rows, FEATURES)


@kind(refused="mixes the examples")
def inner_gradient_steps_of_the_batch(rows: int) -> Case:
    """Steps of gradient descent on an inner loss, whose mean is over all examples and changes one weight for all."""

    def run(m: Any, support: Tensor, labels: Tensor, query: Tensor) -> Any:
        weight = m.weight
        for _ in range(2):
            loss = F.mse_loss(support @ weight, labels)
            (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
            weight = weight - m.rate.exp() * slope
        return query @ weight

    model = Net(run, weight=weights(5, 2), rate=nn.Parameter(torch.tensor(-1.0)))
    inputs = torch.randn(rows, 6, 5), torch.randn(rows, 6, 2), torch.randn(rows, 3, 5)
    return Case(model, inputs, torch.randn(rows, 3, 2), F.mse_loss)


@kind()
def inner_gradient_steps(rows: int) -> Case:
    """Inner gradient steps with a weight for each example, as in meta-learning of tasks."""

    def run(m: Any, support: Tensor, labels: Tensor, query: Tensor) -> Any:
        weight = m.weight.expand(len(support), -1, -1)
        for _ in range(2):
            loss = (support @ weight - labels).square().mean(dim=(1, 2)).sum()
            (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
            weight = weight - m.rate.exp() * slope
        return query @ weight

    model = Net(run, weight=weights(5, 2), rate=nn.Parameter(torch.tensor(-1.0)))
    inputs = torch.randn(rows, 6, 5), torch.randn(rows, 6, 2), torch.randn(rows, 3, 5)
    return Case(model, inputs, torch.randn(rows, 3, 2), F.mse_loss)


@kind(refused="BatchNorm1d")
def batch_norm(rows: int) -> Case:
    return vectors(nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)), rows, FEATURES)


@kind()
def batch_norm_in_eval(rows: int) -> Case:
    """Public statistics, and a trained scale and shift."""
    norm = nn.BatchNorm2d(6)
    norm.running_mean, norm.running_var = torch.randn(6), torch.rand(6) + 0.5
    model = nn.Sequential(nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, CLASSES)).eval()
    return vectors(model, rows, 3, 8, 8)


@kind(refused="mixes the examples")
def normalised_over_the_batch(rows: int) -> Case:
    return vectors(around(lambda x: (x - x.mean(dim=0)) / (x.std(dim=0, correction=0) + 1)), rows, FEATURES)


@kind(refused="mixes the examples")
def attention_over_the_batch(rows: int) -> Case:
    return vectors(around(lambda x: (x @ x.t()).softmax(dim=-1) @ x), rows, FEATURES)


@kind(refused="mixes the examples")
def contrastive_outputs(rows: int) -> Case:
    model = Net(lambda m, x: m.first(x) @ m.first(x).t()[:, :CLASSES], first=nn.Linear(FEATURES, 8))
    return vectors(model, rows, FEATURES)


class Counting(nn.Module):
    """A layer with a running mean of what it sees."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 0.1 * x.detach().mean(dim=0)
        return x - self.seen


@kind(refused="changes its own 'seen'")
def running_mean(rows: int) -> Case:
    return vectors(nn.Sequential(Counting(), nn.Linear(FEATURES, CLASSES)), rows, FEATURES)


@kind(refused="loss mixes")
def loss_over_the_batch(rows: int) -> Case:
    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target) * outputs.square().mean()

    return vectors(nn.Linear(FEATURES, CLASSES), rows, FEATURES, loss=loss)
