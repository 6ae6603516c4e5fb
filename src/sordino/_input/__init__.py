"""Arguments and files from outside, checked before they are used."""
