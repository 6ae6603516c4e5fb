"""Evidence of a card: the contents of a finished run's folder, checked for consistency.

*Guarantee:* the epsilon of a card is not copied from privacy.json. The event that the file records is parsed, without
evaluating code, and accounted for again; a claimed epsilon below what the event proves is refused.
"""

from __future__ import annotations

import ast
import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)

from sordino._input.files import open_regular
from sordino.accounting import (
    Adjacency,
    Guarantee,
    PrivacyCurve,
    PureDpEvent,
    RandomAllocationDpEvent,
    Unit,
    View,
    privacy_of,
)
from sordino.accounting.events import HiddenStateDpEvent, flatten
from sordino.accounting.guarantee import rounded_up
from sordino.data.declaration import Declaration
from sordino.errors import SordinoError, StateError
from sordino.kernel.sampling import Sampler
from sordino.recipes import FinishedRun, OwnRun, Recipe, read_run
from sordino.recipes.planning import Question, SamplerName, make_sampler
from sordino.report.quality import Quality, quality_of

_EVENTS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        ComposedDpEvent,
        GaussianDpEvent,
        HiddenStateDpEvent,
        LaplaceDpEvent,
        NoOpDpEvent,
        PoissonSampledDpEvent,
        PureDpEvent,
        RandomAllocationDpEvent,
        RepeatAndSelectDpEvent,
        SampledWithoutReplacementDpEvent,
        SelfComposedDpEvent,
        TruncatedSubsampledGaussianDpEvent,
    )
}
_LONGEST = 100_000


def parse_event(text: str, *, what: str) -> DpEvent:
    """Parses the `repr` of an event. `what` names it in messages. Only known events are accepted; no code is run.

    >>> parse_event("SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)", what="the event")
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    >>> parse_event("__import__('os')", what="the event")
    Traceback (most recent call last):
        ...
    sordino.errors.StateError: the event does not describe what was released.
    """
    refusal = StateError(f"{what} does not describe what was released.")
    if len(text) > _LONGEST:
        raise refusal
    try:
        event = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise refusal from None
    if not isinstance(event, DpEvent):
        raise refusal
    return event


def _value(node: ast.expr) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name in _EVENTS:
            return _EVENTS[name](**{str(each.arg): _value(each.value) for each in keywords})
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.Name(id="inf"):
            return math.inf
        case ast.Constant(value=number) if isinstance(number, Real) and not isinstance(number, bool):
            return number
        case _:
            raise ValueError("not an event")


_PIECE = 1 << 20
_SEED = "the seed stays secret"  # the beginning of the assumption on a seed, in folders of every version
_AGREEMENT = 1e-3  # relative tolerance: two versions of an accountant may round differently


@dataclass(frozen=True)
class Evidence:
    """A finished run: its guarantee, its settings and its measurements.

    `question` has the numbers of its plan, or is None where the plan is none that `sordino plan` knows.
    """

    saved: FinishedRun = field(repr=False)
    guarantee: Guarantee
    question: Question | None
    promised: dict[str, Any] = field(repr=False)
    metrics: tuple[dict[str, Any], ...] = field(repr=False)

    @classmethod
    def read(
        cls, path: Path, *, model: str | None = None, loss: str | None = None, data: str | None = None
    ) -> Evidence:
        """Reads the folder of a finished run. Raises `UsageError` if it is unfinished, `StateError` if damaged.

        `model`, `loss` and `data` are for a run of the user's own model: see `read_run`.
        """
        saved = read_run(path, model=model, loss=loss, data=data)
        what = f"privacy.json in {str(path)!r}"
        promised: dict[str, Any] = saved.folder.privacy()
        try:
            run = cls(
                saved,
                _guarantee(promised, what),
                _question(promised, saved),
                promised,
                tuple(saved.folder.metrics()),
            )
            run._check_that_files_agree(what)
            run.searched  # noqa: B018  # raises here if the record of a search cannot be read
            run.num_steps  # noqa: B018
        except StateError:
            raise
        except KeyError as error:
            raise StateError(f"{what} is damaged: {error} is missing.") from None
        except (TypeError, ValueError, OverflowError, RecursionError, SordinoError) as error:
            raise StateError(f"{what} is damaged: {error}") from None
        return run

    @property
    def has_seed(self) -> bool:
        """Whether the noise was derived from a seed. A finished folder has the assumption, and not the seed itself."""
        assumed = any(each.startswith(_SEED) for each in self.guarantee.assumptions)
        return assumed or (self.recipe is not None and self.recipe.seed is not None)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe, or None for a run of a model of one's own."""
        return None if isinstance(self.saved, OwnRun) else self.saved.recipe

    @property
    def num_steps(self) -> int:
        """How many steps were planned."""
        if self.recipe is not None:
            return self._known_question.num_steps
        steps = self.promised["steps"]
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise TypeError(f"{steps!r:.80} is no number of steps.")
        return steps

    @cached_property
    def declaration(self) -> Declaration | None:
        """The declaration of the run's schema: who says that its facts are public. None if the run has no schema."""
        path = self.saved.folder.schema
        if path is None:
            return None
        try:
            return Declaration.read(path)
        except SordinoError as error:
            raise StateError(str(error)) from None

    @cached_property
    def planned(self) -> tuple[Sampler, DpEvent] | None:
        """The sampler with the release of each step, or None where one of them is code of one's own."""
        if isinstance(self.saved, OwnRun):
            return _planned(self.saved)
        question = self._known_question
        return make_sampler(question), question.release(question.noise_multiplier or 0.0)

    @cached_property
    def searched(self) -> str | None:
        """Description of the search for settings that the guarantee covers, or None without a search."""
        if "tuning" not in self.promised:
            return None
        search = self.promised["tuning"]
        candidates = " and then ".join(f"{number:d}" for number in search["candidates"])
        return f"of {candidates} candidates by the rule {search['rule']}, accounted for by {search['payment']}"

    @property
    def path(self) -> Path:
        return self.saved.folder.path

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The privacy curve of the release: every proved pair of epsilon and delta."""
        return privacy_of(self.guarantee.event, self.guarantee.adjacency)

    @cached_property
    def quality(self) -> Quality:
        return quality_of(self.saved)

    @cached_property
    def model_sha256(self) -> str:
        return model_sha256(self.path)

    @property
    def versions(self) -> dict[str, object]:
        """Versions of the software that trained the run."""
        versions = self.promised.get("versions")
        return versions if isinstance(versions, dict) else {}

    @cached_property
    def holds_more_than_the_plan(self) -> bool:
        """Whether more than the planned steps was released, such as steps that had to be drawn again."""
        return self._planned_counts != _counts(self.guarantee.event)

    @property
    def _planned_counts(self) -> Counter[DpEvent]:
        if self.planned is None:
            return Counter()
        sampler, release = self.planned
        return _counts(sampler.compose(release, sampler.steps))

    @property
    def _known_question(self) -> Question:
        if self.question is None:
            raise TypeError("the plan is none that is known.")
        return self.question

    def _check_that_files_agree(self, what: str) -> None:
        if self.recipe is not None:
            recipe, question = self.recipe, self._known_question
            said = (recipe.delta, recipe.sampler, recipe.divisor(question.examples))
            if said != (question.delta, question.sampler, question.batch_size):
                raise StateError(f"{what} does not belong to the recipe.toml in the same folder.")
        elif self.planned is not None and self.planned[0].steps != self.num_steps and not self.is_hidden:
            raise StateError(f"{what} does not belong to the training.json in the same folder.")
        if self.guarantee.view is View.EVERY_STEP and not self._planned_counts <= _counts(self.guarantee.event):
            raise StateError(f"{what} is inconsistent: its event leaves out steps of the plan that it describes.")

    @property
    def is_hidden(self) -> bool:
        """Whether the guarantee is about the final model only."""
        return self.guarantee.view is View.FINAL_MODEL


def model_sha256(run: Path) -> str:
    """The SHA-256 digest of the weights of a run, model.safetensors."""
    digest = hashlib.sha256()
    with open_regular(run / "model.safetensors") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _counts(event: DpEvent) -> Counter[DpEvent]:
    return Counter({part.mechanism: part.count for part in flatten(event)})


def _guarantee(promised: dict[str, Any], what: str) -> Guarantee:
    event = parse_event(_text(promised["event"]), what=f"the event of {what}")
    adjacency, unit, view = Adjacency(promised["adjacency"]), Unit(promised["unit"]), View(promised["view"])
    assumptions = tuple(_text(each) for each in promised["assumptions"])
    claimed = _number(promised["epsilon"])
    proved = Guarantee.of(event, adjacency, delta=promised["delta"], unit=unit, view=view, assumptions=assumptions)
    if not (math.isfinite(claimed) and proved.epsilon <= claimed * (1 + _AGREEMENT)):
        proves = rounded_up(proved.epsilon, 6)
        raise StateError(f"{what} claims epsilon {claimed!r}, but its event proves only epsilon {proves}.")
    return replace(proved, epsilon=max(proved.epsilon, claimed))


def _planned(own: OwnRun) -> tuple[Sampler, DpEvent] | None:
    """The sampler and the release that training.json describes. They were compared with the promise before."""
    description = own.description
    if description.is_hidden:
        if description.is_own("hidden_state"):
            return None
        plan = description.stage("hidden_state")
        return plan.sampler, GaussianDpEvent(plan.noise_multiplier)
    if description.is_own("sampler") or description.is_own("noise"):
        return None
    return description.stage("sampler"), description.stage("noise").event


def _question(promised: dict[str, Any], saved: FinishedRun) -> Question | None:
    if isinstance(saved, OwnRun):
        return _question_of_own(promised, saved)
    names = ("examples", "batch_size", "steps", "noise_multiplier", "delta")
    numbers = {name: promised[name] for name in names}
    return Question(
        **numbers,
        sampler=SamplerName(promised["sampler"]),
        adjacency=Adjacency(promised["adjacency"]),
        unit=Unit(promised["unit"]),
        noise=saved.recipe.question(promised["examples"], 1).noise,
    )


def _question_of_own(promised: dict[str, Any], own: OwnRun) -> Question | None:
    """The numbers by which `sordino plan` makes the same sampler and release, if there are any."""
    planned = _planned(own)
    if planned is None or promised["sampler"] not in list(SamplerName) or type(promised["batch_size"]) is not int:
        return None
    names = ("examples", "batch_size", "noise_multiplier", "delta")
    try:
        question = Question(
            **{name: promised[name] for name in names},
            steps=planned[0].steps,
            sampler=SamplerName(promised["sampler"]),
            adjacency=Adjacency(promised["adjacency"]),
            unit=Unit(promised["unit"]),
            noise="gaussian" if isinstance(planned[1], GaussianDpEvent) else "optimized",
        )
        is_same = (make_sampler(question), question.release(question.noise_multiplier or 0.0)) == planned
    except SordinoError:  # a pure release has a delta of 0, which a question does not
        return None
    return question if is_same else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string.")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.80} is not a number.")
    return float(value)
