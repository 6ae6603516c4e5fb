"""Audits of a run of a model of one's own: its plan is rebuilt from its folder and carried out with canaries.

The other rows are those that the user passes, or synthetic ones of the same shapes. The guarantee holds for any rows
beside a canary, so an audit on synthetic rows is as valid; the white box takes the others off before it looks.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from sordino.attacks.audit.black_box import InputCanaries, losses_of
from sordino.attacks.audit.canaries import coins, followed_by
from sordino.attacks.audit.last_iterate import last_iterate_scores, most_in_last_iterate, on_canaries_alone
from sordino.attacks.audit.scores import Scores, pooled
from sordino.attacks.audit.threat_models import (
    MOST_CANARIES,
    AuditEvidence,
    InLastIterate,
    InRows,
    OnStep,
    centered,
)
from sordino.attacks.audit.white_box import white_box_scores
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.encodings.combined import Combined
from sordino.encodings.freeze import FreezeByMagnitude
from sordino.errors import UsageError
from sordino.kernel.encoding import Encoding
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.states import Layout
from sordino.kernel.step import Plan
from sordino.recipes import OwnRun

_SYNTHETIC = 1000  # units, at most: others are taken off, so that more of them show nothing more


class OwnBox(Protocol):
    """A kind of canary and a kind of attacker, for one run of a model of one's own."""

    @property
    def name(self) -> str: ...

    @property
    def score(self) -> str: ...

    def most_canaries(self) -> int: ...

    def attack(self, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence: ...


def own_box(own: OwnRun, name: str, worst_start: bool) -> OwnBox:
    """The box of this name. One that cannot attack the run is refused before anything is trained."""
    if worst_start:
        raise UsageError("a worst-case start must be left out with a model of your own: it needs rows of a recipe.")
    if own.description.is_hidden:
        if name == "black":
            raise UsageError("box must be white for a hidden-state run: canaries are looked for in its last iterate.")
        return OwnLastIterate(own)
    return OwnRows(own) if name == "black" else OwnGradients(own)


@dataclass(frozen=True)
class _OwnPlan:
    """The plan of a run, with rows for it."""

    own: OwnRun

    @cached_property
    def plan(self) -> Plan:
        return self.own.plan()

    @cached_property
    def records(self) -> Records:
        """The rows that the user passed, or synthetic ones. A sampler that declares how many gets so many."""
        if self.own.data is not None:
            return self.own.records(self.own.training_rows()[0])
        declared = getattr(self.plan.sampler, "examples", None)
        promised: Any = self.own.folder.privacy()["examples"]
        return self.own.description.records(int(declared or min(promised, _SYNTHETIC)))

    def counting(self, canaries: int) -> Plan:
        """The plan with the canaries among its examples, where its sampler declares how many there are."""
        sampler: Any = self.plan.sampler
        names = {each.name for each in fields(sampler)} & {"examples", "expected_examples"}
        more = {name: getattr(sampler, name) + canaries for name in names if getattr(sampler, name) is not None}
        return replace(self.plan, sampler=replace(sampler, **more))


@dataclass(frozen=True)
class OwnGradients(_OwnPlan):
    """Every release is seen, and all that is not a canary is known."""

    name: ClassVar[str] = "white"
    score: ClassVar[str] = "log-likelihood ratio of all released gradients, the other rows known"

    def most_canaries(self) -> int:
        if _follows_weights(self.plan.encoding):
            raise UsageError(
                "the plan freezes weights by their size, where canaries cannot be in gradients: its masks follow the "
                "weights that are trained, and this audit trains copies. Use --box black."
            )
        return min(MOST_CANARIES, Layout.of(self.own.setup.model).size)

    def attack(self, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        plan, description, setup, scores = self.counting(canaries), self.own.description, self.own.setup, []
        for seed in seeds:
            module = deepcopy(setup.model)
            scores.append(
                white_box_scores(
                    plan,
                    module,
                    self.records,
                    self.own.optimizer(module),
                    divisor=description.divisor,
                    canaries=canaries,
                    key=Key.from_seed(seed),
                    schedule=description.stage("schedule", setup),
                    on_step=on_step,
                )
            )
        return AuditEvidence(pooled(scores), plan.guarantee(delta=delta, unit=self.records.unit))


@dataclass(frozen=True)
class OwnRows(_OwnPlan):
    """Only the model in the end is seen, and canaries are rows."""

    name: ClassVar[str] = InRows.name
    score: ClassVar[str] = InRows().score

    def most_canaries(self) -> int:
        inputs = self.own.description.inputs
        if len(inputs) > 1 or not inputs[0].dtype.is_floating_point:
            raise UsageError("box must be white: canaries of the black box are rows of one floating-point input.")
        return MOST_CANARIES

    def attack(self, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        own, plan, found = self.own, self.counting(canaries), []
        like, stream = self.records.template(1).inputs[0], Key.from_seed(seeds[0]).stream("canaries")
        rows = InputCanaries.drawn_like(like, canaries, own.facts.num_classes, own.description.input_range, stream)
        for seed in seeds:
            key, module = Key.from_seed(seed), deepcopy(own.setup.model)
            included = coins(canaries, key)
            before = losses_of(module, rows, own.has_probabilities)
            own.train(module, followed_by(self.records, rows.places(included)), plan, key, on_step)
            found.append((before - losses_of(module, rows, own.has_probabilities), included))
        values, which = (np.stack(parts) for parts in zip(*found, strict=True))
        scores = Scores(centered(values).reshape(-1), which.reshape(-1))
        return AuditEvidence(scores, plan.guarantee(delta=delta, unit=self.records.unit))


@dataclass(frozen=True)
class OwnLastIterate:
    """Only the end of a hidden run is seen. Its plan is carried out on canaries alone."""

    own: OwnRun
    name: ClassVar[str] = InLastIterate.name
    score: ClassVar[str] = InLastIterate.score

    @cached_property
    def plan(self) -> NoisyCGD:
        plan: NoisyCGD = self.own.description.stage("hidden_state")
        return replace(plan, shown_after=())

    def most_canaries(self) -> int:
        return most_in_last_iterate(self.plan)

    def attack(self, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        scores = []
        for taken, seed in enumerate(seeds, start=1):
            scores.append(last_iterate_scores(self.plan, canaries=canaries, delta=delta, seed=seed))
            on_step(taken, len(seeds))
        return AuditEvidence(pooled(scores), on_canaries_alone(self.plan, canaries).guarantee(delta=delta))


def _follows_weights(encoding: Encoding) -> bool:
    if isinstance(encoding, Combined):
        return _follows_weights(encoding.first) or _follows_weights(encoding.second)
    return isinstance(encoding, FreezeByMagnitude)
