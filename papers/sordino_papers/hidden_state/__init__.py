"""Hidden-state privacy: convex ReLU networks trained by NoisyCGD, beside DP-SGD and noisy statistics."""

from sordino_papers.hidden_state.table import HIDDEN_STATE as HIDDEN_STATE
