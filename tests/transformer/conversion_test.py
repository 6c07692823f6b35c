"""The tables of transformer/conversion.py, on a family made up for this."""

import dataclasses

import numpy as np
from absl.testing import absltest, parameterized

from transformer.conversion import Family, Field, Row, Weight, labels, named


@dataclasses.dataclass(frozen=True)
class Model:
    width: int = 4
    dropout: float = 0.0
    kind: str = 'plain'
    inner: int = 0
    tied: bool = True
    dtype: str = 'float32'


FAMILY = Family(
    kind='made', model='somewhere:Model', architecture='MadeModel', use='text', prefix='body.', implied={'tied': False},
    fields=(Field('size', 'width', 4), Field('drop drop_too', 'dropout', 0.5),
            Field('shape', 'kind', 'p', {'p': 'plain', 'q': 'odd'}),
            Field('inside', 'inner', none=0), Field('strange', default=False)),
    rows=(Row('block_{i}/{a,b}/kernel', 'body.layers.{i}.both', 'K D N H -> (K N H) D'), Row('tokens', 'body.words'),
          Row('output', 'head', 'D V -> V D')),
    inputs=lambda config: {}, copies={'head': 'body.words'}, computed=r'body\.table')
SHAPES = {'tokens': (5, 4), **{f'block_{i}/{name}/kernel': (4, 2, 3) for i in (0, 1) for name in 'ab'}}


def drawn(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def weights(arrays):
    return {name: Weight(x.shape, lambda x=x: x) for name, x in arrays.items()}


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
        with self.assertRaisesRegex(ValueError, 'The table of made does not have block_0/c/kernel once'):
            FAMILY.entries(SHAPES | {'block_0/c/kernel': (4,)})


class ConfigTest(parameterized.TestCase):

    def test_fields_in_both_directions(self):
        theirs = {'size': 8, 'drop': 0.1, 'drop_too': 0.1, 'shape': 'q', 'inside': 32, 'model_type': 'made'}
        fields = FAMILY.model_fields(theirs)
        self.assertEqual(fields, {'width': 8, 'dropout': 0.1, 'kind': 'odd', 'inner': 32, 'tied': False})
        written = FAMILY.config(Model(**fields))
        self.assertEqual(written, theirs | {'strange': False, 'architectures': ['MadeModel']})

    def test_what_does_not_matter(self):
        self.assertEqual(FAMILY.model_fields({'language': 'english', 'name': 'Made', 'num_beams': 4}), FAMILY.model_fields({}))

    def test_classes_of_one_name_have_numbers_here_alone(self):
        theirs = {'0': 'a', '1': 'b', '2': 'a', '3': 'b (3)', '4': 'c (4)'}
        found = labels({'id2label': theirs})
        self.assertEqual(found, ['a (0)', 'b', 'a (2)', 'b (3)', 'c (4)'])
        self.assertEqual(named(['a (0)', 'b', 'a (2)', 'c (3)']), ['a', 'b', 'a', 'c (3)'])

    def test_what_is_not_named_has_their_default(self):
        self.assertEqual(FAMILY.model_fields({}), {'width': 4, 'dropout': 0.5, 'kind': 'plain', 'inner': 0, 'tied': False})
        self.assertIsNone(FAMILY.config(Model(tied=False))['inside'])

    @parameterized.parameters(
        ({'strange': True}, 'strange=True, which is not supported; expected False'),
        ({'novel': 1}, 'novel=1, which is not known of made'),
        ({'shape': 'r'}, "shape='r', which is not supported; expected one of 'p', 'q'"),
        ({'size': [8, 8]}, r'size=\[8, 8\], which is not supported; expected a value such as 4'),
        ({'size': None}, 'size=None, which is not supported; expected a value such as 4'),
        ({'size': True}, 'size=True, which is not supported; expected a value such as 4'),
        ({'drop': 0.1, 'drop_too': 0.2}, 'drop=0.1 and drop_too=0.2, which are one field here, model.dropout'))
    def test_configs_of_another_model(self, config, message):
        with self.assertRaisesRegex(ValueError, message):
            FAMILY.model_fields(config)

    @parameterized.parameters((Model(), 'model.tied is True, which MadeModel cannot be; expected False'),
                              (Model(tied=False, kind='new'), "model.kind is 'new', which has no name there; expected one of"))
    def test_models_that_have_no_form_there(self, model, message):
        found, = FAMILY.misfits(model, ('dtype',))
        self.assertIn(message, found)
        self.assertEqual(FAMILY.misfits(dataclasses.replace(model, tied=False, kind='odd', dtype='bfloat16'), ('dtype',)), [])


if __name__ == '__main__':
    absltest.main()
