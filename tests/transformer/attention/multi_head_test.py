import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.attention import multi_head
from transformer.attention.context import Context
from transformer.attention.kernels.attend import attend, masked_softmax
from transformer.attention.masks.data import Padding
from transformer.attention.masks.patterns import Causal, Random
from transformer.attention.mechanism import Softmax
from transformer.attention.mechanisms.alternatives import Convolution
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions.absolute import Sinusoidal, sinusoid
from transformer.attention.positions.base import Encoding, Sizes
from transformer.attention.positions.rotary import Rotary
from transformer.attention.scores import Bilinear
from transformer.layers.numerics import Numerics

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 8)).astype(np.float32), RNG.normal(size=(2, 5, 8)).astype(np.float32)
HALF = nn.initializers.normal(0.5)
LAYER = MultiHead(4, kernel_init=HALF, value_init=HALF, output_init=HALF)


def drawn(layer):
    """Parameters from numpy, biases included; nothing to compile."""
    shapes = jax.eval_shape(lambda: layer.init(KEY, X))['params']
    return jax.tree.map(lambda s: (0.5 * RNG.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0, static_argnames='capture')
def apply(layer, params, *sources, key=None, cache=None, projected=None, head_mask=None, **context):
    """(output, cache, what is captured), in the `Context` of the other keywords."""
    return layer.apply({'params': params}, *sources, context=Context(**context), key=key, cache=cache, projected=projected,
                       head_mask=head_mask)


class MultiHeadTest(parameterized.TestCase):
    def test_equals_the_formula_for_two_sources(self):
        params = drawn(LAYER)
        project = lambda name, x: np.einsum('btd,dnh->btnh', x, params[name]['kernel']) + params[name]['bias']
        mixed = np.asarray(attend(project('query', X), project('key', Y), project('value', Y)))
        wanted = np.einsum('btnh,nhd->btd', mixed, params['output']['kernel']) + params['output']['bias']
        got, projected, _ = apply(LAYER, params, X, Y)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        self.assertEqual(set(projected), {'key', 'value'})
        for name, kept in projected.items():
            axes = (0, 2, 1, 3) if name == 'key' else (0, 2, 3, 1)
            np.testing.assert_allclose(kept, project(name, Y).transpose(axes), atol=1e-5)
        self.assertIsNone(apply(LAYER, params, X)[1])

    def test_what_was_projected_serves_further_queries_and_several_rows_for_each_of_its_own(self):
        params = drawn(LAYER)
        whole, projected, _ = apply(LAYER, params, X, Y)
        again, same, _ = apply(LAYER, params, X, projected=projected)
        np.testing.assert_allclose(again, whole, atol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, same, projected)
        rows = np.concatenate([X, X[:, ::-1]], 1).reshape(4, 3, 8)  # two for each source
        wanted = apply(LAYER, params, rows, np.repeat(Y, 2, 0), mask=Padding(np.array([5, 5, 2, 2])))[0]
        got = apply(LAYER, params, rows, projected=projected, mask=Padding(np.array([5, 2])))[0]
        np.testing.assert_allclose(got, wanted, atol=1e-6)

    def test_without_a_second_source_it_attends_to_itself(self):
        params = drawn(LAYER)
        np.testing.assert_allclose(apply(LAYER, params, X)[0], apply(LAYER, params, X, X)[0], atol=1e-6)

    @parameterized.parameters('cpu', 'tpu')
    def test_on_a_tpu_projections_are_not_joined(self, platform):
        params = drawn(LAYER)
        forward = lambda params: LAYER.apply({'params': params}, X, context=Context())[0]
        wanted = jax.jit(forward)(params)
        with mock.patch.object(multi_head, 'platform', lambda: platform):
            traced = jax.jit(lambda params: forward(params)).trace(params)
        np.testing.assert_allclose(traced.lower().compile()(params), wanted, atol=1e-5)
        self.assertEqual('concatenate' in str(traced.jaxpr), platform == 'cpu')

    @parameterized.product(bias=(True, False), output_bias=(True, False))
    def test_parameters(self, bias, output_bias):
        layer = LAYER.clone(bias=bias, output_bias=output_bias)
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(lambda: layer.init(KEY, X))['params'])
        one = {'kernel': (8, 4, 2)} | ({'bias': (4, 2)} if bias else {})
        out = {'kernel': (4, 2, 8)} | ({'bias': (8,)} if output_bias else {})
        self.assertEqual(shapes, {'query': one, 'key': one, 'value': one, 'output': out})
        zeros = {'query': (4, 2), 'key': (4, 2), 'value': (4, 2), 'output': (8,)}
        params = drawn(layer)
        whole = {name: {'bias': np.zeros(shape, np.float32)} | params[name] for name, shape in zeros.items()}
        np.testing.assert_allclose(apply(layer, params, X)[0], apply(LAYER, whole, X)[0], atol=1e-6)

    @parameterized.parameters('value', 'output')
    def test_values_and_the_output_have_initialisers_of_their_own(self, own):
        layer = LAYER.clone(**{f'{own}_init': nn.initializers.ones})
        kernels = {name: part['kernel'] for name, part in jax.jit(layer.init)(KEY, X)['params'].items()}
        np.testing.assert_array_equal(kernels.pop(own), 1.0)
        for name in kernels:
            self.assertAlmostEqual(float(kernels[name].std()), 0.5, delta=0.1)

    def test_a_key_switches_dropout_of_the_weights_on(self):
        layer = LAYER.clone(dropout=0.5)
        params = drawn(layer)
        mixed = lambda layer, key: np.asarray(apply(layer, params, X, key=key)[0])
        np.testing.assert_array_equal(mixed(layer, None), mixed(LAYER, None))
        np.testing.assert_array_equal(mixed(layer, KEY), mixed(layer, KEY))
        self.assertGreater(np.abs(mixed(layer, KEY) - mixed(layer, None)).max(), 1e-2)

    @parameterized.parameters('float32', 'bfloat16')
    def test_one_token_at_a_time_through_the_cache_equals_the_whole(self, dtype):
        layer = LAYER.clone(numerics=Numerics(dtype))
        params = drawn(layer)
        whole = apply(layer, params, Y, mask=Causal())[0]
        cache = Softmax().empty_cache(2, 7, 4, 4, 2, dtype)
        for t in range(5):
            at = np.full((2, 1), t)
            one, cache, _ = apply(layer, params, Y[:, t:t + 1], mask=Causal(), cache=cache, positions=at)
            np.testing.assert_allclose(np.asarray(one[:, 0], np.float32), np.asarray(whole[:, t], np.float32),
                                       atol=1e-5 if dtype == 'float32' else 0.01)  # one bit of bfloat16
        self.assertEqual(cache['key'].dtype, dtype)
        np.testing.assert_array_equal(cache['value'][..., 5:], np.zeros((2, 4, 2, 2)))

    def test_captured_weights_equal_the_formula(self):
        params = drawn(LAYER)
        out, _, captured = apply(LAYER, params, X, mask=Causal(), capture=('attention',))
        query, key = (np.einsum('btd,dnh->btnh', X, params[n]['kernel']) + params[n]['bias'] for n in ('query', 'key'))
        scores = np.einsum('btnh,bsnh->bnts', query, key) / 2 ** 0.5
        wanted = np.exp(scores) * np.tri(3)
        wanted /= wanted.sum(-1, keepdims=True)
        self.assertEqual(set(captured), {'weights'})
        np.testing.assert_allclose(captured['weights'], wanted, atol=1e-6)
        np.testing.assert_allclose(out, apply(LAYER, params, X, mask=Causal())[0], atol=1e-6)

    def test_captured_scores_and_their_mask(self):
        params = drawn(LAYER)
        found = apply(LAYER, params, X, mask=Causal(), capture=('attention', 'scores', 'visible'))[2]
        query, key = (np.einsum('btd,dnh->btnh', X, params[n]['kernel']) + params[n]['bias'] for n in ('query', 'key'))
        np.testing.assert_allclose(found['scores'], np.einsum('btnh,bsnh->bnts', query, key) / 2 ** 0.5, atol=1e-5)
        np.testing.assert_array_equal(found['visible'], np.broadcast_to(np.tri(3, dtype=bool), (2, 4, 3, 3)))
        np.testing.assert_array_equal(found['weights'], masked_softmax(found['scores'], found['visible']))
        self.assertEqual(set(apply(LAYER, params, X, capture=('scores',))[2]), {'scores'})
        for mechanism in (Softmax(score=Bilinear()), Synthesizer(kind='dense')):
            other = MultiHead(4, mechanism=mechanism, kernel_init=HALF)
            found = apply(other, drawn(other), X, mask=Causal(), capture=('attention', 'scores', 'visible'))[2]
            self.assertGreater(np.ptp(found['scores']), 0.1)
            np.testing.assert_array_equal(found['weights'], masked_softmax(found['scores'], found['visible']))
        other = MultiHead(4, mechanism=Convolution())
        self.assertEqual(apply(other, drawn(other), X, mask=Causal(), capture=('scores', 'visible'))[2], {})

    def test_weights_are_captured_only_when_asked_for(self):
        self.assertEqual(set(jax.eval_shape(lambda: LAYER.init(KEY, X))), {'params', 'roles'})
        params = drawn(LAYER)
        self.assertEqual(apply(LAYER, params, X)[2], {})
        program = lambda **context: jax.make_jaxpr(
            lambda p: LAYER.apply({'params': p}, X, context=Context(**context))[0])(params)
        with mock.patch.object(Softmax, 'weights', side_effect=AssertionError):
            self.assertEqual(str(program(capture=('something',))), str(program()))
            with self.assertRaises(AssertionError):
                program(capture=('attention',))

    def test_captured_weights_of_rows_that_share_a_source(self):
        params = drawn(LAYER)
        _, projected, _ = apply(LAYER, params, X, Y)
        rows, mask = np.concatenate([X, X[:, ::-1]], 1).reshape(4, 3, 8), lambda *lengths: Padding(np.array(lengths))
        wanted = apply(LAYER, params, rows, np.repeat(Y, 2, 0), mask=mask(5, 5, 2, 2), capture=('attention',))[2]['weights']
        got = apply(LAYER, params, rows, projected=projected, mask=mask(5, 2), capture=('attention',))[2]['weights']
        np.testing.assert_allclose(got, wanted, atol=1e-6)

    @parameterized.parameters('plain', 'blockwise')
    def test_captured_weights_are_those_of_the_kernel(self, implementation):
        layer = LAYER.clone(mechanism=Softmax(implementation=implementation), key_heads=2)
        params = drawn(layer)
        out, _, captured = apply(layer, params, X, mask=Causal(), capture=('attention',))
        weights = np.asarray(captured['weights'])
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
        self.assertFalse(np.any(weights * (1 - np.tri(3))))
        value = np.einsum('btd,dkh->btkh', X, params['value']['kernel']) + params['value']['bias']
        mixed = np.einsum('bnts,bsnh->btnh', weights, value.repeat(2, 2))
        wanted = np.einsum('btnh,nhd->btd', mixed, params['output']['kernel']) + params['output']['bias']
        np.testing.assert_allclose(out, wanted, atol=1e-5)

    @parameterized.parameters(1, 2)
    def test_query_heads_share_keys_and_values(self, key_heads):
        layer = LAYER.clone(key_heads=key_heads)
        params = drawn(layer)
        shapes = jax.tree.map(jnp.shape, params)
        self.assertEqual((shapes['query']['kernel'], shapes['key']['kernel']), ((8, 4, 2), (8, key_heads, 2)))
        repeated = {name: jax.tree.map(lambda x: np.repeat(x, 4 // key_heads, -2), part) if name in ('key', 'value') else part
                    for name, part in params.items()}
        np.testing.assert_allclose(apply(layer, params, X)[0], apply(LAYER, repeated, X)[0], atol=1e-6)
        cache = Softmax().empty_cache(2, 3, 4, key_heads, 2, 'float32')
        at = np.broadcast_to(np.arange(3), (2, 3))
        cached, cache, _ = apply(layer, params, X, mask=Causal(), cache=cache, positions=at)
        np.testing.assert_allclose(cached, apply(layer, params, X, mask=Causal())[0], atol=1e-6)
        self.assertEqual(cache['key'].shape, (2, key_heads, 3, 2))

    def test_three_sources_and_widths_of_their_own(self):
        layer = LAYER.clone(head_width=3, value_width=5)
        y, z = RNG.normal(size=(2, 5, 6)).astype(np.float32), RNG.normal(size=(2, 5, 7)).astype(np.float32)
        shapes = jax.eval_shape(lambda: layer.init(KEY, X, y, z))
        params = jax.tree.map(lambda s: (0.5 * RNG.normal(size=s.shape)).astype(np.float32), shapes)['params']
        self.assertEqual({name: params[name]['kernel'].shape for name in params},
                         {'query': (8, 4, 3), 'key': (6, 4, 3), 'value': (7, 4, 5), 'output': (4, 5, 8)})
        project = lambda name, x: np.einsum('btd,dnh->btnh', x, params[name]['kernel']) + params[name]['bias']
        mixed = np.asarray(attend(project('query', X), project('key', y), project('value', z)))
        wanted = np.einsum('btnh,nhd->btd', mixed, params['output']['kernel']) + params['output']['bias']
        np.testing.assert_allclose(apply(layer, params, X, y, z)[0], wanted, atol=1e-5)

    def test_positions_of_two_sources_are_their_own(self):
        params = drawn(LAYER)
        sizes = Sizes(8, 8, 4, 2)
        query, key = np.array([[4, 1, 6], [0, 2, 3]]), np.arange(2, 7)
        encoded = lambda kind: apply(LAYER, params, X, Y, encoding=Encoding(kind, {}, query, key, sizes))[0]
        added = apply(LAYER, params, X + sinusoid(query, 8), Y + sinusoid(key, 8), Y)[0]
        np.testing.assert_allclose(encoded(Sinusoidal(at='queries_keys')), added, atol=1e-5)

        project = lambda name, x: np.einsum('btd,dnh->btnh', x, params[name]['kernel']) + params[name]['bias']
        turned = lambda x, where: Rotary().at_heads({}, {}, x, where)
        mixed = np.asarray(attend(turned(project('query', X), query), turned(project('key', Y), key), project('value', Y)))
        wanted = np.einsum('btnh,nhd->btd', mixed, params['output']['kernel']) + params['output']['bias']
        np.testing.assert_allclose(encoded(Rotary()), wanted, atol=1e-5)

    def test_a_head_mask_scales_what_a_head_gives(self):
        params = drawn(LAYER)
        mask = np.array([1.0, 0.0, 0.5, 2.0], np.float32)
        scaled = params | {'output': params['output'] | {'kernel': params['output']['kernel'] * mask[:, None, None]}}
        got = apply(LAYER, params, X, head_mask=mask)[0]
        np.testing.assert_allclose(got, apply(LAYER, scaled, X)[0], atol=1e-6)

    def test_key_heads_that_do_not_divide_the_heads_are_refused(self):
        with self.assertRaisesRegex(ValueError, '4 query heads cannot share 3 heads'):
            jax.eval_shape(lambda: LAYER.clone(key_heads=3).init(KEY, X))

    def test_heads_that_do_not_divide_the_width_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'width 8 is not divisible by 3 heads'):
            jax.eval_shape(lambda: MultiHead(3).init(KEY, X))

    def test_keys_of_another_width_than_queries(self):
        layer = MultiHead(2, head_width=3, key_width=5, mechanism=Softmax(score=Bilinear()))
        x = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)
        out, params = layer.init_with_output(jax.random.key(0), x)
        self.assertEqual(out[0].shape, x.shape)
        self.assertEqual(params['params']['mechanism']['kernel'].shape, (2, 3, 5))
        with self.assertRaisesRegex(ValueError, 'Queries are 3 wide and keys 5.*use the score Bilinear'):
            MultiHead(2, head_width=3, key_width=5).init(jax.random.key(0), x)

    @parameterized.parameters(
        (dict(heads=2, key_heads=-1), {}, '2 query heads cannot share -1 heads'),
        (dict(heads=2), dict(y=np.ones((1, 3, 6)), cache={}), 'A cache is for attention of'),
        (dict(heads=2, mechanism=Convolution()), dict(z=np.ones((1, 7, 6))), 'mixes one sequence with itself'),
        (dict(heads=2), dict(context=Context(Random(1, 1, 3))), 'rows of up to 3 positions, but this one has 4'))
    def test_refused(self, fields, given, message):
        with self.assertRaisesRegex(ValueError, message):
            MultiHead(**fields).init(jax.random.key(0), np.ones((1, 4, 6)), **given)


if __name__ == '__main__':
    absltest.main()
