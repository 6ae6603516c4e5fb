"""Planting of bugs in the kernel: attributes of classes and modules are set, and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


class Patches:
    """Sets attributes and restores them when the stack is closed.

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
        """Sets an attribute of a class or a module. Inherited attributes are inherited again afterwards."""
        if name in vars(owner):
            self._stack.callback(setattr, owner, name, vars(owner)[name])
        else:
            self._stack.callback(delattr, owner, name)
        setattr(owner, name, value)


Plant = Callable[[Patches], None]


@dataclass(frozen=True)
class Mutant:
    """A planted bug. `caught_by` is the check of the verification that must detect it."""

    name: str
    caught_by: str
    plant: Plant


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """A context in which the kernel has the bug. It is removed afterwards, also after an error."""
    with ExitStack() as stack:
        mutant.plant(Patches(stack))
        yield
