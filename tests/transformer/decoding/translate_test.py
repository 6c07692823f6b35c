"""Translation by a decoder alone: it reads a source as its task has trained it to."""

import types
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.models import build
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Greedy
from transformer.decoding.translate import translate
from transformer.explain import attention
from transformer.models.gpt import Gpt
from transformer.models.recurrent_lm import RecurrentLm
from transformer.tasks.language_model import NextToken, PrefixNextToken

KEY, END, VOCAB = jax.random.key(0), 0, 11
GPT = build(Gpt, vocab=VOCAB, length=12, layers=2, heads=2, width=8)
SOURCES = [[3, 1, 4, 1, END], [9, 5, END]]


def snapshot(model, task, bidirectional):
    rng, token = np.random.default_rng(0), np.ones((1, 2), np.int32)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32),
                          jax.eval_shape(lambda: model.init(KEY, token)['params']))
    names = 'inputs', 'targets', 'weights', 'segments', 'positions', 'prefix'
    data = types.SimpleNamespace(
        bidirectional=bidirectional, end=END, facts={'vocab': VOCAB}, shapes=dict.fromkeys(names, ((2, 12), np.int32)),
        pieces=lambda ids: list(map(str, ids)), decode=str)
    return types.SimpleNamespace(model=model, params=params, data=data, run=types.SimpleNamespace(task=task))


class DecoderAloneTest(parameterized.TestCase):
    @parameterized.parameters((NextToken, True, False), (NextToken, False, False), (PrefixNextToken, True, True),
                              (PrefixNextToken, False, False))
    def test_the_tokens_of_a_source_see_each_other_as_in_training(self, task, bidirectional, wanted):
        of, given = snapshot(GPT, task(), bidirectional), dict(strategy=Greedy(), key=KEY)
        found = translate(of, SOURCES, steps=5, **given)
        both = [generate(GPT, of.params, SOURCES, steps=5, end=END, vocab=VOCAB, prefixes=prefixes, **given)
                for prefixes in (None, list(map(len, SOURCES)))]
        scores = [[best.score for best, in one] for one in (found, *both)]
        self.assertGreater(abs(scores[1][0] - scores[2][0]), 0.01)
        np.testing.assert_allclose(scores[0], scores[1 + wanted], rtol=1e-4)

    def test_a_model_that_takes_no_prefix_translates(self):
        of = snapshot(build(RecurrentLm, vocab=VOCAB, length=12, layers=1, width=8), NextToken(), False)
        self.assertLen(translate(of, SOURCES, steps=3, strategy=Greedy(), key=KEY), 2)

    @parameterized.parameters((NextToken, True), (PrefixNextToken, False), (PrefixNextToken, True))
    def test_a_picture_shows_the_same_mask(self, task, bidirectional):
        of, seen = snapshot(GPT, task(), bidirectional), []
        apply = jax.jit(lambda params, inputs: GPT.apply({'params': params}, **inputs, capture=('attention',)))
        of.captured = lambda *names, **inputs: {
            name: seen.append(np.asarray(x)) or x for name, x in apply(of.params, inputs).items()
            if name.endswith('/attention')}
        of.data.encode, of.key = lambda text: np.array(SOURCES[0], np.int32), lambda name: KEY
        with mock.patch.object(attention, 'longest_source', lambda run: 8):
            attention.of_pair(of, 'text')
        self.assertEqual(bool(seen[0][0, :, 0, 1].any()), task is PrefixNextToken and bidirectional)


if __name__ == '__main__':
    absltest.main()
