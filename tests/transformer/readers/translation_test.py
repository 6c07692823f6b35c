import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests import experiments
from training.config import resolve
from transformer.decoding.generate import Hypothesis
from transformer.readers import translation


class TranslationTest(experiments.TestCase):
    @parameterized.parameters(
        ('key', 5, True, None, None), ('key', 12, True, None, None), ('key', 3, False, 3, None),
        ('key', 12, False, None, 'ends after 12 new tokens: the context of this model is 12'),
        ('key ' * 13, 5, True, None, 'the source is cut to 12 tokens; 2 at its end are not read'),
        ('key ' * 12, 12, False, 20, 'the source is cut to 12 tokens; 1 at its end are not read; ends after 12 new tokens: the '
                                     'context of this model is 12'))
    def test_what_is_left_out_is_told(self, text, count, finished, tokens, note):
        self.text.write_text(experiments.pairs(80))
        data = resolve.construct(experiments.tiny_pairs(self.text).data, 'pipeline').open(None)
        model = types.SimpleNamespace(length=12, source_length=12)
        snapshot = types.SimpleNamespace(data=data, model=model, key=lambda *_: None)
        found = [[Hypothesis(np.zeros(count, np.int32), 0.0, finished)]]
        with mock.patch.object(translation, 'translate', lambda *_, **given: found):
            (_, details), = translation.Translation().answers(snapshot, [text], '-', tokens=tokens, truncate=True)
        self.assertEqual(details.get('note'), note)
        self.assertEqual(details.get('cut', 0), max(0, len(text.split()) + 1 - 12))

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
