"""Description of a training in a run folder (training.json), and the stages of a plan rebuilt from it.

A run of a model of one's own has no recipe. Its folder says by names and numbers what the stages were, so that a
command can rebuild those of the library. Nothing of a description is evaluated or imported: a name that is not in the
tables below is refused. What a folder cannot hold (a model, a loss of one's own) comes from a function that the user
names on the command line; it returns the untrained model, or a `TrainingSetup`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino._input.strict_toml import Table
from sordino.accounting import Adjacency, Unit
from sordino.errors import StateError, UsageError
from sordino.kernel.augmentation import Crop, Flip, Jitter, Views
from sordino.kernel.clipping import Clip, ClipByNorm, ClipPerLayer, Normalise
from sordino.kernel.contribution import Contribution, LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.records import Records, as_records, by_user
from sordino.kernel.sampling import BallsInBins, Cyclic, FixedSize, Poisson, Sampler, Shuffled, TruncatedPoisson
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging, Ema, Tail
from sordino.training.loop import described_optimizer
from sordino.training.plan_identity import digest_of
from sordino.training.run_folder import PromisedRun, RunFolder
from sordino.training.schedules import AnySchedule, Constant, Cosine, RateTable, Schedule, Step, Warmup

Stage = TypeVar("Stage")
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_TARGET = "target of rows"  # not an identifier, so no input has this name
_LONGEST_TABLE = 10_000  # rates of a scheduler that are written down
_DTYPES = {str(x).removeprefix("torch."): x for x in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
_DTYPES |= {str(x).removeprefix("torch."): x for x in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)}
_DTYPES |= {"bool": torch.bool}


@dataclass(frozen=True)
class TrainingSetup:
    """An untrained model, with the parts of its training that a run folder cannot hold because they are your own code.

    A function that returns one is named on the command line: `--model package.module:function`. What is None is rebuilt
    from the run folder. `optimizer` is a function of the parameters, because some commands train copies of the model.

    >>> setup = TrainingSetup(nn.Linear(4, 3), loss=lambda outputs, target: F.cross_entropy(2 * outputs, target))
    >>> setup.given
    ('loss',)
    """

    model: nn.Module
    loss: Callable[..., Tensor] | Contribution | None = None
    sampler: Sampler | None = None
    clip: Clip | None = None
    noise: Noise | None = None
    encoding: Encoding | None = None
    views: Views | None = None
    optimizer: MakeOptimizer | None = None
    schedule: Schedule | None = None
    averaging: Averaging | None = None

    def __post_init__(self) -> None:
        validate.instance(nn.Module, model=self.model)
        kinds = {"sampler": Sampler, "clip": Clip, "noise": Noise, "encoding": Encoding, "views": Views}
        kinds |= {"schedule": Schedule, "averaging": Averaging}
        for name, kind in kinds.items():
            validate.instance((kind, type(None)), **{name: getattr(self, name)})
        for name in ("loss", "optimizer"):
            value = getattr(self, name)
            if value is not None and not callable(value) and not isinstance(value, Contribution):
                raise UsageError(f"{name} of a TrainingSetup must be a function, got {type(value).__name__}.")

    @property
    def given(self) -> tuple[str, ...]:
        """The parts that are not None."""
        return tuple(x.name for x in fields(self) if x.name != "model" and getattr(self, x.name) is not None)


def describe_training(
    model: nn.Module,
    records: Records,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    schedule: AnySchedule,
    averaging: Averaging | None,
    divisor: float,
) -> dict[str, object]:
    """Public facts about a training. Text for people, and under "stages" what `TrainingDescription` rebuilds."""
    gradient = plan.contribution
    loss = getattr(gradient, "loss", gradient)
    stages = {"sampler": plan.sampler, "clip": plan.clip, "noise": plan.noise, "encoding": plan.encoding}
    written = {name: _written(stage) for name, stage in stages.items()}
    written |= {"loss": _written(loss), "views": _written(getattr(gradient, "views", Views()))}
    autocast = getattr(gradient, "autocast", None)
    return {
        **_about(model, records),
        "plan": {
            "sampler": repr(plan.sampler),
            "loss": name_of_loss(loss),
            "clip": repr(plan.clip),
            "noise": repr(plan.noise),
            "encoding": repr(plan.encoding),
        },
        "optimizer": described_optimizer(optimizer, model),
        "schedule": repr(schedule),
        "averaging": repr(averaging),
        "divisor": divisor,
        "stages": written
        | {
            "autocast": None if autocast is None else _dtype(autocast),
            "optimizer": _written_optimizer(optimizer, model),
            "schedule": _written(schedule),
            "averaging": _written(averaging),
        },
    }


def name_of_loss(loss: object) -> str:
    """The name of a loss. One of a transformer is shown with its settings, because these decide what the clip does."""
    is_of_library = _classes().get(type(loss).__name__) is type(loss)
    return repr(loss) if is_of_library else getattr(loss, "__qualname__", type(loss).__qualname__)


def describe_hidden_training(model: nn.Module, records: Records, plan: Any, outputs: int) -> dict[str, object]:
    """Public facts about a hidden-state training (`NoisyCGD`), whose plan has the model in it."""
    about, kind = _about(model, records), type(plan.model)
    about["model"]["class"] = f"{kind.__module__}.{kind.__qualname__}"
    return {
        **about,
        "plan": {"hidden_state": repr(plan)},
        "divisor": plan.batch_size(records.num_units),
        "stages": {"hidden_state": _written(plan), "outputs": outputs},
    }


@dataclass(frozen=True)
class RowShape:
    """Shape and dtype of one row of a tensor, without the batch axis."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape)) or 'one number'}, {_dtype(self.dtype)}"

    def rows(self, number: int) -> Tensor:
        return torch.zeros(number, *self.shape, dtype=self.dtype)


@dataclass(frozen=True)
class TrainingDescription:
    """What training.json says of a run of a model of one's own.

    `text` has the stages for people. `stages` has them as names and numbers; none of them is trusted before
    `check_stages` or `plan` has compared them with the digest of the plan in privacy.json.
    """

    model_class: str
    trained_parameters: int
    inputs: tuple[RowShape, ...]
    target: RowShape
    unit: Unit
    rows_per_unit: int
    input_range: tuple[float, float] | None
    divisor: float
    text: Mapping[str, str]
    stages: Mapping[str, object] = field(repr=False)
    run: str
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: RunFolder) -> TrainingDescription:
        """Reads training.json. One that a training cannot have written is damaged."""
        what = f"training.json in {str(folder.path)!r}"
        try:
            top = Table(folder.training(), what)
            model, data, plan = top.table("model"), top.table("data"), top.table("plan")
            text = {name: plan.text(name) for name in plan.entries}
            text |= {name: top.text(name) for name in ("schedule", "averaging") if name in top}
            stages = dict(top.table("stages").entries) if "stages" in top else {}
            low_high = data.numbers("input_range") if "input_range" in data else None
            inputs = data.entries["inputs"]
            if not isinstance(inputs, list) or not inputs:
                raise UsageError(f"{what}: inputs must be a list of shapes.")
            names = tuple(data.texts("names")) if "names" in data else ()
            if names and len(set(names)) != len(inputs):
                raise UsageError(f"{what}: names must be one for each input.")
            return cls(
                model.text("class"),
                model.whole("trained_parameters", at_least=0, at_most=10**13),
                tuple(_row_shape(each, what) for each in inputs),
                _row_shape(data.entries["target"], what),
                Unit(data.text("unit")),
                data.whole("rows_per_unit"),
                None if low_high is None else _pair(low_high, what),
                _number(top.entries["divisor"], what),
                text,
                stages,
                str(folder.path),
                names,
            )
        except (UsageError, ValueError, KeyError, TypeError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise StateError(f"{what} is damaged: {said}") from None

    @property
    def model_name(self) -> str:
        """The name of the model's class, without its module."""
        return self.model_class.rpartition(".")[2]

    @property
    def is_hidden(self) -> bool:
        """Whether only the last iterate was seen (`fit_hidden_state`)."""
        return "hidden_state" in self.stages

    def settings(self) -> dict[str, object]:
        """What decided the training, for a table of settings. A seed is not among it."""
        found: dict[str, object] = {"model": self.model_class, "trained_parameters": self.trained_parameters}
        found |= {name: _shortened(said) for name, said in self.text.items()}
        if isinstance(optimizer := self.stages.get("optimizer"), dict):
            found["optimizer"] = _optimizer_in_words(optimizer)
        return found

    def records(self, number: int) -> Records:
        """Synthetic records of the public shape. Their values are drawn, and none is private."""
        rows = (*(each.rows(1) for each in self.inputs), self.target.rows(1))
        batch = self.records_of(rows).template(number * self.rows_per_unit)
        rows = (*batch.inputs, batch.target)
        owners = torch.arange(number).repeat_interleave(self.rows_per_unit) if self.unit is Unit.USER else None
        return self.records_of(rows, owners)

    def records_of(self, rows: tuple[Tensor, ...], owners: Tensor | None = None) -> Records:
        """Rows (inputs..., target) as the training took them."""
        floats = [each.dtype for each in self.inputs if each.dtype.is_floating_point]
        settings: dict[str, Any] = {"input_range": self.input_range, "dtype": floats[0] if floats else torch.float32}
        data: Any = rows
        if self.names:
            data = {**dict(zip(self.names, rows, strict=False)), _TARGET: rows[-1]}
            settings |= {"inputs": self.names, "target": _TARGET}
        if owners is None:
            return as_records(data, allow_single=True, **settings)
        return by_user(data, owners, rows_per_user=self.rows_per_unit, **settings)

    def stage(self, name: str, setup: TrainingSetup | None = None) -> Any:
        """One stage: that of the setup if it has one, otherwise rebuilt from the folder."""
        given = None if setup is None else getattr(setup, name, None)
        if given is not None:
            return given
        if name not in self.stages:
            raise UsageError(
                f"{self.run!r} does not say by which {name} it was trained: an earlier version wrote it. Let the "
                f"function that --model names return sordino.TrainingSetup(model, {name}=...)."
            )
        try:
            return _rebuilt(self.stages[name])
        except _OwnCode as own:
            raise UsageError(
                f"the {name} of the run in {self.run!r} is code of your own ({own}): let the function that --model "
                f"names return sordino.TrainingSetup(model, {name}=...)."
            ) from None
        except (UsageError, TypeError, ValueError, KeyError) as error:
            raise StateError(
                f"training.json in {self.run!r} is damaged: its {name} cannot be rebuilt: {error}"
            ) from None

    def is_own(self, name: str) -> bool:
        """Whether a stage is code of one's own, which no folder holds."""
        try:
            _rebuilt(self.stages.get(name))
        except _OwnCode:
            return True
        except (UsageError, TypeError, ValueError, KeyError):
            return False
        return name not in self.stages

    def check_stages(self, promised: PromisedRun | None) -> None:
        """Refuses stages that are not those of the plan which privacy.json names, where no code is needed to tell."""
        names = ("hidden_state",) if self.is_hidden else ("sampler", "clip", "noise", "encoding")
        if promised is None or any(self.is_own(name) for name in names):
            return
        stages = tuple(self.stage(name) for name in names)
        if self.is_hidden:
            from sordino.convex.hidden_run import kernel_plan

            stages = (*kernel_plan(stages[0]).stages, stages[0])
        if not digest_of(*stages).identifies(promised.plan):
            raise StateError(f"privacy.json in {self.run!r} belongs to another training.json than the one beside it.")

    def plan(self, promised: PromisedRun | None, setup: TrainingSetup | None) -> Plan:
        """The plan that was carried out. With another one than privacy.json names, the setup is refused."""
        if self.is_hidden:
            raise UsageError(f"the run in {self.run!r} has a hidden-state plan, of which no step is seen.")
        loss = self.stage("loss", setup)
        if not isinstance(loss, Contribution):
            autocast = self.stages.get("autocast")
            if autocast is not None and autocast not in _DTYPES:
                raise StateError(f"training.json in {self.run!r} is damaged: autocast is {autocast!r:.80}.")
            loss = LossGradient(loss, None if autocast is None else _DTYPES[str(autocast)], self.stage("views", setup))
        noise = self.stage("noise", setup)
        if promised is not None:
            noise = noise.with_multiplier(promised.noise_multiplier)
        plan = Plan(self.stage("sampler", setup), loss, self.stage("clip", setup), noise, self.stage("encoding", setup))
        if promised is not None and not digest_of(*plan.stages).identifies(promised.plan):
            own = [name for name in (setup.given if setup else ()) if name in ("sampler", "clip", "noise", "encoding")]
            if own:
                raise UsageError(
                    f"the {' or '.join(own)} that --model gives differs from that of the run in {self.run!r}: return "
                    "the values that so.fit was called with."
                )
            raise StateError(f"privacy.json in {self.run!r} belongs to another training.json than the one beside it.")
        return plan

    def optimizer(self, model: nn.Module, setup: TrainingSetup | None) -> torch.optim.Optimizer:
        """An optimizer of this model with the settings of the run."""
        make = None if setup is None else setup.optimizer
        if make is not None:
            return make([parameter for parameter in model.parameters() if parameter.requires_grad])
        written = self.stage("optimizer")
        by_name = dict(model.named_parameters())
        try:
            groups = [
                {"params": [by_name[name] for name in group["parameters"]], **_plain_settings(group["settings"])}
                for group in written["groups"]
            ]
            return _optimizers()[written["optimizer"]](groups)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"training.json in {self.run!r} is damaged: its optimizer: {error}") from None


class _OwnCode(Exception):
    """A stage that no table names: code of the user's own."""


def _about(model: nn.Module, records: Records) -> dict[str, dict[str, object]]:
    module, template = type(model), records.template(1)
    trained = sum(x.numel() for x in model.parameters() if x.requires_grad)
    bounds = {} if records.input_range is None else {"input_range": list(records.input_range)}
    names = {"names": list(records.names)} if records.names else {}
    return {
        "model": {"class": f"{module.__module__}.{module.__qualname__}", "trained_parameters": trained},
        "data": {
            "inputs": [{"shape": list(x.shape[1:]), "dtype": _dtype(x.dtype)} for x in template.inputs],
            "target": {"shape": list(template.target.shape[1:]), "dtype": _dtype(template.target.dtype)},
            "unit": str(records.unit),
            "rows_per_unit": records.rows_per_unit,
            "compared_when_resumed": records.rows.hashed,
            **names,
            **bounds,
        },
    }


@functools.cache
def _classes() -> dict[str, type]:
    """The stages and their parts that can be rebuilt from plain settings, by name."""
    from sordino.convex.losses import CrossEntropy, Logistic, Squared
    from sordino.convex.model import GatedReLU, Linear, PairedReLU
    from sordino.convex.noisy_cgd import NoisyCGD
    from sordino.encodings.combined import Combined
    from sordino.encodings.freeze import Freeze
    from sordino.encodings.matched import Matched, MatchedBought
    from sordino.encodings.sparsify import ConstantRate, Cooling, RandomSparsify, RankedSparsify
    from sordino.huggingface.losses import LOSSES
    from sordino.optimized_noise import AbsoluteCost, Flat, FromReleases, OptimizedNoise, SquaredCost

    stages: tuple[type, ...] = (Poisson, TruncatedPoisson, BallsInBins, Shuffled, Cyclic, FixedSize)
    stages += (ClipByNorm, ClipPerLayer, Normalise, Gaussian, OptimizedNoise, AbsoluteCost, SquaredCost, FromReleases)
    stages += (Flat, Unchanged, RandomSparsify, RankedSparsify, ConstantRate, Cooling, Freeze, Combined, Matched)
    stages += (MatchedBought, Views, Flip, Crop, Jitter, Constant, Warmup, Cosine, Step, RateTable, Ema, Tail)
    stages += (NoisyCGD, GatedReLU, PairedReLU, Linear, Squared, Logistic, CrossEntropy, *LOSSES)
    return {stage.__name__: stage for stage in stages}


@functools.cache
def _losses() -> dict[str, type[nn.Module]]:
    """The losses of torch that are modules, by name."""
    names = "CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss KLDivLoss "
    names += "PoissonNLLLoss SoftMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiLabelMarginLoss"
    return {name: getattr(nn, name) for name in names.split()}


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """The functions that a stage may hold: losses of torch, and families of optimized noise."""
    from sordino.optimized_noise import best_blocks, isotropic, weighted_laplace

    names = "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div "
    names += "binary_cross_entropy_with_logits poisson_nll_loss soft_margin_loss multilabel_soft_margin_loss "
    names += "multi_margin_loss multilabel_margin_loss"
    found: dict[str, Callable[..., Any]] = {name: getattr(F, name) for name in names.split()}
    return found | {x.__name__: x for x in (best_blocks, isotropic, weighted_laplace)}


@functools.cache
def _optimizers() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """The optimizers of torch that take one gradient per step, by name."""
    names = "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop ASGD Rprop"
    return {name: getattr(torch.optim, name) for name in names.split()}


def _written(value: object) -> object:
    """A stage as JSON: numbers and strings as they are, values of the library by name, everything else as "own"."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Adjacency):
        return {"adjacency": str(value)}
    if type(value) is str:
        return value
    if isinstance(value, (list, tuple)):
        return [_written(each) for each in value]
    kind = type(value)
    if isinstance(value, RateTable) and len(value.rates) > _LONGEST_TABLE:
        return {"own": f"a table of {len(value.rates)} learning rates"}
    if _classes().get(kind.__name__) is kind and is_dataclass(value):
        return {"stage": kind.__name__, **{x.name: _written(getattr(value, x.name)) for x in fields(value) if x.init}}
    if _losses().get(kind.__name__) is kind:
        settings = {name: getattr(value, name) for name in _arguments(kind)}
        if all(x is None or isinstance(x, (bool, int, float, str)) for x in settings.values()):
            return {"loss": kind.__name__, **settings}
    for name, function in _functions().items():
        if value is function:
            return {"function": name}
    return {"own": getattr(value, "__qualname__", f"{kind.__module__}.{kind.__qualname__}")}


def _rebuilt(written: object) -> Any:
    """The value that `_written` wrote. Only names in the tables are made; nothing is evaluated or imported.

    >>> _rebuilt(_written(ClipByNorm(2.0)))
    ClipByNorm(norm=2.0)
    >>> _rebuilt({"stage": "os.system", "command": "ls"})
    Traceback (most recent call last):
        ...
    ValueError: there is no stage 'os.system'.
    """
    match written:
        case None | bool() | int() | float() | str():
            return written
        case list():
            return tuple(_rebuilt(each) for each in written)
        case {"adjacency": str(name)}:
            return Adjacency(name)
        case {"own": str(name)}:
            raise _OwnCode(f"{name:.80}")
        case {"function": str(name)} if name in _functions():
            return _functions()[name]
        case {"stage": str(name), **settings}:
            return _made(name, _classes(), settings, "stage")
        case {"loss": str(name), **settings}:
            return _made(name, _losses(), settings, "loss")
        case {"optimizer": str()}:
            return written
    raise ValueError(f"{written!r:.80} is no part of a plan.")


def _made(name: str, known: Mapping[str, Callable[..., Any]], settings: Mapping[Any, object], what: str) -> Any:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r:.80}.")
    return known[name](**{key: _rebuilt(value) for key, value in settings.items()})


def _arguments(kind: type) -> tuple[str, ...]:
    """The arguments of a loss module, without those that torch deprecated, which it does not keep."""
    names = inspect.signature(kind).parameters
    return tuple(name for name in names if name not in ("size_average", "reduce"))


def _written_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> object:
    kind, names = type(optimizer), {id(x): name for name, x in model.named_parameters()}
    own = {"own": f"{kind.__module__}.{kind.__qualname__}"}
    if cast(Any, _optimizers().get(kind.__name__)) is not kind:
        return own
    groups = []
    for group in optimizer.param_groups:
        held = [names.get(id(x)) for x in group["params"]]
        settings = {name: float(x) if isinstance(x, Tensor) else x for name, x in group.items() if name != "params"}
        if None in held or not _is_plain(settings):
            return own
        groups.append({"parameters": held, "settings": settings})
    return {"optimizer": type(optimizer).__name__, "groups": groups}


def _is_plain(settings: Mapping[str, object]) -> bool:
    plain = (bool, int, float, str, type(None))
    return all(isinstance(x, plain) or (isinstance(x, tuple) and all(map(_is_number, x))) for x in settings.values())


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _optimizer_in_words(written: Mapping[str, Any]) -> str:
    """The class with the settings of each group, without those that are switched off.

    >>> _optimizer_in_words({"optimizer": "SGD", "groups": [{"settings": {"lr": 0.5, "momentum": 0.9, "nesterov": 0}}]})
    'SGD(lr=0.5, momentum=0.9)'
    """
    if "own" in written:
        return str(written["own"])
    groups = []
    for group in written.get("groups", ()):
        said = ", ".join(f"{name}={value}" for name, value in group.get("settings", {}).items() if value)
        groups.append(f"{written['optimizer']}({said})")
    return "; ".join(dict.fromkeys(groups))


def _shortened(said: str) -> str:
    """The text of a stage, with an enumeration as its value.

    >>> _shortened(repr(Poisson(0.5, 3)))
    'Poisson(rate=0.5, steps=3, adjacency=zero-out, expected_examples=None)'
    """
    return "none" if said == "None" else re.sub(r"<\w+\.\w+: '([\w-]+)'>", r"\1", said)


def _row_shape(written: object, what: str) -> RowShape:
    row = Table(cast(Any, written), what)
    shape = row.numbers("shape")
    if len(shape) > 16 or not all(isinstance(x, int) and 0 <= x <= 1 << 24 for x in shape):
        raise UsageError(f"{what}: a shape must be a list of lengths.")
    return RowShape(tuple(int(x) for x in shape), _DTYPES[row.text("dtype")])


def _pair(numbers: tuple[float, ...], what: str) -> tuple[float, float]:
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise UsageError(f"{what}: input_range must be [low, high] with low < high.")
    return numbers[0], numbers[1]


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UsageError(f"{what}: divisor must be a number above 0.")
    return value


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
