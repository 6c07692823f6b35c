"""What every mechanism of attention declares, held against what it does."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import mechanisms
from tests.marks import slow_but
from tests.mechanisms import CASES, drawn, output, parameters_of, times, used, weights
from tests.models import build, changed
from training.config import resolve
from transformer.attention.context import Context
from transformer.attention.masks.data import Explicit, Padding, Segments
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanism import AlternateAttention, Given, Mechanism, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.mechanisms.linear import Linear
from transformer.attention.mechanisms.nystrom import Nystrom
from transformer.attention.mechanisms.projected import Linformer
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions.absolute import Learned, Sinusoidal
from transformer.attention.positions.base import Encoding, NoPositions
from transformer.attention.positions.rotary import Rotary
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Greedy
from transformer.layers.heads import NoHead
from transformer.layers.numerics import Numerics
from transformer.layers.stack import Stack
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from vit.models.vit import Vit

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(2, 12))
NEXT = np.roll(TOKENS, -1, 1)
IMAGES = RNG.normal(size=(8, 6, 6, 1)).astype(np.float32)
GPT = build(Gpt, vocab=11, length=12, layers=1, heads=4, width=8)
VIT = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8)
SEGMENTS = np.array([[1] * 5 + [2] * 5 + [0] * 2, [4] * 2 + [1] * 5 + [3] * 5])
BASE = Stack(layers=1, heads=2, width=8)
DECODER = dataclasses.replace(BASE, mask=Causal())
ONE = np.ones_like(SEGMENTS)  # document in each row


def cases(**declared):
    return parameterized.named_parameters(*mechanisms.where(**declared))


@functools.cache
def shapes_of(model):
    return jax.eval_shape(lambda: model.init(KEY, TOKENS if isinstance(model, Gpt) else IMAGES)['params'])


def begun(model):
    """Random parameters, but for those of the mechanism, which begin as it says.

    What the model has with Softmax is looked up, rather than traced once more for each mechanism.
    """
    stack, rng, shapes = model.stack, np.random.default_rng(0), shapes_of(changed(model, attention=Softmax()))
    params = jax.tree.map(lambda s: (0.4 * rng.normal(size=s.shape)).astype(np.float32), shapes)
    attention, length = params['block_0']['attention'], 12 if isinstance(model, Gpt) else 10
    mechanism = stack.attention
    for name in {'query', 'key', 'value'} - set(mechanism.projections):
        del attention[name]
    arrays = drawn(queries=length, keys=length, heads=stack.heads, key_heads=stack.key_heads or stack.heads,
                   width=stack.each_head)
    wanted = mechanism.parameters(*used(mechanism, *arrays))
    own = {name: np.asarray(one.initialiser(KEY, one.shape)) for name, one in wanted.items()}
    return params | {'block_0': params['block_0'] | {'attention': attention | ({'mechanism': own} if own else {})}}


def gpt(mechanism, **more):
    """With heads of keys that queries share, where there are queries."""
    return changed(GPT, attention=mechanism, key_heads=2 if 'query' in mechanism.projections else 0, **more)


def randomised(model):
    params, rng = begun(model), np.random.default_rng(1)
    own = params['block_0']['attention'].get('mechanism', {})
    own.update({name: (0.4 * rng.normal(size=x.shape)).astype(np.float32) for name, x in own.items()})
    return params


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, *inputs, **more):
    return model.apply({'params': params}, *inputs, **more)


@functools.partial(jax.jit, static_argnums=0)
def trained(model, params, inputs, labels, **more):
    """((loss, logits), gradient): one program for all that the tests ask of a model."""
    def loss(params):
        logits = model.apply({'params': params}, inputs, **more)['logits']
        return cross_entropy(logits, labels), logits
    return jax.value_and_grad(loss, has_aux=True)(params)


def logits_of(model, params, tokens, segments):
    return np.asarray(trained(model, params, tokens, NEXT, segments=segments)[0][1])


def descent(model, *inputs, **more):
    """The loss before each of a few steps, of one size for every parameter."""
    params, losses = begun(model), []
    for _ in range(16):
        (value, _), gradient = trained(model, params, *inputs, **more)
        params = jax.tree.map(lambda p, g: p - np.float32(1e-2) * np.sign(g), params, jax.device_get(gradient))
        losses.append(float(value))
    return losses


def text(closed):
    """What a program does: its operations, and its constants, which random draws are."""
    return re.sub('0x[0-9a-f]+', '', str(closed)), [np.asarray(x).tolist() for x in closed.consts]


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


class DeclarationsTest(parameterized.TestCase):
    def test_a_config_finds_every_mechanism_and_every_one_is_tried(self):
        found = resolve.subclasses(Mechanism)
        # One of two by layer; between channels (channels_test).
        apart = AlternateAttention(Softmax(), Linear()), ChannelGroups()
        self.assertEqual({type(m) for m in (*CASES.values(), *apart)}, set(found.values()))
        for mechanism in (*CASES.values(), *apart):
            self.assertEqual(resolve.parse(repr(mechanism), Mechanism, 'attention'), mechanism)

    @cases(causal=True)
    def test_no_later_position_changes_an_earlier_output(self, mechanism):
        arrays, masks = drawn(), [Causal(), Causal() & Padding(np.array([9, 7]))]
        parameters = parameters_of(mechanism, *arrays)
        for mask in masks:
            before = output(mechanism, parameters, *arrays, mask)
            for t in (0, 3, 7):
                later = [np.concatenate([x[:, :t + 1], 9 * y[:, t + 1:]], 1) for x, y in zip(arrays, drawn(seed=1))]
                after = output(mechanism, parameters, *later, mask)
                np.testing.assert_array_equal(after[:, :t + 1], before[:, :t + 1])
                self.assertTrue((after[:, -1] != before[:, -1]).any())  # able to fail

    @cases(bidirectional=True)
    def test_what_a_padding_hides_changes_nothing(self, mechanism):
        arrays, mask = drawn(), Padding(np.array([5, 9]))
        parameters = parameters_of(mechanism, *arrays)
        before = output(mechanism, parameters, *arrays, mask)
        other = [x.copy() for x in arrays]
        for x, y in zip(other, drawn(seed=1)):
            x[0, 5:] = y[0, 5:]
        np.testing.assert_array_equal(output(mechanism, parameters, *other, mask)[0, :5], before[0, :5])
        np.testing.assert_array_equal(output(mechanism, parameters, *other, mask)[1], before[1])
        self.assertGreater(np.abs(output(mechanism, parameters, *other, Full())[0, :5] - before[0, :5]).max(), 1e-3)

    @parameterized.named_parameters(*(  # the chunks of hashing depend on the length
        case for case in mechanisms.where(bidirectional=True, free_length=True) if case[1] != CASES['hashing']))
    def test_a_padded_row_equals_a_short_one(self, mechanism):
        arrays, mask = drawn(), Padding(np.array([6, 6]))
        parameters = parameters_of(mechanism, *arrays)
        short = output(mechanism, parameters, *(x[:, :6] for x in arrays), Full())
        np.testing.assert_allclose(output(mechanism, parameters, *arrays, mask)[:, :6], short, atol=3e-6)

    @cases(packed=True)
    def test_documents_in_a_row_equal_rows_of_their_own(self, mechanism):
        arrays = drawn(queries=12, keys=12)
        parameters = parameters_of(mechanism, *arrays)
        pattern = Causal() if mechanism.causal else Full()
        mask = pattern & Segments(SEGMENTS, SEGMENTS)
        packed = jax.jit(lambda p, *a: mechanism(p, *used(mechanism, *a), Given(mask)))(parameters, *arrays)
        for row, start, end in ((0, 0, 5), (0, 5, 10), (1, 0, 2), (1, 2, 7), (1, 7, 12)):
            alone = output(mechanism, parameters, *(x[row:row + 1, start:end] for x in arrays), pattern)
            np.testing.assert_allclose(packed[row, start:end], alone[0], atol=3e-6)
        self.assertTrue(np.isfinite(packed).all())

    @cases(shown=True)
    def test_weights_times_values_are_the_output(self, mechanism):
        arrays = drawn()
        parameters = parameters_of(mechanism, *arrays)
        if mechanism == CASES['compressed']:  # its matrix holds for values that are averaged
            parameters['value'] = np.broadcast_to(np.float32(np.eye(3) / 2), parameters['value'].shape)
        patterns = [p for p, can in ((Full(), mechanism.bidirectional), (Causal(), mechanism.causal)) if can]
        for mask in [*patterns, patterns[0] & Padding(np.array([4, 9]))]:
            matrix = weights(mechanism, parameters, *arrays, mask)
            heads = 4 if 'query' in mechanism.projections else 2
            self.assertEqual(matrix.shape, (2, heads, 9, 9))
            np.testing.assert_allclose(times(matrix, arrays[2]), output(mechanism, parameters, *arrays, mask), atol=1e-5)
            hidden = ~np.broadcast_to(mechanisms.visible(mask, 9, 9, 2)[:, None], matrix.shape)
            np.testing.assert_array_equal(matrix[hidden], 0.0)
            if mechanism not in (CASES['linformer'], CASES['nystrom']):  # not sums of probabilities
                sums = np.swapaxes(matrix.sum(-1), 1, 2)
                sums = sums[:1, :4] if mask not in patterns else sums  # of what is there
                if mechanism == CASES['compressed'] and mask.causal:  # before the first window's end nothing is seen
                    np.testing.assert_array_equal(sums[:, 0], 0.0)
                    sums = sums[:, 1:]
                np.testing.assert_allclose(sums, 1.0, atol=1e-5)
                self.assertGreaterEqual(matrix.min(), 0.0)

    @cases(shown=False)
    def test_gains_are_what_a_larger_value_changes(self, mechanism):
        query, key, value = drawn()
        parameters, step = parameters_of(mechanism, query, key, value), 1e-2
        value[1, 2] = 0.0
        for mask in (Causal(), Causal() & Padding(np.array([6, 9]))):
            gains, wanted = weights(mechanism, parameters, query, key, value, mask), np.zeros((2, 1, 9, 9))
            for s in range(9):
                scale = lambda factor: np.where(np.arange(9)[:, None, None] == s, factor * value, value)  # noqa: B023
                up, down = (output(mechanism, parameters, query, key, scale(1 + e), mask) for e in (step, -step))
                change = np.linalg.norm((up - down).reshape(2, 9, -1), axis=-1) / (2 * step)
                length = np.linalg.norm(value[:, s].reshape(2, -1), axis=-1)
                wanted[:, 0, :, s] = change / np.maximum(length, 1e-9)[:, None]
            np.testing.assert_allclose(gains, wanted, atol=2e-4)
            np.testing.assert_array_equal(gains[0, 0][np.triu_indices(9, 1)], 0.0)
            self.assertGreater(gains[0, 0, 3, 3], 0.05)

    @parameterized.named_parameters(*CASES.items())
    def test_gradients_are_finite_also_of_rows_that_see_nothing(self, mechanism):
        arrays = drawn(queries=12, keys=12)
        parameters = parameters_of(mechanism, *arrays)
        mask = Causal() if mechanism.causal else Full()
        mask = mask & (Segments(SEGMENTS, SEGMENTS) if mechanism.packed else Padding(np.array([0, 7])))

        @jax.jit
        def gradients(parameters, *arrays):
            loss = lambda p, *a: jnp.square(mechanism(p, *used(mechanism, *a), Given(mask))).sum()
            return jax.grad(loss, (0, 1, 2, 3))(parameters, *arrays)

        own, *found = gradients(parameters, *(np.where(np.arange(12)[:, None, None] == 3, 0.0, x) for x in arrays))
        for gradient in jax.tree.leaves((own, found)):
            self.assertTrue(np.isfinite(gradient).all())
        for name in mechanism.projections:
            self.assertGreater(np.abs(found[('query', 'key', 'value').index(name)]).max(), 0)
        for name, gradient in own.items():
            self.assertGreater(np.abs(gradient).max(), 0, name)

    @cases(cross=True)
    def test_shared_key_heads_equal_repeated_ones(self, mechanism):
        query, key, value = drawn()
        parameters = parameters_of(mechanism, query, key, value)
        many = jax.tree.map(lambda p: np.repeat(p, 2, 1) if p.shape[1:2] == (2,) and p.ndim == 4 else p, parameters)
        got = output(mechanism, many, query, np.repeat(key, 2, 2), np.repeat(value, 2, 2), Full())
        np.testing.assert_allclose(got, output(mechanism, parameters, query, key, value, Full()), atol=3e-6)

    @cases(causal=True, free_length=True)
    def test_a_longer_row_begins_as_a_shorter_one(self, mechanism):
        arrays = drawn(queries=20, keys=20)
        parameters = parameters_of(mechanism, *arrays)
        short = output(mechanism, parameters, *(x[:, :9] for x in arrays), Causal())
        np.testing.assert_allclose(output(mechanism, parameters, *arrays, Causal())[:, :9], short, atol=3e-6)

    @parameterized.named_parameters(*CASES.items())
    def test_dropout_acts_where_there_are_weights(self, mechanism):
        arrays, mask = drawn(), Causal() if mechanism.causal else Full()
        parameters = parameters_of(mechanism, *arrays)

        def program(**more):
            call = lambda parameters: mechanism(parameters, *used(mechanism, *arrays), Given(mask, **more))
            return text(jax.make_jaxpr(call)(parameters))

        self.assertTrue(program(rate=0.5) == program())  # no key, no dropout
        if mechanism in [CASES[name] for name in ('linear', 'performer', 'nystrom', 'convolution', 'gated', 'elman')]:
            self.assertTrue(program(rate=0.5, dropout_key=KEY) == program())
        else:
            dropped = output(mechanism, parameters, *arrays, mask, rate=0.5, dropout_key=KEY)
            self.assertTrue((dropped != output(mechanism, parameters, *arrays, mask)).any())

    @parameterized.named_parameters(*CASES.items())
    def test_no_rows_and_rows_of_one_position(self, mechanism):
        mask = Causal() if mechanism.causal else Full()
        for size in (dict(batch=0, queries=5, keys=5), dict(queries=1, keys=1)):
            arrays = drawn(**size)
            parameters = parameters_of(mechanism, *arrays)
            heads = 4 if 'query' in mechanism.projections else 2
            out, shape = output(mechanism, parameters, *arrays, mask), (*arrays[0].shape[:2], heads, 3)
            self.assertEqual(out.shape, shape)
            self.assertTrue(np.isfinite(out).all())
            self.assertEqual(weights(mechanism, parameters, *arrays, mask).shape[0::3], (shape[0], shape[1]))

    @parameterized.named_parameters(*CASES.items())
    def test_bfloat16_is_near(self, mechanism):
        arrays, mask = drawn(), Causal() if mechanism.causal else Full()
        parameters = parameters_of(mechanism, *arrays)
        half = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
        given = Given(mask, numerics=Numerics('bfloat16'))
        got = output(mechanism, parameters, *half, mask, numerics=given.numerics)
        self.assertEqual(got.dtype, jnp.bfloat16)
        wanted = output(mechanism, parameters, *(np.float32(x) for x in half), mask)
        np.testing.assert_allclose(np.float32(got), wanted, atol=0.02 * np.abs(wanted).max())  # they err by 0.006 at most
        self.assertEqual(mechanism.weights(parameters, *used(mechanism, *half), given).dtype, np.float32)


class PaddedTextTest(parameterized.TestCase):
    """Mechanisms that see one document in a row, in models of texts, whose rows have segments: 1, and 0 for padding."""

    @cases(packed=False)
    def test_what_stands_in_the_padding_does_not_matter(self, mechanism):
        bert = build(Bert, vocab=11, length=12, layers=1, heads=2, width=8, attention=mechanism, head=NoHead())
        there = np.arange(12) < np.array([[7], [12]])
        params = bert.init(KEY, TOKENS)['params']
        hidden = lambda tokens, segments: np.asarray(apply(bert, params, tokens, segments=segments)['hidden'])
        first = hidden(TOKENS, there.astype(int))
        np.testing.assert_array_equal(hidden(np.where(there, TOKENS, 3), there.astype(int))[there], first[there])
        self.assertTrue((hidden(TOKENS, np.ones_like(TOKENS))[0, :7] != first[0, :7]).any())  # able to fail
        self.assertFalse(bert.packs)
        two = hidden(TOKENS, np.where(np.arange(12) < np.array([[12], [5]]), 1, 2))
        self.assertTrue(np.isfinite(two[0]).all())
        self.assertTrue(np.isnan(two[1]).all())
        self.assertTrue(np.isnan(hidden(TOKENS, (np.arange(12) > 4) * np.ones_like(TOKENS))).all())  # padding in front

    def test_a_pair_of_texts(self):
        pair = EncoderDecoder(11, 0, 12, 12, encoder=dataclasses.replace(BASE, attention=Nystrom(landmarks=4)),
                              decoder=DECODER, cross_attention=Linformer(rank=4))
        there = np.arange(12) < np.array([[7], [12]])
        params = pair.init(KEY, TOKENS, decoder_inputs=TOKENS)['params']
        hidden = lambda tokens, pair=pair, params=params, segments=there.astype(int): np.asarray(apply(
            pair, params, tokens, decoder_inputs=TOKENS, segments=segments, decoder_segments=np.ones_like(TOKENS))['hidden'])
        np.testing.assert_array_equal(hidden(np.where(there, TOKENS, 3)), hidden(TOKENS))
        self.assertTrue((hidden(np.where(there, 3, TOKENS)) != hidden(TOKENS)).any())
        self.assertFalse(pair.packs)
        across = EncoderDecoder(11, 0, 12, 12, encoder=BASE, decoder=DECODER, cross_attention=Linformer(rank=4))
        given = across, across.init(KEY, TOKENS, decoder_inputs=TOKENS)['params']
        self.assertTrue(np.isfinite(hidden(TOKENS, *given)).all())
        for segments in (np.arange(12) > 4, 1 + (np.arange(12) > 4)):  # padding in front; two documents
            self.assertTrue(np.isnan(hidden(TOKENS, *given, segments * np.ones_like(TOKENS))).all())
        self.assertTrue(EncoderDecoder(11, 0, encoder=BASE, decoder=DECODER).packs)


class RefusedTest(parameterized.TestCase):
    """Each combination outside of what is declared, through a model, in one sentence."""

    def assertRefused(self, sentence, made):
        with self.assertRaisesRegex(ValueError, sentence) as caught:
            jax.eval_shape(made)
        self.assertEndsWith(str(caught.exception), '.')
        self.assertNotIn('\n', str(caught.exception))

    @cases(causal=False)
    def test_a_causal_model(self, mechanism):
        self.assertRefused(r'attention=.* has no causal form, but the mask is Causal\(\); use another attention',
                           lambda: gpt(mechanism).init(KEY, TOKENS))

    @cases(bidirectional=False)
    def test_a_model_that_sees_everything(self, mechanism):
        self.assertRefused(r'attention=.* looks back only, but the mask is Full\(\); use Causal\(\), or another',
                           lambda: changed(VIT, attention=mechanism).init(KEY, IMAGES))

    @parameterized.named_parameters(*((name, m) for name, m in CASES.items() if 'query' not in m.projections))
    def test_what_needs_queries(self, mechanism):
        self.assertRefused(r'attention=.* has no queries that could share heads of keys; leave out key_heads',
                           lambda: changed(GPT, attention=mechanism, key_heads=2).init(KEY, TOKENS))
        for kind in (Rotary(), Learned(at='queries_keys'), Sinusoidal(at='queries_keys')):
            self.assertRefused(r'attention=.* has no queries and keys that could know positions; use an encoding that enters',
                               lambda: changed(GPT, attention=mechanism, positions=kind).init(KEY, TOKENS))  # noqa: B023

    @cases(patterns=False, causal=True)
    def test_a_pattern(self, mechanism):
        self.assertRefused(r'attention=.* cannot leave out single pairs as the mask \(Causal\(\) & Window\(size=2\)\) does',
                           lambda: gpt(mechanism, mask=Causal() & Window(2)).init(KEY, TOKENS))

    @cases(patterns=False, bidirectional=True)
    def test_a_pattern_of_images(self, mechanism):
        self.assertRefused('attention=.* cannot leave out single pairs',
                           lambda: changed(VIT, attention=mechanism, mask=Window(2)).init(KEY, IMAGES))

    @cases(packed=False)
    def test_documents_in_a_row(self, mechanism):
        self.assertRefused('attention=.* cannot keep documents in one row apart; give each a row of its own',
                           lambda: MultiHead(2, mechanism=mechanism).init(KEY, jnp.zeros((2, 12, 8)),
                                                                    context=Context(Segments(SEGMENTS, SEGMENTS))))

    @cases(cross=False)
    def test_another_source(self, mechanism):
        self.assertRefused('attention=.* mixes one sequence with itself and cannot look at another; use Softmax',
                           lambda: MultiHead(2, mechanism=mechanism).init(KEY, jnp.zeros((1, 3, 8)), jnp.zeros((1, 5, 8)),
                                                                    context=Context(Causal() if mechanism.causal else Full())))

    @cases(cached=False)
    def test_decoding(self, mechanism):
        layer = MultiHead(2, mechanism=mechanism)
        self.assertRefused('attention=.* has no cached decoding, so it cannot generate',
                           lambda: layer.init(KEY, jnp.zeros((1, 1, 8)), cache=mechanism.empty_cache(1, 4, 2, 2, 4, 'float32'),
                                        context=Context(positions=jnp.zeros((1, 1), int))))

    @cases(scored=False)
    def test_a_position_encoding_of_scores(self, mechanism):
        @dataclasses.dataclass(frozen=True)
        class Bias(NoPositions):
            def bias(self, *_):
                return (jnp.zeros((1, 1, 5, 5)),)

        mask = Causal() if mechanism.causal else Full()
        begin = lambda kind: lambda: MultiHead(2, mechanism=mechanism).init(KEY, jnp.zeros((1, 5, 8)),
                                                                            context=Context(mask, Encoding(kind)))
        self.assertRefused('attention=.* has no scores that a position encoding could add to', begin(Bias()))
        jax.eval_shape(begin(NoPositions()))

    @cases(patterns=False)
    def test_a_mask_of_single_pairs(self, mechanism):
        mask, query = Explicit(np.tril(np.ones((1, 9, 9), bool))), 'query' in mechanism.projections
        mask = mask if mechanism.bidirectional else mask & Causal()
        self.assertRefused(r'A mask of single pairs, Explicit\(\.\.\), needs an attention with scores; use Softmax\(\)',
                           lambda: MultiHead(4, 2 if query else 0, mechanism=mechanism).init(
                               KEY, jnp.zeros((1, 9, 8)), context=Context(mask)))

    def test_a_mask_that_is_not_joined_by_and(self):
        mask = Full() | Padding(np.array([3, 4]))
        for name in ('compressed', 'hashing'):
            with self.assertRaisesRegex(ValueError, 'is not a pattern joined with Padding or Segments by &'):
                output(CASES[name], {}, *drawn(), mask)

    def test_another_length(self):
        model = changed(VIT, attention=CASES['linformer'], positions=NoPositions())
        params = randomised(model)
        self.assertRefused(r'has key of shape \(4, 10\), for the rows that it began with, but these need \(4, 17\); give '
                           'it rows of that length', lambda: apply(model, params, np.zeros((1, 8, 8, 1))))
        for name in ('dense', 'random', 'factorized'):
            self.assertRefused('is asked for 20 positions, more than its length; .* train with length=20', lambda: changed(
                GPT, attention=CASES[name], length=20).init(KEY, jnp.zeros((1, 20), int)))  # noqa: B023


class Recorded:
    """A model for `generate` that also keeps the logits at every position of every row that it was asked for."""

    def __init__(self, model):
        self.model, self.length, self.init_cache, self.logits = model, model.length, model.init_cache, {}

    def apply(self, variables, inputs, *, positions, segments=None, **more):
        out = self.model.apply(variables, inputs, positions=positions, segments=segments, **more)
        jax.debug.callback(self.record, jnp.ones_like(positions) if segments is None else segments, positions, out['logits'])
        return out

    def record(self, there, positions, logits):
        for row, i in np.argwhere(there):
            self.logits.setdefault((row, int(positions[row, i])), np.array(logits[row, i]))


@slow_but('test_cached_decoding_of_prompts_of_different_lengths_equals_the_full_forward', 'compressed', 'linear', 'softmax',
          'gated', 'convolution')
@slow_but('test_scanned_layers_equal_unrolled_ones', 'performer', 'compressed', 'softmax')
class ModelsTest(parameterized.TestCase):
    @cases(causal=True)
    def test_gpt_learns(self, mechanism):
        losses = descent(gpt(mechanism), TOKENS, NEXT, segments=ONE)
        self.assertLess(losses[-1], losses[0] - 0.1)

    @cases(causal=True, packed=True)
    def test_gpt_keeps_documents_apart(self, mechanism):
        model = gpt(mechanism)
        other = np.where(SEGMENTS == 1, TOKENS, (TOKENS + 1) % 11)
        before, after = (logits_of(model, randomised(model), x, SEGMENTS) for x in (TOKENS, other))
        np.testing.assert_array_equal(after[SEGMENTS == 1], before[SEGMENTS == 1])
        self.assertTrue((after[SEGMENTS != 1] != before[SEGMENTS != 1]).any())

    @cases(cached=True, causal=True)
    def test_cached_decoding_of_prompts_of_different_lengths_equals_the_full_forward(self, mechanism):
        model, prompts = gpt(mechanism), [TOKENS[0, :6], TOKENS[1, :2]]
        recorded, params = Recorded(model), randomised(model)
        found = generate(recorded, params, prompts, steps=20, strategy=Greedy(), key=KEY, end=-1, vocab=11)
        jax.effects_barrier()
        new = [best.tokens for best, in found]
        rows = np.array([np.concatenate(row) for row in zip(prompts, new)])
        self.assertEqual(rows.shape, (2, 13))  # the last token is never read
        whole = logits_of(model, params, rows[:, :-1], ONE)
        for row, prompt in enumerate(prompts):
            np.testing.assert_array_equal(whole[row].argmax(-1)[len(prompt) - 1:], new[row])
            for t in range(12):
                np.testing.assert_allclose(recorded.logits[row, t], whole[row, t], atol=5e-6)

    def test_a_kernel_of_whole_rows_is_not_asked_to_decode(self):
        model = changed(GPT, attention=Softmax(implementation='blockwise'))
        params, at = randomised(model), np.zeros((2, 1), int)
        whole = logits_of(model, params, TOKENS[:2], ONE[:2])
        one = apply(model, params, TOKENS[:2, :1], cache=model.init_cache(2), positions=at)
        np.testing.assert_allclose(one['logits'][:, 0], whole[:, 0], atol=5e-6)

    @cases(bidirectional=True)
    @pytest.mark.slow
    def test_vit_learns(self, mechanism):
        losses = descent(changed(VIT, attention=mechanism), IMAGES, np.arange(8) % 3)
        self.assertLess(losses[-1], losses[0] - 0.1)

    @cases(causal=True)
    def test_scanned_layers_equal_unrolled_ones(self, mechanism):
        # Of two layers one adds nothing, so that they are as the one layer that other tests compile.
        one = gpt(mechanism)
        params, two = randomised(one), changed(one, layers=2, scan=True, remat='full')
        wanted, block = logits_of(one, params, TOKENS, ONE), params['block_0']
        nothing = jax.tree.map(np.zeros_like, block)
        for blocks in ((block, nothing), (nothing, block)):
            scanned = apply(two, params | dict(zip(('block_0', 'block_1'), blocks)), TOKENS)
            np.testing.assert_allclose(scanned['logits'], wanted, atol=2e-5)

    @cases(free_length=True, bidirectional=True)
    def test_vit_takes_images_of_another_size(self, mechanism):
        model = changed(VIT, attention=mechanism, positions=NoPositions())
        params, images = randomised(model), np.ones((1, 8, 4, 1), np.float32)
        out = jax.eval_shape(lambda: model.apply({'params': params}, images))
        self.assertEqual(out['hidden'].shape, (1, 9, 8))


CHANGES = {
    'linear': {'chunk': 4}, 'performer': {'features': 16, 'orthogonal': False, 'seed': 1, 'chunk': 3},
    'linformer': {'rank': 3, 'shared': True}, 'compressed': {'factor': 3},
    'dense': {'kind': 'random', 'length': 20, 'rank': 4}, 'hashing': {'buckets': 4, 'chunk': 4, 'rounds': 1, 'seed': 1},
    'nystrom': {'landmarks': 3, 'iterations': 2}, 'convolution': {'kernel': 2}, 'gated': {'gated': False}}


class FieldsTest(parameterized.TestCase):
    @parameterized.parameters(*((name, field, value) for name, changes in CHANGES.items() for field, value in changes.items()))
    def test_field_has_an_effect(self, name, field, value):
        def program(mechanism):
            arrays = drawn(width=5)
            parameters = parameters_of(mechanism, *arrays)
            mask = Causal() if mechanism.causal else Full()
            call = lambda parameters: mechanism(parameters, *used(mechanism, *arrays), Given(mask))
            return text(jax.make_jaxpr(call)(parameters))
        other = dataclasses.replace(CASES[name], **{field: value})
        self.assertTrue(program(other) != program(CASES[name]))  # assertNotEqual would print both

    def test_every_field_is_tried(self):
        for name, changes in CHANGES.items():
            self.assertEqual({f.name for f in dataclasses.fields(CASES[name])}, set(changes))
        others = {type(m) for m in CASES.values()} - {type(CASES[name]) for name in CHANGES}
        self.assertEqual({cls.__name__ for cls in others}, {'Softmax'})  # its score and kernel: scores_test, kernels_test


if __name__ == '__main__':
    absltest.main()
