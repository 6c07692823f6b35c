"""Image files: folders of classes, flat folders with a table that labels the files (data/sources/image_tables.py), and folders
without labels; also in archives."""

import collections
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data import remote
from data.images import decoding
from data.images.decoding import Format, Wanted
from data.sources import archives, image_tables, images
from data.sources.archives import Member
from data.sources.files import File
from data.sources.image_tables import LIKE_PARTS, PARTS, Labelled, Pair, Told, counted, first, left_out, mixed
from data.sources.tables import Table

_KINDS = '.csv', '.tsv', '.jsonl', '.parquet'
_TABLES = (*_KINDS, *(f'{kind}{packed}' for kind in _KINDS[:3] for packed in ('.gz', '.zst')))
_HEADERS = 20_000  # images whose headers are read, spread evenly, before training begins
_COLOURS = 1_000  # where all are resized, and the headers only say whether they are coloured


@dataclasses.dataclass(frozen=True)
class Tree:
    """The files of a folder or an archive, by their paths below it, with '/'.

    Attributes:
      path: of the folder or archive, for messages.
      tables: {name: path of the file}.
      folders: names of all folders.
      others: names of files that are neither.
    """

    path: str
    images: Mapping[str, str | Member]
    tables: Mapping[str, str]
    folders: frozenset[str]
    others: Sequence[str]

    @classmethod
    def of(cls, path: str) -> 'Tree':
        """Raises ValueError for an archive that cannot be read."""
        if archives.is_archive(path):
            found = archives.unpacked(path, decoding.SUFFIXES, _TABLES)
            tree = cls(path, found.images, found.tables, frozenset(found.folders), found.others)
            tops = {name.partition('/')[0] for name in (*found.images, *found.tables)}
            deep = any(name.count('/') >= 2 for name in found.images) or any('/' in name for name in found.tables)
            return tree.below(tops.pop()) if len(tops) == 1 and deep else tree  # a folder around everything
        kinds = {'images': {}, 'tables': {}}
        folders, others = set(), []
        for folder, names in _walk(path):
            relative = os.path.relpath(folder, path).replace(os.sep, '/')
            folders.add(relative)
            for name in names:
                full, inner = os.path.join(folder, name), name if relative == '.' else f'{relative}/{name}'
                lower = name.lower()
                kind = 'images' if lower.endswith(decoding.SUFFIXES) else 'tables' if lower.endswith(_TABLES) else ''
                if kind:
                    kinds[kind][inner] = full
                else:
                    others.append(inner)
        return cls(path, kinds['images'], kinds['tables'], frozenset(folders - {'.'}), others)

    def below(self, folder: str) -> 'Tree':
        """The files of one of its folders."""
        start = f'{folder}/'
        cut = lambda names: {name.removeprefix(start) for name in names if name.startswith(start)}
        kept = ({name.removeprefix(start): file for name, file in part.items() if name.startswith(start)}
                for part in (self.images, self.tables))
        return Tree(f'{self.path}/{folder}', *kept, frozenset(cut(self.folders)), sorted(cut(self.others)))

    def part(self, name: str, told: Told) -> 'Tree':
        """The files of one of its folders; if that has no table, nor folders for classes, with the table NAME.csv beside."""
        tree = self.below(name)
        beside = {f'../{table}': file for table, file in self.tables.items() if table.partition('.')[0].lower() == name}
        return tree if (tree.nested and not told.features) or tree.tables else dataclasses.replace(tree, tables=beside)

    @property
    def tops(self) -> set[str]:
        """The folders in itself that hold images."""
        return {name.partition('/')[0] for name in self.nested}

    @property
    def nested(self) -> list[str]:
        """The names of the images that are in folders."""
        return [name for name in self.images if '/' in name]

    def manifest(self, told: Told) -> str:
        """The name of the table that labels the images; '' if their folders do. Raises ValueError if there are several."""
        of_classes = len(self.tops) > 1 and 2 * len(self.nested) > len(self.images) and not self.tops <= {*PARTS}
        if not self.beside or (of_classes and not told.features):
            return ''
        if len(self.beside) > 1:
            raise ValueError(f'{self.path} has the tables {", ".join(sorted(self.beside))}; set data.path to the one that '
                             'labels the images, or take the others away.')
        return self.beside[0]

    @property
    def beside(self) -> list[str]:
        """The tables in the folder itself, and that of `part`."""
        return [name for name in self.tables if '/' not in name.removeprefix('../')]


class Found(NamedTuple):
    """{part: its images} of a folder, and what to say of images of other parts, which are left out; '' without any."""

    parts: dict[str, Labelled]
    left: str = ''


def folder(path: str, wanted: Wanted, told: Told = Told()) -> images.ImageSource:
    """Images in folders root/class/.. or root/train/class/.., root/test/class/..; or in a flat folder with a table, or in
    folders root/train/.., root/test/.. with a table each or one, or the table itself; or in an archive of these.

    Raises FileNotFoundError if the folder or images are missing, ValueError for a class that training lacks, for images of
    different sizes unless `size` is given, and for a table or an archive that cannot be read.
    """
    path = remote.local(path)
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise FileNotFoundError(f'{path!r} is no folder; data.path must hold one folder of images a class.')
    of_table = os.path.isfile(path) and not archives.is_archive(path)
    found, _ = _of_table_file(path, told) if of_table else _parts(Tree.of(path), told)
    if 'train' not in found:
        raise ValueError(f'{path} has labelled images of {" and ".join(found)}, but none of train; add some, or call these '
                         'train.')
    if told.features and not any(one.about for one in found.values()):
        raise ValueError(f'data.features={told.features!r} names columns of a table, and {path} has none beside its images; '
                         'leave it out, or set data.path to the table.')
    classes = tuple(sorted({label for _, label in found['train'].pairs}, key=_in_order))
    form = form_of_all(found, wanted, path)
    notes = [note for one in found.values() for note in one.notes]
    about = '; '.join(one.about for one in found.values() if one.about)
    if len(classes) == 1:
        notes.append(f'there is one class, {classes[0]!r}; expected a folder for each')
    parts = {name: files(one.pairs, classes, form) for name, one in found.items() if one.pairs}
    return images.ImageSource(parts, classes, form, about, tuple(notes))


def unlabelled(path: str, wanted: Wanted) -> images.ImageSource:
    """The images of a folder or an archive and of all folders in it, without classes: as parts, if all are in folders of the
    names train, test and so on, train among them; else everything is 'train'. Raises as `folder` does."""
    path = remote.local(path)
    tree = Tree.of(path) if os.path.isdir(path) or archives.is_archive(path) else None
    if tree is None or not tree.images:
        what = 'holds no images' if tree else 'is no folder' + ' or archive' * os.path.exists(path)
        raise FileNotFoundError(f'{path!r} {what}; data.path must hold images.')
    split = 'train' in tree.tops <= {*PARTS} and len(tree.nested) == len(tree.images)
    of = {part: [name for name in mixed(tree.images) if name.startswith(f'{part}/')] for part in PARTS} if split else {
        'train': mixed(tree.images)}
    found = {part: Labelled([(tree.images[name], '') for name in names], '', ()) for part, names in of.items() if names}
    form = form_of_all(found, wanted, path)
    parts = {name: images.Files([file for file, _ in one.pairs], np.full(len(one.pairs), -1, np.int32), form)
             for name, one in found.items()}
    notes = [f'{counted(len(tree.others), "file")} without the ending of an image {left_out(len(tree.others))} '
             f'({first(tree.others)})'] if tree.others else []
    if len(like := _like_parts(tree.tops)) > 1 and not split:
        notes.append(f'the folders {_some(like)} in {tree.path} are no parts of the data; these are called train, valid and '
                     'test, and are beside each other alone')
    return images.ImageSource(parts, (), form, notes=tuple(notes))


def every(paths: Sequence[str], form: Format) -> images.Files:
    """The images of folders and archives, and files, without labels."""
    found = []
    for path in paths:
        _require_there(path)
        inside = os.path.isdir(path) or archives.is_archive(path)
        found += Tree.of(path).images.values() if inside else [path]
    if not found:
        raise ValueError(f'{", ".join(paths)} holds no images; expected image files or folders of them.')
    return images.Files(found, np.full(len(found), -1, np.int32), form)


def labelled(paths: Sequence[str], told: Told = Told(), classes: Collection[str] = ()) -> Labelled:
    """The images of folders, tables and archives as `folder` reads them, and image files, whose folder is the class; folders
    of the names of `classes` are these, also if one is called train. Raises ValueError for several parts."""
    pairs, notes = [], []
    for path in paths:
        _require_there(path)
        if os.path.isdir(path) or archives.is_archive(path):
            tree = Tree.of(path)
            named = tree.tops & {*PARTS}
            of_classes = (named and tree.tops <= {*classes} and not tree.manifest(told)
                          and not any(tree.below(name).tops & {*classes} for name in named))
            one = _labelled(tree, told) if of_classes else _of_one_part(path, _parts(tree, told))
        elif path.lower().endswith(_TABLES):
            one = _of_one_part(path, _of_table_file(path, told))
        else:
            of = told.class_in(os.path.basename(os.path.dirname(os.path.abspath(path))), path)
            one = Labelled([(path, of)], '', ())
        pairs += one.pairs
        notes += one.notes
    return Labelled(pairs, '', notes)


def _of_one_part(path: str, found: Found) -> Labelled:
    parts = {name: one for name, one in found.parts.items() if one.pairs}
    if len(parts) > 1 or found.left:
        said = f'the parts {" and ".join(parts)}' if len(parts) > 1 else f'more than one part ({found.left})'
        raise ValueError(f'{path} has {said}; give a folder or a table that has the images of one part alone, or --split=PART '
                         "for that of the run's own data.")
    return next(iter(parts.values()), Labelled((), '', ()))


def _require_there(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(f'{path!r} does not exist; expected image files, or folders or archives of them.')


def files(pairs: Sequence[Pair], classes: Sequence[str], form: Format) -> images.Files:
    """Examples from (file, class name) pairs; raises ValueError for an unknown class."""
    numbers = {name: number for number, name in enumerate(classes)}
    for path, label in pairs:
        if label not in numbers:
            known = ', '.join(classes[:10]) + (', ...' if len(classes) > 10 else '')
            raise ValueError(f'{path} is of class {label!r}, which is no class of training, {known}; take its images away, or '
                             'train with some of them.')
    return images.Files([path for path, _ in pairs], np.array([numbers[label] for _, label in pairs], np.int32), form)


def form_of_all(found: Mapping[str, Labelled], wanted: Wanted, path: str) -> Format:
    """The form of all images: their size, and 3 channels if one of them is coloured, except for what is wanted. Only headers
    are read, of at most 20,000 images spread evenly.

    Raises ValueError if the sizes differ and none is wanted, or if a header cannot be read.
    """
    every = [file for one in found.values() for file, _ in one.pairs]
    if wanted.height and wanted.channels:
        return wanted.of(0, 0, 0)
    looked = every[:: -(-len(every) // (_COLOURS if wanted.height else _HEADERS))]
    sizes, coloured = collections.Counter(), False
    for file in looked:
        width, height, gray = decoding.header(file)
        sizes[width, height] += 1
        coloured |= not gray
    if len(sizes) > 1 and not wanted.height:
        common = [f'{width}x{height} ({count:,})' for (width, height), count in sizes.most_common(3)]
        more = f' and {len(sizes) - 3:,} other sizes' if len(sizes) > 3 else ''
        part = f', among {len(looked):,} of {len(every):,}' if len(looked) < len(every) else ''
        raise ValueError(f'{path} has images of different sizes, {", ".join(common)}{more}{part}; set data.size to the height '
                         'and width that all are resized to, such as data.size=64.')
    width, height = next(iter(sizes))
    return wanted.of(height, width, 1 + 2 * coloured)


def _parts(tree: Tree, told: Told) -> Found:
    """The folders train, test and so on, if train has classes of its own; or the parts of one table; else all are 'train'."""
    inner = {name: tree.part(name, told) for name in PARTS if name in tree.tops}
    if train := inner.get('train'):
        if train.manifest(told) or (train.nested and not (told.features and tree.beside)):
            return _with_classes_of_their_own(tree, inner, told)
        if not tree.manifest(told) and len(tree.tops) == len(inner):
            raise FileNotFoundError(f'{tree.path} has the folders {_some(sorted(inner))} of images, but no folders of classes '
                                    "in them; make such folders, or a table such as train.csv with the columns 'file' and "
                                    "'label'.")
    if tree.manifest(told):
        return _apart(tree, _labelled(tree, told))
    _require_named(tree, like := _like_parts(tree.tops))
    what = 'the folder {} in {} is a class' if len(like) == 1 else 'the folders {} in {} are classes'
    notes = [f'{what.format(_some(like), tree.path)}; parts of the data are called train, valid and test, and have classes'
             ] if like else []
    return Found({'train': _labelled(tree, told).with_notes(notes)})


def _with_classes_of_their_own(tree: Tree, inner: Mapping[str, Tree], told: Told) -> Found:
    """Parts that are folders, each with folders of classes or a table; a table's column of parts says more than the folder."""
    read = [name for name, one in inner.items() if one.manifest(told) or one.nested]
    if not inner['train'].manifest(told):
        _require_agreement(tree, 'train/')
    found, training = {}, None
    for name in read:
        one = _labelled(inner[name], told, training)
        training = training or one
        for part, of in (one.apart() if one.parts else {name: one}).items():
            found[part] = found[part].with_more(of) if part in found else of
    unread = {*tree.beside} - {os.path.normpath(f'{name}/{inner[name].manifest(told)}') for name in read}
    first_part = next(iter(found))
    say = lambda left: f'{_folders(left)} in {tree.path}, without classes or of no known name, {left_out(len(left))}'
    unknown = sorted(tree.tops - {*read})
    found[first_part] = found[first_part].with_notes([*([say(unknown)] if unknown else []), *_unread(tree, unread)])
    left = sorted({*unknown, *(name for name in read if not found.get(name, training).pairs)})
    return Found(found, say(left) if left else '')


def _apart(tree: Tree, whole: Labelled) -> Found:
    """The parts of the images of one table: by its column; else by the folders train, test and so on, also in a folder around
    all of them, if there are several of these, or no others; else all are 'train'. Raises ValueError for a folder test or
    valid beside others, none of which is train."""
    if whole.parts:
        return Found(whole.apart())
    names = {str(file): name for name, file in tree.images.items()}
    paths = [names[str(file)].split('/')[:-1] for file, _ in whole.pairs]
    depth = 0
    while len(around := {path[depth] if len(path) > depth else '' for path in paths}) == 1 and not around & {*LIKE_PARTS, ''}:
        depth += 1
    tops = [path[depth] if len(path) > depth else '' for path in paths]
    _require_named(tree, _like_parts(tops))
    inner = [name for name in PARTS if name in tops]
    others = {*tops} - {*inner, ''}
    if others and inner and 'train' not in inner:
        raise ValueError(f'The table labels images in {_folders(inner)} and in {_some(sorted(others))} of {tree.path}, of '
                         'which none is train; give that of training this name, or the table a column split that says train, '
                         'valid or test.')
    unread = sorted(tree.tops - {path[0] for path in paths if path}) if inner else []
    left = f'{_folders(unread)} in {tree.path}, of which the table names no image, {left_out(len(unread))}' if unread else ''
    if not inner or (others and len(inner) == 1):
        return Found(whole.apart(), left)
    of = {name: [pair for pair, top in zip(whole.pairs, tops) if top == name] for name in inner}
    found = {name: Labelled(pairs, '', ()) for name, pairs in of.items()}
    found[inner[0]] = dataclasses.replace(whole, pairs=of[inner[0]])
    if loose := len(whole.pairs) - sum(map(len, of.values())):
        said = (f'{counted(loose, "image")} of the table in {tree.path}, but not in {" or ".join(inner)}, {left_out(loose)}, '
                'as these are parts')
        found[inner[0]], left = found[inner[0]].with_notes([said]), left or said
    return Found(found, left)


def _like_parts(folders: Collection[str]) -> list[str]:
    """The folders whose names are like those of parts."""
    return [name for name in sorted({*folders}) if name.lower() in LIKE_PARTS]


def _require_named(tree: Tree, like: Sequence[str]) -> None:
    """Raises ValueError if one of several folders that are like parts, train among them, has another name than these."""
    parts = dict.fromkeys(LIKE_PARTS[name.lower()] for name in like)
    if len(like) > 1 and 'train' in parts and not {*like} <= {*PARTS}:
        raise ValueError(f'The folders {_some(like)} in {tree.path} are no classes; name them {" and ".join(parts)}, as '
                         'parts of the data are called.')


def _labelled(tree: Tree, told: Told, training: Labelled | None = None) -> Labelled:
    if name := tree.manifest(told):
        return image_tables.of_table(Table(File(tree.tables[name], name)), tree.images, tree.path, told,
                                     os.path.normpath(f'{tree.path}/{name}'), training)
    nested = tree.nested
    if not nested:
        what = 'images, but neither folders of classes nor a table' if tree.images else 'no images'
        more = "; a task that needs no classes reads them with data.source='unlabelled'" if tree.images else ''
        raise FileNotFoundError(f'{tree.path!r} holds {what}; expected one folder of image files a class, or images and a '
                                f"table such as labels.csv with the columns 'file' and 'label'{more}.")
    _require_agreement(tree)
    tops = sorted(tree.tops)
    notes = _unread(tree, [name for name in tree.tables if name in tree.beside or name.partition('/')[0] not in tops])
    if empty := sorted({name.partition('/')[0] for name in tree.folders}.difference(tops)):
        notes.append(f'{_folders(empty)} in {tree.path} {"holds" if len(empty) == 1 else "hold"} no images')
    if len(like := _like_parts({name.split('/')[1] for name in nested if name.count('/') > 1})) > 1:
        notes.append(f'the folders {_some(like)} in those of classes in {tree.path} are no parts of the data; these are called '
                     'train, valid and test, and have the classes inside')
    if flat := len(tree.images) - len(nested):
        notes.append(f'{counted(flat, "image")} in {tree.path} itself without a folder of a class {left_out(flat)}')
    if other := [name for name in tree.others if '/' in name and name.partition('/')[0] in tops]:
        notes.append(f'{counted(len(other), "file")} without the ending of an image {left_out(len(other))} ({first(other)})')
    classes = {top: told.class_in(top, f'{tree.path}/{top}') for top in tops}
    return Labelled([(tree.images[name], classes[name.partition('/')[0]]) for name in mixed(nested)], '', notes)


def _require_agreement(tree: Tree, inside: str = '') -> None:
    """Raises ValueError if a table beside a tree gives images of one folder of it, or of its folder `inside`, different
    classes."""
    for name in tree.beside:
        part = name.partition('.')[0].lower()
        if (part in PARTS and f'{part}/' != (inside or 'train/')) or 'submission' in part:  # as sample_submission.csv
            continue
        own = part in PARTS and inside
        try:
            said = image_tables.contradiction(Table(File(tree.tables[name], name)), tree.below(part).images if own else
                                              tree.images, '' if own else inside)
        except ValueError:  # it cannot be read, and need not
            continue
        if said:
            where = f'{tree.path}/{inside}'.rstrip('/')
            folders = sorted(tree.below(inside[:-1]).tops if inside else tree.tops)
            raise ValueError(f'The folders {_some(folders)} in {where} would be the classes, but by {name} {said}; '
                             f'take it away, or set data.path to {tree.path}/{name} to read it.')


def _unread(tree: Tree, tables: Collection[str]) -> list[str]:
    """What a person should know of tables that label nothing."""
    return [f'{counted(len(tables), "table")} in {tree.path} {left_out(len(tables))} ({first(tables)}), as the folders are '
            'the classes; set data.path to a table to read it'] if tables else []


def _of_table_file(path: str, told: Told) -> Found:
    """The images that a table names, below its folder; of NAME.csv in the folder NAME if there is one."""
    if not path.lower().endswith(_TABLES):
        raise ValueError(f'{path} is no folder, archive ({", ".join(archives.ENDINGS)}) or table ({", ".join(_KINDS)}) of '
                         'images; set data.path to one.')
    file = File(path, os.path.basename(path))
    folder, name = os.path.dirname(os.path.abspath(path)), file.name.partition('.')[0]
    tree = Tree.of(folder)
    tree = tree if tree.images else Tree.of(os.path.dirname(folder))  # as annotations/labels.csv beside images/
    tree = tree.below(name) if name in tree.tops else tree
    return _apart(tree, image_tables.of_table(Table(file), tree.images, tree.path, told, path))


def _in_order(label: str) -> tuple:
    return (0, int(label), label) if label.isdecimal() and len(label) < 19 else (1, 0, label)


def _folders(names: Sequence[str]) -> str:
    return f'the folder{"s" * (len(names) != 1)} {_some(names)}'


def _some(names: Sequence[str]) -> str:
    return ', '.join(map(repr, names[:5])) + (f' and {len(names) - 5:,} more' if len(names) > 5 else '')


def _walk(path: str) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) without hidden ones and what macOS adds; links to folders are followed, each folder once."""
    seen = set()
    for current, inner, names in os.walk(path, followlinks=True):
        real = os.path.realpath(current)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith('.') and name != '__MACOSX')
        yield current, sorted(name for name in names if not name.startswith('.'))
