"""The trusted part. With `gradients` and `accounting` it is the only code that can break a guarantee."""
