"""Releases of statistics outside training: one vector, moments of inputs, gradient sizes."""
