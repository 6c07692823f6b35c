"""Every config and variant, made tiny: trained on eight devices and evaluated; one of every combination of data, model
and task is stopped and resumed."""

import ast
import functools
import json
import math
import os
import pathlib
import re
import signal

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized

from configs import distill, extrapolation, stability
from data.images.fit import Fit, RandomCrop
from tests import experiments, models
from tests.train_test import at
from training import workdir
from training.config import cli, resolve

SHRUNK = {**{f'model.{stack}{field}': value for stack in ('', 'encoder.', 'decoder.', 'generator.', 'discriminator.')
             for field, value in (('layers', 1), ('heads', 2), ('width', 8))}, 'model.length': 16, 'data.length': 16,
          'model.source_length': 16, 'data.source_length': 16, 'data.batch_size': 8, 'train.steps': 2, 'train.microbatches': 1,
          'log.every_steps': 1, 'checkpoint.every_steps': 1, 'optimizer.schedule.warmup_steps': 1, 'evals.samples.tokens': 4,
          'evals.translations.limit': 2, 'mesh.data': 8}
TEXT = {'data.source': 'files', 'data.documents': 'line', 'data.tokenizer': 'SentencePiece(vocab=300)'}
STREAM = {'data.train': 'train[:90%]', 'data.valid': 'train[90%:95%]', 'data.test': 'train[95%:]'}
PAIRS = {'data.source': 'table', 'data.long': 'truncate', 'data.train': 'train[:90%]', 'data.valid': 'train[90%:]',
         'data.test': ''}
BABI = {'data.tasks': (1, 2), 'data.memory': 4}
# What else a variant needs to be small and to find its data here; a new config needs an entry.
CHANGES = {
    'quickstart:code': TEXT,
    'quickstart:mixture': {'data.documents': 'line', 'data.tokenizer': 'SentencePiece(vocab=300)',
                           'data.parts.code.source': 'files'},
    'extrapolation:learned': TEXT | {'data.tokenizer': 'Byte()', 'data.valid': 'train[90%:95%]'},
    'electra': {'data.tokenizer': 'WordPiece(vocab=60)', 'model.embedding_width': 4},
    'gpt2:124m': TEXT | {'model.vocab': 512, 'mesh.fsdp': 1},
    'gpt2:1558m': TEXT | {'model.vocab': 512, 'mesh.data': 2, 'mesh.fsdp': 4},
    'gpt_char:cpu': {},
    **{f'bert_mini:{variant}': {'data.tokenizer': 'WordPiece(vocab=60)'} for variant in ('words', 'whole_words', 'spans')},
    'bert_mini:next': {'data.tokenizer': 'WordPiece(vocab=60)', 'data.documents': 'line', 'data.cut': 'anywhere'},
    't5_small:spans': {'data.tokenizer': 'SentencePiece(vocab=300, sentinels=5)', 'data.documents': 'line'},
    'bart_mini': {'data.tokenizer': "SentencePiece(vocab=300, special=('begin', 'mask'))", 'data.documents': 'line'},
    'gpt_translate': {'data.train': 'train[:300]', 'data.valid': 'valid[:20]', 'data.long': 'truncate',
                      'data.tokenizer': 'SentencePiece(vocab=600)', 'model.length': 32},
    't5_small:step': {'model.vocab': 512, 'data.train': 'train[:300]', 'data.valid': 'valid[:20]'},
    'vit_ti16:step': {'data.train': 'train[:64]', 'data.valid': 'train[64:70]', 'data.size': 32},
    'swin_t:step': {'data.train': 'train[:64]', 'data.valid': 'train[64:70]', 'data.size': 28, **{
        f'model.stages.stage_{i}.{field}': value for i in range(4)
        for field, value in (('layers', 1), ('heads', 2), ('width', 8))}},
    **{f'nadaraya_watson:{variant}': {} for variant in ('curve', 'iris')},
    'bahdanau_fra_eng:full': PAIRS | {'data.tokenizer': 'SentencePiece(vocab=300)'},
    'memory_network_babi:joint': BABI,
    'ptb_lm:transformer': STREAM | {'evals.valid.stride': 8},
    'ptb_lm:lstm': STREAM | {'evals.valid.stride': 8},
    'shift_text': STREAM | {'data.source': 'files', 'data.tokenizer': 'Word()'},
    'transformer_babi:adaptive': BABI,
    'transformer_cldr:vaswani': {'data.train': 'train[:300]', 'data.valid': 'valid[:20]', 'data.long': 'truncate',
                         'data.tokenizer': 'SentencePiece(vocab=600)'},
    'transformer_fra_eng:d2l': PAIRS,
    'transformer_multi30k': {'data.tokenizer': 'SentencePiece(vocab=300)', 'data.long': 'truncate'},
    **{f'transformer_wmt14:{variant}': PAIRS | {
        'data.name': '', 'data.columns': ('1', '2'), 'data.tokenizer': 'SentencePiece(vocab=300)',
        'evals.translations.split': 'valid'} for variant in ('base', 'big')},
    'stability:pre': TEXT | {'data.tokenizer': 'Byte()', 'data.valid': 'train[90%:95%]'},
    'mae_fashion_mnist:fashion_mnist': {'data.source': 'digits', 'data.path': '', 'data.train': 'train[:64]',
                                        'data.valid': 'train[64:80]', 'data.steps': ''},
    'mae_fashion_mnist:photos': {},
    'resnet_fashion_mnist:digits': {'data.train': 'train[:64]', 'data.valid': 'train[64:70]', 'model.depths': (1, 1, 1)},
    'resnet_fashion_mnist:d2l': {'data.source': 'digits', 'data.path': '', 'data.train': 'train[:64]', 'data.size': 17,
                                 'data.valid': 'train[64:70]', 'model.widths': (4, 4, 4, 4), 'model.depths': (1, 1, 1, 1)},
    'vit_products': {'data.source': 'digits', 'data.path': '', 'data.features': '', 'data.pattern': '', 'data.classes': '[:4]',
                     'data.size': 16, 'data.width': 8, 'data.train': 'train[:64]', 'data.valid': 'train[64:70]'},
    'vit_sizes:digits': {'data.train': 'train[:64]', 'data.valid': 'train[64:70]'},
    'vit_digits:mean': {'data.train': 'train[:64]', 'data.valid': 'train[64:70]'},
    **{f'vit_fashion_mnist:{variant}': {'data.source': 'digits', 'data.path': '', 'model.patch': patch,
                                        'data.train': 'train[:64]', 'data.valid': 'train[64:70]'}
       for variant, patch in (('small', 4), ('d2l', 16))},
    **{f'{name}_fashion_mnist': {
        'data.source': 'digits', 'data.path': '', 'data.train': 'train[:64]', 'data.valid': 'train[64:70]',
        **{f'model.stages.stage_{i}.{field}': value for i in range(count)
           for field, value in (('layers', 2), ('heads', 2), ('width', 8))}}
       for name, count in (('swin', 2), ('davit', 2), ('hybrid', 1))},
}
TRANSLATION = SHRUNK.keys() | {'data', 'optimizer', 'evals', 'model.dropout', 'task.label_smoothing'}
# What differs from another variant in numbers that are small here, and in parts that other tests train with: {variant: (the
# other, fields or groups of fields that differ)}.
ALIKE = {'gpt2:350m': ('gpt2:124m', SHRUNK.keys() | {'optimizer.learning_rate'}),
         'gpt2:step': ('gpt2:124m', SHRUNK.keys() | {'data.source', 'data.path', 'data.tokenizer', 'dtype'}),
         **{f'gpt2:{variant}': ('gpt2:1558m', SHRUNK.keys() | {'optimizer.learning_rate'}) for variant in ('774m',)},
         'gpt2:gpt3': ('gpt2:1558m', SHRUNK.keys() | {'optimizer.learning_rate', 'model.mask'}),
         'bert_mini:step': ('bert_mini:words', {'data', 'model.dropout', 'model.vocab'}),
         'bert_mini:static': ('bert_mini:words', {'data.copies'}),
         'bert_mini:ngrams': ('bert_mini:whole_words', {'data.noise'}),
         'bert_mini:order': ('bert_mini:next', {'data.pairs'}),
         't5_small:pairs': ('t5_small:step', {'data', 'model.vocab'} | {
             f'model.{stack}.{field}' for stack in ('encoder', 'decoder')
             for field in ('dropout', 'last_dropout', 'feed_forward')}),
         'vit_ti16:imagenet': ('vit_ti16:step', {'data', 'dtype', 'task.augment'}),
         'swin_t:imagenet': ('swin_t:step', {'data', 'dtype', 'model.drop_path', 'task.augment', 'task.label_smoothing'}),
         'resnet50': ('resnet_fashion_mnist:d2l', {'data', 'dtype', 'model', 'optimizer', 'evals'} | SHRUNK.keys()),
         'gpt_char:shakespeare': ('gpt_char:cpu', {'data.train', 'data.valid', 'data.test'}),
         'gpt_char:base': ('gpt_char:cpu', SHRUNK.keys() | {
             'model.dropout', 'model.initial', 'optimizer.learning_rate', 'optimizer.schedule.name',
             'optimizer.schedule.final'}),
         'bahdanau_fra_eng:d2l': ('bahdanau_fra_eng:full', TRANSLATION | {
             'model.attention', 'model.bidirectional', 'model.layers', 'model.outer_dropout', 'model.share', 'model.tied'}),
         'memory_network_babi:task': ('memory_network_babi:joint', SHRUNK.keys() | {'data.tasks', 'evals'}),
         **{f'transformer_babi:{variant}': ('transformer_babi:adaptive', {'model.depth', 'task.ponder'})
            for variant in ('universal', 'plain')},
         'transformer_fra_eng:full': ('bahdanau_fra_eng:full', {'model', 'optimizer', 'data.packing', 'train.steps'}),
         **{f'ptb_lm:{variant}': ('ptb_lm:lstm', {'model.cell', 'model.width'}) for variant in ('rnn', 'gru')},
         'transformer_cldr:bart': ('transformer_cldr:vaswani', {'model.encoder.embedding_norm', 'model.decoder.embedding_norm',
                                                                'model.head'}),
         'resnet_fashion_mnist:small': ('resnet_fashion_mnist:digits', SHRUNK.keys() | {'data', 'evals'}),
         'resnet_fashion_mnist:wide': ('resnet_fashion_mnist:small', SHRUNK.keys() | {
             'data.steps', 'evals', 'model.stem.width', 'model.widths', 'optimizer.average_decay', 'task.label_smoothing'}),
         'vit_digits:cls': ('vit_digits:mean', {'model.pool'}),
         'vit_sizes:fashion_mnist': ('vit_sizes:digits', SHRUNK.keys() | {'data'}),
         'nadaraya_watson:collapse': ('nadaraya_watson:curve', {'task.leave_one_out'}),
         'attention_length:bahdanau': ('bahdanau_fra_eng:full', {'data.train', 'data.valid', 'train.steps', 'evals'}),
         'attention_length:none': ('attention_length:bahdanau', {'model.attention'}),
         **{f'stability:{variant}': ('stability:pre', SHRUNK.keys() | {'model.residual', 'model.initial'})
            for variant in ('post', 'rezero', 'tfixup', 'dtfixup', 'admin')},
         **{f'stability:{variant}': ('stability:pre', {'evals'}) for variant in stability.SWEEPS},
         **{f'extrapolation:{variant}': ('extrapolation:learned', {'model.positions'})
            for variant in extrapolation.VARIANTS if variant != 'learned'}}
# Numbers of parameters: of GPT-2 those of its released models (its paper counts otherwise), of GPT-3 174.6 billion; the
# lectures' limits are 3 million for ptb_lm (with 10,000 words) and 1 million for vit_fashion_mnist:small.
SIZES = {'bert_mini:step': 11_201_594, 't5_small:step': 60_506_624,
         'gpt2:124m': 124_439_808, 'gpt2:350m': 354_823_168, 'gpt2:774m': 774_030_080, 'gpt2:1558m': 1_557_611_200,
         'gpt2:gpt3': 174_604_259_328, 'ptb_lm:transformer': 2_850_720, 'ptb_lm:rnn': 2_822_656, 'ptb_lm:gru': 2_783_440,
         'ptb_lm:lstm': 2_773_888, 'vit_fashion_mnist:small': 920_650,
         'transformer_wmt14:base': 63_082_496, 'transformer_wmt14:big': 214_245_376}
# Configs whose variant is the workdir of another run, or has it at its end.
RUN_OF = ('finetune', 'classify', 'label', 'rate', 'prefer', 'choose', 'tag', 'answer', 'distill', 'deit_fashion_mnist',
          'text_to_text', 'summarize', 'several_tasks:DATA,', 'glue:mrpc,', 'gpt_finetune', 'gpt_finetune:mrpc,',
          'gpt_finetune:choices,', 'finetune_images', 'transfer:full,')
OF_STAGES = {'swin_fashion_mnist': 699_700, 'davit_fashion_mnist': 821_770, 'hybrid_fashion_mnist': 953_146}


def variants():
    """'name' or 'name:variant' of every config file."""
    for path in sorted(pathlib.Path(experiments.ROOT, 'configs').glob('*.py')):
        if path.stem not in experiments.NO_CONFIGS:
            try:
                cli.load_config(f'configs/{path.name}:?')
            except ValueError as error:  # which lists them
                known = re.search('; known: (.*)[.]', str(error))[1]
            yield from (path.stem if known == 'none' else f'{path.stem}:{variant}' for variant in known.split(', '))


def sources(config, folder):
    """{field: where data of its kind is}, which are made in the folder."""
    texts = {**{f'data.{name}': [''] for name in ('text.documents:Text', 'text.masked:Masked', 'text.shift:Shift',
                                                  'seq2seq.parallel:Parallel', 'seq2seq.corrupted:Corrupted')},
             'data.text.mixture:Mixture': [f'parts.{name}.' for name in config.data.get('parts', {})]}
    text = folder / 'text.txt'
    text.write_text(experiments.lines(80))
    if config.data.pipeline == 'data.seq2seq.parallel:Parallel':
        if config.data.source == 'cldr':
            return {}
        if config.data.source == 'files':
            for part in (config.data.train, config.data.valid):
                for language in config.data.languages.split(','):
                    (folder / f'{part}.{language}').write_text(experiments.lines(80))
            return {'data.path': str(folder)}
        text.write_text(experiments.pairs(80))
    if config.data.pipeline == 'data.text.babi:Babi':
        experiments.write_babi(folder / 'en-10k', 20)
        return {'data.path': str(folder)}
    if config.data.get('source') == 'unlabelled':
        experiments.save_digits(folder / 'photos', range(40))
        return {'data.path': str(folder / 'photos')}
    return {f'data.{part}path': str(text) for part in texts.get(config.data.pipeline, [])}


def has(config, field):
    """Whether a config has a field with this dotted name."""
    for part in field.split('.'):
        if part not in config:
            return False
        config = config[part]
    return True


@functools.cache
def stopped():
    """The first of CHANGES with each combination of data, model and task."""
    found = {}
    for name in CHANGES:
        file, _, variant = name.partition(':')
        config, _ = cli.load_config(f'configs/{file}.py:{variant}')
        found.setdefault((config.data.pipeline, config.model.name, config.task.name), name)
    return set(found.values())


class ConfigsTest(experiments.TestCase):

    @parameterized.parameters(*CHANGES)
    @pytest.mark.slow
    def test_smoke(self, name):
        file, _, variant = name.partition(':')
        config, _ = cli.load_config(f'configs/{file}.py:{variant}')
        changes = sources(config, self.folder)
        changes |= {field: value for field, value in SHRUNK.items() if has(config, field)} | CHANGES[name]
        config, workdir = experiments.changed(config, **changes), self.folder / 'run'

        if name in stopped():
            with at(('training.report.report', 'Report.scalars', 1, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
                code, out = experiments.train(config, workdir)
            self.assertEqual(code, 143, out)
            self.assertEqual(experiments.steps(workdir), [1])
        code, out = experiments.train(config, workdir)
        self.assertEqual(code, 0, out)
        self.assertEqual('resumed from step 1' in out, name in stopped())
        self.assertEqual([row['step'] for row in experiments.rows(workdir, 'train')], [1, 2])
        done = experiments.call('eval', f'--workdir={workdir}')
        row = json.loads(done.out.splitlines()[-1])
        self.assertEqual((row['split'], row['step']), ('valid', 2), done.err)
        self.assertEqual(row['weight'], experiments.rows(workdir, 'valid')[-1]['weight'])

    @parameterized.parameters(*SIZES)
    def test_number_of_parameters(self, name):
        file, _, variant = name.partition(':')
        config, _ = cli.load_config(f'configs/{file}.py:{variant}')
        model = resolve.construct(config.model, extra={
            'dtype': config.dtype, 'vocab': 37_000 if 'wmt14' in name else 10_000, 'source_vocab': 0, 'classes': 10})
        inputs = jnp.zeros((1, 28, 28, 1)) if 'patch' in config.model else jnp.zeros((1, 1), jnp.int32)
        more = {'decoder_inputs': inputs} if 'source_length' in config.model else {}

        def size(layers):
            small = models.changed(model, layers=layers)
            shapes = jax.eval_shape(functools.partial(small.init, **more), jax.random.key(0), inputs)['params']
            return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

        one, two = size(1), size(2)  # 96 layers take long to trace, and are alike
        layers = model.decoder.layers if more else config.model.layers
        self.assertEqual(one + (layers - 1) * (two - one), SIZES[name])

    def test_the_flags_in_the_docstring_of_t5_small_make_it(self):
        config, said = cli.load_config('configs/t5_small.py:spans')
        said = re.search(r'T5-small itself: (.*?), the same of model.decoder, .*?vocab=(\d+)', ' '.join(said.split()))
        fields = dict(re.findall(r"\.(\w+)=('.*?'|\w+)", said[1]))
        for stack in ('encoder', 'decoder'):
            config = experiments.changed(config, **{
                f'model.{stack}.{name}': ast.literal_eval(value) for name, value in fields.items()})
        model = resolve.construct(config.model, extra={'dtype': config.dtype, 'vocab': int(said[2]), 'source_vocab': 0})
        inputs = jnp.zeros((1, 1), jnp.int32)
        shapes = jax.eval_shape(functools.partial(model.init, decoder_inputs=inputs), jax.random.key(0), inputs)['params']
        self.assertEqual(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)), SIZES['t5_small:step'])

    @parameterized.parameters(*OF_STAGES.items())
    def test_number_of_parameters_of_stages(self, name, wanted):
        model = resolve.construct(cli.load_config(f'configs/{name}.py:')[0].model, extra={'classes': 10})
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))['params']
        self.assertEqual(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)), wanted)

    def test_no_evaluation_is_of_what_is_trained_on(self):
        for name in variants():
            file, _, variant = name.partition(':')
            config, _ = cli.load_config(f'configs/{file}.py:{variant}')
            for key, evaluation in config.evals.items():
                self.assertNotStartsWith(evaluation.get('split') or '', 'train', f'{name} {key}')

    def test_every_variant_has_a_smoke_test(self):
        self.assertEqual(set(variants()), {*CHANGES, *ALIKE})

    @parameterized.parameters(*ALIKE)
    def test_differs_in_this_only(self, name):
        one, other = (workdir.flat(workdir.as_json(cli.load_config(f'configs/{file}.py:{variant}')[0]))
                      for file, _, variant in (name.partition(':'), ALIKE[name][0].partition(':')))
        differs = {field for field in one | other if one.get(field) != other.get(field)}
        self.assertEmpty({field for field in differs if not {field, field.partition('.')[0]} & ALIKE[name][1]})

    def test_a_teacher_of_another_kind(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        (folder / 'config.json').write_text(json.dumps(workdir.as_json(experiments.tiny('text.txt'))))
        with self.assertRaisesRegex(ValueError, 'is a run of transformer.models.gpt:Gpt with .*:NextToken; configs/distill.py'):
            distill.get_config(str(folder))

    def test_ten_epochs_of_the_textbooks_vit(self):
        config = cli.load_config('configs/vit_fashion_mnist.py:d2l')[0]
        self.assertBetween(config.train.steps * config.data.batch_size - 10 * 60_000, 0, config.data.batch_size)

    @parameterized.parameters('vit_ti16', 'swin_t', 'resnet50')
    def test_no_image_of_imagenet_is_stretched(self, name):
        data = cli.load_config(f'configs/{name}.py')[0].data
        self.assertIsInstance(resolve.parse(data.fit, Fit, 'data.fit'), RandomCrop)
        self.assertStartsWith(data.steps, 'Flip() >> ')

    @parameterized.parameters(*variants())
    def test_says_what_it_is_and_refuses_unknown_variants(self, name):
        file, _, variant = name.partition(':')
        config, text = cli.load_config(f'configs/{file}.py:{variant}')
        self.assertTrue(text.strip())
        self.assertTrue(config.is_locked)
        with self.assertRaisesRegex(ValueError, "There is no variant 'nope' of this config"):
            cli.load_config(f'configs/{file}.py:nope')

    @parameterized.parameters(*RUN_OF)
    def test_a_variant_that_names_no_run_is_refused(self, name):
        file, _, front = name.partition(':')
        other = self.folder / 'other'
        other.mkdir()
        (other / 'config.json').write_text('{"model_type": "bert"}')
        for folder, problem in ((self.folder / 'nowhere', 'There is no folder {};'),
                                (self.folder, '{} is not a workdir of a run: it has no config.json;'),
                                (other, '{}/config.json is not the config of a run; restore it, or')):
            with self.assertRaisesRegex(ValueError, f'^{problem.format(folder)} name the workdir of a run of train.py or '
                                                    'convert.py after the colon of --config.$'):
                cli.load_config(f'configs/{file}.py:{front}{folder}')


if __name__ == '__main__':
    absltest.main()
