"""`Declaration`: who says that the facts in a schema are public, and whether they were drafted from private rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.errors import UsageError


@dataclass(frozen=True)
class Declaration:
    """Declaration of a schema: who says that its facts are public, and whether a draft read them from private rows.

    >>> Declaration(read_from_rows=True).is_open, Declaration("the code book", read_from_rows=True).is_open
    (True, False)
    """

    declared_by: str | None = None
    read_from_rows: bool = False

    KEYS: ClassVar = ("confirmed_public", "declared_by", "read_from_private_rows")

    @classmethod
    def parse(cls, top: Table) -> Declaration:
        """Reads the keys of a schema. Refuses one that nobody has confirmed."""
        if not ("confirmed_public" in top and top.truth("confirmed_public")):
            raise UsageError(
                f"{top.what}: confirmed_public must be true: a person has to confirm that no fact was computed from "
                "private rows."
            )
        by = top.text("declared_by").strip() if "declared_by" in top else None
        return cls(by or None, "read_from_private_rows" in top and top.truth("read_from_private_rows"))

    @classmethod
    def read(cls, path: Path) -> Declaration:
        """Reads the declaration in a schema file, of a table or of arrays."""
        return cls.parse(Table.parse(read_bytes(path, at_most=LARGEST_TEXT), what=repr(str(path))))

    @property
    def is_open(self) -> bool:
        """Whether the facts were read from private rows, and nobody is named who declares them public."""
        return self.read_from_rows and self.declared_by is None

    @property
    def in_words(self) -> str:
        """A sentence for reports."""
        if self.is_open:
            return (
                "Bounds, categories and classes were drafted from private rows, and nobody has declared them public: "
                "what they reveal about single rows is outside the guarantee."
            )
        if self.declared_by is not None:
            return f"Bounds, categories and classes are declared public by {self.declared_by}."
        return "Bounds, categories and classes are confirmed as public in the schema, which does not say by whom."


UNNAMED = Declaration()
