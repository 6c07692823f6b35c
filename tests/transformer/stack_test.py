import functools

import flax.linen as nn
import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from training.flops import count
from transformer.gpt import Gpt
from transformer.stack import stack
from vit.vit import Vit

KEY = jax.random.key(0)
CHOICES = [dict(scan=scan, remat=remat) for scan in (False, True) for remat in ('none', 'dots', 'full')]
GPT = Gpt(vocab=11, length=8, layers=3, heads=2, width=8, dropout=0.2, bias=False)  # a key's bias has no gradient but rounding
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(2, 8))
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2, 2]])


@functools.cache
def parameters(layers=3):
    return models.init(GPT.clone(layers=layers), TOKENS)


def gradient(model):
    """params -> gradient of a loss with dropout and packed documents."""
    def loss(params):
        return (model.apply({'params': params}, TOKENS, segments=SEGMENTS, key=KEY)['logits'] ** 2).mean()
    return jax.grad(loss)


@functools.cache
def outputs_and_gradients(model):
    """With dropout and packed documents."""
    def loss(params):
        outputs = model.apply({'params': params}, TOKENS, segments=SEGMENTS, key=KEY)
        return (outputs['logits'] ** 2).mean(), outputs
    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(parameters())
    return outputs, gradients


class StackTest(parameterized.TestCase):
    def test_names_its_blocks_and_hands_each_its_cache(self):
        class Probe(nn.Module):
            @nn.compact
            def __call__(self, x, context, *, key, cache):
                weight = self.param('weight', nn.initializers.ones, ())
                return x * weight, cache and cache + 10

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x, cache):
                return stack(Probe, 3, x, cache=cache)

        variables = Model().init(KEY, 1.0, None)
        self.assertEqual(set(variables['params']), {'block_0', 'block_1', 'block_2'})
        weights = {'params': {f'block_{i}': {'weight': w} for i, w in enumerate((2.0, 3.0, 5.0))}}
        self.assertEqual(Model().apply(weights, 1.0, None), (30.0, None))
        _, cache = Model().apply(weights, 1.0, {f'block_{i}': i + 1 for i in range(3)})
        self.assertEqual(cache, {'block_0': 11, 'block_1': 12, 'block_2': 13})

    @parameterized.parameters(CHOICES)
    def test_every_block_has_a_key_of_its_own(self, **choice):
        class Draw(nn.Module):
            @nn.compact
            def __call__(self, x, context, *, key, cache=None):
                place = self.param('place', nn.initializers.zeros_init(), (3,))
                return x + place * jax.random.uniform(key), None

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x, key):
                return stack(Draw, 3, x, key=key, **choice)[0]

        places = {'params': {f'block_{i}': {'place': np.eye(3, dtype=np.float32)[i]} for i in range(3)}}
        drawn = Model().apply(places, np.zeros(3, np.float32), KEY)
        self.assertLen(set(drawn.tolist()), 3)
        np.testing.assert_array_equal(drawn, Model().apply(places, np.zeros(3, np.float32), KEY))

    @parameterized.parameters(CHOICES[1:])
    def test_every_choice_gives_the_same_parameters_outputs_and_gradients(self, **choice):
        model = GPT.clone(**choice)
        jax.tree.map(np.testing.assert_array_equal, model.init(KEY, TOKENS)['params'], parameters())
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
        jax.tree.map(close, outputs_and_gradients(model), outputs_and_gradients(GPT))

    def test_images_too(self):
        model, image = Vit(classes=3, patch=2, layers=2, heads=2, width=8, dropout=0.2), RNG.normal(size=(2, 4, 4, 1))
        params = model.init(KEY, image)['params']
        apply = lambda model: jax.jit(lambda p: model.apply({'params': p}, image, key=KEY)['hidden'])(params)
        np.testing.assert_allclose(apply(model.clone(scan=True, remat='full')), apply(model), rtol=1e-5, atol=1e-6)

    def test_a_scanned_program_does_not_grow_with_depth(self):
        def size(scan, layers):
            jaxpr = jax.make_jaxpr(gradient(GPT.clone(scan=scan, layers=layers)))(parameters(layers))
            return sum(equation.primitive.name in ('dot_general', 'scan', 'jit', 'custom_vjp_call') for equation in jaxpr.eqns)
        self.assertEqual(size(True, 2), size(True, 6))
        self.assertGreater(size(False, 6), 2 * size(False, 2))

    @parameterized.parameters(True, False)
    def test_what_is_not_kept_is_computed_again(self, scan):
        work = {remat: count(gradient(GPT.clone(scan=scan, remat=remat)), parameters()) for remat in ('none', 'dots', 'full')}
        forward = count(lambda p: GPT.apply({'params': p}, TOKENS, key=KEY)['hidden'], parameters())
        last = 3 * 2 * (2 * 8) * 32 * 8  # of a block, the output of the feed-forward: no gradient needs it
        self.assertEqual(work['full'] - work['none'], forward - last)
        attention = 3 * 2 * (2 * 2 * 8 * 8 * 8)  # layers · (scores and mixture) · 2·B·T·T·D
        self.assertEqual(work['dots'] - work['none'], attention)

    def test_less_is_kept_in_memory(self):
        def temporaries(remat):
            model = GPT.clone(layers=8, scan=True, remat=remat, width=64, heads=4)
            shapes = jax.eval_shape(lambda: model.init(KEY, TOKENS)['params'])
            return jax.jit(gradient(model)).lower(shapes).compile().memory_analysis().temp_size_in_bytes
        none, dots, full = map(temporaries, ('none', 'dots', 'full'))
        self.assertLess(full, dots)
        self.assertLess(dots, none)

    @parameterized.parameters(CHOICES[1:])
    def test_attention_is_captured_for_every_choice(self, **choice):
        def captured(model):
            return model.apply({'params': parameters()}, TOKENS, segments=SEGMENTS, mutable=['attention'])
        (outputs, there), (plain, wanted) = captured(GPT.clone(**choice)), captured(GPT)
        self.assertEqual(set(there['attention']), {'block_0', 'block_1', 'block_2'})
        jax.tree.map(np.testing.assert_array_equal, there, wanted)
        jax.tree.map(np.testing.assert_array_equal, outputs, plain)
        weights = wanted['attention']['block_1']['attention']['weights'][0]
        np.testing.assert_allclose(weights.sum(-1), np.broadcast_to((SEGMENTS != 0)[:, None], (2, 2, 8)), atol=1e-6)

    def test_an_unknown_choice_is_refused(self):
        with self.assertRaisesRegex(ValueError, "model.remat is 'some'; expected one of none, dots, full"):
            GPT.clone(remat='some').init(KEY, TOKENS)


if __name__ == '__main__':
    absltest.main()
