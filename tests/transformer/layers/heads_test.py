"""The heads on a model, against their formulas in numpy."""

import jax
import numpy as np
import scipy.special
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests import models
from tests.models import KEY, apply, build, changed
from transformer.attention.masks.patterns import Full
from transformer.layers.activations import Gelu, Relu
from transformer.layers.embedding import Embedding
from transformer.layers.heads import (
    Body,
    Classes,
    ClassesAndWords,
    NextSentence,
    NextWords,
    NextWordsAndChoice,
    NoHead,
    ReplacedTokens,
    Span,
    SpanBoundary,
    TokenClasses,
)
from transformer.layers.initial import normal
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt

TOKENS = np.random.default_rng(0).integers(11, size=(3, 6))
SEGMENTS = np.array([[1] * 6, [1] * 4 + [0] * 2, [0] + [1] * 3 + [0] * 2])
BERT, GPT = (build(cls, vocab=11, length=8, layers=1, heads=2, width=8) for cls in (Bert, Gpt))


def affine(params, x):
    return x @ np.float64(params['kernel']) + np.float64(params.get('bias', 0.0))


def outputs(model, **more):
    """(parameters, outputs, hidden states in float64) of a model with a head."""
    params = models.drawn(model, TOKENS)
    found = apply(model, params, TOKENS, **more)
    return params, found, np.float64(found['hidden'])


class HeadAlone(nn.Module):
    """A head on hidden states."""
    head: SpanBoundary
    width: int

    @nn.compact
    def __call__(self, x, boundaries):
        body = Body(self.width, normal(0.5), tokens=Embedding(11, self.width, name='tokens'), vocab=11)
        return self.head(x, body, boundaries=boundaries)


class HeadTest(parameterized.TestCase):

    def assert_close(self, found, wanted):
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    def test_classes_and_the_next_words(self):
        head = ClassesAndWords(classes=3, at='last', pooler=False, bias=False)
        params, found, hidden = outputs(changed(GPT, head=head), segments=SEGMENTS)
        last = hidden[np.arange(3), [5, 3, 3]]
        self.assert_close(found['logits'], affine(params['classes'], last))
        self.assert_close(found['word_logits'], hidden @ np.float64(params['tokens']['embedding']).T)
        with self.assertRaisesRegex(ValueError, 'lets a token see later ones'):
            changed(GPT, head=head, mask=Full()).init(KEY, TOKENS)

    def test_none(self):
        params, found, hidden = outputs(changed(BERT, head=NoHead(pooler=True)))
        self.assert_close(found['pooled'], np.tanh(affine(params['pooler'], hidden[:, 0])))
        self.assertSameElements(outputs(changed(BERT, head=NoHead()))[1], ['hidden'])

    def test_the_next_sentence(self):
        params, found, hidden = outputs(changed(BERT, head=NextSentence()))
        pooled = np.tanh(affine(params['pooler'], hidden[:, 0]))
        self.assert_close(found['next_logits'], affine(params['next_sentence'], pooled))

    @parameterized.parameters(0, 6)
    def test_words_from_the_boundaries_of_their_span(self, embedding_width):
        """In float64, against the formula of SpanBERT's code."""
        model = changed(BERT, head=SpanBoundary(boundary_targets=4, position_width=5), dtype='float64', dropout=0.0,
                        embedding_width=embedding_width)
        masked, boundaries = np.array([[2, 3]] * 3), np.array([[[1, 4, 0], [1, 4, 1]]] * 3)
        with jax.enable_x64(True):
            params = models.drawn(model, TOKENS, masked=masked, boundaries=boundaries)
            params = jax.tree.map(np.float64, params)
            found = apply(model, params, TOKENS, masked=masked, boundaries=boundaries)
            plain, hidden = apply(model, params, TOKENS, masked=masked), np.asarray(found['hidden'])
        self.assertEqual(hidden.dtype, np.float64)
        norm = lambda name, x: (x - x.mean()) / np.sqrt(x.var() + 1e-12) * params[name]['scale'] + params[name]['bias']
        gelu = lambda x: x / 2 * (1 + scipy.special.erf(x / np.sqrt(2)))
        for row in range(3):
            for target in range(2):
                left, right, place = boundaries[row, target]
                y = np.concatenate([hidden[row, left], hidden[row, right], params['boundary_positions']['embedding'][place]])
                for number in (0, 1):
                    y = norm(f'boundary_norm_{number}', gelu(affine(params[f'boundary_{number}'], y)))
                wanted = params['tokens']['embedding'] @ y + params['boundary_output']['bias']
                np.testing.assert_allclose(found['boundary_logits'][row, target], wanted, rtol=1e-10, atol=1e-10)
        self.assertNotIn('boundary_logits', plain)
        np.testing.assert_array_equal(plain['logits'], found['logits'])

    def test_states_inside_of_a_span_do_not_matter(self):
        head, boundaries = SpanBoundary(boundary_targets=4), np.array([[[1, 4, 0], [1, 4, 1]]] * 3)
        model = HeadAlone(head, 8)
        x = np.random.default_rng(1).normal(size=(3, 6, 8)).astype(np.float32)
        params = models.drawn(model, x, boundaries)
        logits = lambda x: np.asarray(apply(model, params, x, boundaries)['boundary_logits'])
        for place, moves in ((1, True), (4, True), (0, False), (2, False), (3, False), (5, False)):
            other = x.copy()
            other[:, place] += 1
            self.assertEqual(np.array_equal(logits(other), logits(x)), not moves, place)
        self.assertFalse(np.array_equal(logits(x)[:, 0], logits(x)[:, 1]))  # the place in the span does

    @parameterized.product(model=(BERT, GPT), bias=(True, False))
    def test_classes_of_the_first_position(self, model, bias):
        params, found, hidden = outputs(changed(model, head=Classes(5, bias=bias)), segments=SEGMENTS)
        self.assertEqual('bias' in params['classes'], bias)
        self.assert_close(found['logits'], affine(params['classes'], np.tanh(affine(params['pooler'], hidden[:, 0]))))

    @parameterized.parameters((None, (5, 5, 5)), (SEGMENTS, (5, 3, 3)))
    def test_classes_of_the_last_position(self, segments, last):
        params, found, hidden = outputs(changed(GPT, head=Classes(5, at='last', pooler=False)), segments=segments)
        self.assertNotIn('pooler', params)
        self.assert_close(found['logits'], affine(params['classes'], hidden[range(3), last]))

    @parameterized.parameters((None, (5, 5, 5)), (SEGMENTS, (5, 3, 3)))
    def test_a_choice_beside_the_next_words(self, segments, last):
        params, found, hidden = outputs(changed(GPT, head=NextWordsAndChoice()), segments=segments)
        self.assert_close(found['choice_logits'], affine(params['choice'], hidden[range(3), last])[:, 0])
        self.assert_close(found['logits'], hidden @ np.float64(params['tokens']['embedding']).T)
        rates = [len(set(models.dropout_keys(changed(GPT, dropout=0.1, head=head), TOKENS)))
                 for head in (NextWords(), NextWordsAndChoice(), NextWordsAndChoice(dropout=0.0))]
        self.assertEqual(rates, [rates[0], rates[0] + 1, rates[0]])

    def test_token_classes_and_spans(self):
        params, found, hidden = outputs(changed(BERT, head=TokenClasses(4)))
        self.assert_close(found['logits'], affine(params['classes'], hidden))
        params, found, hidden = outputs(changed(GPT, head=Span()))
        both = affine(params['span'], hidden)
        self.assert_close(found['start_logits'], both[..., 0])
        self.assert_close(found['end_logits'], both[..., 1])

    @parameterized.parameters((Relu(), jax.nn.relu), (Gelu(), lambda x: jax.nn.gelu(x, approximate=False)))
    def test_the_activation_of_the_pooler(self, activation, function):
        params, found, hidden = outputs(changed(BERT, head=Classes(3, activation=activation)))
        self.assert_close(found['logits'], affine(params['classes'], function(affine(params['pooler'], hidden[:, 0]))))

    @parameterized.parameters((Relu(), jax.nn.relu), (Gelu(), lambda x: jax.nn.gelu(x, approximate=False)))
    def test_replaced_tokens(self, activation, function):
        for width in (0, 3):
            params, found, hidden = outputs(changed(BERT, head=ReplacedTokens(activation), embedding_width=width))
            self.assertEqual(params['discriminator']['kernel'].shape, (8, 8))
            wanted = affine(params['replaced'], function(affine(params['discriminator'], hidden)))[..., 0]
            self.assert_close(found['replaced_logits'], wanted)

    def test_an_output_layer_of_its_own(self):
        for bias in (False, True):
            params, found, hidden = outputs(changed(GPT, head=NextWords(tied=False, bias=bias)))
            self.assertEqual('bias' in params['output'], bias)
            self.assert_close(found['logits'], affine(params['output'], hidden))

    def test_of_a_decoder(self):
        small = build(EncoderDecoder, vocab=11, source_vocab=0, layers=1, heads=2, width=8, source_length=8, length=8)
        for head in (NextWords(scaled=True), NextWords(added=True), NextWords(tied=False), Classes(3, at='last')):
            model = changed(small, head=head)
            params = models.drawn(model, TOKENS, decoder_inputs=TOKENS)
            found = apply(model, params, TOKENS, decoder_inputs=TOKENS, decoder_segments=SEGMENTS)
            hidden, there = np.float64(found['hidden']), SEGMENTS[..., None]
            if isinstance(head, Classes):
                wanted = affine(params['classes'], np.tanh(affine(params['pooler'], hidden[range(3), (5, 3, 3)])))
                self.assert_close(found['logits'], wanted)
                continue
            kernel = params['tokens']['embedding'].T if head.tied else params['output']['kernel']
            wanted = hidden @ np.float64(kernel) * (8 ** -0.5 if head.scaled else 1)
            wanted += np.float64(params['added']['bias'] if head.added else 0)
            self.assert_close(found['logits'] * there, wanted * there)
            if head.added:  # which training leaves as it is
                gradient = jax.grad(lambda p, m=model: apply(m, p, TOKENS, decoder_inputs=TOKENS)['logits'].sum())(params)
                self.assertFalse(np.any(gradient['added']['bias']))

    @parameterized.parameters((Classes(2, at='last', pooler=False), 0.5), (TokenClasses(2), 0.5), (Span(dropout=-1.0), 0.5),
                              (TokenClasses(2, dropout=0.3), 0.3), (Span(dropout=0.3), 0.3))
    def test_dropout_before_the_last_layer(self, head, rate):
        model = changed(GPT, head=head, dropout=0.5, attention_dropout=0.0)
        keys = models.dropout_keys(model, TOKENS)
        self.assertLen(set(keys), 1 + 2 + 1)
        still = changed(GPT, head=head, attention_dropout=0.0)  # no dropout but the head's own
        params = models.drawn(still, TOKENS)
        name = 'start_logits' if isinstance(head, Span) else 'logits'
        apart = np.abs(apply(still, params, TOKENS, key=KEY)[name] - apply(still, params, TOKENS)[name]).max()
        (self.assertGreater if rate == 0.3 else self.assertEqual)(apart, 0.0)

    def test_dropout_before_the_pooler_too(self):
        found = [models.dropout_keys(changed(BERT, head=Classes(2, twice=twice), dropout=0.1), TOKENS)
                 for twice in (False, True)]
        self.assertEqual([len(set(keys)) for keys in found], [5, 6])

    def test_positions_that_do_not_exist(self):
        with self.assertRaisesRegex(ValueError, "at is 'middle'; expected first or last"):
            Classes(2, at='middle')
        for fields in (dict(boundary_targets=0), dict(position_width=0)):
            with self.assertRaisesRegex(ValueError, 'expected numbers of 1 or more'):
                SpanBoundary(**fields)


if __name__ == '__main__':
    absltest.main()
