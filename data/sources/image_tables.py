"""Tables that label the files of images.

A table is a file such as labels.csv (data/sources/tables.py) beside the images or above them. Its columns of files and of
classes are found by their names, or named. A file is called by its path, also from folders above, or by its name, with or
without the ending. Where a column says which part each image belongs to, as train or test, these are the parts of the data.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import posixpath
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from data import fields
from data.sources import contents
from data.sources.archives import Member
from data.sources.tables import Table, blank

PARTS = ('train', 'valid', 'validation', 'val', 'dev', 'test')
LIKE_PARTS = {**{name: name for name in PARTS}, 'training': 'train', 'trainval': 'train', 'testing': 'test', 'eval': 'valid',
               'evaluation': 'valid'}  # in lower case
_FILE = ('file', 'file_name', 'filename', 'image', 'image_file', 'image_name', 'image_path', 'image_id', 'path', 'filepath',
         'img', 'id')
_LABEL = ('label', 'labels', 'class', 'class_name', 'class_label', 'category', 'target')
_SPLIT = 'split', 'part', 'partition', 'subset'
_PART = *_SPLIT, 'set', 'data set', 'dataset'
_FEW = 20  # rows of a table that may all have classes of their own
_COMPARED = 1000  # rows that are compared with the folders of images
_CONVERT = 'convert the file to UTF-8'
# What tables of texts advise, and images have no fields for.
_ADVICE = ((r'(, or|; if line 1 is one,) set data\.(header|quotes)=\w+( if [^;.]*)?', ''),
           (r'set data\.encoding=[\w-]+', _CONVERT))

Pair = tuple[str | Member, str]  # an image file and the name of its class


@dataclasses.dataclass(frozen=True)
class Told:
    """Where the classes are, as a config says it.

    Attributes:
      features: the columns of a table that have the file and its label; '' finds them.
      pattern: a regular expression; the class is what its first group, or all of it, matches in a label; '': the label.
    """

    features: str = ''
    pattern: str = ''

    def class_in(self, label: str, place: str) -> str:
        """The class that a label names. Raises ValueError, with the place, if the pattern matches nothing."""
        if not self.pattern:
            return label
        if not (found := re.search(self.pattern, label)) or not (name := found[min(1, found.re.groups)]):
            raise ValueError(f'{place} has the label {label[:80]!r}, in which data.pattern={self.pattern!r} finds no class; '
                             'correct one of the two.')
        return name


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The images of a folder with the names of their classes, in an order that mixes classes.

    Attributes:
      about: where the classes come from, if that is a table.
      notes: what a person should know.
      column, parts: the column of a table that says the part of each pair, and these; '' and () without one.
      names: the names of the columns of files and of classes; () without a header.
    """

    pairs: Sequence[Pair]
    about: str
    notes: Sequence[str]
    column: str = ''
    parts: Sequence[str] = ()
    names: Sequence[str] = ()

    def with_more(self, more: 'Labelled') -> 'Labelled':
        """These images and more of the same part, from another table."""
        about = '; '.join(dict.fromkeys(one for one in (self.about, more.about) if one))
        return Labelled([*self.pairs, *more.pairs], about, [*self.notes, *more.notes])

    def with_notes(self, notes: Sequence[str]) -> 'Labelled':
        return dataclasses.replace(self, notes=[*self.notes, *notes])

    def apart(self) -> dict[str, 'Labelled']:
        """{part: its images}; without a column of parts everything is 'train'."""
        if not self.parts:
            return {'train': self}
        pairs = {name: [pair for pair, part in zip(self.pairs, self.parts) if part == name] for name in PARTS}
        there = [name for name in PARTS if pairs[name]]
        said = {there[0]: (f'{self.about}, part from {self.column!r}', self.notes)}
        return {name: Labelled(pairs[name], *said.get(name, ('', ()))) for name in there}


def of_table(table: Table, images: Mapping[str, str | Member], folder: str, told: Told, path: str,
             training: Labelled | None = None) -> Labelled:
    """The images that a table labels.

    Args:
      images: {path below the folder: file} of all images.
      folder, path: where these and the table are, for messages.
      training: what the table of the training part labels; a table without its column of classes labels nothing.

    Raises ValueError for a row that names no image, an image of two classes or parts, or classes that are nearly all different.
    """
    with _said_of_images(table, path):
        return _labelled_by(table, images, folder, told, path, training)


def contradiction(table: Table, images: Collection[str], inside: str = '') -> str:
    """Two images of one folder, of those in the folder `inside`, to which the table gives different classes, by columns with
    known names; '' without any. Raises ValueError if it cannot be read."""
    names, labels = _Names(images), {}
    table = _with_header(table, names, Told())
    file, label = (_column(table.names, known) for known in (_FILE, _LABEL))
    if file < 0 or label < 0:
        return ''
    for _, cells in itertools.islice(table.rows(), _COMPARED):
        if len(cells) <= max(file, label) or len(found := names.find(str(cells[file]).strip())) != 1:
            continue
        if not found[0].startswith(inside):
            continue
        before, known = labels.setdefault(found[0].removeprefix(inside).partition('/')[0], (found[0], cells[label]))
        if known != cells[label]:
            return f'{before} is {str(known)[:40]!r} and {found[0]} is {str(cells[label])[:40]!r}'
    return ''


@contextlib.contextmanager
def _said_of_images(table: Table, path: str) -> Iterator[None]:
    """Errors in words of images, as they have fewer fields than tables of texts."""
    try:
        yield
    except ValueError as error:  # a table of an archive is read from the cache
        said = str(error).replace(table.file.path, path).replace(contents.ANOTHER, _CONVERT)
        for advice, here in _ADVICE:
            said = re.sub(advice, here, said)
        raise ValueError(said) from error


def _labelled_by(table, images, folder, told, path, training):
    if not images:
        raise ValueError(f'{path} labels images, of which {folder} has none; put it beside its images, or above them.')
    names = _Names(images)
    table = _with_header(table, names, told)
    if training and training.names and (
            table.width < 2 or (table.names and training.names[1] not in table.names)):
        return Labelled([], '', [f'{path} has no column {training.names[1]!r}, as that of the training part has, and is left '
                                 'out with its images'])
    columns = _columns(table, told.features, path)
    of_part = -1 if (column := _column(table.names, _PART)) in columns else column
    labels, parts, others = _read(table, columns, of_part, names, folder, told)
    if not labels:
        raise ValueError(f'{path} has no rows; expected a file and its class in each.')
    if len(labels) > _FEW and len({*labels.values()}) > (0.9 if told.features else 0.5) * len(labels):
        raise ValueError(f'{path} has {len({*labels.values()}):,} different classes for {len(labels):,} images; set '
                         "data.features to the columns of the file and of its class, such as 'file,label'.")
    notes, split, order = [], ('', ()), mixed(labels)
    if unnamed := [name for name in images if name not in labels]:
        notes.append(f'{counted(len(unnamed), "image")} without a row in {path} {left_out(len(unnamed))} ({first(unnamed)})')
    if parts:
        notes += _no_parts(table.names[of_part], {*parts.values()}, others)
        split = ('', ()) if others else (table.names[of_part], [parts[name] for name in order])
    file, label = (repr(table.names[column]) if table.names else f'column {column + 1}' for column in columns)
    about = f'file from {file} and class from {label} of {path}'
    return Labelled([(images[name], labels[name]) for name in order], about, notes, *split,
                    names=tuple(table.names[column] for column in columns) if table.names else ())


def _read(table, columns, of_part, names, folder, told):
    """({image: class}, {image: part}, {another value in the column of parts: where})."""
    labels, called, parts, others, missing, rows = {}, {}, {}, {}, [], 0
    for row in table.rows():
        place, cells = row[0], table.cells(row, columns, 'data.features')
        rows += 1
        for cell, what, expected in zip(cells, ('file', 'class'), ('the path of one', 'one class, a word or a number')):
            if isinstance(cell, list | tuple | dict | bytes | np.ndarray):
                raise ValueError(f'{place} has the {what} {str(cell)[:40]!r}; expected {expected}.')
        cell, label = (str(cell).strip() for cell in cells)
        if len(found := names.find(cell)) != 1:
            missing.append((place, cell, found))
            continue
        [name], label, cell = found, told.class_in(label, place), posixpath.normpath(cell.replace('\\', '/'))
        if '/' in cell and '/' in (before := called.setdefault(name, cell)) and before != cell:
            raise ValueError(f'{place} names {cell[:80]!r}, and a line before it {before[:80]!r}, but of these {folder} has '
                             f'only {name}; set data.path to a folder that has both.')
        if labels.setdefault(name, label) != label:
            raise ValueError(f'{place} gives {cell[:80]!r} the class {label[:40]!r}, and a line before it '
                             f'{labels[name][:40]!r}; take one of them out.')
        if of_part < 0:
            continue
        said = row[1][of_part] if of_part < len(row[1]) else ''
        said = '' if blank(said) else str(said).strip()
        if not (part := LIKE_PARTS.get(said.lower(), '')):
            others.setdefault(said, place)
        elif parts.setdefault(name, part) != part:
            raise ValueError(f'{place} puts {cell[:80]!r} into {part!r}, and a line before it into {parts[name]!r}; take one '
                             'of them out.')
    if missing:
        raise ValueError(_not_one(missing, rows, names, folder, bool(told.features or table.names)))
    return labels, parts, others


def _no_parts(column, parts, others):
    """A note of a column that says a part, but also what is none. Raises ValueError if it says several parts, or has a name
    that can mean nothing else."""
    if not others:
        return []
    said, place = next(iter(others.items()))
    said = f'{place} has {repr(said[:40]) if said else "nothing"} in the column {column!r}'
    if len(parts) > 1 or (parts and column.strip().lower() in _SPLIT):
        raise ValueError(f'{said}, and other lines {" and ".join(sorted(parts))}; expected train, valid or test: correct the '
                         'line, take it out, or rename the column.')
    return [f'{said}, which makes no parts, as they are called train, valid and test']


def _not_one(missing, rows, names, folder, certain):
    """What is said of the rows that do not name one image each."""
    place, cell, found = missing[0]
    near = names.otherwise(cell)
    what = (f'several images in {folder} ({", ".join(found[:3])})' if found else
            f'none of the {names.count:,} images in {folder}' + (f' (there is {near})' if near else ''))
    more = f', and so are those of {len(missing) - 1:,} more of {rows:,} rows' if len(missing) > 1 else ''
    columns = '' if certain else ', or set data.features to the columns FILE,LABEL'
    if len(parts := {name.partition('/')[0] for name in found}) > 1 and parts <= {*PARTS}:
        return (f'{place} names {cell[:80]!r}, which is {what}{more}; write {found[0]}, or, if the table is of one part, call '
                f'it such as {"train" if "train" in parts else min(parts)}.csv.')
    return f'{place} names {cell[:80]!r}, which is {what}{more}; correct the line or take it out{columns}.'


def _with_header(table: Table, names: '_Names', told: Told) -> Table:
    """The table, with a header or without as its first lines show by the names of columns that are known or asked for, and of
    images."""
    if table.format in ('json', 'parquet'):
        return table
    beginning = [[str(cell).strip() for cell in cells]
                 for _, cells in itertools.islice(dataclasses.replace(table, header='false').rows(), 2)]
    top, below = beginning + [[]] * (2 - len(beginning))
    named = {one for one in fields.columns('features', told.features) if not one.isdecimal()} if told.features else set()
    if (_column(top, _FILE) >= 0 and _column(top, _LABEL) >= 0) or (named and named <= {*top}):
        return dataclasses.replace(table, header='true')
    if any(map(names.find, top)):
        return dataclasses.replace(table, header='false')
    if any(map(names.find, below)) and not any(os.path.splitext(cell)[1] for cell in top):
        return dataclasses.replace(table, header='true')
    return table


def _columns(table: Table, features: str, path: str) -> tuple[int, int]:
    """The columns of files and of classes."""
    if features:
        wanted = fields.columns('features', features)
        if len(wanted) != 2:
            raise ValueError(f"data.features={features!r} names {len(wanted)} column(s); expected two, such as 'file,label'.")
        return tuple(table.column(one, 'data.features') for one in wanted)
    file, label = (_column(table.names, known) for known in (_FILE, _LABEL))
    if file >= 0 and label >= 0:
        return file, label
    if table.width == 2:
        return (file, 1 - file) if file >= 0 else (1 - label, label) if label >= 0 else (0, 1)
    if not table.width:
        raise ValueError(f'{path} is empty; expected a file and its class in each line.')
    have = ', '.join(map(repr, table.names)) or f'{counted(table.width, "column")} without a name'
    raise ValueError(f'{path} has {have}, which leaves open which are the file and its class; set data.features to both, such '
                     "as 'file,label' or '1,3'.")


def _column(names: Sequence[str], known: Sequence[str]) -> int:
    """The index of the name that comes first in `known`; -1 without one."""
    lower = [str(name).strip().lower() for name in names]
    return next((lower.index(name) for name in known if name in lower), -1)


class _Names:
    """What a table may call images: the path below the folder, also behind folders above it, or the bare name; with or without
    the ending. The case of an ending does not matter, nor which form of Unicode: macOS takes accents apart.
    """

    def __init__(self, images: Collection[str]):
        self._images = images
        self._indices = {}  # made when they are asked for, as a million images take a while and memory

    @property
    def count(self) -> int:
        return len(self._images)

    def find(self, cell: str) -> list[str]:
        """The images that it may mean, three at most."""
        if not cell:
            return []
        parts = posixpath.normpath(cell.replace('\\', '/')).split('/')
        ways = ['/'.join(parts[start:]) for start in range(len(parts))]
        if exact := next((way for way in ways if way in self._images), ''):
            return [exact]
        for ending in (True, False):
            for bare in (False, True)[:1 + (len(parts) == 1)]:
                index = self._index(bare, ending)
                if found := next((index[key] for key in map(_plain, ways) if key in index), ()):
                    return [*found]
        return []

    def otherwise(self, cell: str) -> str:
        """The only image of this name with another ending, or in another folder; '' for none or several."""
        base = cell.replace('\\', '/').rpartition('/')[2]
        found = self._index(True, False).get(_plain(os.path.splitext(base)[0]), ())
        return found[0] if len(found) == 1 else ''

    def _index(self, bare: bool, ending: bool) -> dict[str, tuple[str, ...]]:
        """{a path, or the bare name, with or without its ending: the images of it, three at most}."""
        if (bare, ending) not in self._indices:
            index = self._indices[bare, ending] = {}
            for name in self._images:
                path = name.rpartition('/')[2] if bare else name
                key = _plain(path if ending else os.path.splitext(path)[0])
                if len(known := index.get(key, ())) < 3:
                    index[key] = (*known, name)
        return self._indices[bare, ending]


def _plain(name: str) -> str:
    stem, ending = os.path.splitext(unicodedata.normalize('NFC', name))
    return stem + ending.lower()


def mixed(names: Iterator[str]) -> list[str]:
    """In the order of a hash of the names."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode('utf-8', 'surrogateescape')).digest())


def counted(number: int, what: str) -> str:
    return f'{number:,} {what}{"s" * (number != 1)}'


def left_out(number: int) -> str:
    return 'is left out' if number == 1 else 'are left out'


def first(names: Collection[str]) -> str:
    return min(names) + ', ..' * (len(names) > 1)


