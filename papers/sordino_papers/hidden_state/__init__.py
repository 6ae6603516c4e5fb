"""Hidden-state privacy: convex ReLU networks trained with NoisyCGD, compared with DP-SGD and noisy statistics."""

from sordino_papers.hidden_state.table import HIDDEN_STATE as HIDDEN_STATE
