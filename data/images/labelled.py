"""Images, with classes or without: from a path to batches.

    opened = Images(source='folder', path='photos/', size=64, steps=Flip()).open('runs/photos')
    for batch in opened.train(seed=0): ...

Rows hold `image` [B, height, width, channels] float32, in 0..1 unless normalised, and if there are classes `label` [B] int32.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import cache, fields, json_files, remote, splits
from data.images import chosen, decoding
from data.images import steps as image_steps
from data.images.decoding import Format, Wanted
from data.images.fit import Fit, Stretch
from data.opened import Opened
from data.sources import image_folders
from data.sources import images as image_sources
from data.sources import tfds as tfds_sources

_FILE, _LARGEST = 'classes.json', 1 << 28  # values of an image


@dataclasses.dataclass(frozen=True)
class Images:
    """Images, for classification or, without classes, for tasks that need none.

    Attributes:
      source: 'digits' (scikit-learn's), 'idx' (MNIST's format), 'folder' (one folder a class, or a table), 'unlabelled' (any
        folder of images, without classes) or 'tfds' (see name).
      path: for 'idx' a folder or an images file; for 'folder' the folder that holds the classes' folders, or images and a
        table of their classes, or the table, or a zip or tar archive of these; for 'unlabelled' a folder that holds images,
        or folders of them, or an archive of these; for 'tfds' the folder of prepared sets ('': $TFDS_DATA_DIR or
        ~/tensorflow_datasets).
      name: a data set of TFDS, NAME[/CONFIG][:VERSION], that `python -m data.prepare NAME` has prepared.
      features: the names of its image and its label feature, separated by a comma; needed where several features
        qualify and none of them is called 'image' or 'label'. For a table of classes its columns of the file and of the class,
        by name or by number from 1; needed where these are not called 'file' and 'label' or the like, or where folders could be
        the classes too.
      pattern: a regular expression for 'folder': the class is what its first group matches in the label, such as
        '^(?:.*? - ){2}(.*?) - ' in 'Apparel - Topwear - Shirts - Blue'. '': the label.
      classes: those that are used: names with commas between them, a name that has a comma itself in quotes, such as
        '"Shoes, men",Bags'; or '[start:stop]' from the most frequent one on. '': all.
      train, valid, test: NAME or NAME[start:stop]; NAME is 'train', 'all' (everything), or another part of the source,
        such as 'test'. '' means that there is none.
      per_class: images of each class to train on, the same number of each, drawn from those of `train` by the seed `draw`; 0:
        all. More are those that fewer are, and others.
      steps: augmentation of training images, one step after the other: 'Crop(padding=2) >> Flip()'; Normalize at the
        end applies to all images, also in evaluation and prediction.
      size: height, and unless `width` says otherwise width, that all images are resized to; 0 keeps their size.
      width: their width, if it differs from `size`.
      fit: how images become that size: 'Stretch()', 'CentreCrop(share=0.875)' or, with a random part in training,
        'RandomCrop(scale=(0.08, 1.0))' (data/images/fit.py).
      channels: 1 or 3, converting where needed; 0 keeps the source's.
      batch_size: images in a training batch.
      workers: processes that make batches, in the same order for any number; 0 uses threads of this process.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    source: str = 'digits'
    path: str = ''
    name: str = ''
    features: str = ''
    pattern: str = ''
    classes: str = ''
    train: str = 'train[:80%]'
    valid: str = 'train[80%:]'
    test: str = ''
    per_class: int = 0
    draw: int = 0
    steps: image_steps.Step | None = None
    size: int = 0
    width: int = 0
    fit: Fit = Stretch()
    channels: int = 0
    batch_size: int = 64
    workers: int = 0
    reader: str = 'vit.readers.images:ImageClass'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenImages':
        """Opens the images. If `folder` is a run with saved classes, they are not read before train() or evaluation().

        `source`, a run to start from, is not used: other images may have other classes.

        Raises ValueError or FileNotFoundError, in one sentence, for a field or a source that cannot be used.
        """
        fields.one_of('source', self.source, ('digits', 'idx', 'folder', 'unlabelled', 'tfds'))
        tfds_sources.check(self)
        fields.positive(batch_size=self.batch_size, workers=self.workers)
        if self.size < 0 or self.channels not in (0, 1, 3):
            raise ValueError(
                f'data.size={self.size} and data.channels={self.channels} do not fit; size is 0 or more pixels, '
                'channels is 0, 1 or 3.'
            )
        if self.size * (self.width or self.size) * (self.channels or 1) > _LARGEST:
            raise ValueError(f'data.size={self.size} and data.width={self.width} make images of more than {_LARGEST >> 20} '
                             'million numbers; lower them.')
        if self.width < 0 or ((self.width or self.fit != Stretch()) and not self.size):
            raise ValueError(f'data.width={self.width} and data.fit={self.fit} do not fit data.size={self.size}; set data.size '
                             'to the height of the images too.')
        if self.fit.drawn and self.source in ('digits', 'idx'):
            raise ValueError(f"data.fit={self.fit} is for data.source='folder' and 'tfds', whose images may be larger than the "
                             "batch; give data.steps='ResizedCrop()', and leave data.fit out.")
        if self.per_class < 0 or self.draw < 0:
            raise ValueError(f'data.per_class={self.per_class} and data.draw={self.draw} do not fit; both are 0 or more.')
        if self.pattern and self.source != 'folder':
            raise ValueError(f"data.pattern={self.pattern!r} is for the labels of data.source='folder'; leave it out.")
        if self.source == 'unlabelled' and (self.classes or self.per_class):
            raise ValueError(f'data.classes={self.classes!r} and data.per_class={self.per_class} choose by class, and '
                             "data.source='unlabelled' has none; leave them out.")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f'data.pattern={self.pattern!r} is no regular expression ({error}); correct it.') from None
        if self.source in ('idx', 'folder', 'unlabelled') and not self.path:
            raise ValueError(f'data.path is empty and data.source={self.source!r}; set it to where the images are.')
        if self.source == 'digits' and self.path:
            raise ValueError(
                f"data.path={self.path!r} is not read with data.source='digits'; set data.source to 'folder' or 'idx', or "
                'leave data.path empty.'
            )
        return OpenImages(self, folder)


class OpenImages(Opened):
    """Images with their classes: training batches, evaluation, and reading single files.

    Attributes:
      classes: their names; () if the images have none.
    """

    classes: tuple[str, ...]
    unit = 'images'

    def __init__(self, config: Images, folder: str | os.PathLike | None):
        self.config, self._form = config, None
        if folder is not None:
            saved = Path(folder, _FILE)
            match json_files.read(saved):
                case {'classes': [*classes], 'height': int(height), 'width': int(width), 'channels': int(channels)} if (
                        all(isinstance(name, str) for name in classes) and min(height, width, channels) > 0
                        and height * width * channels <= _LARGEST):
                    self.classes, shape = tuple(classes), (height, width, channels)
                case _:
                    raise ValueError(f'{saved} does not describe classes of images; restore it, or start a new run.')
        else:
            form = self._source.format
            self.classes, shape = self._source.classes, (form.height, form.width, form.channels)
        self._form = Format(*shape, resized=True, fit=config.fit)
        steps = config.steps.singles if config.steps else ()
        for step in steps:  # raises here if a step does not fit images of this form
            step({'image': np.zeros((1, *shape), np.float32)}, np.random.default_rng(0))
        self._normalize = steps[-1] if steps and isinstance(steps[-1], image_steps.Normalize) else None
        self.facts = {'classes': len(self.classes)} if self.classes else {}
        self.meanings = {'classes': cache.key(*self.classes)} if self.classes else {}
        self.meanings |= {'image size': str(shape), 'image normalisation': str(self.normalization)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the classes and the form of the images, so that opening with this folder needs no images."""
        form = self._form
        contents = {'height': form.height, 'width': form.width, 'channels': form.channels, 'classes': self.classes}
        cache.write(Path(folder, _FILE), (json.dumps(contents, indent=1) + '\n').encode())

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the images."""
        rows, form = self.config.batch_size, self._form
        return _entries(((rows, form.height, form.width, form.channels), np.float32), ((rows,), np.int32), self.classes)

    def describe(self) -> str:
        """One line about the training part and the classes, for the log."""
        config, form, (_, start, stop) = self.config, self._form, self._range('train')
        return (
            f'{config.source} {config.name or config.path}'.strip()
            + f', {stop - start:,} images of {form.height}x{form.width}x{form.channels} to train on; '
            + (f'{len(self.classes):,} class{"es" * (len(self.classes) != 1)}' if self.classes else 'without classes')
            + self._left()
            + (self._source.about and f'; {self._source.about}')
            + (f' (CAUTION: {"; ".join(self._source.notes)})' if self._source.notes else '')
        )

    def _left(self) -> str:
        """A clause on each part of the source that no split of the config names."""
        config, sizes, clauses = self.config, self._source.sizes(), []
        named = {splits.read(given)[0] for given in (config.train, config.valid, config.test) if given}
        for part in {*self._source.parts} - named if 'all' not in named else ():
            ways = [f'data.valid={part}'] if part not in ('test', 'train') else []
            ways += [f'eval.py --split={part}'] if not getattr(config, part, '') else []  # else that is another part
            clauses.append(f'; {sizes[part]:,} in {part!r}' + (f', for {" or ".join(ways)}' if ways else ''))
        return ''.join(sorted(clauses))

    def read(self, path: str | os.PathLike) -> np.ndarray:
        """Decodes an image file to the form of the training images, float32 [height, width, channels], and normalises it.

        Raises FileNotFoundError if the file does not exist, ValueError, naming the file, if it cannot be decoded.
        """
        return self.seen(path)[0]

    def seen(self, path: str | os.PathLike) -> tuple[np.ndarray, str]:
        """(what `read` returns, what a person should know of how the file is read): that its size changes, although the images
        of training all had that of the model, and that only the first of several pictures is read. '' if there is nothing."""
        form = self._form
        image, (width, height, pictures) = decoding.seen(os.fspath(path), form)
        notes = [f'resized from {width}x{height} to {form.width}x{form.height}, the size of all images of training'] if (
            (width, height) != (form.width, form.height) and not self.config.size) else []
        notes += [f'one of {pictures} pictures in its file, the first'] if pictures > 1 else []
        note = f'{os.fspath(path)} is {" and ".join(notes)}' if notes else ''
        return self._normalised({'image': image})['image'], note

    @property
    def fit(self) -> Fit:
        """How images are resized; those that are drawn at random in training have a part at the centre otherwise."""
        return self.config.fit

    @property
    def normalization(self) -> tuple[list[float], list[float]]:
        """(mean, standard deviation) of each channel, with which images in 0..1 are normalised."""
        channels, step = self._form.channels, self._normalize or image_steps.Normalize((0.0,), (1.0,))
        return tuple([float(x) for x in numbers] * (channels // len(numbers)) for numbers in (step.mean, step.std))

    def visible(self, image: np.ndarray) -> np.ndarray:
        """The images of a batch, scaled back to 0..1 for display."""
        return image if self._normalize is None else self._normalize.undone(image)

    def _normalised(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return batch if self._normalize is None else self._normalize(batch)

    def digest(self, split: str) -> str:
        """A digest of the source images of a split; other data have another digest."""
        examples, start, stop = self._range(split)
        return cache.key(examples.digest, start, stop)

    @functools.cached_property
    def batches_per_epoch(self) -> float:
        _, start, stop = self._range('train')
        return (stop - start) / self.config.batch_size

    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly.

        Raises ValueError for images of one class, from which nothing can be learnt.
        """
        from data import pipeline

        if len(self.classes) == 1:
            raise ValueError(f'All images of {self.config.name or self.config.path} have the class '
                             f'{self.classes[0]!r}; give images of two classes or more, such as a folder for each, or, to a '
                             "task that needs no classes, data.source='unlabelled'.")
        examples, start, stop = self._range('train')
        order = pipeline.Order(stop - start, self.config.batch_size, seed)
        threads = min(8, os.cpu_count() or 1) if self.config.source in ('folder', 'unlabelled', 'tfds') else 1
        batches = _ImageBatches(examples, start, order, self.config.steps, bool(self.classes))
        return pipeline.numbered(batches, self.config.workers, threads)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every image of a split once, in order, normalised and without augmentation.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]' or 'all'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'images'.
        Raises: ValueError for an unknown or empty split, and for a view, which only text has.
        """
        examples, start, stop = self._range(split)
        return self._evaluate(examples, start, stop, batch_size, view)

    def score(self, paths: Sequence[str], batch_size: int, **view):
        """The same over image files (each in a folder named after its class), folders of class folders, and IDX files."""
        paths = [remote.local(path) for path in paths]
        found = [image_sources.is_idx(path) for path in paths]
        if all(found):
            return self._score_idx(paths, batch_size, view)
        if any(found):
            raise ValueError(f'--path names {paths[found.index(True)]}, which is IDX, and others that are not; give one kind.')
        if not self.classes:
            examples = image_folders.every(paths, self._form)
            return self._evaluate(examples, 0, len(examples), batch_size, view)
        found = image_folders.labelled(paths, self._told, self.classes)
        if not found.pairs:
            raise ValueError(f'{", ".join(paths)} holds no images; expected image files in folders named by class.')
        examples = image_folders.files(found.pairs, self.classes, self._form)
        return self._evaluate(examples, 0, len(examples), batch_size, view, found.notes)

    def _score_idx(self, paths: Sequence[str], batch_size: int, view: dict):
        form = self._form
        if self.config.classes:
            raise ValueError(f'--path names {paths[0]}, whose labels are numbers, and this run has chosen classes, '
                             f'data.classes={self.config.classes!r}; give a split of its own data, or image files in folders '
                             'named by class.')
        parts = []
        for path in paths:
            part = image_sources.idx(path, Wanted(form.height, form.width, form.channels, self.config.fit)).part('all')
            if part.labels.max() >= len(self.classes) > 0:
                raise ValueError(f'{path} has the label {part.labels.max()}, and this run has {len(self.classes)} classes, '
                                 'counted from 0; give the data that belong to it.')
            parts.append(part)
        examples = parts[0].joined(parts[1:])
        return self._evaluate(examples, 0, len(examples), batch_size, view)

    def _evaluate(self, examples, start: int, stop: int, batch_size: int, view: dict, notes: Sequence[str] = ()):
        from data import pipeline

        self.refuse_view(view)

        def batch(numbers: np.ndarray) -> dict[str, np.ndarray]:
            image, label = examples.take(start + numbers)
            return self._normalised(_entries(image, label, self.classes))

        facts = {'images': stop - start} | ({'notes': notes} if notes else {})
        return pipeline.Evaluation(stop - start, batch_size, batch, facts)

    @functools.cached_property
    def _source(self) -> image_sources.ImageSource:
        config = self.config
        channels = self._form.channels if self._form else config.channels  # those of the run, whatever was added to its images
        wanted = Wanted(config.size, config.width or config.size, channels, config.fit)
        if config.source == 'digits':
            found = image_sources.digits(wanted)
        elif config.source == 'tfds':
            found = tfds_sources.images(config.name, config.path, config.features, wanted)
        elif config.source == 'folder':
            found = image_folders.folder(config.path, wanted, self._told)
        elif config.source == 'unlabelled':
            found = image_folders.unlabelled(config.path, wanted)
        else:
            found = image_sources.idx(config.path, wanted)
        return chosen.of_classes(found, config.classes) if config.classes else found

    @property
    def _told(self) -> image_folders.Told:
        config = self.config
        return image_folders.Told(config.features, config.pattern) if config.source == 'folder' else image_folders.Told()

    def _range(self, split: str):
        """The examples of a split, as a part of the source and the range of numbers in it."""
        if self._source.classes != self.classes:
            raise ValueError(
                f'The images have {len(self._source.classes)} classes and the run has {len(self.classes)}, or other names; '
                'expected the data that the run was trained on.'
            )
        found, form = self._source.format, self._form
        if (found.height, found.width) != (form.height, form.width):
            raise ValueError(f'The images have {found.height}x{found.width} pixels, and the run was trained on '
                             f'{form.height}x{form.width}; expected the data that the run was trained on.')
        sizes = self._source.sizes()
        expression = splits.expression(self.config, split, sizes)
        splits.require_apart(self.config, split, lambda named: _Named(*splits.parse(named, sizes), sizes))
        name, bracket, cut = split.partition('[')
        if self.config.per_class and name.strip() == 'train':
            _, start, stop = splits.parse(f'few{bracket}{cut}', {'few': len(self._few)})
            return self._few, start, stop
        name, start, stop = splits.parse(expression, sizes)
        return self._source.part(name), start, stop

    @functools.cached_property
    def _few(self) -> chosen.Chosen:
        """As many images of each class as the config says, of those to train on."""
        name, start, stop = splits.parse(self.config.train, self._source.sizes())
        return chosen.balanced(self._source.part(name), self.classes, start, stop, self.config.per_class, self.config.draw)


@dataclasses.dataclass(frozen=True)
class _Named:
    """A range of the images of a part, by its name.

    Attributes:
      sizes: those of all parts, in the order in which 'all' has them.
    """

    name: str
    start: int
    stop: int
    sizes: Mapping[str, int]

    def shared(self, other: '_Named') -> str:
        """The part in which both overlap; '' if they do not."""
        return splits.common(self._extents, other._extents)

    @property
    def _extents(self) -> dict[str, tuple[int, int]]:
        """{part: the range of its images that belongs to this one}."""
        start, stop, found = self.start, self.stop, {}
        for name in [name for name in self.sizes if name != 'all'] if self.name == 'all' else [self.name]:
            size = self.sizes[name]
            found[f'the part {name!r}'] = max(0, start), min(size, stop)
            start, stop = start - size, stop - size
        return found


@dataclasses.dataclass(frozen=True)
class _ImageBatches:
    """Batch k of training: a function of k, the order and the steps alone."""

    examples: Any  # a part of the source
    start: int
    order: object
    steps: image_steps.Step | None
    labelled: bool

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.order.seed, number, 1])
        image, label = self.examples.take(self.start + self.order(number), rng)
        batch = _entries(image, label, self.labelled)
        return self.steps(batch, rng) if self.steps else batch


def _entries(image: Any, label: Any, labelled: Any) -> dict[str, Any]:
    """The entries of a batch."""
    return {'image': image} | ({'label': label} if labelled else {})
