import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.marks import slow_but
from tests.models import apply, build, changed
from training.report import flops
from transformer.attention.masks.patterns import Alternate, Causal, Window
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import Alibi, Disentangled, Shaw, TransformerXl
from transformer.attention.pruned import kept_heads
from transformer.explain.pruning import without
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(3, 6))
SMALL = build(Gpt, vocab=11, length=6, layers=2, heads=4, width=8)
PAIR = build(EncoderDecoder, vocab=11, source_vocab=0, source_length=6, length=6, layers=2, heads=4, width=8)
MASK = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], np.float32)
SOURCE = dict(inputs=RNG.integers(11, size=(3, 6)), decoder_inputs=TOKENS)
KEPT, EMPTY = ((0, 2), (3,)), ((), (1, 2))


@functools.cache
def drawn(model):
    inputs = {name: x[:1, :2] for name, x in (SOURCE if isinstance(model, EncoderDecoder) else {'inputs': TOKENS}).items()}
    return models.drawn(model, **inputs, scale=0.5)


def only(mask):
    return {'attention': mask}


@slow_but('test_every_attention_of_an_encoder_decoder_has_its_own', 'decoder_cross_attention')
class HeadMaskTest(parameterized.TestCase):
    def test_of_ones_changes_nothing(self):
        ones = apply(SMALL, drawn(SMALL), TOKENS, head_mask=only(np.ones((2, 4), np.float32)))
        np.testing.assert_allclose(ones['logits'], apply(SMALL, drawn(SMALL), TOKENS)['logits'], atol=1e-6)

    def test_none_costs_nothing(self):
        program = lambda **more: str(jax.make_jaxpr(lambda p: SMALL.apply({'params': p}, TOKENS, **more))(drawn(SMALL)))
        self.assertEqual(program(head_mask=None), program())
        self.assertNotEqual(program(head_mask=only(MASK)), program())

    @parameterized.parameters(dict(scan=True), dict(remat='full'), dict(scan=True, remat='dots'),
                              dict(scan=True, mask=Alternate(Causal(), Causal() & Window(2)), layers=4))
    def test_scanned_and_recomputed(self, **choice):
        model = changed(SMALL, **choice)
        plain, mask = changed(model, scan=False, remat='none'), RNG.normal(size=(model.stack.layers, 4)).astype(np.float32)
        params = drawn(plain)
        wanted = apply(plain, params, TOKENS, head_mask=only(mask))['logits']
        np.testing.assert_allclose(apply(model, params, TOKENS, head_mask=only(mask))['logits'], wanted, atol=1e-5)

    def test_rows_may_have_factors_of_their_own(self):
        each = RNG.normal(size=(2, 3, 1, 4)).astype(np.float32)
        together = apply(SMALL, drawn(SMALL), TOKENS, head_mask=only(each))['logits']
        for row in range(3):
            alone = apply(SMALL, drawn(SMALL), TOKENS[row:row + 1], head_mask=only(each[:, row, 0]))['logits']
            np.testing.assert_allclose(together[row], alone[0], atol=1e-5)

    def test_of_zero_equals_zero_rows_in_the_output_projection(self):
        gone = [(layer, head) for layer, head in np.argwhere(MASK == 0).tolist()]
        params = without(SMALL, jax.tree.map(jnp.asarray, drawn(SMALL)), gone)
        wanted = apply(SMALL, drawn(SMALL), TOKENS, head_mask=only(MASK))['logits']
        np.testing.assert_allclose(apply(SMALL, params, TOKENS)['logits'], wanted, atol=1e-6)
        self.assertGreater(np.abs(wanted - apply(SMALL, drawn(SMALL), TOKENS)['logits']).max(), 1e-2)

    def test_gradient_equals_finite_differences(self):
        params, mask, step = drawn(SMALL), RNG.uniform(0.5, 1.5, size=(2, 4)), 1e-2
        loss = lambda mask: jnp.square(apply(SMALL, params, TOKENS, head_mask=only(mask))['logits']).mean()
        gradient = jax.grad(loss)(mask)
        for place in ((0, 1), (1, 3)):
            moved = np.zeros((2, 4))
            moved[place] = step
            slope = (float(loss(mask + moved)) - float(loss(mask - moved))) / (2 * step)
            self.assertAlmostEqual(float(gradient[place]), slope, delta=1e-3 * max(1.0, abs(slope)))

    @parameterized.named_parameters((name.replace('/', '_'), name) for name in (
        'encoder/attention', 'decoder/attention', 'decoder/cross_attention'))
    def test_every_attention_of_an_encoder_decoder_has_its_own(self, name):
        params = drawn(PAIR)
        stack, branch = name.split('/')
        scaled = jax.tree.map(lambda x: x, params)
        for i in range(2):
            output = scaled[stack][f'block_{i}'][branch]['output']
            output['kernel'] = output['kernel'] * MASK[i][:, None, None]
        logits = lambda params, **more: apply(PAIR, params, **SOURCE, **more)['logits']
        np.testing.assert_allclose(logits(params, head_mask={name: MASK}), logits(scaled), atol=1e-5)
        self.assertGreater(np.abs(logits(scaled) - logits(params)).max(), 1e-3)
        scanned = apply(changed(PAIR, scan=True, remat='full'), params, **SOURCE, head_mask={name: MASK})['logits']
        np.testing.assert_allclose(scanned, logits(scaled), atol=1e-5)


class KeptTest(parameterized.TestCase):
    def test_what_positions_cost_falls_with_the_heads(self):
        for positions in (Shaw(2), TransformerXl(), Disentangled(2)):
            work = []
            for kept in ((), ((1,), (2,))):
                model, bare = (changed(SMALL, kept=kept, positions=p) for p in (positions, NoPositions()))
                work.append(np.subtract(*(flops.count(lambda p, m=m: m.apply({'params': p}, TOKENS)['logits'], drawn(m))
                                          for m in (model, bare))))
            self.assertLess(work[1], 0.5 * work[0], positions)

    def test_shapes(self):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(
            lambda: changed(SMALL, kept=((), (1, 2)), key_heads=2).init(KEY, TOKENS)['params']))
        self.assertEqual(shapes['block_0']['attention'], {'output': {'bias': (8,)}})
        self.assertEqual(shapes['block_1']['attention'], {
            'query': {'kernel': (8, 2, 2), 'bias': (2, 2)}, 'key': {'kernel': (8, 2, 2), 'bias': (2, 2)},
            'value': {'kernel': (8, 2, 2), 'bias': (2, 2)}, 'output': {'kernel': (2, 2, 8), 'bias': (8,)}})
        none = jax.eval_shape(lambda: changed(SMALL, kept=((), ()), output_bias=False).init(KEY, TOKENS)['params'])
        self.assertNotIn('attention', none['block_0'])

    def test_cached_decoding_equals_the_full_forward(self):
        model = changed(SMALL, kept=EMPTY)
        params = drawn(model)
        whole = apply(model, params, TOKENS)['logits']
        cache = model.init_cache(3)
        self.assertEqual(cache['block_0'], {})
        for t in range(6):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=np.full((3, 1), t), cache=cache)
            cache = out['cache']
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], atol=1e-5)

    def test_cached_decoding_of_an_encoder_decoder(self):
        model = changed(PAIR, **{'encoder.kept': KEPT, 'decoder.kept': EMPTY, 'decoder.cross_kept': ((1, 3), ())})
        params = drawn(model)
        whole = apply(model, params, **SOURCE)['logits']
        source, cache = {'inputs': SOURCE['inputs'], 'segments': np.ones((3, 6), int)}, model.init_cache(3)
        for t in range(6):
            out = apply(model, params, decoder_inputs=TOKENS[:, t:t + 1], decoder_positions=np.full((3, 1), t), cache=cache,
                        **source)
            cache, source = out['cache'], {}
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], atol=1e-5)

    def test_a_mask_is_of_all_heads(self):
        model, mask = changed(SMALL, kept=KEPT), np.ones((2, 4), np.float32)
        plain = apply(model, drawn(model), TOKENS)['logits']
        mask[0, 1] = mask[1, 0] = 0.0  # which are not there
        np.testing.assert_allclose(apply(model, drawn(model), TOKENS, head_mask=only(mask))['logits'], plain, atol=1e-6)
        mask[0, 2] = 0.0
        self.assertGreater(np.abs(apply(model, drawn(model), TOKENS, head_mask=only(mask))['logits'] - plain).max(), 1e-2)

    def test_scanned(self):
        model = changed(SMALL, kept=((0, 2), (1, 3)), positions=NoPositions())
        np.testing.assert_allclose(apply(changed(model, scan=True), drawn(model), TOKENS)['logits'],
                                   apply(model, drawn(model), TOKENS)['logits'], atol=1e-5)

    def test_heads_of_a_source_that_is_not_there_are_refused(self):
        with self.assertRaisesRegex(ValueError, r'model.cross_kept is \(\(0,\), \(1,\)\), but these blocks attend to no'):
            drawn(changed(SMALL, cross_kept=((0,), (1,))))

    @parameterized.parameters(
        (dict(kept=((0,),)), r'kept is \(\(0,\),\); expected for each of 2 layers'),
        (dict(kept=((0,), (4,))), 'from 0 to 3'), (dict(kept=((0,), (1, 1))), 'in order'), (dict(kept=(1, 2)), 'in order'),
        (dict(kept=((1, 0), ())), 'in order'),
        (dict(kept=((0,), (0, 1)), scan=True), 'cannot be scanned; keep as many heads in every layer, or set scan=False'),
        (dict(kept=((0,), (1,)), scan=True, positions=Alibi()), r'keep the same heads, as Alibi\(.*\) tells them apart'))
    def test_what_has_no_meaning(self, fields, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            kept_heads(changed(SMALL, **fields).stack, 'kept', 1)


if __name__ == '__main__':
    absltest.main()
