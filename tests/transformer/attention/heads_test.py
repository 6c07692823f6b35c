import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from training import flops
from transformer.attention.heads import kept_heads
from transformer.attention.masks import Alternate, Causal, Window
from transformer.attention.mechanism import Softmax
from transformer.attention.positions import NoPositions
from transformer.attention.projected import MemoryCompressed
from transformer.attention.relative import T5, Alibi, Deberta, Shaw, Swin, TransformerXl, Tupe
from transformer.attention.scores import Additive, Location
from transformer.gpt import Gpt
from transformer.importance import pruned, without
from vit.vit import Vit

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(3, 6))
SMALL = Gpt(vocab=11, length=6, layers=2, heads=4, width=8)
MASK = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], np.float32)
KEPT, EMPTY = ((0, 2), (3,)), ((), (1, 2))


@functools.cache
def drawn(model):
    shapes = jax.eval_shape(lambda: model.init(KEY, jnp.zeros((1, 2), jnp.int32))['params'])
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda s: (0.5 * rng.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0, static_argnames='mutable')
def apply(model, params, *inputs, **more):
    return model.apply({'params': params}, *inputs, **more)


def factors(kept):
    return np.array([[float(head in row) for head in range(4)] for row in kept], np.float32)


class HeadMaskTest(parameterized.TestCase):
    def test_of_ones_changes_nothing(self):
        ones = apply(SMALL, drawn(SMALL), TOKENS, head_mask=np.ones((2, 4), np.float32))
        np.testing.assert_allclose(ones['logits'], apply(SMALL, drawn(SMALL), TOKENS)['logits'], atol=1e-6)

    def test_none_costs_nothing(self):
        program = lambda **more: str(jax.make_jaxpr(lambda p: SMALL.apply({'params': p}, TOKENS, **more))(drawn(SMALL)))
        self.assertEqual(program(head_mask=None), program())
        self.assertNotEqual(program(head_mask=MASK), program())

    @parameterized.parameters(dict(scan=True), dict(remat='full'), dict(scan=True, remat='dots'),
                              dict(scan=True, mask=Alternate(Causal(), Causal() & Window(2)), layers=4))
    def test_scanned_and_recomputed(self, **choice):
        model = SMALL.clone(**choice)
        params, mask = drawn(model.clone(scan=False, remat='none')), RNG.normal(size=(model.layers, 4)).astype(np.float32)
        wanted = apply(model.clone(scan=False, remat='none'), params, TOKENS, head_mask=mask)['logits']
        np.testing.assert_allclose(apply(model, params, TOKENS, head_mask=mask)['logits'], wanted, atol=1e-5)

    def test_rows_may_have_factors_of_their_own(self):
        each = RNG.normal(size=(2, 3, 1, 4)).astype(np.float32)
        together = apply(SMALL, drawn(SMALL), TOKENS, head_mask=each)['logits']
        for row in range(3):
            alone = apply(SMALL, drawn(SMALL), TOKENS[row:row + 1], head_mask=each[:, row, 0])['logits']
            np.testing.assert_allclose(together[row], alone[0], atol=1e-5)

    def test_of_zero_equals_zero_rows_in_the_output_projection(self):
        gone = [(layer, head) for layer, head in np.argwhere(MASK == 0).tolist()]
        params = without(SMALL, jax.tree.map(jnp.asarray, drawn(SMALL)), gone)
        wanted = apply(SMALL, drawn(SMALL), TOKENS, head_mask=MASK)['logits']
        np.testing.assert_allclose(apply(SMALL, params, TOKENS)['logits'], wanted, atol=1e-6)
        self.assertGreater(np.abs(wanted - apply(SMALL, drawn(SMALL), TOKENS)['logits']).max(), 1e-2)

    def test_gradient_equals_finite_differences(self):
        params, mask, step = drawn(SMALL), RNG.uniform(0.5, 1.5, size=(2, 4)), 1e-2
        loss = lambda mask: jnp.square(apply(SMALL, params, TOKENS, head_mask=mask)['logits']).mean()
        gradient = jax.grad(loss)(mask)
        for place in ((0, 1), (1, 3)):
            moved = np.zeros((2, 4))
            moved[place] = step
            slope = (float(loss(mask + moved)) - float(loss(mask - moved))) / (2 * step)
            self.assertAlmostEqual(float(gradient[place]), slope, delta=1e-3 * max(1.0, abs(slope)))

    def test_of_images(self):
        model = Vit(classes=3, patch=2, layers=2, heads=4, width=8, positions=Swin())
        image = RNG.normal(size=(2, 4, 4, 1)).astype(np.float32)
        rng = np.random.default_rng(2)
        shapes = jax.eval_shape(lambda: model.init(KEY, image)['params'])
        params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
        small = model.clone(kept=KEPT)
        shapes = jax.eval_shape(lambda: small.init(KEY, image)['params'])
        given = apply(small, pruned(model, params, KEPT, shapes), image)['logits']
        np.testing.assert_allclose(given, apply(model, params, image, head_mask=factors(KEPT))['logits'], rtol=1e-4, atol=1e-5)


class KeptTest(parameterized.TestCase):
    @parameterized.parameters(
        (KEPT, None, 0), (KEPT, None, 2), (EMPTY, None, 2), (KEPT, T5(buckets=4, distance=4), 2), (KEPT, Alibi(), 0),
        (KEPT, Shaw(2), 2), (EMPTY, Shaw(2), 0), (KEPT, TransformerXl(), 2), (EMPTY, TransformerXl(), 0),
        (KEPT, Deberta(2), 0), (KEPT, Tupe(), 0))
    def test_equals_the_masked_model(self, kept, positions, key_heads):
        model = SMALL.clone(key_heads=key_heads, **({} if positions is None else dict(positions=positions)))
        params, small = drawn(model), model.clone(kept=kept)
        given = pruned(model, params, kept, jax.eval_shape(lambda: small.init(KEY, TOKENS)['params']))
        wanted = apply(model, params, TOKENS, head_mask=factors(kept))['logits']
        np.testing.assert_allclose(apply(small, given, TOKENS)['logits'], wanted, rtol=1e-4, atol=1e-5)

    @parameterized.parameters(Softmax(score=Location(6)), Softmax(score=Additive(3)), MemoryCompressed(2))
    def test_as_many_heads_as_there_were_of_keys(self, mechanism):
        model, kept = SMALL.clone(attention=mechanism, key_heads=2, positions=NoPositions()), ((0, 1), (1, 3))
        given = pruned(model, drawn(model), kept, jax.eval_shape(
            lambda: model.clone(kept=kept).init(KEY, TOKENS)['params']))
        wanted = apply(model, drawn(model), TOKENS, head_mask=factors(kept))['logits']
        np.testing.assert_allclose(apply(model.clone(kept=kept), given, TOKENS)['logits'], wanted, rtol=1e-4, atol=1e-5)

    def test_what_positions_cost_falls_with_the_heads(self):
        for positions in (Shaw(2), TransformerXl(), Deberta(2)):
            work = []
            for kept in ((), ((1,), (2,))):
                model, bare = (SMALL.clone(kept=kept, positions=p) for p in (positions, NoPositions()))
                work.append(np.subtract(*(flops.count(lambda p, m=m: m.apply({'params': p}, TOKENS)['logits'], drawn(m))
                                          for m in (model, bare))))
            self.assertLess(work[1], 0.5 * work[0], positions)

    def test_again(self):
        once, twice = ((0, 2), (1, 2, 3)), ((2,), (1, 3))
        first, second = SMALL.clone(kept=once), SMALL.clone(kept=twice)
        shapes = jax.eval_shape(lambda: first.init(KEY, TOKENS)['params'])
        params = pruned(SMALL, drawn(SMALL), once, shapes)
        params = pruned(first, params, twice, jax.eval_shape(lambda: second.init(KEY, TOKENS)['params']))
        wanted = apply(SMALL, drawn(SMALL), TOKENS, head_mask=factors(twice))['logits']
        np.testing.assert_allclose(apply(second, params, TOKENS)['logits'], wanted, rtol=1e-4, atol=1e-5)

    def test_shapes(self):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(
            lambda: SMALL.clone(kept=((), (1, 2)), key_heads=2).init(KEY, TOKENS)['params']))
        self.assertEqual(shapes['block_0']['attention'], {'output': {'bias': (8,)}})
        self.assertEqual(shapes['block_1']['attention'], {
            'query': {'kernel': (8, 2, 2), 'bias': (2, 2)}, 'key': {'kernel': (8, 2, 2), 'bias': (2, 2)},
            'value': {'kernel': (8, 2, 2), 'bias': (2, 2)}, 'output': {'kernel': (2, 2, 8), 'bias': (8,)}})
        none = jax.eval_shape(lambda: SMALL.clone(kept=((), ()), bias=False).init(KEY, TOKENS)['params'])
        self.assertNotIn('attention', none['block_0'])

    def test_cached_decoding_equals_the_full_forward(self):
        model = SMALL.clone(kept=EMPTY)
        params = drawn(model)
        whole = apply(model, params, TOKENS)['logits']
        cache = model.init_cache(3)
        for t in range(6):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=np.full((3, 1), t), cache=cache)
            cache = out['cache']
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], atol=1e-5)

    def test_a_mask_is_of_all_heads(self):
        model, mask = SMALL.clone(kept=KEPT), np.ones((2, 4), np.float32)
        plain = apply(model, drawn(model), TOKENS)['logits']
        mask[0, 1] = mask[1, 0] = 0.0  # which are not there
        np.testing.assert_allclose(apply(model, drawn(model), TOKENS, head_mask=mask)['logits'], plain, atol=1e-6)
        mask[0, 2] = 0.0
        self.assertGreater(np.abs(apply(model, drawn(model), TOKENS, head_mask=mask)['logits'] - plain).max(), 1e-2)

    def test_scanned(self):
        model = SMALL.clone(kept=((0, 2), (1, 3)), positions=NoPositions())
        np.testing.assert_allclose(apply(model.clone(scan=True), drawn(model), TOKENS)['logits'],
                                   apply(model, drawn(model), TOKENS)['logits'], atol=1e-5)

    @parameterized.parameters(
        (dict(kept=((0,),)), r'model.kept is \(\(0,\),\); expected for each of 2 layers'),
        (dict(kept=((0,), (4,))), 'from 0 to 3'), (dict(kept=((0,), (1, 1))), 'in order'), (dict(kept=(1, 2)), 'in order'),
        (dict(kept=((1, 0), ())), 'in order'),
        (dict(kept=((0,), (0, 1)), scan=True), 'cannot be scanned; keep as many heads in every layer, or set scan=False'),
        (dict(kept=((0,), (1,)), scan=True, positions=Alibi()), r'keep the same heads, as Alibi\(.*\) tells them apart'))
    def test_what_has_no_meaning(self, fields, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            kept_heads(SMALL.clone(**fields))


if __name__ == '__main__':
    absltest.main()
