"""Small data sets of TFDS for tests; importing this registers them."""

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as tf

from tests import experiments

TEXTS = experiments.lines(80).splitlines()  # the letters, and so the compiled programs, of other tests
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 3), np.uint8)
_F = tfds.features


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')
    FEATURES, TRAIN, TEST = {}, 0, 0

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=_F.FeaturesDict(self.FEATURES), disable_shuffling=True)

    def _split_generators(self, dl_manager):
        ranges = {'train': range(self.TRAIN), 'test': range(self.TRAIN, self.TRAIN + self.TEST)}
        return {name: self._generate_examples(numbers) for name, numbers in ranges.items() if numbers}

    def _generate_examples(self, numbers):
        return ((i, self.example(i)) for i in numbers)


class HeedText(_Builder):
    FEATURES, TRAIN, TEST = {'text': _F.Text(), 'title': _F.Text(), 'length': _F.Scalar(np.int64)}, 72, 8

    def example(self, i):
        return {'text': TEXTS[i] if i != 7 else ' ', 'title': f'tïtle😀 {i}', 'length': len(TEXTS[i])}


class HeedPages(_Builder):
    """Two configurations, and no feature called text."""

    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ('short', 'long')]
    FEATURES, TRAIN, TEST = {'article': _F.Text(), 'summary': _F.Tensor(shape=(), dtype=np.object_)}, 6, 0

    def example(self, i):
        return {'article': self.builder_config.name + TEXTS[i], 'summary': f'summary {i}'}


class HeedBytes(_Builder):
    FEATURES, TRAIN, TEST = {'article': _F.Text()}, 3, 0

    def example(self, i):
        return {'article': b'ba\xffd' if i == 1 else 'good'}


class HeedImages(_Builder):
    """Images given as arrays, and two labels."""

    FEATURES, TRAIN, TEST = {
        'image': _F.Image(shape=(6, 5, 3)),
        'label': _F.ClassLabel(names=[*'abcdefghij']),
        'half': _F.ClassLabel(num_classes=2),
    }, 30, 10  # fmt: skip

    def example(self, i):
        return {'image': PIXELS[i], 'label': i % 10 if i < 39 else -1, 'half': i % 2}


class HeedPhotos(_Builder):
    """Images of different sizes, grey and coloured."""

    FEATURES, TRAIN, TEST = {'photo': _F.Image(), 'kind': _F.ClassLabel(num_classes=2)}, 8, 0

    def example(self, i):
        return {'photo': Image.fromarray(PIXELS[i, : 3 + i % 2, :, 0] if i % 3 else PIXELS[i]), 'kind': i % 2}


class HeedPlanes(_Builder):
    """Grey images as plain arrays of the three kinds there are: a tensor, PNG and 16 bits."""

    FEATURES, TRAIN, TEST = {
        'image': _F.Tensor(shape=(6, 5, 1), dtype=np.uint8),
        'png': _F.Image(shape=(6, 5, 1)),
        'deep': _F.Image(shape=(6, 5, 1), dtype=np.uint16),
        'jpeg': _F.Image(shape=(None, None, 3), encoding_format='jpeg'),
        'label': _F.ClassLabel(num_classes=2),
    }, 4, 0  # fmt: skip

    def example(self, i):
        plane = PIXELS[i, ..., :1]
        smooth = np.broadcast_to(np.arange(0, 128, 8, dtype=np.uint8)[:, None, None], (16, 16, 3))
        return {'image': plane, 'png': plane, 'deep': plane.astype(np.uint16) * 257, 'jpeg': smooth, 'label': i % 2}


class HeedSentences(_Builder):
    """Pairs of texts in the form of glue/mrpc, and without labels in the test part."""

    FEATURES, TRAIN, TEST = {
        'sentence1': _F.Text(),
        'sentence2': _F.Text(),
        'label': _F.ClassLabel(names=['not_equivalent', 'equivalent']),
        'idx': np.int32,
    }, 12, 3  # fmt: skip

    def example(self, i):
        return {'sentence1': f'the cat {i}', 'sentence2': f'a dog {i}', 'label': i % 2 if i < 12 else -1, 'idx': i}


class HeedTopics(_Builder):
    """Texts with lists of labels and of words."""

    FEATURES, TRAIN, TEST = {
        'text': _F.Text(),
        'labels': _F.Sequence(_F.ClassLabel(names=['sport', 'politics', 'energy'])),
        'words': _F.Sequence(_F.Text()),
    }, 12, 0  # fmt: skip

    def example(self, i):
        return {'text': f'the cat {i}', 'labels': [[i % 3], [], [0, 2]][i % 3], 'words': ['the', f'cat {i}']}


class HeedRemote(_Builder):
    """Downloads from where nobody answers."""

    FEATURES = {'text': _F.Text()}

    def _split_generators(self, dl_manager):
        dl_manager.download('http://127.0.0.1:9/text.txt')


class HeedManual(_Builder):
    FEATURES = {'text': _F.Text()}
    MANUAL_DOWNLOAD_INSTRUCTIONS = 'Ask for it.'

    def _split_generators(self, dl_manager):
        return {'train': self._generate_examples(dl_manager.manual_dir)}


class HeedFiles(_Builder):
    """Opens its files through TensorFlow, as most of TFDS's own builders do."""

    FEATURES, TRAIN, TEST = {'text': _F.Text()}, 2, 0

    def _split_generators(self, dl_manager):
        gfile, folder = tf.io.gfile, str(dl_manager.download_dir / 'files')
        gfile.makedirs(folder)
        with gfile.GFile(f'{folder}/a.txt', 'w') as file:
            file.write('né\r\nlast')
        gfile.copy(f'{folder}/a.txt', f'{folder}/b.txt', overwrite=True)
        names = sorted(gfile.listdir(folder))
        assert names == ['a.txt', 'b.txt'] and gfile.exists(folder) and gfile.isdir(folder)
        assert len(gfile.glob([f'{folder}/*.txt'])) == 2 and tf.compat.as_text(b'x') == 'x'
        return {'train': self._generate_examples(f'{folder}/{name}' for name in names)}

    def _generate_examples(self, paths):
        for path in paths:
            with tf.io.gfile.GFile(path) as file:
                for line in file:
                    yield f'{path} {line}', {'text': line}


class HeedTensorflow(HeedFiles):
    """Needs more of TensorFlow."""

    def _generate_examples(self, paths):
        yield 0, {'text': tf.strings.upper('x')}
