"""Networks by name, each with its exact number of parameters."""

from sordino.models.scatter_linear import ScatterLinear as ScatterLinear
