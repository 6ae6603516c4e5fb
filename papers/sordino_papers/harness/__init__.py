"""Entries, result files, tables and pages shared by the experiments of all papers."""
