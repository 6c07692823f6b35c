"""Tables that label the files of images.

A table is a file such as labels.csv (data/sources/tables.py) beside the images or above them. Its columns of files and of
classes are found by their names, or named. A file is named by its path below the folder, its name, or its name without the
ending. Where a column says which part each image belongs to, such as train or test, these are the parts of the data.
"""

import collections
import dataclasses
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from data import fields
from data.sources import contents
from data.sources.archives import Member
from data.sources.tables import Table

PARTS = ('train', 'valid', 'validation', 'val', 'dev', 'test')
LIKE_PARTS = {**{name: name for name in PARTS}, 'training': 'train', 'testing': 'test', 'eval': 'valid',
               'evaluation': 'valid'}  # in lower case
_FILE = ('file', 'file_name', 'filename', 'image', 'image_file', 'image_name', 'image_path', 'image_id', 'path', 'filepath',
         'img', 'id')
_LABEL = ('label', 'labels', 'class', 'class_name', 'class_label', 'category', 'target')
_PART = 'split', 'part', 'partition', 'subset', 'set', 'data set', 'dataset'
_FEW = 20  # rows of a table that may all have classes of their own
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
    """

    pairs: Sequence[Pair]
    about: str
    notes: Sequence[str]
    column: str = ''
    parts: Sequence[str] = ()

    def apart(self) -> dict[str, 'Labelled']:
        """{part: its images}; without a column of parts everything is 'train'."""
        if not self.parts:
            return {'train': self}
        pairs = {name: [pair for pair, part in zip(self.pairs, self.parts) if part == name] for name in PARTS}
        said = {'train': (f'{self.about}, part from {self.column!r}', self.notes)}
        return {name: Labelled(of, *said.get(name, ('', ()))) for name, of in pairs.items() if of}


def of_table(table: Table, images: Mapping[str, str | Member], folder: str, told: Told, path: str) -> Labelled:
    """The images that a table labels.

    Args:
      images: {path below the folder: file} of all images.
      folder, path: where these and the table are, for messages.

    Raises ValueError for a row that names no image, an image of two classes or parts, or classes that are nearly all different.
    """
    try:
        return _labelled_by(table, images, folder, told, path)
    except ValueError as error:  # a table of an archive is read from the cache
        said = str(error).replace(table.file.path, path).replace(contents.ANOTHER, _CONVERT)
        for advice, here in _ADVICE:
            said = re.sub(advice, here, said)
        raise ValueError(said) from error


def _labelled_by(table, images, folder, told, path):
    beginning = next(table.rows(), ('', ()))[1]
    named = {one for one in fields.columns('features', told.features) if not one.isdecimal()} if told.features else set()
    known = _column(beginning, _FILE) >= 0 and _column(beginning, _LABEL) >= 0
    if not table.names and (known or (named and named <= {*map(str, beginning)})):
        table = dataclasses.replace(table, header='true')
    columns = _columns(table, told.features, path)
    of_part = -1 if (column := _column(table.names, _PART)) in columns else column
    find, labels, parts, others = _finder(images, folder), {}, {}, {}
    for row in table.rows():
        place, cells = row[0], table.cells(row, columns, 'data.features')
        if isinstance(cells[1], list | tuple | dict | np.ndarray):
            raise ValueError(f'{place} has the class {str(cells[1])[:40]!r}; expected one class, a word or a number.')
        cell, label = (str(cell).strip() for cell in cells)
        if not (name := find(cell)):
            raise ValueError(f'{place} names {cell[:80]!r}, which is none of the {len(images):,} images in {folder}, '
                             'or several; correct the line or take it out, or set data.features to the columns FILE,LABEL.')
        label = told.class_in(label, place)
        if labels.setdefault(name, label) != label:
            raise ValueError(f'{place} gives {cell[:80]!r} the class {label[:40]!r}, and a line before it '
                             f'{labels[name][:40]!r}; take one of them out.')
        if of_part < 0:
            continue
        said = str(row[1][of_part] if of_part < len(row[1]) else '').strip()
        if not (part := LIKE_PARTS.get(said.lower(), '')):
            others.setdefault(said, place)
        elif parts.setdefault(name, part) != part:
            raise ValueError(f'{place} puts {cell[:80]!r} into {part!r}, and a line before it into {parts[name]!r}; take one '
                             'of them out.')
    if not labels:
        raise ValueError(f'{path} has no rows; expected a file and its class in each.')
    if len(labels) > _FEW and len({*labels.values()}) > (0.9 if told.features else 0.5) * len(labels):
        raise ValueError(f'{path} has {len({*labels.values()}):,} different classes for {len(labels):,} images; set '
                         "data.features to the columns of the file and of its class, such as 'file,label'.")
    notes = []
    if unnamed := [name for name in images if name not in labels]:
        notes.append(f'{counted(len(unnamed), "image")} without a row in {path} {left_out(len(unnamed))} ({first(unnamed)})')
    if others and 'train' in parts.values():
        said, place = next(iter(others.items()))
        notes.append(f'the column {table.names[of_part]!r} makes no parts, as {place} has {said[:40]!r} in it; expected train, '
                     'valid or test in every row')
    file, label = (repr(table.names[column]) if table.names else f'column {column + 1}' for column in columns)
    about, order = f'file from {file} and class from {label} of {path}', mixed(labels)
    split = (table.names[of_part], [parts[name] for name in order]) if 'train' in parts.values() and not others else ()
    return Labelled([(images[name], labels[name]) for name in order], about, notes, *split)


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
    have = ', '.join(map(repr, table.names)) or f'{table.width} columns without names'
    raise ValueError(f'{path} has {have}, which leaves open which are the file and its class; set data.features to both, such '
                     "as 'file,label' or '1,3'.")


def _column(names: Sequence[str], known: Sequence[str]) -> int:
    """The index of the name that comes first in `known`; -1 without one."""
    lower = [str(name).strip().lower() for name in names]
    return next((lower.index(name) for name in known if name in lower), -1)


def _finder(images: Collection[str], folder: str) -> Callable[[str], str]:
    """A function from what a table calls an image to its name; '' for none or several, or one outside of the folder."""
    short, own = collections.defaultdict(set), os.path.basename(os.path.abspath(folder))
    for name in images:
        base = name.rpartition('/')[2]
        for key in {base, os.path.splitext(base)[0], os.path.splitext(name)[0]}:
            short[key].add(name)

    def find(cell: str) -> str:
        name = cell.replace('\\', '/').removeprefix('./')
        if '..' in name.split('/'):
            name = posixpath.relpath(posixpath.join(folder, name), folder)
            if name.startswith('../'):  # as seen from elsewhere: below a folder of this name it is the same file
                _, here, name = name.rpartition(f'/{own}/')
                if not here:
                    return ''
        if name in images:
            return name
        for key in (name, name.rpartition('/')[2]):
            if len(short.get(key, ())) == 1:
                found = next(iter(short[key]))
                # Where a folder is named, the file lies in it; the path may begin above the folder of the images.
                if '/' not in name or f'/{name}'.endswith((f'/{found}', f'/{os.path.splitext(found)[0]}')):
                    return found
        return ''

    return find


def mixed(names: Iterator[str]) -> list[str]:
    """In the order of a hash of the names."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode('utf-8', 'surrogateescape')).digest())


def counted(number: int, what: str) -> str:
    return f'{number:,} {what}{"s" * (number != 1)}'


def left_out(number: int) -> str:
    return 'is left out' if number == 1 else 'are left out'


def first(names: Collection[str]) -> str:
    return min(names) + ', ..' * (len(names) > 1)


