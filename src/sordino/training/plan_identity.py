"""Identity of a plan in privacy.json: a digest of its stages, by which a finished or resumed run is recognized.

Stages are written as fields by name, without those that equal their default, so a field that is added later changes no
digest. A default must not change: a plan that relied on it would be taken for another one with the new value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from torch import Tensor

from sordino.training.checkpoint import digest_of_tensors


class PlanDigest(str):
    """Digest of the stages of a plan. `earlier` is the one by which version 0.1 identified them."""

    earlier: str

    def identifies(self, written: str) -> bool:
        """Whether a folder with the digest `written` is of this plan."""
        return written in (self, self.earlier)


def digest_of(*stages: object) -> PlanDigest:
    """Digest of the stages of a plan.

    >>> from sordino.kernel.sampling import Poisson
    >>> digest_of(Poisson(0.5, 3)) == digest_of(Poisson(0.5, steps=3, adjacency=Poisson(0.5, 3).adjacency))
    True
    >>> digest_of(Poisson(0.5, 3)).identifies(digest_of(Poisson(0.5, 4)))
    False
    """
    found = PlanDigest(_digest(json.dumps([stage_key(stage) for stage in stages], sort_keys=True)))
    found.earlier = _digest(repr(stages))
    return found


def stage_key(value: object) -> Any:
    """A stage as JSON: its class, and the fields that differ from their defaults.

    >>> from sordino.kernel.clipping import ClipByNorm
    >>> stage_key(ClipByNorm(1.0))
    {'class': 'ClipByNorm', 'norm': 1.0}
    """
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Tensor):
        return {"tensor": digest_of_tensors({"": value})}
    if isinstance(value, (list, tuple)):
        return [stage_key(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): stage_key(each) for name, each in value.items()}
    kind = type(value)
    if is_dataclass(value):
        chosen = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
        differing = {name: each for name, each in chosen.items() if not _is_default(each, kind, name)}
        return {"class": kind.__qualname__} | {name: stage_key(each) for name, each in differing.items()}
    return {"function": value.__qualname__} if hasattr(value, "__qualname__") else repr(value)


def _is_default(value: object, kind: Any, name: str) -> bool:
    field: Field[Any] = kind.__dataclass_fields__[name]
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return type(value) is type(default) and not isinstance(value, Tensor) and bool(value == default)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
