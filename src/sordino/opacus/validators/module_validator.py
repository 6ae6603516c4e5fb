"""Whether a model can be trained example by example, and what can be done about it."""

from __future__ import annotations

from torch import nn

from sordino.errors import UsageError
from sordino.kernel.model_checks import check_model
from sordino.models.batchnorm import replace_batchnorm
from sordino.opacus.validators.utils import problems_of, with_replacements


class ModuleValidator:
    """Looks at a module's layers without running it. What only shows in a forward pass is refused when training.

    Functions that were registered with `register_module_validator` and `register_module_fixer` take part.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(model), ModuleValidator.is_valid(ModuleValidator.fix(model))
    (False, True)
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[Exception]:
        """Returns the first problem that the library finds, and those of registered functions.

        Raises the first one if `strict`.
        """
        problems: list[Exception] = []
        try:
            check_model(module)
        except UsageError as error:
            problems.append(error)
        problems += problems_of(module)
        if strict and problems:
            first = problems[0]
            raise first if isinstance(first, UsageError) else UsageError(f"a registered check refuses it: {first}")
        return problems

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module) -> nn.Module:
        """A copy with the registered replacements, in which every other BatchNorm is a GroupNorm of its weights."""
        return replace_batchnorm(with_replacements(module))

    @classmethod
    def fix_and_validate(cls, module: nn.Module) -> nn.Module:
        """The same, and an error if that was not enough."""
        fixed = cls.fix(module)
        cls.validate(fixed, strict=True)
        return fixed
