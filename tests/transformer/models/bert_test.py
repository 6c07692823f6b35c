import functools

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import apply, build, changed
from transformer.attention.positions.absolute import Learned, Sinusoidal
from transformer.layers.heads import Classes, MaskedWords, NextWords, Pretraining, TokenClasses
from transformer.layers.initial import Xavier
from transformer.models.bert import Bert

SMALL = build(Bert, vocab=11, length=8, layers=2, heads=2, width=8)
TOKENS = np.random.default_rng(0).integers(11, size=(2, 8))
drawn = lambda model: models.drawn(model, TOKENS)
program = functools.cache(lambda model: models.Program(model, TOKENS))


class ForwardTest(absltest.TestCase):

    def test_only_the_masked_words_are_predicted(self):
        params, masked = drawn(SMALL), np.array([[1, 4, 0], [7, 2, 2]])
        whole = apply(SMALL, params, TOKENS)['logits']
        few = apply(SMALL, params, TOKENS, masked=masked)['logits']
        self.assertEqual(few.shape, (2, 3, 11))
        np.testing.assert_allclose(few, np.take_along_axis(np.asarray(whole), masked[..., None], 1), atol=1e-5)

    def test_every_token_sees_all_others_and_no_padding(self):
        params, segments = drawn(SMALL), np.array([[1] * 5 + [0] * 3] * 2)
        hidden = lambda tokens, segments=segments: np.asarray(apply(SMALL, params, tokens, segments=segments)['hidden'])
        changed = TOKENS.copy()
        changed[:, 4] = (changed[:, 4] + 1) % 11
        self.assertGreater(np.abs(hidden(changed) - hidden(TOKENS))[:, :5].min(-1).max(-1).min(), 1e-4)
        behind = TOKENS.copy()
        behind[:, 5:] = 0
        np.testing.assert_allclose(hidden(behind)[:, :5], hidden(TOKENS)[:, :5], atol=1e-6)
        np.testing.assert_allclose(hidden(TOKENS[:, :5], segments[:, :5]), hidden(TOKENS)[:, :5], atol=1e-6)

    def test_types_are_rows_of_a_table(self):
        params = drawn(SMALL)
        hidden = lambda model, params, types: apply(model, params, TOKENS, types=types)['hidden']
        none, second = np.zeros_like(TOKENS), np.ones_like(TOKENS)
        np.testing.assert_array_equal(hidden(SMALL, params, none), apply(SMALL, params, TOKENS)['hidden'])
        self.assertGreater(np.abs(hidden(SMALL, params, second) - hidden(SMALL, params, none)).max(), 1e-2)
        untold = changed(SMALL, types=0)
        np.testing.assert_array_equal(hidden(untold, drawn(untold), none), hidden(untold, drawn(untold), second))

    def test_packed_texts_are_as_alone(self):
        params = drawn(SMALL)
        segments, positions = np.array([[1, 1, 1, 2, 2, 2, 2, 0]] * 2), np.array([[0, 1, 2, 0, 1, 2, 3, 0]] * 2)
        packed = apply(SMALL, params, TOKENS, segments=segments, positions=positions)['logits']
        np.testing.assert_allclose(packed[:, :3], apply(SMALL, params, TOKENS[:, :3])['logits'], atol=1e-5)
        np.testing.assert_allclose(packed[:, 3:7], apply(SMALL, params, TOKENS[:, 3:7])['logits'], atol=1e-5)

    def test_narrow_tables_equal_wide_ones_of_their_product(self):
        """Without the norm at E, tables E and a projection W are tables E·W with a bias."""
        narrow = changed(SMALL, embedding_width=3, embedding_norm=False, head=Classes(2))
        params = drawn(narrow)
        projection = params['embedding_projection']
        self.assertEqual(projection['kernel'].shape, (3, 8))
        wide = {**params, **{name: {'embedding': params[name]['embedding'] @ projection['kernel']}
                             for name in ('tokens', 'types', 'positions')}}
        wide['types']['embedding'] += projection['bias']
        del wide['embedding_projection']
        found, wanted = apply(narrow, params, TOKENS), apply(changed(narrow, embedding_width=0), wide, TOKENS)
        np.testing.assert_allclose(found['hidden'], wanted['hidden'], atol=1e-5)

    def test_the_norm_and_the_tied_output_have_the_width_of_the_table(self):
        for head in (MaskedWords(), Pretraining()):
            shapes = jax.tree.map(lambda x: x.shape, jax.eval_shape(
                lambda head=head: models.init(changed(SMALL, embedding_width=3, head=head))))
            self.assertEqual((shapes['tokens'], shapes['positions']), ({'embedding': (11, 3)}, {'embedding': (8, 3)}))
            self.assertEqual((shapes['embedding_norm']['scale'], shapes['transform_norm']['scale']), ((3,), (3,)))
            self.assertEqual((shapes['transform']['kernel'], shapes['output']['bias']), ((8, 3), (11,)))
            self.assertNotIn('decoder', shapes)
        self.assertIn('embedding_projection', drawn(changed(SMALL, embedding_width=8)))  # of ALBERT, whatever the widths are

    def test_positions_of_narrow_tables(self):
        for positions, shape in ((Learned(at='layers'), {'embedding': (8, 8)}), (Sinusoidal(), None),
                                 (Sinusoidal(at='layers'), None)):
            model = changed(SMALL, embedding_width=3, positions=positions)
            params = drawn(model)
            self.assertEqual(jax.tree.map(np.shape, params.get('positions')), shape)
            self.assertEqual(apply(model, params, TOKENS)['hidden'].shape, (2, 8, 8))

    def test_the_initial_scale_of_narrow_tables(self):
        model = changed(build(Bert, vocab=997, layers=1, heads=2, width=64), embedding_width=16, initial=Xavier())
        params = models.init(model)
        self.assertAlmostEqual(params['tokens']['embedding'].std(), 16 ** -0.5, delta=0.01)
        self.assertAlmostEqual(params['embedding_projection']['kernel'].std(), (2 / (16 + 64)) ** 0.5, delta=0.01)

    def test_a_tied_head_that_does_not_project_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'tied to tables of width 3 cannot take states of width 8; set model.'):
            models.init(changed(SMALL, embedding_width=3, head=NextWords()))

    def test_a_width_below_zero_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'embedding_width is -1; set it to the width of the tables'):
            changed(SMALL, embedding_width=-1)

    def test_names(self):
        shapes = jax.eval_shape(lambda: models.init(changed(SMALL, head=Pretraining())))
        self.assertSameElements(shapes, ['tokens', 'types', 'positions', 'embedding_norm', 'block_0', 'block_1', 'transform',
                                         'transform_norm', 'output', 'pooler', 'next_sentence'])


CHANGES = {'vocab': 12, 'embedding_width': 3, 'types': 3, 'length': 16, 'dense_gradient': False, 'dtype': 'bfloat16',
           'parameter_dtype': 'bfloat16', 'head': TokenClasses(classes=3), **models.OF_STACK}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        base = changed(SMALL, dropout=0.2)  # where there is none, it does not matter where it is
        self.assertTrue(program(changed(base, **{field: value})) != program(base))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(Bert) | {*models.OF_STACK}, set(CHANGES))

    def test_a_head_of_no_classes(self):
        with self.assertRaisesRegex(ValueError, 'classes is 0; expected the number of classes'):
            TokenClasses(classes=0)


if __name__ == '__main__':
    absltest.main()
