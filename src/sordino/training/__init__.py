"""Training on top of private steps: fit, the loop, schedules, averaging, evaluation, run folders and checkpoints."""
