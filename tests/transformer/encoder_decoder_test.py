import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import decoders, models
from tests.models import apply
from transformer.attention.masks import Causal, Full, Random, Window
from transformer.attention.mechanism import Softmax
from transformer.attention.positions import Learned, Rotary
from transformer.attention.scores import Additive, Dot, Location
from transformer.decoding import generate
from transformer.encoder_decoder import EncoderDecoder, TargetWords
from transformer.initial import Scaled
from transformer.residual import PreNorm
from transformer.strategies import Beam, DiverseBeam
from transformer.tasks import SequenceToSequence
from transformer.universal import Universal

KEY = jax.random.key(0)
SMALL = EncoderDecoder(vocab=11, source_vocab=0, source_length=8, length=6, layers=2, heads=2, width=8, inner=16)
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(11, size=(3, 8)), RNG.integers(11, size=(3, 6))
SEGMENTS = (np.arange(8) < np.array([8, 5, 3])[:, None]).astype(int)
drawn = lambda model: models.drawn(model, SOURCE, decoder_inputs=TARGET)
program = functools.cache(lambda model: models.program(model, SOURCE, decoder_inputs=TARGET))


def init(model):
    return model.init(KEY, SOURCE, decoder_inputs=TARGET)['params']


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Paper:
    """The model of Vaswani et al. 2017, section 3, for one pair, in float64 and by loops over layers, heads and queries."""

    def __init__(self, params, heads):
        self.params, self.heads = jax.tree.map(lambda p: np.asarray(p, np.float64), params), heads

    def norm(self, own, x):
        spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x - x.mean(-1, keepdims=True)) / spread * own['scale'] + own['bias']

    def attention(self, own, x, y, causal):
        out = np.zeros_like(x) + own['output']['bias']
        for n in range(self.heads):
            q, k, v = (z @ own[name]['kernel'][:, n] + own[name]['bias'][n]
                       for name, z in (('query', x), ('key', y), ('value', y)))
            for t in range(len(x)):
                seen = t + 1 if causal else len(y)
                weights = softmax(k[:seen] @ q[t] / math.sqrt(q.shape[-1]))
                out[t] += weights @ v[:seen] @ own['output']['kernel'][n]
        return out

    def embedded(self, name, ids):
        width = self.params[name]['embedding'].shape[1]
        x = self.params[name]['embedding'][ids] * math.sqrt(width)
        for t in range(len(ids)):
            for i in range(width // 2):
                angle = t / 10000 ** (2 * i / width)
                x[t, 2 * i] += math.sin(angle)
                x[t, 2 * i + 1] += math.cos(angle)
        return x

    def stack(self, own, x, hidden=None):
        for i in range(sum(name.startswith('block_') for name in own)):
            block = own[f'block_{i}']
            x = self.norm(block['attention_norm'], x + self.attention(block['attention'], x, x, hidden is not None))
            if hidden is not None:
                x = self.norm(block['cross_attention_norm'], x + self.attention(block['cross_attention'], x, hidden, False))
            inner = np.maximum(x @ block['feed_forward']['input']['kernel'] + block['feed_forward']['input']['bias'], 0)
            inner = inner @ block['feed_forward']['output']['kernel'] + block['feed_forward']['output']['bias']
            x = self.norm(block['feed_forward_norm'], x + inner)
        return x

    def logits(self, source, target):
        names = ('tokens',) * 2 if 'tokens' in self.params else ('source_tokens', 'target_tokens')
        hidden = self.stack(self.params['encoder'], self.embedded(names[0], source))
        x = self.stack(self.params['decoder'], self.embedded(names[1], target), hidden)
        if 'output' in self.params:
            return x @ self.params['output']['kernel'] + self.params['output']['bias']
        return x @ self.params[names[1]]['embedding'].T


class ForwardTest(parameterized.TestCase):
    @parameterized.parameters(dict(), dict(share='output'), dict(share='none', source_vocab=13), dict(share='inputs'),
                              dict(encoder_layers=1))
    def test_equals_the_paper_in_float64(self, **fields):
        model = SMALL.clone(**fields)
        params = drawn(model)
        logits = apply(model, params, SOURCE, segments=SEGMENTS, decoder_inputs=TARGET)['logits']
        for row, length in enumerate(SEGMENTS.sum(1)):
            wanted = Paper(params, 2).logits(SOURCE[row, :length], TARGET[row])
            np.testing.assert_allclose(logits[row], wanted, atol=2e-5)

    def test_packed_pairs_equal_pairs_in_rows_of_their_own(self):
        params = drawn(SMALL)
        apart = apply(SMALL, params, SOURCE, segments=SEGMENTS, decoder_inputs=TARGET)['logits']
        lengths, targets = (5, 3), (2, 4)  # rows 1 and 2, and so many tokens of their targets
        packed = {name: np.zeros((1, 8 if name in ('inputs', 'segments', 'positions') else 6), int) for name in (
            'inputs', 'segments', 'positions', 'decoder_inputs', 'decoder_segments', 'decoder_positions')}
        for number, (s, t) in enumerate(zip(lengths, targets)):
            for front, ids, n, at in (('', SOURCE, s, sum(lengths[:number])), ('decoder_', TARGET, t, sum(targets[:number]))):
                here = 0, slice(at, at + n)
                packed[f'{front}inputs'][here] = ids[number + 1, :n]
                packed[f'{front}segments'][here] = number + 1
                packed[f'{front}positions'][here] = range(n)
        together = apply(SMALL, params, **packed)['logits'][0]
        np.testing.assert_allclose(together[:2], apart[1, :2], atol=5e-6)
        np.testing.assert_allclose(together[2:6], apart[2, :4], atol=5e-6)

    @parameterized.parameters(dict(), dict(positions=Rotary(), residual=PreNorm()), dict(scan=True), dict(remat='full'))
    def test_a_target_moves_only_what_comes_after_it(self, **fields):
        model = SMALL.clone(**fields)
        params = drawn(model)
        other = TARGET.copy()
        other[:, 3] = (other[:, 3] + 1) % 11
        moved = np.abs(apply(model, params, SOURCE, decoder_inputs=TARGET)['logits']
                       - apply(model, params, SOURCE, decoder_inputs=other)['logits']).max((0, 2)) > 1e-6
        np.testing.assert_array_equal(moved, np.arange(6) >= 3)

    @parameterized.parameters(dict(scan=True), dict(remat='full'), dict(scan=True, remat='dots'))
    def test_scanned_layers_equal_unrolled_ones(self, **fields):
        batch = {'inputs': SOURCE, 'segments': SEGMENTS, 'positions': np.broadcast_to(np.arange(8), (3, 8)),
                 'decoder_inputs': TARGET, 'decoder_segments': np.ones_like(TARGET),
                 'decoder_positions': np.broadcast_to(np.arange(6), (3, 6)), 'targets': TARGET, 'weights': np.ones((3, 6))}

        def gradient(model):
            loss = lambda p: SequenceToSequence().loss(functools.partial(model.apply, {'params': p}), batch, key=None, step=0,
                                                       train=False)['loss'][0]
            return jax.jit(jax.grad(loss))(drawn(SMALL))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient(SMALL),
                     gradient(SMALL.clone(**fields)))

    def test_dropout_has_masks_of_its_own_everywhere(self):
        keys = models.dropout_keys(SMALL.clone(dropout=0.1), SOURCE, decoder_inputs=TARGET)
        self.assertLen(keys, (1 + 2 * 3) + (1 + 2 * 5))  # embedding; weights and branches of two layers
        self.assertLen(set(keys), len(keys))


    def test_both_sides_are_charged_for_their_own_steps(self):
        model = SMALL.clone(depth=Universal(halting=True))
        params, there = drawn(model), (np.arange(6) < np.array([6, 2, 4])[:, None]).astype(int)
        batch = {'inputs': SOURCE, 'segments': SEGMENTS, 'positions': np.broadcast_to(np.arange(8), (3, 8)),
                 'decoder_inputs': TARGET, 'decoder_segments': there, 'targets': TARGET, 'weights': there * 1.0,
                 'decoder_positions': np.broadcast_to(np.arange(6), (3, 6))}
        task = SequenceToSequence(ponder=0.1)
        self.assertEqual(task.coefficients, {'cross_entropy': 1.0, 'ponder': 0.1, 'source_ponder': 0.1})
        outputs = apply(model, params, **task.inputs(batch))
        terms = task.terms(outputs, batch)
        for name, mask, count in (('ponder', there, 12), ('source_ponder', SEGMENTS, 16)):
            self.assertGreater(np.ptp(outputs[name]), 1e-3)
            np.testing.assert_allclose(terms[name], [(outputs[name] * mask).sum(), count], rtol=1e-5)


class CacheTest(parameterized.TestCase):
    @parameterized.parameters(dict(), dict(positions=Rotary()), dict(positions=Learned(), residual=PreNorm()),
                              dict(cross_attention=Softmax(score=Additive(4))), dict(key_heads=1))
    def test_cached_decoding_equals_the_full_forward(self, **fields):
        model = SMALL.clone(**fields)
        params, lengths = drawn(model), np.array([4, 1, 2])
        whole = apply(model, params, SOURCE, segments=SEGMENTS, decoder_inputs=TARGET)['logits']
        prompts = np.where(np.arange(4) < lengths[:, None], TARGET[:, :4], 0)
        positions = np.broadcast_to(np.arange(4), (3, 4))
        out = apply(model, params, SOURCE, segments=SEGMENTS, decoder_inputs=prompts, decoder_positions=positions,
                    decoder_segments=(positions < lengths[:, None]).astype(int), cache=model.init_cache(3, 6))
        for row, n in enumerate(lengths):
            np.testing.assert_allclose(out['logits'][row, :n], whole[row, :n], atol=5e-6)
        for t in range(2):
            at = (lengths + t)[:, None]
            out = apply(model, params, decoder_inputs=np.take_along_axis(TARGET, at, 1), decoder_positions=at,
                        cache=out['cache'])
            np.testing.assert_allclose(out['logits'][:, 0], np.take_along_axis(whole, at[..., None], 1)[:, 0], atol=5e-6)

    def test_several_rows_share_what_is_kept_of_their_source(self):
        params, start = drawn(SMALL), TARGET[:, :1]
        first = apply(SMALL, params, SOURCE, segments=SEGMENTS, decoder_inputs=start, decoder_positions=np.zeros((3, 1), int),
                      decoder_segments=np.ones((3, 1), int), cache=SMALL.init_cache(3, 2))['cache']
        spread = jax.tree_util.tree_map_with_path(
            lambda path, x: x if 'source' in jax.tree_util.keystr(path) else np.repeat(x, 2, 0), first)
        two = RNG.integers(11, size=(6, 1))
        captured = jax.jit(lambda p, *source, **more: SMALL.apply({'params': p}, *source, **more, mutable=['attention']))
        got, seen = captured(params, decoder_inputs=two, decoder_positions=np.ones((6, 1), int), cache=spread)
        whole, all_seen = captured(params, np.repeat(SOURCE, 2, 0), segments=np.repeat(SEGMENTS, 2, 0),
                                   decoder_inputs=np.concatenate([np.repeat(start, 2, 0), two], 1))
        np.testing.assert_allclose(got['logits'][:, 0], whole['logits'][:, 1], atol=5e-6)
        weights, wanted = (x['attention']['decoder']['block_1']['cross_attention']['weights'][0] for x in (seen, all_seen))
        np.testing.assert_allclose(weights[:, :, 0], wanted[:, :, 1], atol=5e-6)


class SearchTest(parameterized.TestCase):
    """Outputs of `generate` against a search by full forward passes, without a cache."""

    @parameterized.parameters(
        (Beam(3, 0.6, 0.3, count=3),), (DiverseBeam(4, 0.6, count=4),), (Beam(3, 0.6, 0.3, count=3), Universal()))
    def test_equals_a_search_without_a_cache(self, strategy, depth=SMALL.depth):
        model = SMALL.clone(depth=depth, vocab=7)
        params = jax.tree.map(jnp.asarray, drawn(model))

        @jax.jit
        def full(source, segments, target):
            outputs, captured = model.apply({'params': params}, source, segments=segments, decoder_inputs=target,
                                            mutable=['attention'])
            cross = [x.mean(1) for path, x in jax.tree_util.tree_leaves_with_path(captured)
                     if 'cross_attention' in jax.tree_util.keystr(path)]
            self.assertLen(cross, 2)  # layers, or steps
            return jax.nn.log_softmax(outputs['logits']), sum(cross) / 2

        def following(tokens, source):
            (own, there), row = np.zeros((2, 1, 8), int), np.zeros((1, 6), int)
            own[0, :len(source)], there[0, :len(source)], row[0, :len(tokens)] = source, 1, tokens
            gains, weights = full(own, there, row)
            return np.float64(gains[0, len(tokens) - 1]), np.float64(weights[0, :len(tokens), :len(source)].sum(0))

        sources, prompts = [[1, 2, 3, 4, 5], [6, 2], [3, 3, 1, 0, 5, 2, 1]], [[0], [0, 4], [0, 2, 5]]
        found = generate(model, params, prompts, source=sources, steps=4, strategy=strategy, key=KEY, end=0, vocab=7)
        for row, prompt, source in zip(found, prompts, sources):
            wanted = decoders.beam(functools.partial(following, source=source), prompt, 4, 0, strategy.size,
                                   strategy.length_penalty, strategy.coverage_penalty, strategy.groups, strategy.diversity)
            self.assertEqual([(one.tokens.tolist(), one.finished) for one in row],
                             [(new, ended) for new, _, ended in wanted[:strategy.count]])
            np.testing.assert_allclose([one.score for one in row], [score for _, score, _ in wanted][:len(row)], atol=1e-5)


CHANGES = {
    'vocab': 12, 'source_vocab': 12, 'source_length': 9, 'length': 7, 'layers': 2, 'encoder_layers': 2, 'heads': 4, 'width': 16,
    'inner': 8, 'activation': 'gelu', 'dropout': 0.1, 'bias': False, 'share': 'none', 'scale_embedding': False,
    'attention': Softmax(score=Dot()), 'encoder_attention': Softmax(score=Dot()), 'cross_attention': Softmax(score=Dot()),
    'key_heads': 1, 'positions': Learned(), 'mask': Causal() & Window(2), 'encoder_mask': Window(2), 'residual': PreNorm(),
    'initial': Scaled(), 'dense_gradient': False, 'depth': Universal(), 'scan': True, 'remat': 'full', 'dtype': 'bfloat16',
    'head': TargetWords(scale=True), **models.CHANGES}
BASE = SMALL.clone(layers=1, share='output', positions=Learned(scale=0.1), dropout=0.2)  # with which every field counts


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, name, value) for name, value in CHANGES.items()))
    def test_field_has_an_effect(self, field, value):
        self.assertNotEqual(program(BASE.clone(**{field: value})), program(BASE))

    def test_every_field_is_tried(self):
        self.assertEqual({f.name for f in dataclasses.fields(EncoderDecoder)} - {'parent', 'name'}, set(CHANGES))

    @parameterized.parameters(
        (dict(share='some'), "share is 'some'; expected one of all, inputs, output, none"),
        (dict(source_vocab=9), 'needs one vocabulary for sources and targets'),
        (dict(mask=Full()), 'lets a token see later ones'),
        (dict(encoder_mask=Random(1, 2, 7), source_length=9), 'is for rows of up to 7 positions, but this one has 9'),
        (dict(cross_attention=Softmax(score=Location(7))), r'Location\(length=7\) is asked for 8 positions'),
        (dict(source_length=7), 'source of 8 tokens is longer than the 7 .* model.source_length=8', Learned()),
        (dict(length=5), 'sequence of 6 tokens is longer than the 5', Learned()))
    def test_bad_fields(self, fields, message, positions=SMALL.positions):
        with self.assertRaisesRegex(ValueError, message):
            jax.eval_shape(lambda: init(SMALL.clone(**fields, positions=positions)))


if __name__ == '__main__':
    absltest.main()
