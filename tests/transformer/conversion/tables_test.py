"""The tables of transformer/conversion/tables.py, on a family made up for this."""

import dataclasses

import numpy as np
from absl.testing import absltest, parameterized

from tests.models import build
from tests.models import changed as changed_model
from transformer.conversion.fields import Field, at, changed, fields_of, labels, named
from transformer.conversion.gpt2 import GPT2
from transformer.conversion.tables import Family, Formed, Row, Weight
from transformer.layers.initial import MuP, TFixup
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt


class Choice:
    """Stands for the base of parts, of which there is a choice."""


@dataclasses.dataclass(frozen=True)
class Part(Choice):
    size: int = 1
    bias: bool = True


@dataclasses.dataclass(frozen=True)
class Other(Choice):
    depth: int = 1


@dataclasses.dataclass(frozen=True)
class Stack:
    layers: int = 6
    part: Part | Other = Part()


@dataclasses.dataclass(frozen=True)
class Model:
    width: int = 4
    dropout: float = 0.0
    kind: str = 'plain'
    inner: int = 0
    tied: bool = True
    stack: Stack = dataclasses.field(default=Stack(), metadata={'inline': True})
    encoder: Stack = Stack()
    dtype: str = 'float32'


FAMILY = Family(
    kind='made', model='somewhere:Model', architecture='MadeModel', use='text', prefix='body.',
    implied={'tied': False, 'part.bias': False},
    fields=(Field('size', 'width', 4), Field('drop drop_too', 'dropout', 0.5),
            Field('shape', 'kind', 'p', {'p': 'plain', 'q': 'odd'}),
            Field('inside', 'inner', none=0), Field('strange', default=False), Field('deep', 'layers', 6),
            Field('piece', 'part.size encoder.part.size', 1), Field('far', 'encoder.layers', 6)),
    rows=(Row('block_{i}/{a,b}/kernel', 'body.layers.{i}.both', 'K D N H -> (K N H) D'), Row('tokens', 'body.words'),
          Row('output', 'head', 'D V -> V D')),
    inputs=lambda config: {}, limits=lambda model: {}, copies={'head': 'body.words'}, computed=r'body\.table')
SHAPES = {'tokens': (5, 4), **{f'block_{i}/{name}/kernel': (4, 2, 3) for i in (0, 1) for name in 'ab'}}

KINDS = {'float32': 'F32', 'float64': 'F64'}  # as .safetensors files name types


def made(layers=6, part=Part(bias=False), **fields):
    """A model that is not tied."""
    return Model(**{'tied': False, 'stack': Stack(layers, part)} | fields)


def drawn(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def weights(arrays):
    return {name: Weight(x.shape, KINDS[x.dtype.name], lambda x=x: x) for name, x in arrays.items()}


class WeightsTest(absltest.TestCase):

    def test_rows_in_both_directions(self):
        params = drawn(SHAPES)
        theirs = FAMILY.write(dict(params))
        self.assertSameElements(theirs, ['body.layers.0.both', 'body.layers.1.both', 'body.words'])
        for i in (0, 1):
            both = np.concatenate([params[f'block_{i}/{name}/kernel'].reshape(4, 6).T for name in 'ab'])
            np.testing.assert_array_equal(theirs[f'body.layers.{i}.both'], both)
        found = dict(FAMILY.read(weights(theirs), SHAPES, 'here'))
        self.assertSameElements(found, params)
        for name, x in params.items():
            np.testing.assert_array_equal(found[name], x)

    def test_a_prefix_that_is_left_out_and_what_is_computed(self):
        params = drawn(SHAPES)
        theirs = {name.removeprefix('body.'): x for name, x in FAMILY.write(dict(params)).items()} | {'table': np.ones(3)}
        found = dict(FAMILY.read(weights(theirs), SHAPES, 'here'))
        np.testing.assert_array_equal(found['tokens'], params['tokens'])

    def test_a_copy_and_a_layer_of_its_own(self):
        params = drawn(SHAPES)
        theirs = FAMILY.write(dict(params))
        self.assertLen(dict(FAMILY.read(weights(theirs | {'head': params['tokens']}), SHAPES, 'here')), 5)
        with self.assertRaisesRegex(ValueError, 'In here, head is not body.words'):
            dict(FAMILY.read(weights(theirs | {'head': params['tokens'] + 1}), SHAPES, 'here'))
        theirs['head'] = theirs.pop('body.words')  # one of the two is enough
        np.testing.assert_array_equal(dict(FAMILY.read(weights(theirs), SHAPES, 'here'))['tokens'], params['tokens'])
        self.assertEqual(*FAMILY.sides(weights(theirs), SHAPES))
        theirs['body.words'] = theirs.pop('head')
        own = SHAPES | {'output': (4, 5)}
        found = dict(FAMILY.read(weights(theirs | {'head': params['tokens'] + 1}), own, 'here'))
        np.testing.assert_array_equal(found['output'], params['tokens'].T + 1)

    def test_a_parameter_without_a_row(self):
        with self.assertRaisesRegex(ValueError, 'The table of made does not cover block_0/c/kernel exactly once'):
            FAMILY.entries(SHAPES | {'block_0/c/kernel': (4,)})


class ConfigTest(parameterized.TestCase):

    def test_fields_in_both_directions(self):
        theirs = {'size': 8, 'drop': 0.1, 'drop_too': 0.1, 'shape': 'q', 'inside': 32, 'model_type': 'made', 'deep': 2,
                  'piece': 5, 'far': 3}
        fields = FAMILY.model_fields(theirs, Model)
        self.assertEqual(fields, {'width': 8, 'dropout': 0.1, 'kind': 'odd', 'inner': 32, 'tied': False, 'dtype': 'float32',
                                  'layers': 2, 'part': Part(5, False), 'encoder': Stack(3, Part(5))})
        written = FAMILY.config(made(**fields))
        self.assertEqual(written, theirs | {'strange': False, 'architectures': ['MadeModel']})

    def test_fields_of_a_model_are_those_of_its_config(self):
        usual = {field.name: field.default for field in dataclasses.fields(Model)}
        del usual['stack']
        self.assertEqual(fields_of(Model), usual | {'layers': 6, 'part': Part()})
        self.assertEqual(fields_of(Model(width=5, stack=Stack(2))), usual | {'width': 5, 'layers': 2, 'part': Part()})

    def test_paths_into_parts(self):
        fields = fields_of(Model)
        self.assertEqual(at(fields, 'encoder.part.size'), 1)
        with self.assertRaisesRegex(ValueError, r'model.part is Part.*which has no counterpart there; expected .* with depth'):
            at(fields, 'part.depth')
        found = changed(fields, {'part.depth': 3, 'part': Other(), 'encoder.part.size': 4, 'encoder.layers': 2})
        self.assertEqual((found['part'], found['encoder']), (Other(3), Stack(2, Part(4))))
        self.assertEqual(fields, fields_of(Model))  # which stay as they are

    def test_what_does_not_matter(self):
        self.assertEqual(FAMILY.model_fields({'language': 'english', 'name': 'Made', 'num_beams': 4}, Model),
                         FAMILY.model_fields({}, Model))

    def test_classes_of_one_name_have_numbers_here_alone(self):
        theirs = {'0': 'a', '1': 'b', '2': 'a', '3': 'b (3)', '4': 'c (4)'}
        found = labels({'id2label': theirs})
        self.assertEqual(found, ['a (0)', 'b', 'a (2)', 'b (3)', 'c (4)'])
        self.assertEqual(named(['a (0)', 'b', 'a (2)', 'c (3)']), ['a', 'b', 'a', 'c (3)'])
        theirs = {'0': 'a (of b)', '1': 'a (of b)', '2': 'a (of c)'}
        self.assertEqual(named(labels({'id2label': theirs})), [*theirs.values()])

    def test_classes_are_in_the_order_of_their_numbers(self):
        self.assertEqual(labels({'id2label': {str(i): f'class {i}' for i in reversed(range(12))}}),
                         [f'class {i}' for i in range(12)])

    def test_what_is_not_named_has_their_default(self):
        self.assertEqual(FAMILY.model_fields({}, Model), fields_of(Model) | {'dropout': 0.5, 'tied': False,
                                                                             'part': Part(bias=False)})
        self.assertIsNone(FAMILY.config(made(tied=False))['inside'])

    @parameterized.parameters(
        ({'strange': True}, 'strange=True, which is not supported; expected False'),
        ({'novel': 1}, 'novel=1, which is not known for made'),
        ({'shape': 'r'}, "shape='r', which is not supported; expected one of 'p', 'q'"),
        ({'size': [8, 8]}, r'size=\[8, 8\], which is not supported; expected a value such as 4'),
        ({'size': None}, 'size=None, which is not supported; expected a value such as 4'),
        ({'size': True}, 'size=True, which is not supported; expected a value such as 4'),
        ({'drop': 0.1, 'drop_too': 0.2}, 'drop=0.1 and drop_too=0.2, which are one field here, model.dropout'))
    def test_configs_of_another_model(self, config, message):
        with self.assertRaisesRegex(ValueError, message):
            FAMILY.model_fields(config, Model)

    @parameterized.parameters(
        (dict(tied=True), 'model.tied=True cannot be written as MadeModel; train with --config.model.tied=False, or write'),
        (dict(kind='new'), "model.kind='new' cannot .*--config.model.kind='plain'"),
        (dict(part=Part()), r"model.part=Part\(size=1, bias=True\) .*--config.model.part='Part\(bias=False\)'"),
        (dict(part=Part(2, False)), r"model.encoder.part=.*--config.model.encoder.part='Part\(size=2\)'"),
        (dict(encoder=Stack(2, Part(1, False))), r"--config.model.encoder.part='Part\(\)'"),
        (dict(part=Other()), r"model.part=Other\(depth=1\) .*--config.model.part='Part\(bias=False\)'"),
        (dict(part=Other(), tied=True, kind='new'),
         r"model.kind='new' and model.tied=True and model.part=Other\(depth=1\) cannot .*--config.model.kind='plain' "
         r"--config.model.tied=False --config.model.part='Part\(bias=False\)', or write the run"))
    def test_models_that_have_no_form_there(self, fields, message):
        self.assertRegex(FAMILY.formed(made(**fields), ('dtype',)).refusal('MadeModel'), message)

    def test_models_that_have_one(self):
        for fields in ({}, dict(kind='odd', dtype='bfloat16', encoder=Stack(2)),
                       dict(part=Part(3, False), encoder=Stack(7, Part(3)), layers=1)):
            found = FAMILY.formed(made(**fields), ('dtype',))
            self.assertEqual((found.misfits, found.model, found.said), ([], made(**fields), ''))

    def test_dropout_does_not_matter(self):
        family = dataclasses.replace(FAMILY, fields=tuple(field for field in FAMILY.fields if 'drop' not in field.theirs))
        found = family.formed(made(dropout=0.3), ('dtype',))
        self.assertEqual((found.misfits, found.model), ([], made(dropout=0.0)))
        self.assertEqual(found.said, 'dropout in training there: model.dropout=0.0')

    def test_an_initialisation_matters_where_it_also_divides_scores_and_outputs(self):
        model, free = build(Gpt, vocab=9, width=8, heads=2, layers=1, length=8), ('dtype', 'initial', 'encoder.initial')
        for initial, misfits in ((MuP(base=8), 0), (TFixup(), 0), (MuP(base=4), 1), (MuP(base=8, head_width=8), 1)):
            found = GPT2[0].formed(changed_model(model, initial=initial), free)
            self.assertLen(found.misfits, misfits, initial)
        self.assertRegex(found.refusal('GPT2'), r"model.initial=MuP\(.*--config.model.initial='Scaled\(\)'.* --to_safetensors")

    def test_a_rate_that_stands_for_another_is_stated(self):
        rates = {'encoder.last_dropout': -1.0, 'decoder.last_dropout': -1.0}
        pairs = build(EncoderDecoder, vocab=9, source_vocab=0, **{'encoder.dropout': 0.1, 'decoder.dropout': 0.2})
        self.assertEqual(Formed(pairs, [], rates, []).said,
                         'dropout in training there: model.encoder.last_dropout=0.1, model.decoder.last_dropout=0.2')
        inlined = build(Gpt, vocab=9, dropout=0.3)
        self.assertEqual(Formed(inlined, [], {'last_dropout': -1.0}, []).said,
                         'dropout in training there: model.last_dropout=0.3')


class NumbersTest(absltest.TestCase):
    def test_stages_and_layers_that_count_otherwise(self):
        row = Row('stage_{s}/block_{i}/kernel', 'layers.{s-1}.blocks.{i/2}.{i%2}.weight')
        names = ['stage_1/block_0/kernel', 'stage_2/block_11/kernel', 'stage_1/merging/kernel']
        self.assertEqual([(entry.ours, entry.theirs) for entry in row.entries(names, None)], [
            (('stage_1/block_0/kernel',), 'layers.0.blocks.0.0.weight'),
            (('stage_2/block_11/kernel',), 'layers.1.blocks.5.1.weight')])

    def test_an_axis_in_reverse_order(self):
        row = Row('table', 'weight', 'I J N -> (I J) N', reversed_axis=0)
        table = np.arange(24.0).reshape(3, 4, 2)
        entry, = row.entries(['table'], None)
        weight = entry.written({'table': table})
        np.testing.assert_array_equal(weight, table[::-1, ::-1].reshape(12, 2))
        np.testing.assert_array_equal(entry.read(weight, {'table': (3, 4, 2)})['table'], table)


if __name__ == '__main__':
    absltest.main()
