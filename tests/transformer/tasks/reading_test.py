"""What is learnt of whole texts, against float64, in batches whose last row pads them."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from absl.testing import absltest, parameterized

from transformer.layers.heads import Classes, Span
from transformer.tasks.reading import (
    Hidden,
    MultiLabel,
    MultipleChoice,
    Preferred,
    Spans,
    Tags,
    TextClasses,
    TextNumbers,
)

DRAW = np.random.default_rng(0)
WEIGHTS = np.float32([1, 1, 0])  # the last row pads
ROWS = {name: np.zeros((3, 4), np.int32) for name in ('inputs', 'segments', 'positions', 'types')}


def drawn(*shape):
    return DRAW.normal(size=shape).astype(np.float32)


class ReadingTest(parameterized.TestCase):
    def assert_terms(self, found, **wanted):
        """The terms are these (sum, weight)."""
        self.assertSameElements(found, wanted)
        for name, numbers in wanted.items():
            np.testing.assert_allclose([float(x) for x in found[name]], numbers, rtol=1e-5, atol=1e-5, err_msg=name)

    @parameterized.parameters(True, False)
    def test_inputs(self, types):
        task = TextClasses(types=types)
        self.assertSameElements(task.inputs(ROWS), ['inputs', 'segments', 'positions', *['types'] * types])

    def test_a_decoder_reads_the_text_again(self):
        batch = ROWS | {'inputs': np.arange(12).reshape(3, 4), 'segments': np.ones((3, 4), int)}
        found = Spans(types=False, start=9).inputs(batch)
        self.assertEqual(found['decoder_inputs'].tolist(), [[9, 0, 1, 2], [9, 4, 5, 6], [9, 8, 9, 10]])
        np.testing.assert_array_equal(found['decoder_segments'], batch['segments'])

    def test_of_tags_it_reads_each_word_where_its_tag_is(self):
        batch = ROWS | {'inputs': np.arange(12).reshape(3, 4), 'segments': np.ones((3, 4), int)}
        np.testing.assert_array_equal(Tags(types=False, start=9).inputs(batch)['decoder_inputs'], batch['inputs'])
        self.assertNotIn('decoder_inputs', Tags(types=False).inputs(batch))

    @parameterized.parameters(0.0, 0.2)
    def test_classes(self, smoothing):
        logits, label = drawn(3, 4), np.array([2, 1, 3])
        logits[0, 2] = 9.0  # which is right
        chances = scipy.special.log_softmax(np.float64(logits), -1)
        own, uniform = -chances[range(3), label][:2].sum(), -chances.mean(-1)[:2].sum()
        task, batch = TextClasses(label_smoothing=smoothing), {'label': label, 'example_weights': WEIGHTS}
        right = float((logits.argmax(-1) == label)[:2].sum())
        terms = {'cross_entropy': (own, 2), 'uniform': (uniform, 2)} if smoothing else {'loss': (own, 2)}
        self.assert_terms(task.terms({'logits': logits}, batch), **terms, accuracy=(right, 2))

    def test_labels(self):
        """Of a model that has one more of them than its data."""
        logits = np.float32([[3, -2, 1, 0], [0.5, 1, -30, 0], [1, 1, 1, 1]])
        label = np.float32([[1, 0, 1], [1, 0, 0], [0, 0, 0]])
        each = np.logaddexp(0, np.where(label > 0, -1, 1) * np.float64(logits[:, :3])).mean(-1)
        terms = MultiLabel().terms({'logits': logits}, {'label': label, 'example_weights': WEIGHTS})
        self.assert_terms(terms, loss=(each[:2].sum(), 2), accuracy=(1, 2))

    def test_a_label_that_is_sure_and_wrong_has_a_finite_loss(self):
        terms = MultiLabel().terms({'logits': np.float32([[200.0]])}, {'label': np.float32([[0]])})
        self.assert_terms(terms, loss=(200, 1), accuracy=(0, 1))

    def test_numbers(self):
        batch = {'label': np.float32([2, -1, 50]), 'example_weights': WEIGHTS}
        terms = TextNumbers().terms({'logits': np.float32([[1.5], [1], [7]])}, batch)
        self.assert_terms(terms, loss=(0.25 + 4, 2), absolute_error=(0.5 + 2, 2))

    @parameterized.product(orders=(1, 2), case=(
        (TextClasses, np.array([2, 1, 3]), 4, 'cross_entropy'), (TextNumbers, np.float32([2, -1, 50]), 1, 'squared_error'),
        (MultiLabel, np.float32([[1, 0], [0, 0], [1, 1]]), 2, 'cross_entropy')))
    def test_the_language_model_as_an_auxiliary_loss(self, orders, case):
        """Radford et al. 2018, equation 5, in float64: L2 + λ L1, over texts alone and over pairs in both orders."""
        (task, label, classes, main), draw = case, np.random.default_rng(1)
        rows = 3 * orders
        inputs, sizes = draw.integers(7, size=(rows, 5)), draw.integers(2, 6, size=rows)
        segments = np.int32(np.arange(5) < sizes[:, None])
        words, logits = draw.normal(size=(rows, 5, 7)), draw.normal(size=(rows, classes))
        shape = lambda x: x.reshape(3, 2, 5) if orders > 1 else x
        batch = {name: shape(segments) for name in ROWS} | {'inputs': shape(inputs), 'label': label}
        batch['example_weights'] = WEIGHTS
        chances, wanted = scipy.special.log_softmax(words, -1), 0.0
        for row in range(2 * orders):  # the third example pads
            losses = [-chances[row, t, inputs[row, t + 1]] for t in range(sizes[row] - 1)]
            wanted += sum(losses) / len(losses) / orders

        def terms(task, logits):
            model = lambda key, **given: {'logits': jnp.asarray(logits), 'word_logits': jnp.asarray(words)}
            return task.loss(model, batch, key=None, step=0, train=False)

        with jax.enable_x64(True):
            found, plain = terms(task(auxiliary=0.5), logits), terms(task(), logits)
            added = terms(task(), logits.reshape(3, orders, classes).sum(1))
        np.testing.assert_allclose(found['words'], (wanted, 2), rtol=1e-10)
        np.testing.assert_allclose(found[main], plain['loss'], rtol=1e-10)
        np.testing.assert_allclose(plain['loss'], added['loss'], rtol=1e-10)
        self.assertEqual(task(auxiliary=0.5).coefficients, {main: 1.0, 'words': 0.5})
        self.assertNotIn('words', plain)
        self.assertEqual(task().inputs(batch)['inputs'].tolist(), inputs.tolist())

    def test_an_auxiliary_loss_needs_the_next_words(self):
        batch = ROWS | {'label': np.array([0, 1, 1])}
        with self.assertRaisesRegex(ValueError, "task.auxiliary=0.5 needs a head that also predicts the next words; set"):
            TextClasses(auxiliary=0.5).terms({'logits': drawn(3, 2)}, batch)
        with self.assertRaisesRegex(ValueError, 'auxiliary is -1; expected a weight of 0 or more'):
            TextNumbers(auxiliary=-1)

    def test_preferences(self):
        """Logits come in the order of the inputs: the chosen and the rejected text of each pair in turn."""
        batch = {name: np.arange(24).reshape(3, 2, 4) for name in ROWS} | {'example_weights': WEIGHTS}
        task = Preferred()
        self.assertEqual(task.inputs(batch)['inputs'].tolist(), np.arange(24).reshape(6, 4).tolist())
        margins = np.float64([1.5 - -0.25, -2 - 3])
        terms = task.terms({'logits': np.float32([[1.5], [-0.25], [-2], [3], [0], [9]])}, batch)
        self.assert_terms(terms, loss=(np.logaddexp(0, -margins).sum(), 2), accuracy=(1, 2), margin=(margins.sum(), 2))

    @parameterized.product(auxiliary=(0.0, 0.5), double=(False, True))
    def test_choices(self, auxiliary, double):
        """In float64: a softmax over the answers that are there, in the order of the inputs; of their rows, and no others, the
        language model."""
        draw, task = np.random.default_rng(2), MultipleChoice(auxiliary=auxiliary)
        inputs, label = draw.integers(7, size=(3, 3, 4)), np.array([2, 0, 1])
        sizes = np.array([[4, 2, 3], [3, 4, 0], [4, 4, 4]])
        batch = {name: np.int32(np.arange(4) < sizes[..., None]) for name in ROWS}
        batch |= {'inputs': inputs, 'label': label, 'example_weights': WEIGHTS}
        scores, words = draw.normal(size=(3, 3)), draw.normal(size=(3, 3, 4, 7))
        scores[1, 2] = 99.0  # of no answer
        outputs = {'logits': scores.reshape(9, 1), 'word_logits': words.reshape(9, 4, 7)}
        of_scores = 'choice_logits' if double else 'logits'
        if double:
            outputs = {'choice_logits': scores.reshape(9), 'logits': words.reshape(9, 4, 7)}
        with jax.enable_x64(True):
            found = task.loss(lambda key, **given: jax.tree.map(jnp.asarray, outputs), batch, key=None, step=0, train=False)
            slope = jax.grad(lambda s: task.terms(outputs | {of_scores: s}, batch)[task.main if auxiliary else 'loss'][0])(
                jnp.asarray(outputs[of_scores])).reshape(3, 3)
        there = [scores[0], scores[1, :2]]
        own = -sum(scipy.special.log_softmax(s)[n] for s, n in zip(there, label))
        right = sum(s.argmax() == n for s, n in zip(there, label))
        np.testing.assert_allclose(found['cross_entropy' if auxiliary else 'loss'], (own, 2), rtol=1e-10)
        np.testing.assert_allclose(found['accuracy'], (right, 2))
        np.testing.assert_allclose(slope[1], [*(scipy.special.softmax(there[1]) - [1, 0]), 0], rtol=1e-10)
        self.assertFalse(slope[2].any())
        self.assertEqual(task.inputs(batch)['inputs'].tolist(), inputs.reshape(9, 4).tolist())
        if auxiliary:
            chances, wanted = scipy.special.log_softmax(words, -1), 0.0
            for example, rows in ((0, 3), (1, 2)):
                for row in range(rows):
                    losses = [-chances[example, row, t, inputs[example, row, t + 1]] for t in range(sizes[example, row] - 1)]
                    wanted += np.mean(losses) / rows
            np.testing.assert_allclose(found['words'], (wanted, 2), rtol=1e-10)
            self.assertEqual(task.coefficients, {'cross_entropy': 1.0, 'words': 0.5})

    def test_tags_of_the_words_that_count(self):
        logits, targets = drawn(3, 4, 5), DRAW.integers(5, size=(3, 4))
        weights = np.float32([[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
        chances = scipy.special.log_softmax(np.float64(logits), -1)
        own = -np.take_along_axis(chances, targets[..., None], -1)[..., 0]
        right = ((logits.argmax(-1) == targets) * weights).sum()
        terms = Tags().terms({'logits': logits}, {'targets': targets, 'weights': weights})
        self.assert_terms(terms, loss=((own * weights).sum(), 3), accuracy=(right, 3))

    def test_spans(self):
        """Positions of padding are no answers, both ends have to be right, and each has half of the loss."""
        segments = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
        both = {f'{name}_logits': drawn(3, 4) for name in ('start', 'end')}
        for logits in both.values():
            logits[0, 3] = 50.0
        start, end = np.array([1, 0, 2]), np.array([2, 3, 2])
        both['start_logits'][0, 1], both['end_logits'][0, 2] = 9.0, 9.0  # right, but for the padding
        both['start_logits'][1, 0], both['end_logits'][1, 0] = 9.0, 9.0  # one of two is right
        own = {}
        for name, right in (('start', start), ('end', end)):
            logits = np.where(segments, np.float64(both[f'{name}_logits']), -np.inf)
            own[name] = -scipy.special.log_softmax(logits, -1)[range(2), right[:2]].sum(), 2
        batch = {'segments': segments, 'start': start, 'end': end, 'example_weights': WEIGHTS}
        self.assert_terms(Spans().terms(both, batch), **own, accuracy=(1, 2))
        self.assertEqual(Spans().coefficients, {'start': 0.5, 'end': 0.5})

    @parameterized.parameters(Spans, MultiLabel, TextNumbers, MultipleChoice)
    def test_label_smoothing_is_for_one_class_of_several(self, task):
        with self.assertRaisesRegex(TypeError, 'label_smoothing'):
            task(label_smoothing=0.1)

    def test_nothing_is_learnt_of_hidden_states(self):
        self.assert_terms(Hidden().terms({'hidden': drawn(3, 4, 2)}, ROWS), loss=(0, 0))

    def test_heads_have_what_the_tasks_need(self):
        with self.assertRaisesRegex(ValueError, 'classes is 0; expected the number of classes'):
            Classes(0)
        self.assertFalse(Span().causal)


if __name__ == '__main__':
    absltest.main()
