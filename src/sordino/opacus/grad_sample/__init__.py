"""Where Opacus keeps its modules for per-example gradients."""

from sordino.opacus.layers import register_grad_sampler as register_grad_sampler
