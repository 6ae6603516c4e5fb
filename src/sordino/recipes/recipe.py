"""A recipe: everything that decides a training from the command line, as a value and as a TOML file.

Each setting is declared here once, with its type, range, default and help text. Options of commands, checks, keys of
TOML files and the JSON schema follow (`sordino.recipes.settings`). A setting that changes a stage of the plan says how
(`stage=`), so that a new one touches this file only.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field

from sordino._input import validate
from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.accounting import Adjacency
from sordino.errors import DataError, StateError, UnsupportedEvent, UsageError
from sordino.recipes.settings import (
    AdjacencyByName,
    Count,
    DeclaredSetting,
    Fraction,
    MethodByName,
    MethodName,
    NamedInFile,
    Only,
    Positive,
    SamplerByName,
    SamplerName,
    Seed,
    SettingError,
    Text,
    checked,
    declared,
    encodable,
    json_schema,
    names_code,
    one_of,
    option_of,
    renamed,
    setting,
)
from sordino.recipes.transformer_settings import TransformerSettings

if TYPE_CHECKING:
    from sordino.kernel.step import Plan
    from sordino.recipes.defaults import TrainingSettings
    from sordino.recipes.planning import Question
    from sordino.recipes.prepared import PreparedRecipe
    from sordino.training.run_folder import RunFolder

_MANY = 10**9  # placeholder for a number of examples that is not known yet
_ALL = ("train", "tune", "verify")


def _models() -> tuple[str, ...]:
    from sordino.recipes.networks import names

    return tuple(name for name, _ in names())


def _convex_models() -> tuple[str, ...]:
    from sordino.recipes.networks import CONVEX_NAMES

    return CONVEX_NAMES


def _noisy_cgd(*values: object, because: str) -> dict[str, Only]:
    """The values of a setting that NoisyCGD allows, and the reason."""
    return {MethodName.NOISY_CGD: Only(values, because)}


def _known_noise(text: str) -> str:
    from sordino.recipes.stages import noise_of

    try:
        noise_of(text)
    except SettingError as error:
        raise ValueError(error.values["requirement"]) from None
    return text


def _known_weights(text: str) -> str:
    from sordino.recipes.stages import parse_class_weights

    try:
        parse_class_weights(text)
    except SettingError as error:
        raise ValueError(error.values["requirement"]) from None
    return text


def _with_noise(plan: Plan, name: str, prepared: PreparedRecipe) -> Plan:
    from sordino.recipes.stages import noise_of

    return replace(plan, noise=noise_of(name))


ClassWeights = Annotated[str, AfterValidator(_known_weights)]
NoiseName = Annotated[str, AfterValidator(_known_noise)]


def _function(text: str) -> str:
    if not names_code(text):
        raise ValueError("MODULE:FUNCTION, as in path/to/file.py:own_loss or torch.nn.functional:multi_margin_loss")
    return text


ModelName = Annotated[str, AfterValidator(encodable), one_of(_models, "MODULE:FUNCTION", "timm:NAME", "hf:PATH")]
FunctionName = Annotated[str, AfterValidator(encodable), AfterValidator(_function)]
_WHOLE_GRADIENT = "the proof is about steps of the whole gradient"


@dataclass(frozen=True)
class Recipe(TransformerSettings):
    """All settings of a training. A setting that is None is chosen from public facts, never from private rows.

    >>> recipe = Recipe(data="digits", model="linear", epsilon=3.0, delta=1e-4)
    >>> Recipe.parse(recipe.text(), what="the recipe") == recipe
    True
    """

    data: Text = setting(help="Dataset: a name from `sordino data list`, or a path.", commands=_ALL)
    model: ModelName = setting(
        help="Network: a name from `sordino models`, MODULE:FUNCTION of your own, timm:NAME, or hf:PATH.",
        commands=_ALL,
        tune="Network: a name from `sordino models`.",
    )
    epsilon: Positive = setting(
        help="Target epsilon, above 0.",
        commands=(*_ALL, "plan"),
        tune="Target epsilon of all trials together, above 0.",
    )
    delta: Positive | None = setting(
        None, "Target delta, below 1 / examples [largest such power of 10].", commands=(*_ALL, "plan")
    )
    method: MethodByName = setting(
        MethodName.DP_SGD, "Method: dp-sgd, or noisy-cgd for convex networks [dp-sgd].", commands=("train", "verify")
    )
    loss: FunctionName | None = setting(
        None,
        "Loss of your own, MODULE:FUNCTION of outputs and target [by data].",
        commands=("train", "verify"),
        only=_noisy_cgd(None, because="the proof is about the squared loss"),
    )
    schema: Text | None = setting(None, "TOML file with the public facts of a table or of arrays.", commands=_ALL)
    gates: Annotated[int, Field(ge=1, le=1 << 16)] | None = setting(
        None, "Number of gates of a convex network, 1 to 65536 [by model]."
    )
    batch_size: Count | None = setting(
        None,
        "Expected number of examples in a batch [by model].",
        commands=("train", "tune"),
        plan="Expected number of examples in a batch.",
    )
    epochs: Annotated[float, Field(gt=0, le=1e9)] | None = setting(
        None,
        "Number of passes over the data, above 0 [by model].",
        plan="Number of passes over the data, above 0.",
        tune="Number of passes over the data in each trial, above 0 [by model].",
    )
    steps: Count | None = setting(
        None,
        "Number of optimizer steps, instead of epochs.",
        commands=("train", "plan"),
        tune="Number of optimizer steps in each trial, instead of epochs.",
    )
    learning_rate: Positive | None = setting(
        None, "Learning rate, above 0 [by model].", key="lr", commands=("train", "tune")
    )
    clip: Positive | None = setting(
        None,
        "Clipping norm: largest L2 norm of one example's gradient, above 0 [by model].",
        tune="Clipping norm to start from, above 0 [by model].",
    )
    noise: NoiseName | None = setting(
        None,
        "Noise: gaussian, or optimized:blocks|laplace|isotropic:releases|flat:absolute|squared [gaussian].",
        commands=("train", "verify", "plan"),
        only=_noisy_cgd("gaussian", None, because="the proof is about Gaussian noise"),
        stage=_with_noise,
    )
    class_weights: ClassWeights | None = setting(
        None,
        "Public weight of the loss of each class, in the order of the classes, as 1,4 [equal].",
        commands=("train", "tune"),
        only=_noisy_cgd(None, because="its loss is that of the proof"),
    )
    optimizer: Literal["sgd", "adam"] | None = setting(
        None,
        "Optimizer: sgd or adam [sgd].",
        commands=("train", "tune"),
        only=_noisy_cgd("sgd", None, because="the proof needs plain steps, which contract by themselves"),
    )
    momentum: Fraction | None = setting(
        None,
        "Momentum of sgd, or first beta of adam, in [0, 1) [by model].",
        tune="Momentum to start from, in [0, 1) [by model].",
        only=_noisy_cgd(0, None, because="the proof needs plain steps, and momentum depends on earlier ones"),
    )
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = setting(
        0.0, "L2 penalty, added after clipping, at least 0 [0]."
    )
    schedule: Text | None = setting(
        None, "Learning-rate schedule: constant, warmup, cosine or step, as cosine:0.1 [by model]."
    )
    averaging: Text | None = setting(
        None,
        "Average of iterates: none, ema:DECAY or tail:FRACTION [by model].",
        only=_noisy_cgd("none", None, because="the average is computed from iterates that must stay hidden"),
    )
    sparsify: Fraction = setting(
        0.0,
        "Fraction of gradient coordinates masked at random in the end, in [0, 1) [0].",
        commands=("train", "tune"),
        only=_noisy_cgd(0, because=_WHOLE_GRADIENT),
    )
    freeze: Fraction = setting(
        0.0,
        "Fraction of weights (smallest magnitude first) frozen by the end, in [0, 1) [0].",
        only=_noisy_cgd(0, because=f"{_WHOLE_GRADIENT}, and freezing reads the iterates"),
    )
    trailing_steps: Annotated[int, Field(ge=0, le=100_000)] | None = setting(
        None,
        "noisy-cgd: number of noise-only steps after the last epoch, at least 0 [by accountant].",
        only={MethodName.DP_SGD: Only((None,), "")},
    )
    radius: Positive | None = setting(
        None,
        "noisy-cgd: radius of the ball that weights are projected to, above 0 [no ball].",
        only={MethodName.DP_SGD: Only((None,), "")},
    )
    views: Annotated[int, Field(ge=1, le=64)] = setting(
        1,
        "Number of augmented copies of each example in a step, 1 to 64 [1].",
        only=_noisy_cgd(1, because="a clipped mean of several gradients need not be the gradient of a convex loss"),
    )
    augment: Text = setting(
        "none",
        "Augmentation of each copy, as flip,crop:4 [none].",
        only=_noisy_cgd("none", because="each example has one feature vector, whose norm is bounded"),
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "Precision of forward and backward passes: float32 or bfloat16 [float32].",
        only=_noisy_cgd("float32", because="a rounded gradient need not be the gradient of a convex loss"),
    )
    sampler: SamplerByName | None = setting(
        None,
        f"Sampler of batches: {', '.join(SamplerName)} [poisson].",
        commands=("train", "tune", "plan"),
        only=_noisy_cgd(SamplerName.CYCLIC, None, because="the proof needs fixed disjoint batches in a fixed order"),
    )
    adjacency: AdjacencyByName | None = setting(
        None,
        f"Adjacency (neighboring datasets): {', '.join(Adjacency)} [by sampler].",
        commands=("train", "plan"),
        only=_noisy_cgd(
            *(Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE, None),
            because="fixed batches need a public number of examples",
        ),
    )
    expected_examples: Count | None = setting(
        None, "Public estimate of the dataset size (required with add-or-remove)."
    )
    seed: Seed | None = setting(
        None,
        "Seed that makes the run reproducible; whoever knows it can remove the noise [random key].",
        commands=("train", "tune"),
    )
    initial_seed: Seed | None = setting(None, "Seed of the initial weights, which are public.", commands=())
    physical_batch_size: Count | None = setting(None, "Number of examples in memory at a time [auto].")
    allow_weak: bool = setting(False, "Accept an epsilon above 20.", commands=("train", "tune", "plan"))
    allow_large_delta: bool = setting(
        False, "Accept a delta of 1 / examples or more.", commands=("train", "tune", "plan")
    )

    def __post_init__(self) -> None:
        for name, value in checked(self).items():
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Refuses settings that are each valid but contradict each other."""
        from sordino.kernel.calibration import check_target
        from sordino.recipes.methods import method_of
        from sordino.recipes.planning import make_sampler
        from sordino.recipes.stages import noise_of, parse_averaging, parse_schedule, views_of

        if self.gates is not None and self.model not in _convex_models():
            raise SettingError(
                "{gates} needs {model} {allowed}, got {given}.",
                allowed=" or ".join(_convex_models()),
                given=repr(self.model),
            )
        check_target(self.epsilon, self.delta_for(_MANY), allow_weak=self.allow_weak)
        self._check_method()
        self.check_transformer(self.model)
        method_of(self).check(self)
        if self.loss is not None and self.class_weights is not None:
            raise SettingError("{class_weights} and {loss} exclude each other: weight the classes in the loss itself.")
        if self.epochs is not None and self.steps is not None:
            raise SettingError("{epochs} and {steps} exclude each other: give one of them.")
        if (self.adjacency is Adjacency.ADD_OR_REMOVE) != (self.expected_examples is not None):
            raise SettingError(
                "{expected_examples} and {adjacency} add-or-remove (which keeps the number of examples secret) need "
                "each other: give both or neither."
            )
        trial = self.question(self.expected_examples or _MANY, self.batch_size or 1)
        sampler = make_sampler(replace(trial, epochs=None, steps=1))
        try:
            sampler.compose(noise_of(self.noise).event, 1)
        except UnsupportedEvent:
            raise SettingError(
                "{noise} must be gaussian with {sampler} {drawn}, got {given}: "
                "no bound on epsilon is known for other noise.",
                drawn=sampler.name,
                given=repr(self.noise),
            ) from None
        parse_schedule(self.schedule or "constant")
        parse_averaging(self.averaging or "none")
        views_of(self)

    def _check_method(self) -> None:
        if self.method is MethodName.NOISY_CGD and self.model not in _convex_models():
            self._refuse(
                "model",
                _convex_models(),
                "the proof needs a loss that is convex in the weights, on features of bounded norm",
            )
        for name, each in declared(type(self)).items():
            only = each.setting.only.get(self.method)
            if only is None or getattr(self, name) in only.values:
                continue
            if only.values == (None,):  # a setting of other methods
                others = " or ".join(method for method in MethodName if method not in each.setting.only)
                raise SettingError(f"{{{name}}} needs {{method}} {others}, got {self.method}.")
            self._refuse(name, only.values, only.reason)

    def _refuse(self, name: str, allowed: tuple[object, ...], reason: str) -> None:
        raise SettingError(
            f"{{{name}}} must be {{allowed}} with {self.method}, got {{given}}: {reason}.",
            allowed=" or ".join(str(each) for each in allowed if each is not None),
            given=validate.option(_plain(getattr(self, name))),
        )

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """Reads a recipe file."""
        try:
            text = read_bytes(path, at_most=LARGEST_TEXT)
        except DataError as error:
            raise UsageError(str(error)) from None
        return cls.parse(text, what=repr(str(path)))

    @classmethod
    def of_run(cls, folder: RunFolder) -> Recipe:
        """Reads the recipe of a run folder. An invalid one raises `StateError`: it was changed after it was written."""
        shown = repr(str(folder.path))
        if not folder.is_run:
            raise UsageError(f"there is no run in {shown}{undescribed(folder)}.")
        if not folder.has_recipe:
            raise UsageError(
                f"{shown} has no recipe: so.fit wrote it with a model of your own. To resume it, call so.fit again "
                "with the same arguments, out= and resume=True."
            )
        try:
            return cls.parse(folder.recipe(), what=f"the recipe in {shown}")
        except UsageError as error:
            raise StateError(str(error)) from None

    @classmethod
    def parse(cls, text: str | bytes, *, what: str) -> Recipe:
        """Parses TOML. `what` names it in messages."""
        table, settings = Table.parse(text, what=what), declared(cls).values()
        table.allow(*(each.name if each.name in table else each.key for each in settings))
        entries: dict[str, Any] = {}
        for each in settings:
            found = [name for name in (each.key, each.name) if name in table]
            if found:
                entries[each.name] = _from_file(each.name, table.entries[found[0]])
            elif each.is_required:
                raise UsageError(f"{what}: {each.key} is missing.")
        with table.named():
            try:
                return cls(**entries)
            except UsageError as error:
                raise renamed(error, _key_of) from None

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema of recipe files, for editors and other programs.

        >>> Recipe.json_schema()["properties"]["epsilon"]["exclusiveMinimum"]
        0
        """
        return json_schema(cls)

    def entries(self) -> dict[str, Any]:
        """Settings by their keys in a TOML file, without those that are None."""
        entries = {each.key: _plain(getattr(self, name)) for name, each in declared(type(self)).items()}
        return {key: value for key, value in entries.items() if value is not None}

    def text(self) -> str:
        """The recipe as TOML, without settings that are None."""
        text = tomli_w.dumps(self.entries())
        return text.replace("'''", r"\u0027" * 3)  # may occur in a path; the parser would refuse a multi-line string

    def changed(self, **settings: Any) -> Recipe:
        """A copy with other settings. Setting steps removes epochs, and setting epochs removes steps."""
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if one in settings:
                settings.setdefault(other, None)
        return replace(self, **settings)

    def with_code(self, *, model: str | None = None, loss: str | None = None) -> Recipe:
        """A copy with the functions that the user named, in place of those that a file names, which are not imported.

        >>> recipe = Recipe.parse('data = "digits"\\nmodel = "nets.py:net"\\nepsilon = 1.0', what="the recipe")
        >>> recipe.with_code(model="copied.py:net").model
        'copied.py:net'
        """
        given = {name: value for name, value in (("model", model), ("loss", loss)) if value is not None}
        for name in given:
            if not names_code(getattr(self, name)):
                raise UsageError(
                    f"{option_of(name)} goes with a run of a model or loss of your own, and the recipe has "
                    f"{validate.option(getattr(self, name))}: leave it out."
                )
        return self.changed(**given)

    def settings(self, defaults: TrainingSettings) -> TrainingSettings:
        """The settings of the recipe, with defaults for those that are None.

        Initial weights and their seed are public. If the recipe has a seed (of the noise), the initial seed is a
        constant and not derived from it: values derived from a guessable seed would reveal it.
        """
        drawn = secrets.randbits(32) if self.seed is None else defaults.initial_seed
        given = {field.name: getattr(self, field.name) for field in fields(defaults)}
        given = {name: value for name, value in given.items() if value is not None}
        return replace(defaults, **({"initial_seed": drawn} | given))

    def decided(self, settings: TrainingSettings, *, examples: int) -> Recipe:
        """A copy with every setting chosen, for a public number of examples."""
        from sordino.recipes.methods import method_of

        chosen = asdict(settings) | {"delta": self.delta_for(examples)}
        if self.steps is not None:
            del chosen["epochs"]
        return replace(self, sampler=self.sampler or method_of(self).sampler, **chosen)

    def delta_for(self, examples: int) -> float:
        """The delta of the recipe, or the usual one for a public number of examples."""
        from sordino.recipes.planning import usual_delta

        return usual_delta(examples) if self.delta is None else self.delta

    def question(self, examples: int, batch_size: int) -> Question:
        """The question about batches for planning, for a public number of examples."""
        from sordino.recipes.methods import method_of
        from sordino.recipes.planning import Question

        sampler = self.sampler or method_of(self).sampler
        return Question(
            examples,
            batch_size,
            self.epochs,
            self.steps,
            sampler=sampler,
            adjacency=self.adjacency,
            noise=self.noise or "gaussian",
        )

    def divisor(self, examples: int) -> int:
        """The public number by which sums of gradients are divided, for a public number of examples."""
        from sordino.recipes.methods import method_of

        return method_of(self).divisor(self, examples)


def undescribed(folder: RunFolder) -> str:
    """What to add to a refusal where an earlier version of so.fit wrote a folder without a description."""
    if folder.is_run or not folder.is_begun:
        return ""
    return (
        " that says what was trained: an earlier version of so.fit wrote it. Call so.fit again with the same "
        "arguments, out= and resume=True, which describes it"
    )


def _key_of(name: str) -> str:
    settings: dict[str, DeclaredSetting] = declared(Recipe)
    return settings[name].key if name in settings else name


def _from_file(name: str, value: Any) -> Any:
    """A setting that was read from a file. Names of code are marked, because a file must not decide what is run."""
    return NamedInFile(value) if name in ("model", "loss") and isinstance(value, str) and names_code(value) else value


def _plain(value: Any) -> Any:
    """An enumeration as its string; other values unchanged."""
    return str(value) if isinstance(value, str) else value
