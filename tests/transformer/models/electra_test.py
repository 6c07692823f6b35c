"""ELECTRA's two encoders are each a `Bert` on its own parameters, or on tables that they share."""

import dataclasses

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from transformer.attention.positions.absolute import Sinusoidal
from transformer.attention.positions.relative import T5Bias
from transformer.layers.heads import MaskedWords, ReplacedTokens
from transformer.models.bert import Bert
from transformer.models.electra import BASE, TABLES, Electra

V, T, D, E = 11, 6, 8, 4
SMALL = dataclasses.replace(BASE, layers=2, heads=2, width=D)
NARROW = dataclasses.replace(SMALL, layers=1, width=6)
INPUTS = {'inputs': np.array([[1, 2, 3, 4, 0, 0]]), 'segments': np.array([[1, 1, 1, 1, 0, 0]]),
          'types': np.array([[0, 0, 1, 1, 0, 0]]), 'positions': np.arange(T)[None]}
MASKED = np.array([[2, 3]])


def electra(**fields):
    return Electra(**{'vocab': V, 'length': T, 'embedding_width': E, 'generator': NARROW, 'discriminator': SMALL} | fields)


def bert(stack, head, **fields):
    return Bert(**{'vocab': V, 'length': T, 'stack': stack, 'head': head} | fields)


class ElectraTest(parameterized.TestCase):

    @parameterized.parameters(
        dict(), dict(tied=False), dict(embedding_width=0), dict(embedding_width=6), dict(types=0), dict(types=3),
        dict(length=9), dict(dense_gradient=False),
        dict(generator=dataclasses.replace(NARROW, scan=True, layers=2)),
        dict(discriminator=dataclasses.replace(SMALL, heads=4, layers=1)))
    def test_each_part_is_a_bert(self, **fields):
        model = electra(**fields)
        params = models.drawn(model, **INPUTS)
        common = {name: getattr(model, name) for name in ('length', 'types', 'dense_gradient')}
        width = model.embedding_width or D
        narrow = lambda stack: width if width != stack.width else 0
        widths = narrow(model.discriminator), narrow(model.generator) if model.tied else 0
        of = {'discriminator': bert(model.discriminator, ReplacedTokens(), embedding_width=widths[0], **common),
              'generator': bert(model.generator, MaskedWords(), embedding_width=widths[1], **common)}
        for name, given in (('discriminator', INPUTS), ('generator', INPUTS | {'masked': MASKED})):
            tables = {one: params['discriminator'][one] for one in TABLES if one in params['discriminator'] and model.tied}
            own = {**params[name], **tables}
            alone = jax.tree.map(np.shape, models.drawn(of[name], **INPUTS))
            self.assertEqual(jax.tree.map(np.shape, own), alone)
            found, wanted = (models.apply(one, p, **given) for one, p in ((model, params), (of[name], own)))
            self.assertEqual(found.keys(), wanted.keys())
            for output in wanted:
                np.testing.assert_array_equal(found[output], wanted[output], err_msg=output)

    def test_other_types_of_numbers(self):
        model = electra(dtype='bfloat16', parameter_dtype='bfloat16')
        made = jax.eval_shape(lambda: model.init(models.KEY, **INPUTS))
        self.assertEqual({x.dtype.name for x in jax.tree.leaves(made['params'])}, {'bfloat16'})
        found = jax.eval_shape(lambda params: model.apply({'params': params}, **INPUTS, masked=MASKED), made['params'])
        self.assertEqual((found['hidden'].dtype.name, found['logits'].shape), ('bfloat16', (1, 2, V)))

    def test_every_parameter_has_a_role(self):
        for tied in (True, False):
            made = jax.eval_shape(lambda tied=tied: electra(tied=tied).init(models.KEY, **INPUTS))
            paths = lambda tree: {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(
                tree, is_leaf=lambda x: hasattr(x, 'kind'))}
            self.assertEqual(paths(made['roles']), paths(made['params']))

    def test_fresh_parts_differ(self):
        params = jax.jit(lambda: electra(tied=False, generator=SMALL, embedding_width=0).init(models.KEY, **INPUTS)['params'])()
        one, other = (params[name]['block_0']['attention']['query']['kernel'] for name in ('generator', 'discriminator'))
        self.assertFalse(np.array_equal(one, other))

    def test_dropout_of_the_parts_has_keys_of_its_own(self):
        dropped = electra(generator=dataclasses.replace(NARROW, dropout=0.1),
                          discriminator=dataclasses.replace(SMALL, dropout=0.1))
        one, other = (models.dropout_keys(dropped, **given) for given in (INPUTS, INPUTS | {'masked': MASKED}))
        self.assertNotEmpty(one)
        self.assertNotEmpty(other)
        self.assertEmpty({*one} & {*other})

    def test_heads_can_be_switched_off_in_either(self):
        model = electra()
        self.assertEqual({name: stack for name, (stack, *_) in model.attentions.items()},
                         {'generator/attention': NARROW, 'discriminator/attention': SMALL})
        params = models.drawn(model, **INPUTS)
        masks = {name: np.ones((stack.layers, 1, 1, stack.heads), np.float32)
                 for name, (stack, *_) in model.attentions.items()}
        for name, given in (('discriminator', INPUTS), ('generator', INPUTS | {'masked': MASKED})):
            whole = models.apply(model, params, **given, head_mask=masks)
            off = {other: x * (other != f'{name}/attention') for other, x in masks.items()}
            changed = models.apply(model, params, **given, head_mask=off)['hidden'] - whole['hidden']
            self.assertGreater(np.abs(changed).max(), 1e-3)
            seen = models.apply(model, params, **given, capture=('attention',))
            self.assertEqual({path.rpartition('/block_')[0] for path in seen if path.endswith('/attention')}, {name})

    def test_positions_of_other_shapes_are_not_shared(self):
        biased = {'generator': dataclasses.replace(NARROW, heads=3, positions=T5Bias()),
                  'discriminator': dataclasses.replace(SMALL, positions=T5Bias())}
        params = models.drawn(electra(**biased), **INPUTS)
        self.assertIn('positions', params['generator'])
        self.assertNotIn('tokens', params['generator'])

    def test_tables_that_cannot_be_shared_are_refused(self):
        sines = dataclasses.replace(NARROW, positions=Sinusoidal())
        electra(tied=False, generator=sines)
        with self.assertRaisesRegex(ValueError, r'generator.positions is Sinusoidal\(.*\) and discriminator.positions Learned\('
                                    r'.*, but tied=True shares .*set tied=False'):
            electra(generator=sines)


if __name__ == '__main__':
    absltest.main()
