"""What an engine has spent, as a value that a checkpoint keeps: its calls, each with sampler, noise and steps begun."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dp_accounting.dp_event import DpEvent

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.noise import Gaussian
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Cyclic, Poisson, Sampler, Shuffled

_SAMPLERS: dict[str, tuple[Callable[..., Sampler], tuple[str, str]]] = {
    "Poisson": (Poisson, ("rate", "steps")),
    "Shuffled": (Shuffled, ("batches_per_epoch", "epochs")),
    "Cyclic": (Cyclic, ("batches_per_epoch", "epochs")),
}


@dataclass(frozen=True)
class SpentCall:
    """The steps that one call of `make_private` has begun."""

    sampler: Sampler
    noise: Gaussian
    steps: int

    @classmethod
    def of(cls, run: PrivateRun) -> SpentCall:
        assert isinstance(run.plan.noise, Gaussian)  # the engine makes no other plans
        return cls(run.plan.sampler, run.plan.noise, run.steps)

    @property
    def event(self) -> DpEvent:
        """The privacy event of the steps."""
        return self.sampler.compose(self.noise.event, self.steps)

    def state(self) -> dict[str, Any]:
        """This call in plain numbers and text."""
        kind = type(self.sampler).__name__
        fields = {name: getattr(self.sampler, name) for name in _SAMPLERS[kind][1]}
        return {"sampler": kind, **fields, "noise_multiplier": self.noise.noise_multiplier, "steps_begun": self.steps}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> SpentCall:
        """The call that `state` describes. Raises an error for anything else."""
        make, names = _SAMPLERS[state["sampler"]]
        sampler, steps = make(**{name: state[name] for name in names}), state["steps_begun"]
        validate.count(at_least=0, at_most=sampler.steps, steps_begun=steps)
        return cls(sampler, Gaussian(state["noise_multiplier"]), steps)


@dataclass
class EarlierEngines:
    """What other engines had spent when their checkpoints were loaded. `own` is the name of the engine that has this.

    An engine has a random name, so that a checkpoint that is loaded again is not counted twice.
    """

    own: str = field(default_factory=lambda: secrets.token_hex(8))
    spent: dict[str, list[SpentCall]] = field(default_factory=dict)

    def state(self, calls: list[SpentCall]) -> dict[str, Any]:
        """The account for a checkpoint: `calls` of this engine, and those of earlier ones."""
        by_name = {**self.spent, self.own: calls}
        return {name: [call.state() for call in calls] for name, calls in by_name.items()}

    def load(self, state: object) -> None:
        """Adds the account of a checkpoint. What this engine has spent itself is counted already."""
        for name, calls in _parsed(state).items():
            begun = sum(call.steps for call in calls)
            if name != self.own and begun > sum(call.steps for call in self.spent.get(name, [])):
                self.spent[name] = calls

    @property
    def calls(self) -> list[SpentCall]:
        """All calls of earlier engines."""
        return [call for calls in self.spent.values() for call in calls]


def _parsed(state: object) -> dict[str, list[SpentCall]]:
    try:
        if not isinstance(state, Mapping) or not state:
            raise ValueError
        return {str(name): [SpentCall.of_state(call) for call in calls] for name, calls in state.items()}
    except (AttributeError, KeyError, TypeError, ValueError, UsageError):
        raise UsageError(
            "the checkpoint does not say what was spent in a form that can be read: load one that "
            "PrivacyEngine.save_checkpoint of sordino.opacus has written."
        ) from None
