"""Experiments on random sparsification."""
