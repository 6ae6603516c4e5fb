"""A synthetic table of people with its schema, a command that trains on it, and rows for prediction."""

from __future__ import annotations

import csv
from pathlib import Path

from training_commands import TARGET

SCHEMA = """
confirmed_public = true
target = {column = "ill", classes = ["no, never", "yes"]}
columns.age = {kind = "number", bounds = [0, 100]}
columns.sex = {kind = "category", categories = ["f", "m"]}
"""
PEOPLE = ["train", "--data", "people.csv", "--schema", "people.toml", "--model", "linear", *TARGET]
PEOPLE += ["--steps", "30", "--batch-size", "100", "--lr", "2", "--seed", "0"]


def table(path: Path, schema: Path, *, rows: int = 400, facts: str = SCHEMA) -> None:
    """Writes a table of people who are ill from age fifty on. Each person has two rows."""
    schema.write_text(facts)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "ill", "pay", "person"])
        for row in range(rows):
            age = 37 * row % 100
            writer.writerow([age, "fm"[row % 2], "yes" if age >= 50 else "no, never", 10 * age, f"p{row // 2}"])


NEW = "sex,age\nf,5\nm,95\nf,unknown\nm,\n"
