"""Whether a model can be trained example by example, and what can be done about it."""

from __future__ import annotations

from torch import nn

from sordino.errors import UsageError
from sordino.kernel.model_checks import check_model
from sordino.models.batchnorm import replace_batchnorm


class ModuleValidator:
    """Looks at a module's layers without running it. What only shows in a forward pass is refused when training.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(model), ModuleValidator.is_valid(ModuleValidator.fix(model))
    (False, True)
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UsageError]:
        """Returns the first problem of the module, or raises it if `strict`."""
        try:
            check_model(module)
        except UsageError as error:
            if strict:
                raise
            return [error]
        return []

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module) -> nn.Module:
        """A copy in which every BatchNorm is a GroupNorm of the same affine weights."""
        return replace_batchnorm(module)

    @classmethod
    def fix_and_validate(cls, module: nn.Module) -> nn.Module:
        """The same, and an error if that was not enough."""
        fixed = cls.fix(module)
        cls.validate(fixed, strict=True)
        return fixed
