"""Data sets of TensorFlow Datasets (TFDS, tensorflow.org/datasets), read without TensorFlow.

Examples are read by number from the ArrayRecord files that `python -m data.prepare NAME` writes; reading does not run the
code that built the set.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from data import cache, splits
from data.images import decoding
from data.images.decoding import Format, Wanted
from data.sources import images as image_sources

_NAME = re.compile(r'\w+(/[^/:\s]+)?(:[\d*]+\.[\d*]+\.[\d*]+)?')
_PACKAGES = ('image', 'image_classification', 'object_detection', 'question_answering', 'structured', 'summarization')
_PACKAGES += ('text', 'text_simplification', 'translate', 'vision_language')  # of TFDS, with text or images
_BLOCK = 1024  # examples of text read at once


class NotPrepared(ValueError):
    """There is no prepared set of this name."""


def check(config) -> None:
    """Raises ValueError for fields of a Text or Images that contradict `source`."""
    if config.source == 'tfds':
        if not config.name:
            raise ValueError("data.name is empty and data.source is 'tfds'; set it to a data set's name, such as mnist.")
        return
    for field in ('name',) if config.source == 'folder' else ('name', 'features'):
        if value := getattr(config, field):
            raise ValueError(
                f"data.{field}={value!r} is not read with data.source={config.source!r}; set data.source='tfds', or leave "
                f'data.{field} empty.'
            )


def library():
    """TFDS, which takes half a second to import."""
    try:
        import tensorflow_datasets as tfds
        from array_record.python import array_record_module  # noqa: F401
    except ImportError as error:
        raise ValueError(f"data.source='tfds' needs tensorflow-datasets and array_record ({error}); install them.") from error
    return tfds


def home(path: str = '') -> str:
    """The folder of all prepared sets: `path`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    return os.path.abspath(os.path.expanduser(path or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'))


def find(name: str, path: str = '') -> str:
    """The folder of a prepared set, NAME[/CONFIG][:VERSION], under `home(path)`.

    Raises NotPrepared if there is none, ValueError if the name cannot be one or the set cannot be read.
    """
    tfds = library()
    from tensorflow_datasets.core import read_only_builder

    if not _NAME.fullmatch(name):
        raise ValueError(f'{name!r} is no name of a data set; write NAME[/CONFIG][:VERSION] as TFDS does, such as mnist:3.0.1.')
    try:
        builder = read_only_builder.builder_from_files(name, data_dir=home(path))
    except tfds.core.DatasetNotFoundError:
        if _base(name) not in names() and not os.path.isdir(os.path.join(home(path), _base(name))):
            raise NotPrepared(unknown(name)) from None
        raise NotPrepared(f'{name} is not prepared in {home(path)}; run {command(name, path)}.') from None
    except Exception as error:  # of protobuf, json and more
        reason = str(error).partition('\n')[0].rstrip('.')
        raise ValueError(f'{name} in {home(path)} cannot be opened ({reason}); {_again(name, path)}.') from error
    formats = sorted(form.value for form in builder.info.available_file_formats())
    if 'array_record' not in formats:
        raise ValueError(
            f'{builder.data_dir} is in the format {", ".join(formats)}, which needs TensorFlow to be read; '
            f'{_again(name, path, builder.data_dir)}.'
        )
    return str(builder.data_dir)


def names() -> list[str]:
    """The data sets that TFDS knows. Its own search ends at the first package that lacks a dependency."""
    for package in _PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(f'tensorflow_datasets.{package}')
    return library().list_builders(with_community_datasets=False)


def unknown(name: str) -> str:
    """The error message for a name that TFDS does not know."""
    close = difflib.get_close_matches(_base(name), names(), 3)
    hint = f'did you mean {" or ".join(close)}?' if close else 'see tensorflow.org/datasets/catalog for the names.'
    return f'TFDS knows no data set {name!r}; {hint}'


def _base(name: str) -> str:
    return re.split('[/:]', name)[0].lower()


def command(name: str, path: str) -> str:
    """The command that prepares a set."""
    return f'python -m data.prepare {name}' + (f' --data_dir={path}' if path else '')


def _again(name: str, path: str, folder: object = 'its folder') -> str:
    return f'move {folder} away and run {command(name, path)}'


@dataclasses.dataclass(frozen=True)
class TfdsExamples:
    """The examples of some splits of a prepared set, one split after the other, by number.

    Only the fields are pickled: worker processes open the files themselves.
    """

    folder: str
    splits: tuple[str, ...]

    def __len__(self) -> int:
        return sum(self.info.splits[split].num_examples for split in self.splits)

    def __getstate__(self):
        return {'folder': self.folder, 'splits': self.splits}

    @functools.cached_property
    def _builder(self):
        return library().builder_from_directory(self.folder, file_format='array_record')

    @property
    def info(self):
        return self._builder.info

    @functools.cached_property
    def digest(self) -> str:
        """Names the examples by the contents of their files."""
        return cache.digest_of_all([path for path, _ in self._files()])

    @functools.cached_property
    def _source(self):
        from array_record.python import array_record_module

        for path, count in self._files():
            reader = array_record_module.ArrayRecordReader(path)
            if reader.num_records() != count:  # 0 for a truncated file
                raise ValueError(f'{path} should hold {count} examples and does not; copy it again, or prepare it again.')
            reader.close()
        tfds = library()
        skipped = [name for name, feature in self.info.features.items() if type(feature) is tfds.features.Image]
        decoders = {name: tfds.decode.SkipDecoding() for name in skipped}
        return self._builder.as_data_source('+'.join(self.splits), decoders=decoders)

    def take(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Examples as TFDS decodes them, except that images stay encoded. Raises ValueError for incomplete files."""
        return self._source.__getitems__([int(number) for number in numbers])

    def _files(self) -> Iterator[tuple[str, int]]:
        for split in self.splits:
            info = self.info.splits[split]
            for path, count in zip(map(str, info.filepaths), info.shard_lengths, strict=True):
                if not os.path.isfile(path):
                    raise ValueError(f'{path} is missing, so the data set is not whole; copy it again, or prepare it again.')
                yield path, count


@dataclasses.dataclass(frozen=True)
class TfdsTexts:
    """The texts of a prepared set that a split expression names: like `sources.Split`, with examples as documents."""

    documents: ClassVar[str] = 'file'

    examples: TfdsExamples
    feature: str
    start: int
    stop: int
    expression: str

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the documents."""
        return cache.key('tfds', self.examples.digest, self.feature, self.start, self.stop)

    def shared(self, other: 'TfdsTexts') -> str:
        """A split of the set in which this part and another one overlap; '' if there is none."""
        return splits.common(self._extents, other._extents)

    @property
    def _extents(self) -> dict[str, tuple[int, int]]:
        """{split of the set: the range of its examples that belongs to this part}."""
        start, stop, found = self.start, self.stop, {}
        for split in self.examples.splits:
            size = self.examples.info.splits[split].num_examples
            found[f'the split {split!r}'] = max(0, start), min(size, stop)
            start, stop = start - size, stop - size
        return found

    def chunks(self) -> Iterator[tuple[str, bool]]:
        """The examples that hold more than white space, in order, each as (text, True)."""
        for first in range(self.start, self.stop, _BLOCK):
            numbers = range(first, min(first + _BLOCK, self.stop))
            for number, example in zip(numbers, self.examples.take(numbers), strict=True):
                try:
                    text = example[self.feature].decode()
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f'Example {number} of {self.expression!r} in {self.examples.folder} is not UTF-8; leave it out by a '
                        'slice.'
                    ) from error
                if text and not text.isspace():
                    yield text, True

    def raw(self) -> Iterator[bytes]:
        """The bytes of the documents in order."""
        for text, _ in self.chunks():
            yield text.encode()


def texts(name: str, path: str, features: str) -> Callable[[str], TfdsTexts]:
    """Returns a function from a split expression to the texts of a prepared set; `features` may name the feature."""
    parts, info = _splits(find(name, path))
    chosen = _choose(name, info.features, features, {'text': _is_text})['text']

    def part(expression: str) -> TfdsTexts:
        split, start, stop = splits.parse(expression, {split: len(examples) for split, examples in parts.items()})
        return TfdsTexts(parts[split], chosen, start, stop, expression)

    return part


@dataclasses.dataclass(frozen=True)
class TfdsImages:
    """Images of a prepared set with their labels, decoded on demand like `image_sources.Files`."""

    examples: TfdsExamples
    image: str
    label: str
    format: Format

    def __len__(self) -> int:
        return len(self.examples)

    @functools.cached_property
    def digest(self) -> str:
        """Names the examples by their contents."""
        return cache.key(self.examples.digest, self.image, self.label)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int32 [len(self)]; all examples are read for them."""
        blocks = (range(start, min(start + _BLOCK, len(self))) for start in range(0, len(self), _BLOCK))
        return np.array([example[self.label] for block in blocks for example in self.examples.take(block)], np.int32)

    def take(self, numbers: np.ndarray, rng: np.random.Generator | None = None) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels; ValueError names an example that cannot be used. With
        `rng`, of training, parts of images are drawn if their fit says so."""
        examples = self.examples.take(numbers)
        labels = np.array([example[self.label] for example in examples], np.int32)
        if (labels < 0).any():
            raise ValueError(f'{self._name(numbers[labels.argmin()])} has no label; choose another split.')
        named = ((_file(e[self.image]), self._name(number)) for number, e in zip(numbers, examples, strict=True))
        return np.stack([decoding.decode(file, name, self.format, rng) for file, name in named]), labels

    def joined(self, others: Sequence['TfdsImages']) -> 'TfdsImages':
        """These examples, then those of others."""
        names = tuple(split for images in (self, *others) for split in images.examples.splits)
        return dataclasses.replace(self, examples=TfdsExamples(self.examples.folder, names))

    def _name(self, number: int) -> str:
        return f'Example {number} of {"+".join(self.examples.splits)!r} in {self.examples.folder}'


def images(name: str, path: str, features: str, wanted: Wanted) -> image_sources.ImageSource:
    """The images of a prepared set; `features` may name the image's and the label's, separated by a comma."""
    parts, info = _splits(find(name, path))
    chosen = _choose(name, info.features, features, {'image': _is_image, 'label': _is_label})
    height, width, depth = (*info.features[chosen['image']].shape, 1)[:3]
    wanted = dataclasses.replace(wanted, channels=wanted.channels or (1 if depth in (1, 2) else 3))
    if height and width:
        form = dataclasses.replace(wanted.of(height, width, wanted.channels), resized=True)
    else:
        first = next(iter(parts.values())).take([0])[0][chosen['image']]
        form = decoding.form_of(_file(first), f'The first example of {name}', wanted)
    made = {split: TfdsImages(examples, chosen['image'], chosen['label'], form) for split, examples in parts.items()}
    del made['all']
    return image_sources.ImageSource(made, tuple(info.features[chosen['label']].names), form)


def _splits(folder: str) -> tuple[dict[str, TfdsExamples], Any]:
    """The examples of every split, and of 'all', and the set's description."""
    whole = TfdsExamples(folder, ())
    names = [name for name, split in whole.info.splits.items() if split.num_examples]
    return {**{name: TfdsExamples(folder, (name,)) for name in names}, 'all': TfdsExamples(folder, tuple(names))}, whole.info


def _choose(name: str, features: Mapping[str, Any], given: str, kinds: dict[str, Callable[[Any], bool]]) -> dict[str, str]:
    """{kind: feature}: the feature in `given`, else the one called like the kind, else the only one of that kind."""
    names = [part.strip() for part in given.split(',') if part.strip()]
    able = {kind: sorted(feature for feature in features if fits(features[feature])) for kind, fits in kinds.items()}
    for part in names:
        if not any(part in candidates for candidates in able.values()):
            listed = '; '.join(f'{kind}: {", ".join(candidates) or "none"}' for kind, candidates in able.items())
            raise ValueError(f'data.features={given!r}: {part!r} is no feature of {name} that can be used ({listed}).')
    chosen = {}
    for kind, candidates in able.items():
        found = [part for part in names if part in candidates] or [part for part in [kind] if part in candidates] or candidates
        if not found:
            raise ValueError(f'{name} has no {kind} among its features {", ".join(sorted(features))}; choose another data set.')
        if len(found) > 1:
            raise ValueError(f'The {kind} of {name} can be {", ".join(found)}; set data.features to one of these.')
        chosen[kind] = found[0]
    return chosen


def _is_text(feature) -> bool:
    tfds = library()
    return isinstance(feature, tfds.features.Text) or (
        isinstance(feature, tfds.features.Tensor) and feature.shape == () and feature.np_dtype == np.object_
    )


def _is_image(feature) -> bool:
    tfds = library()
    if type(feature) is tfds.features.Image:
        return feature.np_dtype in (np.uint8, np.uint16)
    return type(feature) is tfds.features.Tensor and feature.np_dtype == np.uint8 and (
        len(feature.shape) == 2 or (len(feature.shape) == 3 and feature.shape[-1] in (1, 3))
    )  # fmt: skip


def _is_label(feature) -> bool:
    return isinstance(feature, library().features.ClassLabel)


def _file(image: bytes | np.ndarray) -> io.BytesIO | np.ndarray:
    return io.BytesIO(image) if isinstance(image, bytes) else image
