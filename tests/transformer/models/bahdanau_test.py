import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import models, recurrent_reference
from transformer.attention.scores import Additive, Bilinear, Cosine, Dot, Gaussian, Location, ScaledDot
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam
from transformer.layers.initial import Scaled
from transformer.models.bahdanau import RecurrentEncoderDecoder
from transformer.models.recurrent import Gru, Lstm
from transformer.models.recurrent_attention import Bahdanau, Luong, NoAttention
from transformer.tasks.losses import cross_entropy

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
SMALL = RecurrentEncoderDecoder(vocab=7, source_vocab=0, source_length=6, length=6, width=4,
                                attention=Bahdanau(score=Additive(width=3)))
DEEP = SMALL.clone(layers=2)
PARTS = {
    'none': NoAttention(), 'bahdanau': Bahdanau(score=Additive(width=3), combined=True, past=True),
    'past alone': Luong(score=Bilinear(), feeding=False, past=True), 'luong': Luong(score=Bilinear(), window=1),
    'at once': Luong(score=Bilinear(), feeding=False, window=2, predictive=True)}
SOURCE = RNG.integers(7, size=(2, 5))
TARGET = RNG.integers(7, size=(2, 5))
THERE = np.arange(5) < np.array([[5], [3]])
BATCH = dict(inputs=SOURCE, segments=THERE.astype(int), decoder_inputs=TARGET, decoder_segments=(np.arange(5) < [[4], [5]]) * 1)
SHORT = jnp.zeros((1, 2), jnp.int32)
init = lambda model: model.init(KEY, SHORT, decoder_inputs=SHORT)['params']
drawn = lambda model: models.drawn(model, SHORT, decoder_inputs=SHORT, scale=0.7)
program = functools.cache(lambda model: models.Program(model, **BATCH))


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, **inputs):
    """(outputs, weights of attention by name)."""
    outputs = model.apply({'params': params}, **inputs, capture=('attention',))
    return outputs, {name.removeprefix('decoder/'): x for name, x in outputs.items() if name.startswith('decoder/')}


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


class LoopTest(parameterized.TestCase):
    """One row of the model, by numpy, token by token."""

    def setUp(self):
        super().setUp()
        self.row, self.tokens = SOURCE[1, :3], TARGET[1]

    def encoded(self, params, layers, cell):
        x, last = params['source_tokens']['embedding'][self.row][None].astype(np.float64), []
        for i in range(layers):
            ends = [recurrent_reference.layer(cell, params['encoder'][f'layer_{i}{end}'], x, reverse=bool(end))
                    for end in ('', '_reverse')]
            x = np.concatenate([out for out, _ in ends], -1)
            last.append({name: np.concatenate([end[name] for _, end in ends], -1)[0] for name in cell.states})
        first = [{name: np.tanh(s @ params['decoder'][f'first_layer_{i}_{name}']['kernel']
                                + params['decoder'][f'first_layer_{i}_{name}']['bias']) for name, s in one.items()}
                 for i, one in enumerate(last)]
        return x[0], first, last

    def above(self, cell, params, x, states):
        """The new states of all layers, the first of which is given x."""
        new = []
        for i, state in enumerate(states):
            new.append(recurrent_reference.step(cell, params['decoder'][f'layer_{i}'], x, state))
            x = new[-1]['hidden']
        return new

    def assertModelGives(self, model, params, hidden):
        found, _ = apply(model, params, **BATCH)
        np.testing.assert_allclose(found['hidden'][1], hidden, atol=1e-5)
        logits = hidden @ params['output']['kernel'] + params['output']['bias']
        np.testing.assert_allclose(found['logits'][1], logits, atol=2e-5)

    @parameterized.parameters(Gru(), Lstm())
    def test_bahdanau(self, cell):
        model = DEEP.clone(cell=cell)
        params = drawn(model)
        annotations, states, _ = self.encoded(params, 2, cell)
        score, hidden = params['decoder']['cross_attention'], []
        for token in self.tokens:
            inner = states[-1]['hidden'] @ score['query'][0] + annotations @ score['key'][0]
            context = softmax(np.tanh(inner) @ score['output'][0]) @ annotations
            x = np.concatenate([params['target_tokens']['embedding'][token], context])
            states = self.above(cell, params, x, states)
            hidden.append(states[-1]['hidden'])
        self.assertModelGives(model, params, np.stack(hidden))

    @parameterized.parameters(False, True)
    def test_luong_with_feeding_in_a_predicted_window_and_with_a_past(self, past):
        model = DEEP.clone(attention=Luong(score=Bilinear(), window=2, predictive=True, past=past))
        params = drawn(model)
        annotations, states, _ = self.encoded(params, 2, Gru())
        own, fed, hidden, before = params['decoder']['cross_attention'], np.zeros(4), [], []
        for token in self.tokens:
            x = np.concatenate([params['target_tokens']['embedding'][token], fed])
            states = self.above(Gru(), params, x, states)
            top, places = states[-1]['hidden'], np.arange(3)
            p = 3 * recurrent_reference.sigmoid(np.tanh(top @ own['window']) @ own['window_output'])
            near = abs(places - p) <= 2
            weights = np.zeros(3)
            weights[near] = softmax((annotations @ (top @ own['kernel'][0]))[near])
            context = (weights * np.exp(-(places - p) ** 2 / (2 * 1.0 ** 2))) @ annotations
            if past:
                look = top @ params['decoder']['attention']['kernel'][0]
                found = softmax(np.stack(before) @ look) @ np.stack(before) if before else np.zeros(4)
                context = np.concatenate([context, found])
            before.append(top)
            fed = np.tanh(np.concatenate([context, top]) @ params['decoder']['combined']['kernel'])
            hidden.append(fed)
        self.assertModelGives(model, params, np.stack(hidden))

    def test_without_attention_the_last_state_enters_every_step(self):
        model = DEEP.clone(attention=NoAttention())
        params = drawn(model)
        _, states, last = self.encoded(params, 2, Gru())
        hidden = []
        for token in self.tokens:
            x = np.concatenate([params['target_tokens']['embedding'][token], last[-1]['hidden']])
            states = self.above(Gru(), params, x, states)
            hidden.append(states[-1]['hidden'])
        self.assertModelGives(model, params, np.stack(hidden))


class PartsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, part) for name, part in PARTS.items()))
    def test_cached_steps_equal_the_full_forward_and_share_a_source(self, part):
        # Two hypotheses of each source; prompts of different lengths.
        model = SMALL.clone(attention=part, cell=Lstm(), bidirectional=False)
        params, targets = drawn(model), RNG.integers(7, size=(4, 5))
        source = {name: np.repeat(BATCH[name], 2, 0) for name in ('inputs', 'segments')}
        lengths = np.array([3, 3, 1, 1])
        targets[1, :3] = targets[0, :3]
        targets[3, :1] = targets[2, :1]
        whole, wanted_weights = apply(model, params, **source, decoder_inputs=targets)
        there = np.arange(3) < lengths[::2, None]
        out, _ = apply(model, params, inputs=BATCH['inputs'], segments=BATCH['segments'], cache=model.init_cache(2, 5),
                       decoder_inputs=np.where(there, targets[::2, :3], 6), decoder_segments=there.astype(int),
                       decoder_positions=np.broadcast_to(np.arange(3), (2, 3)))
        for row, n in enumerate(lengths[::2]):
            np.testing.assert_allclose(out['logits'][row, :n], whole['logits'][2 * row, :n], atol=1e-5)
        cache = {name: one if name == 'source' else jax.tree.map(lambda x: jnp.repeat(x, 2, 0), one)
                 for name, one in out['cache'].items()}
        self.assertTrue(all(len(x) == 2 for x in jax.tree.leaves(cache['source'])))
        for t in range(2):
            at = (lengths + t)[:, None]
            out, weights = apply(model, params, decoder_inputs=np.take_along_axis(targets, at, 1), decoder_positions=at,
                                 cache=cache)
            cache = out['cache']
            np.testing.assert_allclose(out['logits'][:, 0], np.take_along_axis(whole['logits'], at[..., None], 1)[:, 0],
                                       atol=1e-5)
            for name in weights:
                wanted = np.take_along_axis(np.asarray(wanted_weights[name]), at[:, None, None], 2)
                np.testing.assert_allclose(weights[name], wanted, atol=1e-5)

    @parameterized.named_parameters(*((name, part) for name, part in PARTS.items()))
    def test_a_token_moves_only_what_may_see_it(self, part):
        model = SMALL.clone(attention=part)
        params = drawn(model)
        outputs, weights = apply(model, params, **BATCH)
        logits = np.asarray(outputs['logits'])
        for name, one in weights.items():
            self.assertEqual((one.shape, one.dtype), ((2, 1, 5, 5), jnp.float32))
            one, seen = np.asarray(one)[:, 0], THERE[:, None] if name == 'cross_attention' else np.tri(5, k=-1)[None]
            if name == 'cross_attention' and part == PARTS['luong']:
                seen = seen & (abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1)
            np.testing.assert_array_equal(one * (1 - seen), 0)
            if name == 'cross_attention' and part == PARTS['at once']:  # faded, by how far they are away
                self.assertLess(one.sum(-1).max(), 1)
            else:
                np.testing.assert_allclose(one[0, :4].sum(-1), np.broadcast_to(seen, one.shape)[0, :4].any(-1), atol=1e-6)
        changed = np.where(BATCH['segments'] == 0, (SOURCE + 1) % 7, SOURCE)  # padding of the source
        targets = np.where(BATCH['decoder_segments'] == 0, (TARGET + 1) % 7, TARGET)
        other = np.asarray(apply(model, params, **BATCH | {'inputs': changed, 'decoder_inputs': targets})[0]['logits'])
        there = BATCH['decoder_segments'] != 0
        np.testing.assert_array_equal(other[there], logits[there])
        later = apply(model, params, **BATCH | {'decoder_inputs': np.where(np.arange(5) == 2, (TARGET + 1) % 7, TARGET)})[0]
        moved = np.abs(later['logits'] - logits).max(-1) > 1e-7
        np.testing.assert_array_equal(moved, np.arange(5) >= np.full((2, 1), 2))
        first = np.where(np.arange(5) == 0, (SOURCE + 1) % 7, SOURCE)
        moved = np.abs(apply(model, params, **BATCH | {'inputs': first})[0]['logits'] - logits).max(-1) > 1e-7
        self.assertTrue(moved.all())  # through the encoder's states, wherever the window is

    @parameterized.named_parameters(*((name, PARTS[name]) for name in ('bahdanau', 'luong', 'at once')))
    @pytest.mark.slow
    def test_the_gradient_is_the_slope(self, part):
        model = SMALL.clone(attention=part, bidirectional=False)
        params, factors = drawn(model), RNG.normal(size=(2, 5, 7))
        both = jax.jit(jax.value_and_grad(
            lambda params: (model.apply({'params': params}, **BATCH)['logits'] * factors).sum()))
        gradient = both(params)[1]
        norms = [np.linalg.norm(g) for g in jax.tree.leaves(gradient)]
        self.assertGreater(min(norms), 0.0)  # everything is of use
        ends = [both(jax.tree.map(lambda p, g: p + step * g / np.linalg.norm(g), params, gradient))[0]  # noqa: B023
                for step in (2e-3, -2e-3)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 4e-3, sum(norms), rtol=1e-2)


@functools.partial(jax.jit, static_argnums=0)
def trained(model, params, rows, steps):
    """(losses in nats a token, parameters) after `steps` steps of Adam to turn rows around."""
    source, answer = rows, rows[:, ::-1]
    before = jnp.pad(answer[:, :-1], ((0, 0), (1, 0)))

    def loss(params):
        logits = model.apply({'params': params}, source, decoder_inputs=before)['logits']
        return cross_entropy(logits, answer).mean()

    def step(state, t):
        params, mean, square = state
        value, g = jax.value_and_grad(loss)(params)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, g)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, g)
        params = jax.tree.map(lambda p, m, s: p - 0.02 * (m / (1 - 0.9 ** (t + 1))) / (
            jnp.sqrt(s / (1 - 0.99 ** (t + 1))) + 1e-8), params, mean, square)
        return (params, mean, square), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(step, (params, zeros, zeros), steps.astype(jnp.float32))[1]


class LearningTest(parameterized.TestCase):
    @parameterized.parameters(
        NoAttention(), Bahdanau(score=Gaussian()), Luong(score=Cosine(), past=True), Luong(score=Location(length=6)),
        Luong(score=ScaledDot(), feeding=False))
    @pytest.mark.slow
    def test_rows_are_turned_around_better_than_by_chance(self, part):
        model = SMALL.clone(attention=part, width=16, bidirectional=False)
        rows = np.random.default_rng(2).integers(1, 7, size=(64, 4))
        losses = trained(model, jax.tree.map(lambda p: 0.5 * p, drawn(model)), rows, np.arange(60))
        self.assertGreater(losses[0], 1.7)  # of guessing: ln 6 = 1.79
        self.assertLess(losses[-1], 1.2)

    def test_a_beam_scores_as_the_model_does(self):
        params, prompt, source = drawn(SMALL), [0, 3], [4, 5, 6]
        (found,) = generate(SMALL, params, [prompt], source=[source], steps=3, key=KEY, end=-1, vocab=7,
                            strategy=Beam(size=3, count=3))
        rows = np.array([prompt + hypothesis.tokens.tolist() for hypothesis in found])
        logits = apply(SMALL, params, inputs=np.repeat([source], 3, 0), decoder_inputs=rows[:, :-1])[0]['logits']
        scores = -np.asarray(cross_entropy(logits, rows[:, 1:]))[:, 1:].sum(-1)
        np.testing.assert_allclose([hypothesis.score for hypothesis in found], scores, atol=1e-4)


CHANGES = {
    'vocab': 8, 'source_vocab': 9, 'layers': 2, 'width': 8, 'embedding': 6, 'cell': Lstm(), 'bidirectional': False,
    'attention': NoAttention(), 'share': True, 'tied': True, 'dropout': 0.1, 'outer_dropout': 0.1, 'initial': Scaled(0.1),
    'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16'}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, name, value) for name, value in CHANGES.items()))
    def test_field_has_an_effect(self, field, value):
        model = DEEP if field == 'dropout' else SMALL
        self.assertTrue(program(model.clone(**{field: value})) != program(model))

    def test_every_field_is_tried(self):
        fields = {f.name for f in dataclasses.fields(RecurrentEncoderDecoder)} - {'parent', 'name'}
        self.assertEqual(fields - {'source_length', 'length'}, set(CHANGES))

    @parameterized.parameters('bahdanau', 'at once')
    def test_dropout_on_the_weights_of_the_source(self, part):
        model = SMALL.clone(attention=dataclasses.replace(PARTS[part], dropout=0.5))
        params = drawn(model)
        outputs = lambda model, **more: np.asarray(apply(model, params, **BATCH, **more)[0]['logits'])
        plain = outputs(SMALL.clone(attention=PARTS[part]))
        np.testing.assert_array_equal(outputs(model), plain)  # not in evaluation
        shaken = np.mean([outputs(model, key=jax.random.key(i)) for i in range(200)], 0)
        alone = np.abs(outputs(model, key=KEY) - plain).max()
        self.assertGreater(alone, 0.05)
        self.assertLess(np.abs(shaken - plain).mean(), 0.5 * np.abs(outputs(model, key=KEY) - plain).mean())

    def test_shared_embeddings(self):
        names = lambda **fields: {name for name in jax.eval_shape(lambda: init(SMALL.clone(**fields))) if name not in
                                  ('encoder', 'decoder')}
        self.assertEqual(names(), {'source_tokens', 'target_tokens', 'output'})
        self.assertEqual(names(tied=True, source_vocab=9), {'source_tokens', 'target_tokens'})
        self.assertEqual(names(share=True, tied=True), {'tokens'})
        self.assertEqual(names(share=True), {'tokens', 'output'})

    @parameterized.parameters(
        (dict(share=True, source_vocab=9), 'model.share=True needs one vocabulary'),
        (dict(tied=True, embedding=6), 'is 6 wide and the decoder 4'),
        (dict(source_length=1), 'A source of 2 tokens is longer than the 1 .* model.source_length=2'),
        (dict(attention=Luong(score=Location(length=5))), 'is asked for 6 positions, more than its length'),
        (dict(length=1), 'A row of 2 tokens is longer than the 1 .* model.length=2'),
        (dict(attention=Luong(score=Dot())), 'Queries are 4 wide and keys 8'))
    def test_what_does_not_fit_is_refused(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            jax.eval_shape(lambda: init(SMALL.clone(**fields)))

    def test_a_window_must_have_a_size(self):
        with self.assertRaisesRegex(ValueError, 'predictive=True .* window is 0'):
            Luong(predictive=True)
        with self.assertRaisesRegex(ValueError, 'window is -1; expected at least 0'):
            Luong(window=-1)

    def test_bfloat16_keeps_parameters_and_states_in_float32(self):
        model, params = SMALL.clone(dtype='bfloat16'), drawn(SMALL)
        outputs, weights = apply(model, params, **BATCH, cache=model.init_cache(2))
        self.assertEqual(outputs['logits'].dtype, jnp.bfloat16)
        states = {name: one for name, one in outputs['cache'].items() if name != 'source'}
        found = states, weights, jax.eval_shape(lambda: init(model))
        self.assertEqual({x.dtype for x in jax.tree.leaves(found)}, {jnp.dtype('float32')})
        exact = apply(SMALL, params, **BATCH)[0]['logits']
        # It errs by 0.006 of the largest.
        np.testing.assert_allclose(outputs['logits'].astype(np.float32), exact, atol=0.02 * np.abs(exact).max())


if __name__ == '__main__':
    absltest.main()
