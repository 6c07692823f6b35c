"""The heads on a model, against their formulas in numpy."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import KEY, apply, build, changed
from transformer.attention.masks.patterns import Full
from transformer.layers.heads import (
    Classes,
    ClassesAndWords,
    NextSentence,
    NextWords,
    NextWordsAndChoice,
    NoHead,
    Span,
    TokenClasses,
)
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

    @parameterized.parameters((Classes(2, at='last', pooler=False), 0.5), (TokenClasses(2), 0.5),
                              (TokenClasses(2, dropout=0.3), 0.3))
    def test_dropout_before_the_last_layer(self, head, rate):
        model = changed(GPT, head=head, dropout=0.5, attention_dropout=0.0)
        keys = models.dropout_keys(model, TOKENS)
        self.assertLen(set(keys), 1 + 2 + 1)
        still = changed(GPT, head=head, attention_dropout=0.0)  # no dropout but the head's own
        params = models.drawn(still, TOKENS)
        apart = np.abs(apply(still, params, TOKENS, key=KEY)['logits'] - apply(still, params, TOKENS)['logits']).max()
        (self.assertGreater if rate == 0.3 else self.assertEqual)(apart, 0.0)

    def test_dropout_before_the_pooler_too(self):
        found = [models.dropout_keys(changed(BERT, head=Classes(2, twice=twice), dropout=0.1), TOKENS)
                 for twice in (False, True)]
        self.assertEqual([len(set(keys)) for keys in found], [5, 6])

    def test_positions_that_do_not_exist(self):
        with self.assertRaisesRegex(ValueError, "at is 'middle'; expected first or last"):
            Classes(2, at='middle')


if __name__ == '__main__':
    absltest.main()
