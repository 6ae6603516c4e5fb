"""Convex models: gated ReLU networks, and the baselines that they are compared with."""
