import types

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.evaluators.stories import TaskErrors
from transformer.tasks.losses import cross_entropy
from transformer.tasks.stories import Answers, MemoryAnswers

LOGITS = jnp.float32(np.random.default_rng(0).normal(size=(4, 5)))
BEST = LOGITS.argmax(-1)


class AnswersTest(parameterized.TestCase):
    def test_inputs(self):
        batch = dict.fromkeys(('story', 'question', 'label', 'task'), 0)
        self.assertEqual(set(Answers().inputs(batch)), {'story', 'question'})

    def test_steps_of_the_question_and_of_the_sentences_that_are_there_are_charged(self):
        batch = {'label': BEST, 'story': jnp.array([[[3, 1], [2, 0]], [[4, 0], [0, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]]),
                 'question': jnp.array([[5], [6], [7], [0]])}  # the last row pads a batch
        terms = Answers(ponder=0.1).terms({'logits': LOGITS, 'ponder': jnp.arange(12.0).reshape(4, 3)}, batch)
        self.assertEqual(tuple(map(float, terms['ponder'])), (0 + 1 + 2 + 3 + 4 + 6 + 7 + 8, 8.0))

    def test_loss_and_accuracy_are_of_the_questions_that_count(self):
        label = jnp.array([2, int(BEST[1]), 0, 1])
        batch = {'label': label, 'example_weights': jnp.float32([1, 1, 1, 0])}
        terms = Answers().terms({'logits': LOGITS}, batch)
        self.assertAlmostEqual(float(terms['loss'][0]), float(cross_entropy(LOGITS, label)[:3].sum()), places=5)
        self.assertEqual(terms['loss'][1], 3)
        self.assertEqual(tuple(map(float, terms['accuracy'])), (1.0 + float(BEST[0] == 2), 3.0))

    def test_an_answer_that_training_lacks_is_wrong_whatever_is_given(self):
        sure = jnp.eye(5)[jnp.array([0, 3])] * 9
        terms = Answers().terms({'logits': sure}, {'label': jnp.array([0, 3])})
        self.assertEqual(float(terms['accuracy'][0]), 1.0)

    def test_the_softmax_is_left_out_in_the_first_steps_of_training_alone(self):
        seen = []

        def forward(**inputs):
            seen.append(inputs)
            return {'logits': LOGITS}

        batch = {'story': 1, 'question': 2, 'label': BEST}
        for task, step, train in ((MemoryAnswers(linear_steps=3), 2, True), (MemoryAnswers(linear_steps=3), 3, True),
                                  (MemoryAnswers(linear_steps=3), 2, False), (MemoryAnswers(), 0, True)):
            task.loss(forward, batch, key='key', step=step, train=train)
        self.assertEqual([inputs.get('linear', False) for inputs in seen], [True, False, False, False])
        self.assertEqual([inputs['key'] for inputs in seen], ['key', 'key', None, 'key'])
        self.assertEqual((MemoryAnswers(linear_steps=3).keywords, MemoryAnswers().keywords), (('linear',), ()))

    def test_steps_below_zero_are_refused(self):
        for steps in -1, 1 << 31:
            with self.assertRaisesRegex(ValueError, f'linear_steps is {steps}; expected 0 or more'):
                MemoryAnswers(linear_steps=steps)


class TaskErrorsTest(parameterized.TestCase):
    def measured(self, tasks, right):
        """(numbers, text) of questions that are answered right or wrong, in batches of three, the last one padded."""
        label = np.where(right, 2, 1)
        batches, texts = [], {}
        for start in range(0, len(tasks), 3):
            rows = len(label[start:start + 3])
            padded = lambda x: np.pad(x[start:start + 3], (0, 3 - rows))  # noqa: B023
            batches.append({'label': padded(label), 'task': padded(np.array(tasks)), 'story': np.zeros(3),
                            'question': np.zeros(3), 'example_weights': np.float32(np.arange(3) < rows)})

        class Batches(list):
            facts = {'tasks': tuple(sorted(set(tasks)))}

        snapshot = types.SimpleNamespace(
            run=types.SimpleNamespace(task=MemoryAnswers()), averages=lambda batches: {'loss': 0.5}, text=texts.__setitem__,
            apply=lambda story, question: {'logits': jnp.eye(4)[jnp.full(3, 2)]})
        run = types.SimpleNamespace(metric_names=lambda batches: ('loss',))
        numbers = TaskErrors()(snapshot, Batches(batches))
        self.assertEqual(set(TaskErrors().check(run, Batches(batches))), set(numbers))
        return numbers, texts['errors']

    def test_every_task_counts_the_same_in_the_mean(self):
        numbers, text = self.measured([1, 3, 3, 3, 3, 20, 20], [False, True, True, True, False, False, True])
        self.assertEqual(numbers, {'loss': 0.5, 'error_1': 1.0, 'error_3': 0.25, 'error_20': 0.5,
                                   'mean_error': 1.75 / 3, 'mean_error_without_3': 0.75})
        self.assertEqual([line.split() for line in text.splitlines()], [
            ['error_1', '100.00', '%', 'of', '1'], ['error_3', '25.00', '%', 'of', '4'], ['error_20', '50.00', '%', 'of', '2'],
            ['mean_error', '58.33', '%'], ['mean_error_without_3', '75.00', '%']])

    @parameterized.parameters(([3, 3],), ([5, 5],))
    def test_of_one_task_there_is_one_mean(self, tasks):
        numbers, _ = self.measured(tasks, [True, False])
        self.assertEqual(numbers, {'loss': 0.5, f'error_{tasks[0]}': 0.5, 'mean_error': 0.5})


if __name__ == '__main__':
    absltest.main()
