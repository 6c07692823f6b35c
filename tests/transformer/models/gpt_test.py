import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import float64, models
from tests.models import apply, build, changed, init, losses, packed_and_apart
from training.config import resolve
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanisms.linear import Linear
from transformer.attention.positions.base import Positions
from transformer.layers.activations import Relu
from transformer.layers.block import Block
from transformer.layers.feed_forward import Mlp
from transformer.layers.heads import NextWords
from transformer.layers.initial import Scaled
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken

SMALL = build(Gpt, vocab=11, length=8, layers=2, heads=2, width=8)
TOKENS = np.random.default_rng(0).integers(11, size=(2, 8))
KEY = jax.random.key(0)
RELU = {'feed_forward.activation': Relu()}
drawn = lambda model: models.drawn(model, TOKENS)
program = functools.cache(lambda model: models.Program(model, TOKENS))


def whole_rows(inputs, targets):
    """A batch of one document in every row."""
    shape = inputs.shape
    return {'inputs': inputs, 'targets': targets, 'weights': np.ones(shape, np.float32), 'segments': np.ones(shape, int),
            'positions': np.broadcast_to(np.arange(shape[1]), shape)}


def loss_equations(model, tokens=TOKENS):
    params = jax.eval_shape(lambda: init(model))
    return list(models.equations(jax.make_jaxpr(lambda p: losses(model, p, whole_rows(tokens, tokens)))(params).jaxpr))


class PrefixTest(parameterized.TestCase):
    """The tokens of a prefix see each other, and no later ones."""

    PREFIX = np.arange(8) < np.array([[5], [3]])

    @parameterized.parameters('Learned()', 'Rotary()', 'T5Bias()', 'Alibi()')
    def test_cached_decoding_equals_the_full_forward(self, positions):
        model = changed(SMALL, positions=resolve.parse(positions, Positions, 'positions'), dtype='float64')
        with jax.enable_x64(True):
            params = float64.drawn(jax.eval_shape(lambda: init(model)))
            whole = apply(model, params, TOKENS, prefix=self.PREFIX)['logits']
            lengths = np.array([[6], [3]])  # the first row goes on behind its prefix
            place = np.arange(6) + np.zeros((2, 1), int)
            out = apply(model, params, TOKENS[:, :6], segments=place < lengths, positions=place, cache=model.init_cache(2),
                        prefix=self.PREFIX[:, :6])
            for row, length in enumerate(lengths[:, 0]):
                np.testing.assert_allclose(out['logits'][row, :length], whole[row, :length], rtol=0, atol=1e-12)
            for at in range(5):
                now = np.minimum(lengths + at, 7)
                out = apply(model, params, np.take_along_axis(TOKENS, now, 1), positions=now, cache=out['cache'])
                np.testing.assert_allclose(out['logits'][:, 0], whole[np.arange(2), now[:, 0]], rtol=0, atol=1e-12)

    def test_what_each_token_sees(self):
        params = drawn(SMALL)
        base = apply(SMALL, params, TOKENS, prefix=self.PREFIX)['logits']
        for changed_at in range(8):
            other = TOKENS.copy()
            other[:, changed_at] = (other[:, changed_at] + 1) % 11
            moved = np.abs(apply(SMALL, params, other, prefix=self.PREFIX)['logits'] - base).max(-1) > 0
            for row, length in enumerate((5, 3)):
                first = 0 if changed_at < length else changed_at
                np.testing.assert_array_equal(moved[row], np.arange(8) >= first)

    def test_without_marks_it_is_causal(self):
        params = drawn(SMALL)
        given = apply(SMALL, params, TOKENS, prefix=np.zeros((2, 8), int))['logits']
        np.testing.assert_array_equal(given, apply(SMALL, params, TOKENS)['logits'])

    def test_packed_pairs_do_not_see_each_other(self):
        params = drawn(SMALL)
        segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0]])
        positions, prefix = np.array([[0, 1, 2, 0, 1, 2, 3, 0]]), np.array([[1, 1, 0, 1, 1, 1, 0, 0]])
        packed = apply(SMALL, params, TOKENS[:1], segments=segments, positions=positions, prefix=prefix)['logits']
        for part in (slice(0, 3), slice(3, 7)):
            alone = apply(SMALL, params, TOKENS[:1, part], prefix=prefix[:, part])['logits']
            np.testing.assert_allclose(packed[:, part], alone, rtol=0, atol=1e-6 * np.abs(alone).max())

    def test_attention_that_cannot_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'cannot leave out single pairs|is not a pattern joined'):
            model = changed(SMALL, attention=Linear())
            apply(model, drawn(model), TOKENS, prefix=self.PREFIX)


class InitialisationTest(parameterized.TestCase):
    # Logits of variance s² add s²/2 to ln V, s² = scale²·width. The shapes and scales of the shipped configs.
    @parameterized.parameters((2048, 128, 0.045), (67, 128, 0.033), (67, 384, 0.016), (8192, 768, 0.02))
    @pytest.mark.slow
    def test_the_first_loss_is_that_of_guessing(self, vocab, width, scale):
        model = build(Gpt, vocab=vocab, width=width, heads=4, layers=2, length=64, initial=Scaled(scale))
        inputs, targets = np.random.default_rng(0).integers(vocab, size=(2, 8, 64))
        outputs = apply(model, init(model), inputs)
        loss, weight = map(float, NextToken().terms(outputs, whole_rows(inputs, targets))['loss'])
        self.assertAlmostEqual(loss / weight / math.log(vocab), 1.0, delta=0.02)

    @pytest.mark.slow
    def test_the_residual_stream_keeps_its_variance_however_many_layers(self):
        # Unscaled, each layer adds as much again; with 1 / sqrt(2 layers) all layers together add what one would.
        def variances(layers, scaled):
            model = build(Gpt, vocab=64, width=64, heads=4, layers=layers, length=8)
            undo = lambda keys, p: p * (2 * layers) ** 0.5 if 'output' in jax.tree_util.keystr(keys) else p
            params = init(model) if scaled else jax.tree_util.tree_map_with_path(undo, init(model))
            tokens = np.random.default_rng(0).integers(64, size=(8, 8))
            _, seen = jax.jit(lambda params: model.apply(
                {'params': params}, tokens, mutable='intermediates',
                capture_intermediates=lambda module, _: isinstance(module, Block)))(params)
            return [float(seen['intermediates'][f'block_{i}']['__call__'][0][0].var()) for i in range(layers)]

        shallow, deep, unscaled = variances(2, True), variances(12, True), variances(12, False)
        self.assertLess(deep[-1] / deep[0], 2.0)
        self.assertAlmostEqual(deep[-1] / shallow[-1], 1.0, delta=0.2)
        self.assertGreater(unscaled[-1] / unscaled[0], 5.0)

    def test_names_and_shapes(self):
        shapes = {jax.tree_util.keystr(keys, simple=True, separator='/'): leaf.shape
                  for keys, leaf in jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: init(SMALL)))}
        block = {'attention/output/bias': (8,), 'attention/output/kernel': (2, 4, 8),
                 'attention_norm/bias': (8,), 'attention_norm/scale': (8,),
                 'feed_forward/input/bias': (32,), 'feed_forward/input/kernel': (8, 32),
                 'feed_forward/output/bias': (8,), 'feed_forward/output/kernel': (32, 8),
                 'feed_forward_norm/bias': (8,), 'feed_forward_norm/scale': (8,)}
        for name in ('query', 'key', 'value'):
            block |= {f'attention/{name}/bias': (2, 4), f'attention/{name}/kernel': (8, 2, 4)}
        wanted = {'tokens/embedding': (11, 8), 'positions/embedding': (8, 8), 'norm/bias': (8,), 'norm/scale': (8,)}
        wanted |= {f'block_{i}/{name}': shape for i in range(2) for name, shape in block.items()}
        self.assertEqual(shapes, wanted)


class ForwardTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ('causal', Causal(), lambda t, s: s <= t),
        # two layers of a window of 2 reach two tokens back
        ('window', Causal() & Window(2), lambda t, s: (s <= t) & (t - s <= 2)))
    def test_a_changed_token_moves_only_what_may_see_it(self, mask, reached):
        model = changed(SMALL, mask=mask)
        params = drawn(model)
        tokens = np.broadcast_to(TOKENS[:1], (9, 8)).copy()
        tokens[range(8), range(8)] = (tokens[range(8), range(8)] + 1) % 11  # row s differs from row 8 at token s
        logits = np.asarray(apply(model, params, tokens)['logits'])
        moved = np.abs(logits[:8] - logits[8]).max(-1) > 1e-6  # [s, t]
        s, t = np.indices((8, 8))
        np.testing.assert_array_equal(moved, reached(t, s))

    def test_packed_rows_equal_unpacked_rows(self):
        params, (packed, rows) = drawn(SMALL), packed_and_apart(vocab=11, seed=1)
        together, apart = losses(SMALL, params, packed), losses(SMALL, params, rows)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), together, apart)
        self.assertEqual(float(together[0]['loss'][1]), 7.0)
        # able to fail: without segments the second document sees the first
        mixed = losses(SMALL, params, packed | {'segments': np.ones((1, 8), int)})
        self.assertGreater(abs(float(mixed[0]['loss'][0] - apart[0]['loss'][0])), 1e-2)

    def test_cached_decoding_equals_the_full_forward_for_prompts_of_different_lengths(self):
        params, lengths = drawn(SMALL), np.array([5, 2])
        whole = np.asarray(apply(SMALL, params, TOKENS)['logits'])
        prompts = np.where(np.arange(5) < lengths[:, None], TOKENS[:, :5], 0)
        positions = np.broadcast_to(np.arange(5), (2, 5))
        out = apply(SMALL, params, prompts, positions=positions, cache=SMALL.init_cache(2))
        for row, n in enumerate(lengths):
            np.testing.assert_allclose(out['logits'][row, :n], whole[row, :n], atol=2e-6)
        for t in range(3):
            at = (lengths + t)[:, None]
            out = apply(SMALL, params, np.take_along_axis(TOKENS, at, 1), positions=at, cache=out['cache'])
            np.testing.assert_allclose(out['logits'][:, 0], np.take_along_axis(whole, at[..., None], 1)[:, 0], atol=2e-6)

    def test_states_that_run_along_take_up_no_padding_behind_a_prompt(self):
        model, lengths = changed(SMALL, attention=Linear(), layers=1), np.array([4, 2])
        params, positions = drawn(model), np.broadcast_to(np.arange(4), (2, 4))
        whole, there = apply(model, params, TOKENS)['logits'], positions < lengths[:, None]
        out = apply(model, params, np.where(there, TOKENS[:, :4], 7), positions=positions, segments=there.astype(int),
                    cache=model.init_cache(2))
        at = lengths[:, None]
        out = apply(model, params, np.take_along_axis(TOKENS, at, 1), positions=at, cache=out['cache'])
        np.testing.assert_allclose(out['logits'][:, 0], np.take_along_axis(whole, at[..., None], 1)[:, 0], atol=1e-5)

    def test_dropout_acts_only_with_a_key_and_depends_on_it_alone(self):
        params, model = drawn(SMALL), changed(SMALL, dropout=0.5, layers=1)
        logits = lambda model, **more: np.asarray(apply(model, params, TOKENS, **more)['logits'])
        np.testing.assert_array_equal(logits(model), logits(changed(model, dropout=0.0)))
        np.testing.assert_array_equal(logits(model, key=KEY), logits(model, key=KEY))
        self.assertGreater(np.abs(logits(model, key=KEY) - logits(model)).max(), 1e-2)
        self.assertGreater(np.abs(logits(model, key=KEY) - logits(model, key=jax.random.key(1))).max(), 1e-2)

    def test_hidden_states_project_onto_the_tied_embedding(self):
        params = drawn(SMALL)
        outputs = apply(SMALL, params, TOKENS)
        wanted = np.asarray(outputs['hidden']) @ params['tokens']['embedding'].T
        np.testing.assert_allclose(outputs['logits'], wanted, atol=1e-5)

    def test_a_row_longer_than_the_position_table_is_refused(self):
        with self.assertRaisesRegex(ValueError, '9 tokens is longer than the 8 that this model takes'):
            jax.eval_shape(lambda: SMALL.init(KEY, jnp.zeros((1, 9), jnp.int32)))

    def test_a_mask_that_shows_what_is_to_be_predicted_is_refused(self):
        for mask in (Full(), Window(3), Causal() | Window(3), ~Causal()):
            with self.assertRaisesRegex(ValueError, 'lets a token see later ones'):
                jax.eval_shape(lambda mask=mask: changed(SMALL, mask=mask).init(KEY, TOKENS))

    def test_heads_that_do_not_divide_the_width_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'width 8 is not divisible by 3 heads'):
            jax.eval_shape(lambda: changed(SMALL, heads=3).init(KEY, TOKENS))


class NumbersTest(parameterized.TestCase):
    def test_float32_products_are_of_highest_precision_in_the_backward_pass_too(self):
        products = [e for e in loss_equations(SMALL) if e.primitive.name == 'dot_general']
        self.assertGreater(len(products), 3 * (2 * 6 + 1) - 2)  # forward and both gradients of every product
        for equation in products:
            self.assertEqual(set(equation.params['precision']), {jax.lax.Precision.HIGHEST}, equation)

    def test_bfloat16_keeps_parameters_softmax_norms_and_loss_in_float32(self):
        model = changed(SMALL, dtype='bfloat16', **RELU)  # the gradient of gelu has an exponential of its own
        params = drawn(model)
        self.assertEqual({p.dtype for p in jax.tree.leaves(params)}, {jnp.dtype('float32')})
        found = loss_equations(model)
        for name, wanted in (('dot_general', 'bfloat16'), ('exp', 'float32'), ('rsqrt', 'float32'), ('log', 'float32')):
            types = {str(v.aval.dtype) for e in found if e.primitive.name == name for v in e.invars}
            self.assertEqual(types, {wanted}, name)
        terms, gradient = losses(model, params, whole_rows(TOKENS, TOKENS))
        self.assertEqual(terms['loss'][0].dtype, jnp.float32)
        self.assertEqual({g.dtype for g in jax.tree.leaves(gradient)}, {jnp.dtype('float32')})
        exact = apply(changed(SMALL, **RELU), params, TOKENS)
        exact = NextToken().terms(exact, whole_rows(TOKENS, TOKENS))['loss']
        np.testing.assert_allclose(terms['loss'][0], exact[0], rtol=2e-2)
        self.assertEqual(apply(model, params, TOKENS)['logits'].dtype, jnp.bfloat16)
        self.assertEqual(model.init_cache(1)['block_0']['key'].dtype, jnp.bfloat16)


CHANGES = {'vocab': 12, 'length': 16, 'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16',
           'head': NextWords(tied=False), **models.CHANGES}


class DropoutTest(parameterized.TestCase):
    def test_embedding_attention_weights_and_both_branches_of_each_layer_have_masks_of_their_own(self):
        keys = models.dropout_keys(changed(SMALL, layers=2, dropout=0.1), TOKENS)
        self.assertLen(keys, 1 + 3 * 2)
        self.assertLen(set(keys), len(keys))

    def test_it_may_also_be_within_the_feed_forward_and_after_the_last_norm(self):
        model = changed(SMALL, layers=2, dropout=0.1, last_dropout=-1.0, feed_forward=Mlp(dropout=0.1))
        keys = models.dropout_keys(model, TOKENS)
        self.assertLen(keys, 1 + 4 * 2 + 1)
        self.assertLen(set(keys), len(keys))


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        base = changed(SMALL, dropout=0.2)  # where there is none, it does not matter where it is
        if field == 'constant_drop_path':  # a single block has none otherwise; of two, rates that differ are no other program
            base = changed(base, layers=1, drop_path=0.1)
        self.assertTrue(program(changed(base, **{field: value})) != program(base))

    def test_the_same_model_is_the_same_program(self):
        self.assertTrue(program.__wrapped__(SMALL) == program(SMALL))

    def test_every_field_is_tried(self):
        self.assertEqual(models.field_names(Gpt), set(CHANGES))


if __name__ == '__main__':
    absltest.main()
