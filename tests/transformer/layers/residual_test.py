import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests import models
from tests.models import apply, build, changed, drawn
from training import roles
from transformer.attention.context import Context, Source
from transformer.attention.masks.patterns import Causal
from transformer.attention.multi_head import MultiHead
from transformer.layers.block import Block
from transformer.layers.feed_forward import FeedForwardLayer, Mlp
from transformer.layers.norm import LayerNorm, RMSNorm
from transformer.layers.numerics import Numerics
from transformer.layers.residual import Admin, LayerScale, NoNorm, ParallelBranches, PostNorm, PreNorm, ReZero, Sandwich
from transformer.models.gpt import Gpt
from vit.models.vit import Vit

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
RESIDUALS = (PreNorm(), PostNorm(), ReZero(), NoNorm(), Sandwich(), ParallelBranches(), ParallelBranches(norms=2),
             LayerScale(0.5), Admin(0.3))
# Without biases, as a key's has no gradient but rounding.
GPT = build(Gpt, vocab=11, length=8, layers=2, heads=2, width=8, dropout=0.2, **models.NO_BIASES)
TOKENS = RNG.integers(11, size=(2, 8))
BOTH = {'attention', 'feed_forward'}


class Attention(nn.Module):
    """Stands for attention: sin, and a cache that counts."""

    def __call__(self, x, *, context, key, cache, head_mask):
        return jnp.sin(x), cache and {'seen': cache['seen'] + 1}, {}


class Cross(nn.Module):
    """Stands for attention to a source: cos."""

    def __call__(self, x, *given, **others):
        return jnp.cos(x), None, {}


class Square(nn.Module):
    def __call__(self, x, *, key=None):
        return x * x, {}


@partial(jax.jit, static_argnums=0)
def gradient(model, params):
    return jax.grad(lambda p: (model.apply({'params': p}, TOKENS, key=KEY)['logits'] ** 2).mean())(params)


def joined(residual, params, row, branches, norm, factors=None):
    """What a residual makes of one position: `norm(row, name)`, f of each branch by name, and factors of what each adds."""
    kept = lambda name: 1.0 if factors is None else factors[name]
    match residual:
        case PreNorm():
            for name, f in branches.items():
                row = row + kept(name) * f(norm(row, f'{name}_norm'))
        case PostNorm():
            for name, f in branches.items():
                row = norm(row + kept(name) * f(row), f'{name}_norm')
        case Sandwich():
            for name, f in branches.items():
                row = row + kept(name) * norm(f(norm(row, f'{name}_norm')), f'{name}_last_norm')
        case ParallelBranches(norms=1):
            normal = norm(row, 'norm')
            row = row + sum(kept(name) * f(normal) for name, f in branches.items())
        case ParallelBranches(norms=2):
            row = row + sum(kept(name) * f(norm(row, f'{name}_norm')) for name, f in branches.items())
        case ReZero():
            for name, f in branches.items():
                row = row + kept(name) * np.float64(params[f'{name}_residual']['scale']) * f(row)
        case LayerScale():
            for name, f in branches.items():
                scale = np.float64(params[f'{name}_scale']['scale'])
                row = row + kept(name) * scale * f(norm(row, f'{name}_norm'))
        case Admin():
            for name, f in branches.items():
                row = norm(np.float64(params[f'{name}_residual']['scale']) * row + kept(name) * f(row), f'{name}_norm')
        case NoNorm():
            for name, f in branches.items():
                row = row + kept(name) * f(row)
    return row


class FormulaTest(parameterized.TestCase):
    @parameterized.product(residual=RESIDUALS, kind=[LayerNorm(), RMSNorm()], cross=[False, True])
    def test_equals_a_loop_in_float64(self, residual, kind, cross):
        branches = {'attention': np.sin} | ({'cross_attention': np.cos} if cross else {}) | {'feed_forward': np.square}
        block = Block(Attention, Square, Cross if cross else None, kind, residual)
        x, context = RNG.normal(size=(2, 3, 4)).astype(np.float32), Context(source=Source(None))
        shapes = jax.eval_shape(lambda: block.init(KEY, x, context)).get('params', {})
        params = jax.tree.map(lambda s: (0.4 * RNG.normal(size=s.shape)).astype(np.float32), shapes)
        y, cache, _ = block.apply({'params': params}, x, context, cache={'seen': 0})

        def norm(row, name):
            part = {key: np.float64(value) for key, value in params[name].items()}
            if isinstance(kind, RMSNorm):
                return row / np.sqrt(np.square(row).mean() + 1e-6) * part['scale']
            return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * part['scale'] + part['bias']

        for index in np.ndindex(2, 3):
            wanted = joined(residual, params, np.float64(x[index]), branches, norm)
            np.testing.assert_allclose(y[index], wanted, rtol=2e-4, atol=1e-5)
        self.assertEqual(cache, {'seen': 1} | ({'source': None} if cross else {}))

    @parameterized.parameters(*RESIDUALS)
    def test_drop_path_leaves_out_what_a_branch_adds_and_makes_up_for_it(self, residual):
        with jax.enable_x64(True):
            names, rate = ('attention', 'cross_attention', 'feed_forward'), 0.6
            branches = dict(zip(names, (np.sin, np.cos, np.square)))
            block = Block(Attention, Square, Cross, RMSNorm(), residual, numerics=Numerics('float64', True, 'float64'))
            x, context = RNG.normal(size=(12, 1, 4)), Context(source=Source(None))
            shapes = jax.eval_shape(lambda: block.init(KEY, x, context)).get('params', {})
            params = jax.tree.map(lambda s: 0.4 * RNG.normal(size=s.shape), shapes)
            found = np.asarray(block.apply({'params': params}, x, context, key=KEY, path_rate=rate)[0])
            norm = lambda row, name: row / np.sqrt(np.square(row).mean() + 1e-6) * params[name]['scale']
            seen = []
            for given, y in zip(x[:, 0], found[:, 0]):
                wanted = {kept: joined(residual, params, given, branches, norm, dict(zip(names, np.array(kept) / (1 - rate))))
                          for kept in itertools.product((0, 1), repeat=3)}
                close = [kept for kept, value in wanted.items() if np.allclose(y, value, rtol=1e-10, atol=0)]
                self.assertLen(close, 1)
                seen += close
            self.assertGreater(len({*seen}), 3)  # of eight combinations
            for one, other in itertools.combinations(np.transpose(seen).tolist(), 2):
                self.assertNotEqual(one, other)

    @parameterized.parameters(
        (PreNorm(), {'attention_norm', 'feed_forward_norm'}, True),
        (PostNorm(), {'attention_norm', 'feed_forward_norm'}, False),
        (Sandwich(), {'attention_norm', 'attention_last_norm', 'feed_forward_norm', 'feed_forward_last_norm'}, True),
        (ParallelBranches(), {'norm'}, True), (ParallelBranches(norms=2), {'attention_norm', 'feed_forward_norm'}, True),
        (ReZero(), {'attention_residual', 'feed_forward_residual'}, False), (NoNorm(), set(), False),
        (Admin(), {'attention_norm', 'attention_residual', 'feed_forward_norm', 'feed_forward_residual'}, False),
        (LayerScale(), {'attention_norm', 'attention_scale', 'feed_forward_norm', 'feed_forward_scale'}, True))
    def test_names_of_the_parameters(self, residual, names, final):
        params = drawn(changed(GPT, residual=residual), TOKENS)
        self.assertEqual({name: set(part) for name, part in params['block_1'].items() if name not in BOTH},
                         {name: {'scale'} for name in names})
        self.assertEqual('norm' in params, final)
        image = np.zeros((1, 4, 4, 1), np.float32)
        model = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8, residual=residual)
        self.assertEqual('norm' in jax.eval_shape(lambda: model.init(KEY, image)['params']), final)

    def test_the_learnt_number_is_no_matrix_and_does_not_decay(self):
        role = roles.of_model(changed(GPT, residual=ReZero()), {'inputs': TOKENS})['block_1/attention_residual/scale']
        self.assertEqual((roles.decay(role), roles.sides(role, 0), roles.mesh_axes(role, 0)), (0.0, None, ()))

    def test_the_scales_of_a_layer_are_those_of_features_and_begin_small(self):
        params = models.init(changed(GPT, residual=LayerScale(initial=1e-3)))
        for branch in ('attention', 'feed_forward'):
            np.testing.assert_array_equal(params['block_1'][f'{branch}_scale']['scale'], np.full(8, 1e-3, np.float32))

    def test_admin_begins_with_the_root_of_the_variances_below(self):
        params = models.init(changed(GPT, layers=3, residual=Admin(0.3)))
        variances = 1.0  # of the embedding, then with that of each branch that has been added
        for i in range(3):
            for branch in ('attention', 'feed_forward'):
                np.testing.assert_allclose(params[f'block_{i}'][f'{branch}_residual']['scale'], np.full(8, np.sqrt(variances)),
                                           rtol=1e-6)
                variances += 0.3

    def test_a_variance_of_less_than_0_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'Admin\(variance=-0.1\): expected a variance of 0 or more'):
            Admin(-0.1)

    def test_another_number_of_norms_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'norms is 3; expected 1, one for all branches, or 2, one for each'):
            ParallelBranches(norms=3)


class StoredTest(parameterized.TestCase):
    @parameterized.parameters(*RESIDUALS)
    def test_every_parameter_is_stored_in_the_type_of_the_model(self, residual):
        model = changed(GPT, residual=residual, parameter_dtype='bfloat16')
        shapes = jax.eval_shape(lambda: model.init(KEY, TOKENS)['params'])
        self.assertEqual({x.dtype.name for x in jax.tree.leaves(shapes)}, {'bfloat16'})


class StackTest(parameterized.TestCase):
    @parameterized.parameters(*RESIDUALS)
    def test_equals_a_loop_over_the_layers(self, residual):
        model = changed(GPT, residual=residual)
        params = drawn(model, TOKENS)
        norm = lambda x, part: LayerNorm(bias=False)(part, x)
        x = params['tokens']['embedding'][TOKENS] + params['positions']['embedding'][:8]
        for block in (params['block_0'], params['block_1']):
            branches = {
                'attention': lambda x, own=block['attention']: MultiHead(2, bias=False, output_bias=False).apply(
                    {'params': own}, x, context=Context(Causal()))[0],
                'feed_forward': lambda x, own=block['feed_forward']: FeedForwardLayer(Mlp(bias=False)).apply(
                    {'params': own}, x)[0]}
            x = joined(residual, block, x, branches, lambda x, name, block=block: norm(x, block[name]))
        x = norm(x, params['norm']) if residual.final_norm else x
        found = apply(model, params, TOKENS)
        scale = np.abs(x).max()
        np.testing.assert_allclose(found['hidden'], x, rtol=1e-4, atol=1e-5 * scale)
        np.testing.assert_allclose(found['logits'], x @ params['tokens']['embedding'].T, rtol=1e-4, atol=1e-4 * scale)

    def test_each_is_a_program_of_its_own(self):
        programs = [models.Program(changed(GPT, residual=residual), TOKENS) for residual in RESIDUALS]
        self.assertFalse(any(one == other for one, other in itertools.combinations(programs, 2)))

    @parameterized.parameters(*RESIDUALS[1:])
    @pytest.mark.slow
    def test_scanned_and_computed_again_it_is_the_same(self, residual):
        plain = changed(GPT, residual=residual)
        model, params = changed(plain, scan=True, remat='full'), drawn(plain, TOKENS)
        close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
        jax.tree.map(close, gradient(model, params), gradient(plain, params))

    @parameterized.parameters(*RESIDUALS[1:])
    def test_one_token_at_a_time_equals_the_whole(self, residual):
        model = changed(GPT, residual=residual)
        params, cache = drawn(model, TOKENS), model.init_cache(2)
        whole = apply(model, params, TOKENS)['logits']
        for t in range(8):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=np.full((2, 1), t), cache=cache)
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], rtol=1e-4, atol=5e-4)
            cache = out['cache']

    def test_rezero_is_the_identity_at_the_start_and_learns(self):
        model = changed(GPT, residual=ReZero(), dropout=0.0)
        params = jax.jit(model.init)(KEY, TOKENS)['params']
        embedded = params['tokens']['embedding'][TOKENS] + params['positions']['embedding'][:8]
        np.testing.assert_array_equal(apply(model, params, TOKENS)['hidden'], embedded)
        moves = gradient(model, params)['block_1']  # the branches themselves have none before their number has moved
        self.assertNotEqual(float(moves['attention_residual']['scale']), 0.0)
        self.assertEqual(float(np.abs(moves['attention']['query']['kernel']).max()), 0.0)

    @parameterized.parameters(
        GPT, build(Vit, classes=3, patch=2, layers=2, heads=2, width=8))
    def test_post_norm_ends_with_mean_0_and_variance_1(self, model):
        inputs = TOKENS if isinstance(model, Gpt) else RNG.normal(size=(2, 4, 4, 1)).astype(np.float32)
        model = changed(model, residual=PostNorm())
        hidden = np.float64(apply(model, jax.jit(model.init)(KEY, inputs)['params'], inputs)['hidden'])
        np.testing.assert_allclose(hidden.mean(-1), 0.0, atol=1e-5)
        np.testing.assert_allclose(hidden.var(-1), 1.0, atol=0.03)  # an epsilon of 1e-5 below what is small at the start

    def test_bfloat16_stays_bfloat16(self):
        for residual in RESIDUALS:
            model = changed(GPT, residual=residual, dtype='bfloat16')
            outputs = jax.eval_shape(lambda model=model: model.init_with_output(KEY, TOKENS))[0]
            self.assertEqual((outputs['hidden'].dtype, outputs['logits'].dtype), ('bfloat16', 'bfloat16'))


if __name__ == '__main__':
    absltest.main()
