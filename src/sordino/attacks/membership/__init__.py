"""Who was in the training data? Attacks on a finished model by whoever has all rows, beside what its guarantee allows.

The attacks look at members, so nothing here is private. A weak result is no proof of privacy: the proof is the plan's.
"""
