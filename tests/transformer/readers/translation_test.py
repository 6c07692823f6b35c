import types

from absl.testing import absltest

from tests import experiments
from training.config import resolve
from transformer.readers import translation


class TranslationTest(experiments.TestCase):
    def test_a_prefix_of_the_length_that_is_advised_fits(self):
        self.text.write_text(experiments.pairs(80))
        data = resolve.construct(experiments.tiny_pairs(self.text).data, 'pipeline').open(None)
        snapshot = types.SimpleNamespace(data=data, model=types.SimpleNamespace(length=12, source_length=12))
        answers = lambda words: [*translation.Translation().answers(snapshot, [], '-', prefix='row ' * words)]
        with self.assertRaisesRegex(ValueError, '--prefix has 13 tokens, but .* is 12 and must hold 1 special token .* to 10'):
            answers(13)
        self.assertEqual(answers(10), [])


if __name__ == '__main__':
    absltest.main()
