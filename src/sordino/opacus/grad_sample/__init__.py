"""Where Opacus keeps its modules for per-example gradients."""
