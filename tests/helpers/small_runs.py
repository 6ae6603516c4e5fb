"""A small network on small pictures, and every encoding made for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from contracts import stream
from stopped_runs import released_by
from torch import nn

import sordino as so
from sordino.encodings import (
    Combined,
    ConstantRate,
    Freeze,
    Matched,
    MatchedBought,
    Project,
    ProjectBiased,
    PublicGradients,
    RandomSparsify,
    RankedSparsify,
    Subspace,
)
from sordino.optimized_noise.sources import FromPublicRows, FromReleases

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(40, 1, 6, 6, generator=GENERATOR), torch.randint(0, 3, (40,), generator=GENERATOR)
PUBLIC = torch.randn(12, 1, 6, 6, generator=GENERATOR)
CODING = stream("coding")
PER_STEP = RandomSparsify(0.6, epochs=2, steps_per_epoch=3, refresh=3, schedule=ConstantRate())
FREEZE = Freeze(["0.bias", "3.bias"])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def subspace_of(model: nn.Module) -> Subspace:
    return Subspace(PublicGradients(model, PUBLIC, classes=3), directions=9)


def make_plan(encoding, *, clip=None, steps: int = 6, rate: float = 0.3, noise: float = 1.0) -> so.Plan:
    two_parts = isinstance(encoding, Project) or isinstance(getattr(encoding, "second", None), Project)
    clip = clip or (so.ClipPerLayer((1.0, 1.0)) if two_parts else so.ClipByNorm(1.0))
    gradient = so.LossGradient(F.cross_entropy)
    return so.Plan(so.Poisson(rate=rate, steps=steps), gradient, clip, so.Gaussian(noise), encoding)


# By name, as functions of the model that is trained: a public subspace follows it.
ENCODINGS = {
    "random": lambda model: PER_STEP,
    "random, cooling": lambda model: RandomSparsify(0.8, epochs=3, steps_per_epoch=2),
    "ranked": lambda model: RankedSparsify(0.5, epochs=3, steps_per_epoch=2),
    "freeze": lambda model: FREEZE,
    "freeze by magnitude": lambda model: Freeze.by_magnitude(model, stages=(2, 4)),
    "freeze by magnitude and random": lambda model: Combined(Freeze.by_magnitude(model, stages=(2, 4)), PER_STEP),
    "project": lambda model: Project(subspace_of(model), embedding_norm=2.0, residual_norm=0.5),
    "project, biased": lambda model: ProjectBiased(subspace_of(model)),
    "freeze and random": lambda model: Combined(FREEZE, PER_STEP),
    "random and ranked": lambda model: Combined(PER_STEP, RankedSparsify(0.5, epochs=3, steps_per_epoch=2)),
    "random and project": lambda model: Combined(PER_STEP, Project(subspace_of(model))),
    "matched by releases": lambda model: Matched(FromReleases(0.8)),
    "matched by public rows": lambda model: Matched(FromPublicRows(PublicGradients(model, PUBLIC, classes=3), every=2)),
    "random and matched": lambda model: Combined(PER_STEP, Matched(FromReleases(0.8))),
    "matched by bought sizes": lambda model: MatchedBought(memory=0.8),
    "random and bought sizes": lambda model: Combined(PER_STEP, MatchedBought(memory=0.8)),
    "matched and freeze": lambda model: Combined(Matched(FromReleases(0.8)), FREEZE),
    "matched and project": lambda model: Combined(Matched(FromReleases(0.8)), Project(subspace_of(model))),
}


def released(make, *, seed: int = 0, stop: int | None = None, physical: int = 16, **changes) -> torch.Tensor:
    """What each step releases while SGD moves the model; with `stop`, in two runs, the second going on there."""
    model = make_model()

    def new_run() -> so.PrivateRun:
        plan = make_plan(make(model), **changes)
        return so.PrivateRun(plan, model, (INPUTS, LABELS), seed=seed, physical_batch_size=physical)

    return released_by(new_run, model, divisor=12, stop=stop)
