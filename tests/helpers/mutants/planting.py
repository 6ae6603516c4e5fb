"""A bug planted in the kernel for a while: attributes of classes and modules are set, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


class Patches:
    """Attributes that were set, and are put back.

    >>> class Clip:
    ...     norm = 1.0
    >>> with ExitStack() as stack:
    ...     Patches(stack).set(Clip, "norm", 2.0)
    ...     Clip.norm
    2.0
    >>> Clip.norm
    1.0
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: object) -> None:
        """Of a class or a module. What was inherited is inherited again afterwards."""
        if name in vars(owner):
            self._stack.callback(setattr, owner, name, vars(owner)[name])
        else:
            self._stack.callback(delattr, owner, name)
        setattr(owner, name, value)


Plant = Callable[[Patches], None]


@dataclass(frozen=True)
class Mutant:
    """`caught_by` is the check of a verification that is to notice it."""

    name: str
    caught_by: str
    plant: Plant


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Within, the kernel has the bug. It is gone afterwards, also after an error."""
    with ExitStack() as stack:
        mutant.plant(Patches(stack))
        yield
