import gzip
import lzma
import types

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.models import build
from transformer.decoding.constraints import Without
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, Greedy
from transformer.evaluators.base import Averages
from transformer.evaluators.language_model import Compressors, Continuations, Perplexity
from transformer.models.gpt import Gpt

KEY = jax.random.key(0)


class Snapshot:
    """A model with parameters drawn at random; letters stand for tokens."""

    def __init__(self):
        self.model = build(Gpt, vocab=26, length=8, layers=1, heads=1, width=4)
        rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: self.model.init(KEY, np.zeros((1, 2), int))['params'])
        self.params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
        self.data = types.SimpleNamespace(
            config=None, unread=lambda ids: 0, prompt=lambda text: [ord(c) - 97 for c in text], end=-1, facts={'vocab': 26},
            decode=lambda ids: ''.join(chr(97 + i) for i in ids), pieces=lambda ids: [chr(97 + i) for i in ids])
        self.shapes, self.texts = types.SimpleNamespace(params=shapes), {}

    def averages(self, batches):
        return {'loss': 0.5}

    def key(self, name):
        return KEY

    def text(self, name, text):
        self.texts[name] = text


class EvaluatorsTest(parameterized.TestCase):
    @parameterized.parameters(
        (dict(prompt='abcdefgh'), "The prompt 'abcdefgh' of Continuations has 8 tokens; expected 1 to 7"),
        (dict(prompt=''), 'has 0 tokens'), (dict(count=0), 'count=0 and tokens=100; both must be at least 1'),
        (dict(tokens=-1), 'tokens=-1'),
        (dict(strategy=Beam(coverage_penalty=0.2)), 'A coverage penalty needs a model that attends to a source'),
        (dict(strategy=Greedy(constraint=Without((26,)))), 'expected ids from 0 to 25'))
    def test_impossible_continuations_are_found_before_anything_is_computed(self, fields, message):
        self.assertEqual(Continuations(prompt='abc').check(Snapshot(), None), ())
        with self.assertRaisesRegex(ValueError, message):
            Continuations(**{'prompt': 'abc'} | fields).check(Snapshot(), None)

    def test_continuations_need_text(self):
        snapshot = Snapshot()
        del snapshot.data.prompt
        with self.assertRaisesRegex(ValueError, 'Continuations needs text to continue, and NoneType has none; leave that'):
            Continuations(prompt='abc').check(snapshot, None)

    def test_averages_are_those_of_the_snapshot(self):
        self.assertEqual(Averages()(Snapshot(), None), {'loss': 0.5})
        self.assertEqual(Averages().view, {})

    def test_perplexity_says_how_rows_are_cut(self):
        self.assertEqual(Perplexity(context=64, stride=16).view, {'context': 64, 'stride': 16})
        self.assertEqual(Perplexity().view, {'context': None, 'stride': None})
        batches = types.SimpleNamespace(facts={'context': 64, 'stride': 16, 'bytes': 100})
        self.assertEqual(Perplexity()(Snapshot(), batches), {'loss': 0.5, 'context': 64, 'stride': 16})

    def test_compressors_count_bits_per_byte(self):
        text = b'the cat sat on the mat. ' * 40
        numbers = Compressors()(None, types.SimpleNamespace(text=lambda: text))
        self.assertEqual(numbers, {'gzip_bits_per_byte': 8 * len(gzip.compress(text, 9)) / len(text),
                                   'xz_bits_per_byte': 8 * len(lzma.compress(text, preset=9)) / len(text)})

    def test_continuations_are_written_and_give_no_numbers(self):
        snapshot = Snapshot()
        snapshot.data.decode = lambda ids: ' '.join(chr(97 + i) for i in ids)
        numbers = Continuations(prompt='ab', count=2, tokens=3, strategy=Greedy())(snapshot, None)
        self.assertEqual(numbers, {})
        (best,), = generate(snapshot.model, snapshot.params, [[0, 1]], steps=3, strategy=Greedy(), key=KEY, end=-1, vocab=26)
        continued = 'ab ' + snapshot.data.decode(best.tokens)
        self.assertEqual(snapshot.texts, {'continuations': f'--- 1 ---\n{continued}\n--- 2 ---\n{continued}\n'})


if __name__ == '__main__':
    absltest.main()
