import collections
import dataclasses
import functools
import re
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import models
from tests.marks import slow_but
from training.report.flops import count
from transformer.attention.context import Context
from transformer.attention.masks.patterns import Alternate, Causal, Window
from transformer.attention.mechanism import Softmax
from transformer.attention.positions.base import NoPositions
from transformer.layers.dense import Parameters
from transformer.layers.feed_forward import FeedForward
from transformer.layers.initial import MuP
from transformer.layers.numerics import Numerics
from transformer.layers.residual import Admin, NoNorm
from transformer.layers.roles import Wanted
from transformer.layers.stack import Stack
from transformer.layers.universal import Groups, Universal
from transformer.models.gpt import Gpt
from vit.models.vit import Vit

KEY = jax.random.key(0)
CHOICES = [dict(scan=scan, remat=remat) for scan in (False, True) for remat in ('none', 'dots', 'full', 'offload')]
NAMES = {f"{choice['remat']}{'_scan' * choice['scan']}": choice for choice in CHOICES}
# Without biases, as a key's has no gradient but rounding.
GPT = models.build(Gpt, vocab=11, length=8, layers=3, heads=2, width=8, dropout=0.2, drop_path=0.5,
                   **models.NO_BIASES)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(2, 8))
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2, 2]])


@functools.cache
def parameters(layers=3):
    return models.init(models.changed(GPT, layers=layers), TOKENS)


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


@dataclasses.dataclass(frozen=True)
class _Drawn(FeedForward):
    """Stands for a feed-forward: a drawn number times what is learnt, which it tells."""

    def __call__(self, x, initial, numerics, key=None):
        place = Parameters({'place': Wanted(nn.initializers.normal(1.0), x.shape[-1:])}, name='place')()['place']
        number = jax.random.uniform(key)
        return jnp.broadcast_to(place * number, x.shape), {'number': number}


@dataclasses.dataclass(frozen=True)
class _Counted(Softmax):
    """Stands for attention: a cache that counts."""

    def step(self, parameters, query, key, value, cache, positions, given):
        return query, {'seen': cache['seen'] + 10}


class Tower(nn.Module):
    """A stack alone."""
    stack: Stack

    @nn.compact
    def __call__(self, x, key=None, cache=None, capture=()):
        context = Context(self.stack.mask, positions=jnp.zeros(x.shape[:2], int), capture=capture)
        return self.stack(x, context, numerics=Numerics(), key=key, cache=cache)


DRAWN = Stack(layers=4, heads=1, width=4, positions=NoPositions(), residual=NoNorm(), feed_forward=_Drawn())
X = np.zeros((1, 3, 4), np.float32)


@slow_but('test_every_choice_gives_the_same_parameters_outputs_and_gradients', 'dots', 'none_scan', 'full_scan')
class StackTest(parameterized.TestCase):
    def test_names_its_blocks_and_hands_each_its_cache(self):
        tower = Tower(Stack(layers=3, heads=1, width=4, attention=_Counted()))
        params = models.drawn(tower, X)
        self.assertEqual(set(params), {'block_0', 'block_1', 'block_2', 'norm'})
        _, cache, _ = tower.apply({'params': params}, X, cache={f'block_{i}': {'seen': i + 1} for i in range(3)})
        self.assertEqual(cache, {f'block_{i}': {'seen': i + 11} for i in range(3)})
        self.assertIsNone(tower.apply({'params': params}, X)[1])

    @parameterized.parameters(CHOICES)
    def test_every_block_has_a_key_of_its_own_and_tells_what_it_did_with_it(self, **choice):
        tower = Tower(dataclasses.replace(DRAWN, **choice))
        params = jax.tree.map(np.zeros_like, models.drawn(tower, X, KEY))
        for i in range(4):
            params[f'block_{i}']['feed_forward']['place']['place'] = np.eye(4, dtype=np.float32)[i]
        x, _, told = tower.apply({'params': params}, X, KEY)
        self.assertLen(set(x[0, 0].tolist()), 4)
        self.assertEqual(set(told), {f'block_{i}/number' for i in range(4)})
        np.testing.assert_array_equal(x[0, 0], [told[f'block_{i}/number'] for i in range(4)])
        np.testing.assert_array_equal(x, tower.apply({'params': params}, X, KEY)[0])

    @parameterized.named_parameters(dict(choice, testcase_name=name) for name, choice in [*NAMES.items()][1:])
    def test_every_choice_gives_the_same_parameters_outputs_and_gradients(self, **choice):
        model = models.changed(GPT, **choice)
        jax.tree.map(np.testing.assert_array_equal, model.init(KEY, TOKENS)['params'], parameters())
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
        jax.tree.map(close, outputs_and_gradients(model), outputs_and_gradients(GPT))

    @pytest.mark.slow
    def test_images_too(self):
        model = models.build(Vit, classes=3, patch=2, layers=2, heads=2, width=8, dropout=0.2)
        image = RNG.normal(size=(2, 4, 4, 1))
        params = model.init(KEY, image)['params']
        apply = lambda model: jax.jit(lambda p: model.apply({'params': p}, image, key=KEY)['hidden'])(params)
        np.testing.assert_allclose(apply(models.changed(model, scan=True, remat='full')), apply(model), rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_a_scanned_program_does_not_grow_with_depth(self):
        def size(scan, layers):
            jaxpr = jax.make_jaxpr(gradient(models.changed(GPT, scan=scan, layers=layers)))(parameters(layers))
            return sum(equation.primitive.name in ('dot_general', 'scan', 'jit', 'custom_vjp_call') for equation in jaxpr.eqns)
        self.assertEqual(size(True, 2), size(True, 6))
        self.assertGreater(size(False, 6), 2 * size(False, 2))

    @parameterized.parameters(True, False)
    def test_what_is_not_kept_is_computed_again(self, scan):
        work = {remat: count(gradient(models.changed(GPT, scan=scan, remat=remat)), parameters())
                for remat in ('none', 'dots', 'full', 'offload')}
        forward = count(lambda p: GPT.apply({'params': p}, TOKENS, key=KEY)['hidden'], parameters())
        last = 3 * 2 * (2 * 8) * 32 * 8  # of a block, the output of the feed-forward: no gradient needs it
        self.assertEqual(work['full'] - work['none'], forward - last)
        self.assertEqual(work['offload'], work['full'])
        attention = 3 * 2 * (2 * 2 * 8 * 8 * 8)  # layers · (scores and mixture) · 2·B·T·T·D
        self.assertEqual(work['dots'] - work['none'], attention)

    @parameterized.parameters(('blockwise', 'cpu'), ('rows', 'tpu'), ('splash', 'tpu'), ('cudnn', 'gpu'))
    def test_a_fused_kernel_does_not_run_again_with_dots(self, kernel, device):
        model = models.changed(GPT, length=128, width=16, dtype='bfloat16', attention=Softmax(implementation=kernel))
        tokens = np.zeros((2, 128), int)
        with mock.patch('jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version', return_value=91200), \
                mock.patch.object(jax, 'default_backend', lambda: device):
            given = jax.eval_shape(functools.partial(model.init, KEY), tokens)['params']
            work = {remat: count(jax.grad(lambda p, remat=remat: models.changed(model, remat=remat).apply(
                {'params': p}, tokens)['hidden'].astype(jnp.float32).sum()), given)
                for remat in ('none', 'dots', 'full')}
        self.assertEqual(work['dots'], work['none'])
        self.assertGreater(work['full'], work['dots'])

    @pytest.mark.slow
    def test_less_is_kept_in_memory(self):
        def temporaries(remat):
            model = models.changed(GPT, layers=8, scan=True, remat=remat, width=64, heads=4)
            shapes = jax.eval_shape(lambda: model.init(KEY, TOKENS)['params'])
            return jax.jit(gradient(model)).lower(shapes).compile().memory_analysis().temp_size_in_bytes
        none, dots, full = map(temporaries, ('none', 'dots', 'full'))
        self.assertLess(full, dots)
        self.assertLess(dots, none)

    @parameterized.parameters(True, False)
    def test_offload_moves_the_input_of_each_block_to_the_host_and_back(self, scan):
        model = models.changed(GPT, scan=scan, remat='offload')
        program = jax.jit(gradient(model)).trace(parameters()).lower(lowering_platforms=('tpu',)).as_text()
        moves = re.findall(r'_xla_buffer_placement = "(\w+)".* -> tensor<([0-9x]*)x', program)
        blocks = 1 if scan else 3
        self.assertEqual(collections.Counter(moves), {('pinned_host', '2x8x8'): blocks, ('device', '2x8x8'): blocks})

    def test_an_unknown_choice_is_refused(self):
        with self.assertRaisesRegex(ValueError, "remat is 'some'; expected one of none, dots, full, offload"):
            models.changed(GPT, remat='some').init(KEY, TOKENS)

    @parameterized.parameters(
        (dict(depth=Groups(2), residual=Admin()), 'whose stream cannot have weights of its own in each'),
        (dict(depth=Universal(halting=True), initial=MuP(base=8)), 'says nothing of the matrix by which .* halts; leave out'))
    def test_parts_that_do_not_go_together_are_refused(self, fields, said):
        with self.assertRaisesRegex(ValueError, said):
            Stack(layers=4, **fields)

    @parameterized.parameters('layers', 'heads', 'width')
    def test_sizes_below_1_are_refused(self, field):
        with self.assertRaisesRegex(ValueError, f'^{field} is 0; set it to at least 1'):
            Stack(**{field: 0})


@slow_but('test_attention_is_the_same_for_every_choice', *(f'plain_{choice}' for choice in NAMES), 'pruned_full_scan',
          'alternating_dots_scan')
class CapturedTest(parameterized.TestCase):
    MODELS = {'plain': GPT, 'pruned': models.changed(GPT, heads=4, kept=((0, 2), (1, 2), (0, 3))),
              'alternating': models.changed(GPT, layers=4, mask=Alternate(Causal(), Causal() & Window(2)))}

    def shown(self, model, tokens=TOKENS, **more):
        """(outputs, what was captured)."""
        params = models.init(models.changed(model, scan=False, remat='none'), TOKENS)
        outputs = models.apply(model, params, tokens, capture=('attention',), **more)
        captured = {name: x for name, x in outputs.items() if name.endswith('attention')}
        return {name: x for name, x in outputs.items() if name not in captured}, captured

    @parameterized.named_parameters(*((f'{name}_{choice}', name, choice) for name in MODELS for choice in NAMES))
    def test_attention_is_the_same_for_every_choice(self, name, choice):
        model = self.MODELS[name]
        outputs, found = self.shown(models.changed(model, **NAMES[choice]), segments=SEGMENTS)
        plain, wanted = self.shown(model, segments=SEGMENTS)
        self.assertEqual(set(found), {f'block_{i}/attention' for i in range(model.stack.layers)})
        close = functools.partial(np.testing.assert_allclose, atol=1e-6)
        jax.tree.map(close, found, wanted)
        jax.tree.map(close, outputs, plain)
        heads, there = 2, np.broadcast_to((SEGMENTS != 0)[:, None], (2, 2, 8))
        for number, weights in enumerate(found[f'block_{i}/attention'] for i in range(model.stack.layers)):
            self.assertEqual(weights.shape, (2, heads, 8, 8))
            np.testing.assert_allclose(weights.sum(-1), there, atol=1e-6)
            seen = np.tri(8) * (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None])
            if name == 'alternating' and number % 2:
                seen = seen * (1 - np.tri(8, k=-2))
            self.assertFalse(np.any(weights * (1 - seen)))

    def test_scores_are_captured_with_their_mask_in_a_scan_too(self):
        model, names = self.MODELS['alternating'], ('scores', 'visible')
        params = models.init(model, TOKENS)
        found, wanted = ({name: x for name, x in models.apply(one, params, TOKENS, segments=SEGMENTS, capture=names).items()
                          if '/' in name} for one in (models.changed(model, scan=True, remat='full'), model))
        self.assertEqual(set(found), {f'block_{i}/attention/{name}' for i in range(4) for name in names})
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, wanted)
        seen = np.tri(8) * (1 - np.tri(8, k=-2)) * (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None]) * (
            SEGMENTS[:, None, None] != 0)
        np.testing.assert_array_equal(found['block_1/attention/visible'], np.broadcast_to(seen, (2, 2, 8, 8)))

    def test_layers_without_heads_show_nothing(self):
        self.assertEqual(set(self.shown(models.changed(GPT, kept=((0,), (), (1,))))[1]),
                         {'block_0/attention', 'block_2/attention'})

    def test_steps_of_one_block_are_shown_one_by_one(self):
        model = models.changed(GPT, depth=Universal())
        found = self.shown(model)[1]
        self.assertEqual(set(found), {f'block_{i}/attention' for i in range(3)})
        few = self.shown(models.changed(model, layers=2))[1]
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), few, {name: found[name] for name in few})

    def test_nothing_is_shown_that_is_not_asked_for(self):
        self.assertEqual(set(models.apply(GPT, parameters(), TOKENS)), {'hidden', 'logits'})
        with_it, without = (str(jax.make_jaxpr(lambda p, more=more: GPT.apply({'params': p}, TOKENS, **more))(parameters()))
                            for more in (dict(capture=()), {}))
        self.assertEqual(with_it, without)


if __name__ == '__main__':
    absltest.main()
