import types

import numpy as np
from absl.testing import absltest

from data.text.babi import Babi
from tests import experiments
from transformer.readers.stories import StoryAnswer
from transformer.tasks.stories import MemoryAnswers


class StoryAnswerTest(experiments.TestCase):
    def test_sentences_that_are_not_read_are_told(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        data = Babi(path=str(self.folder), tasks=(1, 2), memory=2).open(None)
        apply = lambda story, **given: {'logits': np.zeros((len(story), data.facts['vocab']), np.float32)}
        snapshot = types.SimpleNamespace(data=data, apply=apply, run=types.SimpleNamespace(task=MemoryAnswers()))
        short, long = (details for _, details in StoryAnswer().answers(snapshot, experiments.story(0).splitlines(), '-'))
        self.assertNotIn('note', short)
        self.assertEqual(long['note'], 'the first 3 of 5 sentences are not read, as in training')


if __name__ == '__main__':
    absltest.main()
