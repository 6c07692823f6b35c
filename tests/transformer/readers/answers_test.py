import types
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import experiments
from training.config import resolve
from transformer.readers import whole
from transformer.readers.answers import FoundAnswer


class FoundAnswerTest(experiments.TestCase):
    def test_a_question_that_is_cut_is_told(self):
        self.text.write_text(experiments.readings('questions'))
        data = resolve.construct(experiments.tiny_reader(self.text, 'questions').data, 'pipeline').open(None)
        row = {name: np.zeros(16, np.float32) for name in ('start_logits', 'end_logits')}
        with mock.patch.object(whole, 'outputs', lambda *_: iter([row, row])):
            short, long = (details for _, details in FoundAnswer().answers(
                types.SimpleNamespace(data=data), ['key row mask\tsum', 'key row mask head row\tsum'], '-'))
        self.assertNotIn('note', short)  # data.question_length=3
        self.assertEqual((long['cut'], long['note']), (
            2, 'the question is cut as in training; the last 2 of its tokens are not read'))


if __name__ == '__main__':
    absltest.main()
