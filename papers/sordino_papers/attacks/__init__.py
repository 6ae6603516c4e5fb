"""Attacks: audits with canaries, planted bugs, and reconstruction from gradients."""
