"""Attacks on what a guarantee promises: audits, planted bugs, and reconstruction."""
