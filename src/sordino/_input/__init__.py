"""Checks of arguments and files that come from outside, before they are used."""
