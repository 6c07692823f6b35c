"""The splits of a prepared set of TFDS, such as glue/mrpc, as tables: a row for each example, a column for each feature."""

import dataclasses
import functools
from collections.abc import Iterator

from data.sources import tfds
from data.sources.tables import Row, Table

_BLOCK = 1024  # examples read at once


@dataclasses.dataclass(frozen=True)
class TfdsFile:
    """A split of a prepared set, in the place of a `files.File`: `path` is 'FOLDER, SPLIT', `name` that of the split."""

    path: str
    name: str
    examples: tfds.TfdsExamples

    encoding = 'utf-8'  # of all texts of TFDS

    @property
    def digest(self) -> str:
        return self.examples.digest


class TfdsTable(Table):
    """A `Table` of a `TfdsFile`. Classes, alone or in lists, are numbers, whose names the set knows; -1 stands for none, as in
    GLUE's tests."""

    format = 'parquet'  # values have types, and names are known

    @functools.cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(sorted(self.file.examples.info.features))  # TFDS gives another order each time

    @functools.cached_property
    def classes(self) -> dict[str, list[str]]:
        kinds = {name: getattr(feature, 'feature', feature)  # of a list
                 for name, feature in self.file.examples.info.features.items()}
        return {name: kind.names for name, kind in kinds.items() if isinstance(kind, tfds.library().features.ClassLabel)}

    def _rows(self, quoted: bool) -> Iterator[Row]:
        for first in range(0, len(self.file.examples), _BLOCK):
            numbers = range(first, min(first + _BLOCK, len(self.file.examples)))
            for number, example in zip(numbers, self.file.examples.take(numbers), strict=True):
                yield f'{self.file.path}, example {number}', tuple(self._cell(name, example[name]) for name in self._keys)

    def _cell(self, name: str, value):
        if isinstance(value, list) or len(getattr(value, 'shape', ())) == 1:
            return [self._cell(name, one) for one in value]
        if isinstance(value, bytes):
            return value.decode(errors='replace')
        if name in self.classes:
            return '' if value < 0 else self.classes[name][value]
        return value.item() if hasattr(value, 'item') and not getattr(value, 'shape', ()) else value


def files(name: str, path: str = '') -> list[TfdsFile]:
    """The splits of a set that `python -m data.prepare NAME` has prepared. Raises ValueError if it has not."""
    folder = tfds.find(name, path)
    splits = tfds.TfdsExamples(folder, ()).info.splits
    return [TfdsFile(f'{folder}, {split}', split, tfds.TfdsExamples(folder, (split,))) for split in splits]


def table(file, header: str = 'auto', quotes: str = 'auto') -> Table:
    """The table of a file, or of a split of TFDS."""
    return (TfdsTable if isinstance(file, TfdsFile) else Table)(file, header, quotes)
