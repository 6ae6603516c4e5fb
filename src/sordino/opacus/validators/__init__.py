"""Where Opacus keeps its validator."""

from sordino.opacus.validators.module_validator import ModuleValidator as ModuleValidator
from sordino.opacus.validators.utils import register_module_fixer as register_module_fixer
from sordino.opacus.validators.utils import register_module_validator as register_module_validator
