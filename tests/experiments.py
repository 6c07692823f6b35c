"""What the end-to-end tests share: a tiny experiment, the scripts called in this process, and what a run left behind."""

import atexit
import contextlib
import dataclasses
import functools
import importlib
import io
import json
import pathlib
import random
import runpy
import shutil
import sys
import tempfile
import traceback
from unittest import mock

from absl import flags
from absl.testing import parameterized

from configs import base

ROOT = pathlib.Path(__file__).parent.parent
# Files in configs/ that are no configs by themselves, or whose variants are workdirs (finetune_test.py).
NO_CONFIGS = ('__init__', 'base', 'converted', 'finetune', 'classify', 'label', 'rate', 'prefer', 'choose', 'tag', 'answer',
              'distill',
              'deit_fashion_mnist', 'objectives', 'scaling', 'critical_batch', 'longer_objectives', 'several_tasks',
              'text_to_text', 'summarize', 'glue', 'gpt_finetune', 'finetune_images', 'transfer', 'vision_comparison', 'mup')
WORDS = ('key', 'query', 'value', 'mask', 'head', 'block', 'norm', 'token', 'row', 'batch', 'loss', 'step', 'mean', 'sum')


class TestCase(parameterized.TestCase):
    """Finds an empty folder in `self.folder`, and a text of 80 lines in `self.text`."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.text = self.folder / 'text.txt'
        self.text.write_text(lines(80))

    def trained(self, **changes):
        """The folder of a finished run of `tiny(self.text, **changes)`: a copy of one that this process trains once."""
        return self._copied(_trained(tiny, lines(80), tuple(changes.items())))

    def translator(self, **changes):
        """The same of `tiny_pairs`, over pairs in `self.text`."""
        self.text.write_text(pairs(80))
        return self._copied(_trained(tiny_pairs, pairs(80), tuple(changes.items())))

    def reader(self, kind):
        """The same of `tiny_reader`, over what `readings` gives, in `self.text`."""
        self.text.write_text(readings(kind))
        return self._copied(_trained(tiny_reader, readings(kind), (('kind', kind),)))

    def _copied(self, source):
        workdir = self.folder / 'run'
        shutil.copytree(source / 'run', workdir)
        config = workdir / 'config.json'
        config.write_text(config.read_text().replace(str(source / 'text.txt'), str(self.text)))
        return workdir


@functools.cache
def _trained(config, text, changes):
    folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / 'text.txt').write_text(text)
    code, out = train(config(folder / 'text.txt', **dict(changes)), folder / 'run')
    if code:
        raise RuntimeError(out)
    return folder


def lines(count):
    draw = random.Random(0)
    return ''.join(' '.join(draw.choices(WORDS, k=draw.randint(1, 6))) + '\n' for _ in range(count))


def tiny(path, **changes):
    """The config of a character GPT on packed lines, with dropout, accumulation and a moving average of the parameters;
    `changes` are {'part.field': value}.

    Compiling takes seconds: tests that change neither shapes nor log.every_steps share one program from the cache.
    """
    c = base.config()
    c.data = base.data('data.text.documents:Text', path=str(path), documents='line', tokenizer='Char()', length=16,
                       batch_size=8)
    c.model = base.part('transformer.models.gpt:Gpt', layers=1, heads=2, width=8, length=16, dropout=0.1)
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=1e-2, average_decay=0.9, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps, c.log.every_steps, c.checkpoint.every_steps = 7, 2, 3
    c.train.microbatches = 2
    c.mesh.data = 1
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', every_steps=4)
    return changed(c, **changes).lock()


def pairs(count):
    """So many lines of a source of one to five words and, behind a tab, the same in reverse order."""
    draw, found = random.Random(0), {}
    while len(found) < count:
        words = draw.choices(WORDS, k=draw.randint(1, 5))
        found[' '.join(words)] = ' '.join(reversed(words))
    return ''.join(f'{source}\t{target}\n' for source, target in found.items())


def story(number):
    """A story of bAbI, of five sentences and two questions; those of two numbers differ."""
    names, places = ('Mary', 'John', 'Daniel', 'Sandra'), ('garden', 'kitchen', 'office')
    who, other, where = names[number % 4], names[(number + 1) % 4], places[number % 3]
    return (f'1 {other} went to the {places[(number + 1) % 3]}.\n2 {who} moved to the {where}.\n'
            f'3 Where is {who}? \t{where}\t2\n4 {other} got the apple.\n5 {other} got the milk.\n'
            f'6 {who} slept.\n7 What is {other} carrying?\tApple,milk\t4 5\n')


def write_babi(folder, count):
    """The training files of tasks 1 and 2, with so many stories each."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in (1, 2):
        (folder / f'qa{task}_some-name_train.txt').write_text(''.join(map(story, range(count))))


def tiny_stories(path, **changes):
    """The config of a memory network on the stories of `write_babi`."""
    c = base.config()
    c.data = base.data('data.text.babi:Babi', path=str(path), tasks=(1, 2), batch_size=8)
    c.model = base.part('transformer.models.memory_network:MemoryNetwork', hops=2, width=8)
    c.task = base.part('transformer.tasks.stories:MemoryAnswers')
    c.optimizer = base.optimizer(learning_rate=2e-2, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps, c.log.every_steps, c.mesh.data = 60, 20, 1
    c.evals.valid = base.evaluation('transformer.evaluators.stories:TaskErrors', split='valid')
    return changed(c, **changes).lock()


def tiny_pairs(path, **changes):
    """The config of a Transformer that turns the words of a line round."""
    c = base.config()
    c.data = base.data('data.seq2seq.parallel:Parallel', source='table', path=str(path), tokenizer='Word()',
                       train='train[:90%]', valid='train[90%:]', test='', source_length=8, length=8, batch_size=8)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(layers=1, heads=2, width=16),
                        source_length=12, length=12)
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=1e-2, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps, c.log.every_steps, c.mesh.data = 60, 20, 1
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    return changed(c, **changes).lock()


def readings(kind):
    """What a model that reads texts whole learns from: 200 lines, texts and whether they begin with 'key', sentences in which
    'key value' is a name, or questions for the word behind another one, in the format of SQuAD."""
    draw, found = random.Random(0), []
    if kind == 'masked':
        return lines(200)
    for number in range(200):
        words = draw.sample(WORDS, k=draw.randint(2, 6))
        first, second = words[:2]
        if kind == 'labelled':
            words[0] = 'key' if number % 2 else first
            found.append(f'{" ".join(words)}\t{"yes" if words[0] == "key" else "no"}\n')
        elif kind == 'tagged':
            tags = {'key': 'B-part', 'value': 'I-part'}
            found.append(''.join(f'{word} {tags.get(word, "O")}\n' for word in words) + '\n')
        else:
            answers = [{'text': second, 'answer_start': len(first) + 1}] if number % 5 else []
            asked = {'id': str(number), 'question': first if answers else 'none', 'answers': answers}
            found.append({'context': ' '.join(words), 'qas': [asked]})
    return json.dumps({'data': [{'paragraphs': found}]}) if kind == 'questions' else ''.join(found)


def tiny_reader(path, kind, **changes):
    """The config of a BERT on `readings` of this kind of data."""
    from tests.data import tiny_tokenizers

    data, task, head = {
        'masked': (dict(documents='line', packing='none', pairs='next', cut='anywhere', noise='Tokens(share=0.3)'),
                   'masked:BertPretraining', 'Pretraining()'),
        'labelled': ({}, 'reading:TextClasses', 'Classes(classes=2)'),
        'tagged': ({}, 'reading:Tags', 'TokenClasses(classes=3)'),
        'questions': (dict(stride=4, question_length=3), 'reading:Spans', 'Span()')}[kind]
    c = base.config()
    c.data = base.data(f'data.text.{kind}:{kind.title()}', path=str(path), train='train[:90%]', valid='train[90%:]', length=16,
                       tokenizer=tiny_tokenizers.word_piece(path.parent, ' '.join(WORDS)), batch_size=16, test='', **data)
    c.model = base.part('transformer.models.bert:Bert', layers=1, heads=2, width=16, length=16, head=head)
    c.task = base.part(f'transformer.tasks.{task}')
    c.optimizer = base.optimizer(learning_rate=1e-2, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps, c.log.every_steps, c.mesh.data = 60, 20, 1
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    return changed(c, **changes).lock()


def _stages(fields, **of_each):
    return 'vit.models.hierarchical:Hierarchical', dict(fields, stages=base.stages(
        layers=(2, 2), widths=(8, 8), heads=(2, 2), **of_each))


# Small models of images, {name: (class, fields)}; windows of 3x3 pad the 4x4 patches of digits.
IMAGE_MODELS = {
    'vit': ('vit.models.vit:Vit', dict(patch=4, layers=1, heads=2, width=8)),
    'resnet': ('vit.models.resnet:Resnet', dict(stem=dict(width=4, size=3, stride=1, pool=False), block='Basic()',
                                                widths=(4, 8), depths=(1, 1))),
    'swin': _stages(dict(stem='Patches(size=2)'), positions='SwinBias()',
                    partition='AlternatePartition(Windows(size=3), Windows(size=3, shift=1))'),
    'davit': _stages(dict(stem='Convolutions(size=3, strides=(2,))', merging='Downsampling()', pool_first=True),
                     partition="AlternatePartition(Windows(size=3, shrink='never'), Whole())", positions='NoPositions()',
                     attention='AlternateAttention(Softmax(), ChannelGroups())', residual='Convolved()')}


def tiny_images(kind='vit'):
    """The config of one of `IMAGE_MODELS` on some of scikit-learn's digits."""
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='digits', train='train[:64]', valid='train[64:74]', batch_size=8)
    path, fields = IMAGE_MODELS[kind]
    c.model = base.part(path, **fields)
    c.task = base.part('vit.tasks.classification:Classification')
    c.optimizer = base.optimizer(learning_rate=1e-2, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps, c.mesh.data = 2, 1
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    return c.lock()


def tiny_autoencoder(**changes):
    """The config of a small masked autoencoder on the same digits."""
    c = tiny_images().unlock()
    stack = dict(layers=1, heads=2, width=8)
    c.model = base.part('vit.models.mae:Mae', patch=2, encoder=stack, decoder=stack)
    c.task = base.part('vit.tasks.reconstruction:Reconstruction')
    c.data.reader = 'vit.readers.filled:FilledPatches'
    c.evals.reconstructions = base.evaluation('vit.evaluators.reconstructions:Reconstructions', split='valid', count=3)
    c.evals.probe = base.evaluation('vit.evaluators.probe:LinearProbe', split='valid', feature='hidden')
    return changed(c, **changes).lock()


def save_digits(folder, numbers):
    """Writes the digits of these numbers in the data as folder/LABEL/NUMBER.png; returns the paths."""
    import numpy as np
    from PIL import Image

    from data.images.decoding import Wanted
    from data.sources import images as image_sources

    images, labels = image_sources.digits(Wanted()).part('train').take(np.array(numbers))
    paths = []
    for n, image, label in zip(numbers, images[..., 0], labels):
        paths.append(folder / str(label) / f'{n}.png')
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(image * 255).astype(np.uint8)).save(paths[-1])
    return paths


def changed(config, **changes):
    """Sets fields by their dotted name; 'evals.valid': None removes a part."""
    with config.unlocked():
        for name, value in changes.items():
            *parents, last = name.split('.')
            node = config
            for parent in parents:
                node = node[parent]
            if value is None:
                del node[last]
            else:
                node[last] = value
    return config


@contextlib.contextmanager
def own_flags():
    """Forgets the flags that a script defines inside, so that several scripts can define the same ones in one process."""
    before = set(flags.FLAGS)
    try:
        yield
    finally:
        for name in set(flags.FLAGS) - before:
            module = pathlib.Path(flags.FLAGS.find_module_defining_flag(name))  # a script's name or path
            if module.stem in ('train', 'eval', 'predict', 'convert', 'sweep', 'show') or name.split('.')[0] == 'config':
                delattr(flags.FLAGS, name)
        flags.FLAGS.mark_as_parsed()  # Grain's worker processes read flags


def script(name):
    """The module of a script, for calls of its functions."""
    with own_flags():
        return importlib.import_module(name)


@dataclasses.dataclass
class Result:
    code: int
    out: str
    err: str


def call(name, *arguments, stdin=b''):
    """Runs `python NAME.py ARGUMENTS` inside this process, which spares the imports."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (own_flags(), mock.patch.object(sys, 'argv', [str(ROOT / f'{name}.py'), *map(str, arguments)]),
          mock.patch.object(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin))),
          contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
        try:
            runpy.run_path(sys.argv[0], run_name='__main__')
        except SystemExit as end:
            code = end.code or 0
            if isinstance(code, str):  # as the interpreter does it
                print(code, file=err)
                code = 1
        except Exception:
            traceback.print_exc(file=err)
            code = 1
    return Result(code, out.getvalue(), err.getvalue())


def said(done):
    """The numbers that eval.py gives: its last line, or those beside the picture that this line names."""
    last = done.out.splitlines()[-1]
    return json.loads(last if last.startswith('{') else pathlib.Path(last.partition(': ')[0]).with_suffix('.json').read_text())


def train(config, workdir):
    """(exit code, stdout) of training a config in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = script('train').train(config, workdir)
    return code, out.getvalue()


def metrics(workdir):
    """The bytes of metrics.jsonl."""
    return (workdir / 'metrics.jsonl').read_bytes()


def rows(workdir, split):
    """The rows of metrics.jsonl of one split."""
    return [row for row in map(json.loads, metrics(workdir).splitlines()) if row['split'] == split]


def steps(workdir):
    """The numbers of the checkpoints."""
    return sorted(int(path.name) for path in (workdir / 'checkpoints').iterdir())


def bits(workdir):
    """Every array of the newest checkpoint, {name: bytes}."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    newest = workdir.absolute() / 'checkpoints' / str(steps(workdir)[-1])
    with ocp.PyTreeCheckpointer() as reader:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        state = ocp.args.PyTreeRestore(restore_args=jax.tree.map(
            lambda _: ocp.ArrayRestoreArgs(sharding=sharding), reader.metadata(newest / 'state').item_metadata.tree))
        tree = reader.restore(newest / 'state', args=state)
    return {jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in jax.tree_util.tree_leaves_with_path(tree)}
