"""Damaged and hostile files: an answer in one sentence or a right result, never another error, a hang or much memory."""

import contextlib
import gc
import gzip
import io
import json
import pathlib
import random
import re
import signal
import struct
import tarfile
import tempfile
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from absl.testing import absltest, parameterized
from PIL import Image, features
from pyarrow import parquet
from safetensors.numpy import save

from data.images import decoding
from data.images.labelled import Images
from data.sources import pairs as pair_sources
from data.sources.files import File
from data.text import examples as data_examples
from data.text.babi import Babi
from data.text.labelled import Labelled
from data.text.questions import Questions
from data.text.tagged import Tagged
from data.tokenizers import specs
from data.tokenizers.specs import WordPiece
from tests import experiments
from tests.data import tiny_tokenizers
from training import checkpoint, weight_files, workdir
from training.config import cli
from transformer.conversion import arrays

COUNT, SECONDS, BYTES = 500, 60, 2 << 30  # mutations of each kind, and what one of them may take


def in_bytes(write):
    """What `write` writes to a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


SEVERAL = {'save_all': True, 'append_images': [Image.new('RGB', (5, 6), 'red')]}  # pictures in a file


def picture(kind, **options):
    return in_bytes(lambda file: Image.fromarray(np.arange(90, dtype=np.uint8).reshape(6, 5, 3)).save(file, kind, **options))


def zipped(file):
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as made:
        for name in ('cat/1.png', 'cat/2.png', 'dog/1.png'):
            made.writestr(name, picture('PNG'))


def tarred(file):
    with tarfile.open(fileobj=file, mode='w') as made:
        for name in ('cat/1.png', 'dog/1.png'):
            member = tarfile.TarInfo(name)
            member.size = len(picture('PNG'))
            made.addfile(member, io.BytesIO(picture('PNG')))


ROWS = ''.join(f'the film {i},{"ab"[i % 2]}\n' for i in range(12))
OBJECTS = ''.join(json.dumps({'text': f'film {i}', 'label': 'ab'[i % 2]}) + '\n' for i in range(12))
TAGS = json.dumps({'tokens': ['EU', 'rejects'], 'ner_tags': ['B-x', 'O']}) + '\n'
SQUAD = json.dumps({'data': [{'paragraphs': [{'context': 'Rain fell.', 'qas': [
    {'id': '1', 'question': 'What?', 'answers': [{'text': 'Rain', 'answer_start': 0}]}]}]}]})
TABLE = pyarrow.table({'text': [f'film {i}' for i in range(12)], 'label': ['ab'[i % 2] for i in range(12)]})
WEIGHTS = {'a': np.ones((3, 4), np.float32), 'b/c': np.zeros(2, np.float32)}


def examples(kind, path, **fields):
    return kind(path=str(path), train='all', valid='', test='', **fields).part('train').examples


def pairs(path):
    return list(pair_sources.tables(str(path), pair_sources.Form())('all'))


def labelled(path):
    return examples(Labelled, path)


def images(path, source='folder', **fields):
    opened = Images(source=source, path=str(path), train='all', valid='', test='', batch_size=2, **fields).open(None)
    return list(opened.evaluation('train', 4))


def shown(path):
    """A picture as training and as predict.py read it."""
    images(path.parents[1], size=4)
    decoding.seen(str(path), decoding.Format(4, 4, 3, resized=True))


def idx(path):
    (path.parent / path.name.replace('images', 'labels').replace('idx3', 'idx1')).write_bytes(
        struct.pack('>HBBI', 0, 8, 1, 4) + bytes((0, 1, 0, 1)))
    return images(path, 'idx')


def opened_weights(path):
    return [weight() for weight in weight_files.open_all(path.parent, lambda shape, kind, load: load).values()]


def tokenizer_json():
    with tempfile.TemporaryDirectory() as folder:
        return pathlib.Path(tiny_tokenizers.word_piece(pathlib.Path(folder), 'the film').path).read_bytes()


def sentence_piece():
    with tempfile.TemporaryDirectory() as folder:
        made = specs.SentencePiece(vocab=300).learn(['the film was long and the war was lost ' * 20])
        made.save(folder)
        return pathlib.Path(folder, 'tokenizer.model').read_bytes()


def tokenized(spec, path):
    return specs.load(path.parent, spec).encode('the film')


# {kind: (name of the file, its contents, what reads it)}
KINDS = {
    'csv': ('a.csv', ('text,label\n' + ROWS).encode(), labelled),
    'tsv': ('a.tsv', ROWS.replace(',', '\t').encode(), labelled),
    'jsonl': ('a.jsonl', OBJECTS.encode(), labelled),
    'json': ('a.json', json.dumps([json.loads(line) for line in OBJECTS.splitlines()]).encode(), labelled),
    'parquet': ('a.parquet', in_bytes(lambda file: parquet.write_table(TABLE, file)), labelled),
    'gz': ('a.tsv.gz', gzip.compress(ROWS.replace(',', '\t').encode()), labelled),
    'zst': ('a.tsv.zst', pyarrow.compress(ROWS.replace(',', '\t').encode(), 'zstd', asbytes=True), labelled),
    'tags': ('a.jsonl', TAGS.encode(), lambda path: examples(Tagged, path)),
    'words': ('a.csv', b'word,tag\n' + b'EU,B-x\nrejects,O\n\n' * 4, lambda path: examples(Tagged, path)),
    'questions': ('a.csv', b'question,context,answer,answer_start\n' + b'What?,Rain fell.,Rain,0\nWhen?,Rain fell.,,\n' * 3,
                  lambda path: examples(Questions, path, tokenizer=WordPiece())),
    'pairs': ('a.tsv', b'en\tfr\nGo.\tVa !\n' * 5, pairs),
    'squad': ('a.json', SQUAD.encode(), lambda path: examples(Questions, path, tokenizer=WordPiece())),
    'zip': ('a.zip', in_bytes(zipped), lambda path: images(path, size=4)),
    'tar': ('a.tar', in_bytes(tarred), lambda path: images(path, size=4)),
    'png': ('cat/1.png', picture('PNG'), lambda path: images(path.parents[1])),
    **({'avif': ('cat/1.avif', picture('AVIF'), shown)} if features.check('avif') else {}),
    'gif': ('cat/1.gif', picture('GIF', **SEVERAL), shown),
    'tif': ('cat/1.tif', picture('TIFF', **SEVERAL), shown),
    'idx': ('a-images-idx3-ubyte', struct.pack('>HBB3I', 0, 8, 3, 4, 6, 5) + bytes(120), idx),
    'text': ('a.txt', ('the film, caf\u00e9\n' * 20).encode(), lambda path: [*File(str(path), 'a.txt').texts()]),
    'utf-16': ('a.txt', ('the film, caf\u00e9\n' * 20).encode('utf-16'), lambda path: [*File(str(path), 'a.txt').texts()]),
    'tokenizer.json': ('tokenizer.json', tokenizer_json(), lambda path: tokenized(specs.Json(), path)),
    'tokenizer.model': ('tokenizer.model', sentence_piece(), lambda path: tokenized(specs.SentencePiece(vocab=300), path)),
    'safetensors': ('model.safetensors', save(WEIGHTS), opened_weights),
    'npz': ('a.npz', in_bytes(lambda file: np.savez(file, input_ids=np.ones((2, 3), int))),
            lambda path: arrays.arrays_of(path, arrays.INPUTS)),
    'classes': ('classes.json', json.dumps({'classes': ['cat', 'dog']}).encode(),
                lambda path: data_examples.read(path.parent, 'classes.json', 'classes', list)),
    'images': ('classes.json', json.dumps({'classes': ['0', '1'], 'height': 8, 'width': 8, 'channels': 1}).encode(),
               lambda path: Images(source='digits').open(path.parent)),
    'stories': ('vocabulary.json', json.dumps({'words': ['', 'a', 'b'], 'memory': 3, 'width': 5}).encode(),
                lambda path: Babi(path='none').open(path.parent)),
    'environment': ('environment.json', json.dumps({'data': {'train': 'a1'}}).encode(),
                    lambda path: workdir.changed(path.parent, {'train': 'a1'})),
    'config': ('config.json', json.dumps(workdir.as_json(experiments.tiny_images())).encode(),
               lambda path: workdir.load_config(path.parent)),
}


def mutated(contents, draw):
    """The contents with a bit flipped, bytes cut out or repeated, a length changed, a number made huge, or brackets nested."""
    data = bytearray(contents)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at = draw.randrange(len(data)) if data else 0
        match draw.randrange(8):
            case 0 | 1 if data:
                data[at] ^= 1 << draw.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at:at + draw.randrange(1, 20)]
            case 4:
                data[at:at] = data[at:at + draw.randrange(1, 200)] * draw.choice((1, 2, 50))
            case 5:
                data[at:at + 8] = struct.pack('<q', draw.choice((-1, 1 << 62, 1 << 31, 0)))[:8]
            case 6:
                data[at:at] = draw.choice((b'[' * 5000, b'{"a":' * 5000, b'9' * 5000, b'\0', b'\xff\xfe', b'NaN', b'1e999'))
            case 7:
                data[at:at] = draw.choice((b'"', b'\n', b'\r\n', b'\r', b',', b'\t', '\u202e'.encode(), b'null', b'[]', b'{}'))
    return bytes(data)


def memory(name):
    """Bytes of memory that this process has, VmRSS, or has had at most since `forget`, VmHWM."""
    return 1024 * int(re.search(rf'^{name}:\s*(\d+) kB', pathlib.Path('/proc/self/status').read_text(), re.MULTILINE)[1])


def forget():
    """Begins to measure VmHWM anew."""
    pathlib.Path('/proc/self/clear_refs').write_text('5')


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/clear_refs').exists(), reason='measures memory by /proc')
class FuzzTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        gc.freeze()  # a damaged checkpoint is followed by a collection, which would go through all that other tests have left
        self.addCleanup(gc.unfreeze)
        forget()
        self.begun = memory('VmRSS')

        def hang(*_):
            raise TimeoutError(f'more than {SECONDS} s')

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, hang))

    def survives(self, path, changed, read, name):
        """Whether a file with these contents is read well, and not refused in a sentence."""
        path.write_bytes(changed)
        signal.alarm(SECONDS)
        try:
            read()
            return True
        except Exception as error:
            signal.alarm(0)
            if not cli.expected(error) or isinstance(error, TimeoutError) or '\n' in str(error):
                kept = pathlib.Path(tempfile.gettempdir(), f'fuzz-{name}-{path.name}')
                kept.write_bytes(changed)
                raise AssertionError(f'{kept}: {type(error).__name__}: {error}') from error
            return False
        finally:
            signal.alarm(0)

    @parameterized.parameters(*KINDS)
    def test_mutations(self, kind):
        name, contents, read = KINDS[kind]
        draw, path = random.Random(kind), self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)
        read(path)  # as it is
        read_well = sum(self.survives(path, mutated(contents, draw), lambda: read(path), f'{kind}-{number}')
                        for number in range(COUNT))
        self.assertBetween(read_well, 1, COUNT - 1)
        self.assertLess(memory('VmHWM') - self.begun, BYTES)

    @parameterized.parameters(range(4))
    def test_checkpoints(self, part):
        """Any file of one. What is restored is what was saved, as every bit of it is in a checksum."""
        state = {'kernel': jnp.arange(12.0).reshape(3, 4), 'step': jnp.int32(3)}
        with contextlib.closing(checkpoint.Checkpoints(self.folder)) as writer:
            writer.save(3, state, None, meta={'seed': 1})
        files = sorted(path for path in (self.folder / 'checkpoints').rglob('*') if path.is_file())
        reader = self.enter_context(contextlib.closing(checkpoint.Checkpoints(self.folder, writable=False)))

        def read():
            found = reader.restore(state, step=3)
            jax.tree.map(np.testing.assert_array_equal, found.state, state)

        read()
        draw = random.Random(part)
        for number in range(COUNT // 4):
            path = draw.choice(files)
            contents = path.read_bytes()
            self.survives(path, mutated(contents, draw), read, f'checkpoint-{part}-{number}')
            path.write_bytes(contents)
        read()
        self.assertLess(memory('VmHWM') - self.begun, BYTES)


if __name__ == '__main__':
    absltest.main()
