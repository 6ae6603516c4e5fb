"""Options and tables that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer


def number(meaning: str) -> Any:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise typer.BadParameter(f"must be a number, got {text!r:.80}.") from None

    return typer.Option(parser=parse, metavar="NUMBER", help=meaning)


def whole_number(meaning: str) -> Any:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f"must be a whole number, got {text!r:.80}.") from None

    return typer.Option(parser=parse, metavar="WHOLE", help=meaning)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Each column as wide as its longest entry, however narrow the terminal: no word is ever cut.

    An entry that would leave its line, or speak to the terminal, is shown as Python writes it.
    """
    shown = [[text if text.isprintable() else repr(text) for text in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    for row in shown:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
