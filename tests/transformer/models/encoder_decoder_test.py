import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import decoders, models
from tests.marks import slow_but
from tests.models import apply, build, changed
from transformer.attention.masks.patterns import Full, Random
from transformer.attention.mechanism import AlternateAttention, Softmax
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.rotary import Rotary
from transformer.attention.scores import Additive, Dot, Location
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, DiverseBeam
from transformer.layers.activations import Relu
from transformer.layers.feed_forward import Mlp
from transformer.layers.heads import NextWords
from transformer.layers.initial import Scaled
from transformer.layers.residual import ParallelBranches, PreNorm, Sandwich
from transformer.layers.universal import Groups, Universal
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.tasks.language_model import SequenceToSequence

KEY = jax.random.key(0)
SMALL = build(EncoderDecoder, vocab=11, source_vocab=0, source_length=8, length=6, layers=2, heads=2, width=8,
              feed_forward=Mlp(16, Relu()))
# Encoder and decoder have no size in common.
APART = changed(SMALL, share=False, **{'encoder.layers': 3, 'encoder.heads': 4, 'encoder.width': 12,
                                       'encoder.feed_forward.inner': 10})
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(11, size=(3, 8)), RNG.integers(11, size=(3, 6))
SEGMENTS = (np.arange(8) < np.array([8, 5, 3])[:, None]).astype(int)
drawn = lambda model: models.drawn(model, SOURCE, decoder_inputs=TARGET)
program = functools.cache(lambda model: models.Program(model, SOURCE, decoder_inputs=TARGET))


def init(model):
    return model.init(KEY, SOURCE, decoder_inputs=TARGET)['params']


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Paper:
    """The model of Vaswani et al. 2017, section 3, for one pair, in float64 and by loops over layers, heads and queries."""

    def __init__(self, params):
        self.params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)

    def norm(self, own, x):
        spread = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x - x.mean(-1, keepdims=True)) / spread * own['scale'] + own['bias']

    def attention(self, own, x, y, causal):
        out = np.zeros_like(x) + own['output']['bias']
        for n in range(own['query']['kernel'].shape[1]):
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
            return x @ self.params['output']['kernel'] + self.params['output'].get('bias', 0.0)
        return x @ self.params[names[1]]['embedding'].T


@slow_but('test_equals_the_paper_in_float64', 'paper', 'vocabularies', 'sizes', 'apart')
class ForwardTest(parameterized.TestCase):
    @parameterized.named_parameters(dict(fields, testcase_name=name) for name, fields in {
        'paper': {}, 'unshared': dict(share=False), 'head': dict(head=NextWords(tied=False, bias=True)),
        'vocabularies': dict(share=False, source_vocab=13, head=NextWords(tied=False, bias=True)),
        'layers': {'encoder.layers': 1}, 'sizes': {'decoder.heads': 4, 'encoder.feed_forward.inner': 5},
        'apart': dict(model=APART), 'apart_unshared': dict(model=APART, source_vocab=13, head=NextWords(tied=False))}.items())
    def test_equals_the_paper_in_float64(self, model=SMALL, **fields):
        model = changed(model, **fields)
        params = drawn(model)
        logits = apply(model, params, SOURCE, segments=SEGMENTS, decoder_inputs=TARGET)['logits']
        self.assertEqual('tokens' in params, model.share)
        for row, length in enumerate(SEGMENTS.sum(1)):
            wanted = Paper(params).logits(SOURCE[row, :length], TARGET[row])
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
        model = changed(SMALL, **fields)
        params = drawn(model)
        other = TARGET.copy()
        other[:, 3] = (other[:, 3] + 1) % 11
        moved = np.abs(apply(model, params, SOURCE, decoder_inputs=TARGET)['logits']
                       - apply(model, params, SOURCE, decoder_inputs=other)['logits']).max((0, 2)) > 1e-6
        np.testing.assert_array_equal(moved, np.arange(6) >= 3)

    def test_attention_to_the_source_may_alternate(self):
        model = changed(SMALL, cross_attention=AlternateAttention(Softmax(), Softmax(score=Dot())))
        params, logits = drawn(model), lambda model: apply(model, params, SOURCE, decoder_inputs=TARGET)['logits']
        self.assertGreater(np.abs(logits(model) - logits(changed(model, cross_attention=Softmax()))).max(), 1e-3)
        np.testing.assert_allclose(logits(changed(model, scan=True)), logits(model), rtol=0, atol=1e-5)
        with self.assertRaisesRegex(ValueError, 'layers with one block, which cannot alternate between attentions'):
            drawn(changed(model, depth=Groups(1)))

    @parameterized.parameters(dict(scan=True), dict(remat='full'), dict(scan=True, remat='dots'))
    @pytest.mark.slow
    def test_scanned_layers_equal_unrolled_ones(self, **fields):
        batch = {'inputs': SOURCE, 'segments': SEGMENTS, 'positions': np.broadcast_to(np.arange(8), (3, 8)),
                 'decoder_inputs': TARGET, 'decoder_segments': np.ones_like(TARGET),
                 'decoder_positions': np.broadcast_to(np.arange(6), (3, 6)), 'targets': TARGET, 'weights': np.ones((3, 6))}

        def gradient(model):
            loss = lambda p: SequenceToSequence().loss(functools.partial(model.apply, {'params': p}), batch, key=None, step=0,
                                                       train=False)['loss'][0]
            return jax.jit(jax.grad(loss))(drawn(SMALL))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient(SMALL),
                     gradient(changed(SMALL, **fields)))

    def test_each_stack_initialises_its_own_table(self):
        model = changed(SMALL, share=False, **{'encoder.initial': Scaled(0.5), 'decoder.initial': Scaled(0.01)})
        tables = jax.jit(lambda: {name: init(model)[name]['embedding'] for name in ('source_tokens', 'target_tokens')})()
        spread = {name: float(np.std(table)) for name, table in tables.items()}
        self.assertBetween(spread['source_tokens'], 0.4, 0.6)
        self.assertBetween(spread['target_tokens'], 0.008, 0.012)

    def test_dropout_has_masks_of_its_own_everywhere(self):
        keys = models.dropout_keys(changed(SMALL, dropout=0.1), SOURCE, decoder_inputs=TARGET)
        self.assertLen(keys, (1 + 2 * 3) + (1 + 2 * 5))  # embedding; weights and branches of two layers
        self.assertLen(set(keys), len(keys))

    def test_both_sides_are_charged_for_their_own_steps(self):
        model = changed(SMALL, depth=Universal(halting=True))
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


@slow_but('test_cached_decoding_equals_the_full_forward', 'rotary', 'apart_in_heads')
class CacheTest(parameterized.TestCase):
    @parameterized.named_parameters(
        dict(testcase_name='paper'), dict(testcase_name='rotary', positions=Rotary()),
        dict(testcase_name='pre_norm', positions=Learned(), residual=PreNorm()),
        dict(testcase_name='additive', cross_attention=Softmax(score=Additive(4))),
        dict(testcase_name='alternating', cross_attention=AlternateAttention(Softmax(), Softmax(score=Additive(4)))),
        dict(testcase_name='key_heads', key_heads=1),
        dict(testcase_name='sandwich', residual=Sandwich()), dict(testcase_name='parallel', residual=ParallelBranches()),
        dict(testcase_name='parallel_two_norms', residual=ParallelBranches(norms=2)), dict(testcase_name='apart', model=APART),
        {'testcase_name': 'apart_in_heads', 'model': APART, 'decoder.head_width': 3, 'encoder.key_heads': 2})
    def test_cached_decoding_equals_the_full_forward(self, model=SMALL, **fields):
        model = changed(model, **fields)
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

    def test_a_kernel_of_whole_rows_is_not_asked_to_attend_to_a_source_in_decoding(self):
        source = jnp.zeros((2, 128), jnp.int32)
        start, at = source[:, :1], jnp.zeros((2, 1), jnp.int32)
        splash = Softmax(implementation='splash')
        for cross in (splash, AlternateAttention(Softmax(), splash)):
            model = changed(SMALL, source_length=128, length=128, dtype='bfloat16', cross_attention=cross)

            def decoded(params, model=model):
                out = model.apply(params, source, decoder_inputs=start, decoder_positions=at, cache=model.init_cache(2))
                return model.apply(params, decoder_inputs=start, decoder_positions=at + 1, cache=out['cache'])['logits']

            with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
                params = jax.eval_shape(lambda: model.init(KEY, source, decoder_inputs=source))  # noqa: B023
                self.assertEqual(jax.eval_shape(decoded, params).shape, (2, 1, 11))

    def test_several_rows_share_what_is_kept_of_their_source(self):
        params, start = drawn(SMALL), TARGET[:, :1]
        first = apply(SMALL, params, SOURCE, segments=SEGMENTS, decoder_inputs=start, decoder_positions=np.zeros((3, 1), int),
                      decoder_segments=np.ones((3, 1), int), cache=SMALL.init_cache(3, 2))['cache']
        spread = jax.tree_util.tree_map_with_path(
            lambda path, x: x if 'source' in jax.tree_util.keystr(path) else np.repeat(x, 2, 0), first)
        two = RNG.integers(11, size=(6, 1))
        captured = functools.partial(apply, SMALL, params, capture=('attention',))
        got = captured(decoder_inputs=two, decoder_positions=np.ones((6, 1), int), cache=spread)
        whole = captured(np.repeat(SOURCE, 2, 0), segments=np.repeat(SEGMENTS, 2, 0),
                         decoder_inputs=np.concatenate([np.repeat(start, 2, 0), two], 1))
        np.testing.assert_allclose(got['logits'][:, 0], whole['logits'][:, 1], atol=5e-6)
        weights, wanted = (x['decoder/block_1/cross_attention'] for x in (got, whole))
        np.testing.assert_allclose(weights[:, :, 0], wanted[:, :, 1], atol=5e-6)

    def test_both_stacks_show_their_attention(self):
        found = apply(APART, drawn(APART), SOURCE, segments=SEGMENTS, decoder_inputs=TARGET, capture=('attention',))
        shapes = {name: x.shape for name, x in found.items() if name.endswith('attention')}
        self.assertEqual(shapes, {f'encoder/block_{i}/attention': (3, 4, 8, 8) for i in range(3)}
                         | {f'decoder/block_{i}/attention': (3, 2, 6, 6) for i in range(2)}
                         | {f'decoder/block_{i}/cross_attention': (3, 2, 6, 8) for i in range(2)})
        for name in shapes:
            keys = np.tri(6) if name.startswith('decoder') and not name.endswith('cross_attention') else SEGMENTS[:, None, None]
            seen = np.broadcast_to(keys, shapes[name])
            if name.startswith('encoder'):  # padding sees nothing
                seen = seen * SEGMENTS[:, None, :, None]
            np.testing.assert_allclose(found[name].sum(-1), seen.any(-1), atol=1e-6)
            np.testing.assert_array_equal(found[name] * (1 - seen), 0)


class SearchTest(parameterized.TestCase):
    """Outputs of `generate` against a search by full forward passes, without a cache."""

    @parameterized.parameters(
        (Beam(3, 0.6, 0.3, count=3),), (DiverseBeam(4, 0.6, count=4),), (Beam(3, 0.6, 0.3, count=3), Universal()))
    @pytest.mark.slow
    def test_equals_a_search_without_a_cache(self, strategy, depth=SMALL.decoder.depth):
        model = changed(SMALL, depth=depth, vocab=7)
        params = jax.tree.map(jnp.asarray, drawn(model))

        @jax.jit
        def full(source, segments, target):
            outputs = apply(model, params, source, segments=segments, decoder_inputs=target, capture=('attention',))
            cross = [x.mean(1) for name, x in outputs.items() if name.endswith('cross_attention')]
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
    'vocab': 12, 'source_vocab': 12, 'source_length': 9, 'length': 7, 'share': True, 'scale_embedding': False,
    'cross_attention': Softmax(score=Dot()), 'head': NextWords(scaled=True),
    'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16',
    **{f'{stack}.{path}': value for stack in ('encoder', 'decoder') for path, value in models.OF_STACK.items()},
    'decoder.cross_kept': ((0,), (0, 1))}
BASE = changed(SMALL, share=False, positions=Learned(scale=0.1), dropout=0.2)  # with which every field counts


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        self.assertTrue(program(changed(BASE, **{field: value})) != program(BASE))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(EncoderDecoder), {name for name in CHANGES if '.' not in name})

    @parameterized.parameters(
        (dict(source_vocab=9), 'model.share=True needs one vocabulary for sources and targets.*one of 9 of their own'),
        ({'encoder.width': 12}, 'needs embeddings of one width, but those of sources are 12 wide and those of targets 8'),
        ({'decoder.mask': Full()}, 'lets a token see later ones'),
        ({'encoder.mask': Random(1, 2, 7), 'source_length': 9}, 'is for rows of up to 7 positions, but this one has 9'),
        (dict(cross_attention=Softmax(score=Location(7))), r'Location\(length=7\) is asked for 8 positions'),
        (dict(source_length=7, positions=Learned()), 'source of 8 tokens is longer than the 7 .* model.source_length=8'),
        (dict(length=5, positions=Learned()), 'sequence of 6 tokens is longer than the 5'),
        ({'encoder.cross_kept': ((0,), (0, 1))}, 'attend to no source'))
    def test_bad_fields(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            jax.eval_shape(lambda: init(changed(SMALL, **fields)))


if __name__ == '__main__':
    absltest.main()
