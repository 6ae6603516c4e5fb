"""Where Opacus keeps its validator."""

from sordino.opacus.validators.module_validator import ModuleValidator as ModuleValidator
