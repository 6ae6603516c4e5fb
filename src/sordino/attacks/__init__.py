"""Attacks that test a privacy guarantee: audits with canaries, membership inference, image reconstruction."""
