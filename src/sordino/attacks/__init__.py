"""Attacks that test what a guarantee promises: audits, membership inference, reconstruction."""
