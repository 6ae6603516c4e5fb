"""Membership inference: attacks that tell whether an example was in the training data, and the bound on any attack.

The attacks read the training data, so their results are not private. A weak attack proves nothing: the proof of privacy
is the accounting of the run.
"""
