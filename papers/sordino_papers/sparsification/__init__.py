"""The experiments of random sparsification."""
