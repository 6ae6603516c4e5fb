"""Attacks by canaries that bound epsilon from below, beside the proof that bounds it from above."""
