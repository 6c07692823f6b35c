import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from configs import base
from training.mesh import first_match
from transformer.block import Block
from transformer.gpt import Gpt
from transformer.layers import LayerNorm
from transformer.residual import NoNorm, PostNorm, PreNorm, ReZero
from vit.vit import Vit

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
RESIDUALS = (PreNorm(), PostNorm(), ReZero(), NoNorm())
GPT = Gpt(vocab=11, length=8, layers=2, heads=2, width=8, dropout=0.2, bias=False)  # a key's bias has no gradient but rounding
TOKENS = RNG.integers(11, size=(2, 8))


class Attention(nn.Module):
    """Stands for attention: sin, and a cache that counts."""

    def __call__(self, x, *, mask, encoding, key, cache, positions, head_mask):
        return jnp.sin(x), cache and {'seen': cache['seen'] + 1}


class Square(nn.Module):
    def __call__(self, x, *, key=None):
        return x * x


def drawn(model, *inputs):
    """Parameters from numpy, none of them 0; nothing to compile."""
    shapes = jax.eval_shape(lambda: model.init(KEY, *inputs)).get('params', {})
    return jax.tree.map(lambda s: (0.4 * RNG.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, inputs, **more):
    return model.apply({'params': params}, inputs, **more)


@functools.partial(jax.jit, static_argnums=0)
def gradient(model, params):
    return jax.grad(lambda p: (model.apply({'params': p}, TOKENS, key=KEY)['logits'] ** 2).mean())(params)


class FormulaTest(parameterized.TestCase):
    @parameterized.parameters(*RESIDUALS)
    def test_equals_a_loop_in_float64(self, residual):
        block = Block(Attention, Square, LayerNorm, residual)
        x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
        params = drawn(block, x)
        y, cache = block.apply({'params': params}, x, cache={'seen': 0})

        def norm(row, name):
            scale, bias = (np.float64(params[f'{name}_norm'][part]) for part in ('scale', 'bias'))
            return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * scale + bias

        for index in np.ndindex(2, 3):
            row = np.float64(x[index])
            for name, f in (('attention', np.sin), ('feed_forward', np.square)):
                match residual:
                    case PreNorm():
                        row = row + f(norm(row, name))
                    case PostNorm():
                        row = norm(row + f(row), name)
                    case ReZero():
                        row = row + np.float64(params[f'{name}_residual']['scale']) * f(row)
                    case NoNorm():
                        row = row + f(row)
            np.testing.assert_allclose(y[index], row, rtol=1e-4, atol=1e-5)
        self.assertEqual(cache, {'seen': 1})

    @parameterized.parameters(
        (PreNorm(), {'attention_norm/scale', 'feed_forward_norm/scale'}, True),
        (PostNorm(), {'attention_norm/scale', 'feed_forward_norm/scale'}, False),
        (ReZero(), {'attention_residual/scale', 'feed_forward_residual/scale'}, False), (NoNorm(), set(), False))
    def test_names_of_the_parameters(self, residual, names, final):
        params = drawn(GPT.clone(residual=residual), TOKENS)
        found = {f'{module}/{name}' for module, part in params['block_1'].items() for name in part
                 if module not in ('attention', 'feed_forward')}
        self.assertEqual(found, names)
        self.assertEqual('norm' in params, final)
        image = np.zeros((1, 4, 4, 1), np.float32)
        model = Vit(classes=3, patch=2, layers=1, heads=2, width=8, residual=residual)
        self.assertEqual('norm' in jax.eval_shape(lambda: model.init(KEY, image)['params']), final)

    def test_rules_know_the_learnt_number(self):
        name = 'block_2/attention_residual/scale'
        self.assertEqual(first_match(base.DECAY, name, 'rules'), 0.0)
        self.assertEqual(first_match(base.SHARDING, name, 'rules'), ())
        self.assertEqual(first_match(base.MATRICES, name, 'rules'), ())


class StackTest(parameterized.TestCase):
    @parameterized.parameters(*RESIDUALS[1:])
    def test_scanned_and_computed_again_it_is_the_same(self, residual):
        plain = GPT.clone(residual=residual)
        model, params = plain.clone(scan=True, remat='full'), drawn(plain, TOKENS)
        close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
        jax.tree.map(close, gradient(model, params), gradient(plain, params))

    @parameterized.parameters(*RESIDUALS[1:])
    def test_one_token_at_a_time_equals_the_whole(self, residual):
        model = GPT.clone(residual=residual)
        params, cache = drawn(model, TOKENS), model.init_cache(2)
        whole = apply(model, params, TOKENS)['logits']
        for t in range(8):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=np.full((2, 1), t), cache=cache)
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], rtol=1e-4, atol=5e-4)
            cache = out['cache']

    def test_rezero_is_the_identity_at_the_start_and_learns(self):
        model = GPT.clone(residual=ReZero(), dropout=0.0)
        params = jax.jit(model.init)(KEY, TOKENS)['params']
        embedded = params['tokens']['embedding'][TOKENS] + params['positions']['embedding'][:8]
        np.testing.assert_array_equal(apply(model, params, TOKENS)['hidden'], embedded)
        moves = gradient(model, params)['block_1']  # the branches themselves have none before their number has moved
        self.assertNotEqual(float(moves['attention_residual']['scale']), 0.0)
        self.assertEqual(float(np.abs(moves['attention']['query']['kernel']).max()), 0.0)

    @parameterized.parameters(
        GPT, Vit(classes=3, patch=2, layers=2, heads=2, width=8))
    def test_post_norm_ends_with_mean_0_and_variance_1(self, model):
        inputs = TOKENS if isinstance(model, Gpt) else RNG.normal(size=(2, 4, 4, 1)).astype(np.float32)
        model = model.clone(residual=PostNorm())
        hidden = np.float64(apply(model, jax.jit(model.init)(KEY, inputs)['params'], inputs)['hidden'])
        np.testing.assert_allclose(hidden.mean(-1), 0.0, atol=1e-5)
        np.testing.assert_allclose(hidden.var(-1), 1.0, atol=0.03)  # an epsilon of 1e-5 below what is small at the start

    def test_bfloat16_stays_bfloat16(self):
        for residual in RESIDUALS:
            model = GPT.clone(residual=residual, dtype='bfloat16')
            outputs = jax.eval_shape(lambda model=model: model.init_with_output(KEY, TOKENS))[0]
            self.assertEqual((outputs['hidden'].dtype, outputs['logits'].dtype), ('bfloat16', 'bfloat16'))


if __name__ == '__main__':
    absltest.main()
