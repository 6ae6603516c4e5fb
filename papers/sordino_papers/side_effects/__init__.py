"""Tables on side effects of DP-SGD: fairness and robustness (Xu and Chen 2026), and Adult."""
