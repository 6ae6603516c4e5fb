"""Rows of texts or tokens, from JSON lines, CSV, Parquet, Arrow files, or a folder that `datasets` saved.

Each cell is a Python value (a string, a number, a list of them) or None. The names of columns are public structure. A
cell is private: whatever it holds, it raises no error, and a line that is not a JSON object is a row without cells. A
CSV file whose lines have different numbers of cells is refused, as for tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino._input import strict_json
from sordino._input.files import open_regular
from sordino.data.arrow_rows import ARROW, PARQUET, arrow_schema, batches_of, readable
from sordino.data.table_header import refuse_absent
from sordino.data.table_readers import header_of, is_table, pieces_in
from sordino.errors import DataError, UsageError
from sordino.kernel.row_structure import most_of

JSON_LINES = (".jsonl", ".ndjson")
_FORMATS = f"{', '.join((*JSON_LINES, '.csv', '.tsv', *PARQUET, *ARROW))} or a folder that datasets saved"
_LINES_TO_INSPECT = 9

Cell = Any
Columns = Mapping[str, Sequence[Cell]]


@dataclass(frozen=True)
class TextRows:
    """The rows of a file or folder. `columns` are the names of its columns.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.jsonl"
    >>> _ = path.write_text('{"text": "all well", "label": 1}\\n{"text": "ill", "label": 0}\\n')
    >>> rows = TextRows.open(path)
    >>> rows.columns, rows.read(["text"])
    (('text', 'label'), {'text': ['all well', 'ill']})
    """

    path: Path
    files: tuple[Path, ...]
    columns: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> TextRows:
        """Finds the files and the names of columns. Only a few lines of JSON are read, which most decide."""
        if path.is_dir():
            return cls._of_folder(path)
        if not path.exists():
            raise DataError(f"{str(path)!r:.200} cannot be read: no such file or folder.")
        suffix = path.suffix.lower()
        if suffix in JSON_LINES:
            return cls(path, (path,), _keys_of_most(path))
        if suffix in PARQUET + ARROW:
            return cls(path, (path,), tuple(arrow_schema(path).names))
        if is_table(path):
            return cls(path, (path,), tuple(header_of(path)))
        raise DataError(f"{str(path)!r:.200} has an unknown format for texts: allowed are {_FORMATS}.")

    @classmethod
    def _of_folder(cls, path: Path) -> TextRows:
        if (path / "dataset_dict.json").is_file():
            raise UsageError(f"{str(path)!r} holds several splits: name the folder of one, as {str(path / 'train')!r}.")
        files = tuple(sorted(each for each in path.iterdir() if _is_arrow(each)))
        if not files:
            raise DataError(f"{str(path)!r} has no rows of texts: allowed are {_FORMATS}.")
        schemas = [arrow_schema(file) for file in files]
        if any(schema.names != schemas[0].names for schema in schemas):
            raise DataError(f"{str(path)!r} has files with different columns: all must have the same.")
        return cls(path, files, tuple(schemas[0].names))

    def refuse_absent(self, names: Sequence[str]) -> None:
        """Refuses rows without one of these columns."""
        refuse_absent(names, self.columns, repr(str(self.path)))

    def read(self, names: Sequence[str]) -> dict[str, list[Cell]]:
        """The cells of these columns, for all rows."""
        self.refuse_absent(names)
        found: dict[str, list[Cell]] = {name: [] for name in names}
        for piece in self._pieces(names):
            for name in names:
                found[name].extend(piece[name])
        if not all(map(len, found.values())):
            raise DataError(f"{str(self.path)!r} has no rows.")
        return found

    def _pieces(self, names: Sequence[str]) -> Iterator[Columns]:
        if self.path.suffix.lower() in JSON_LINES:
            rows = list(_objects(self.path))
            yield {name: [row.get(name) for row in rows] for name in names}
        elif all(map(_is_arrow, self.files)):
            for file in self.files:
                with readable(file):
                    for batch in batches_of(file):
                        yield {name: _values(batch.column(name)) for name in names}
        else:
            for cells in pieces_in(self.path, names):
                yield {name: cells[name].texts() for name in names}


def _values(column: Any) -> list[Cell]:
    """The values of a column of Arrow. A text that is not UTF-8 is None."""
    try:
        values: list[Cell] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value(cell) for cell in column]
    return values


def _value(cell: Any) -> Cell:
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return None


def _is_arrow(path: Path) -> bool:
    return path.suffix.lower() in PARQUET + ARROW and not path.name.startswith(".")


def _lines(path: Path) -> list[bytes]:
    with open_regular(path) as file:
        lines = file.read().split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{str(path)!r} has no rows.")
    return lines


def _objects(path: Path) -> Iterator[Mapping[str, Cell]]:
    return map(_object, _lines(path))


def _object(line: bytes) -> Mapping[str, Cell]:
    """The object in a line, or an empty one: an error would reveal something about the row."""
    try:
        found = strict_json.parse(line)
    except UsageError:
        return {}
    return found if isinstance(found, dict) else {}


def _keys_of_most(path: Path) -> tuple[str, ...]:
    """The keys that more than half of a few evenly spaced lines have, so that no single row decides."""
    lines = _lines(path)
    inspected = [_object(line) for line in lines[:: -(-len(lines) // _LINES_TO_INSPECT)]]
    keys = dict.fromkeys(key for row in inspected for key in row)
    return tuple(key for key in keys if most_of([key if key in row else None for row in inspected]) == key)
