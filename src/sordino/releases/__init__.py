"""Single releases: one vector, moments of inputs, sizes of gradients."""
