"""What encoders are pretrained on, against float64, in batches whose last row pads them."""

import types

import numpy as np
import scipy.special
from absl.testing import absltest, parameterized

from transformer.tasks.distillation import Distillation
from transformer.tasks.electra import ReplacedTokens
from transformer.tasks.masked import BertPretraining, MaskedTokens, NextSentencePrediction, SpanPretraining

DRAW = np.random.default_rng(0)
LOGITS, NEXT = DRAW.normal(size=(3, 6, 5)).astype(np.float32), DRAW.normal(size=(3, 2)).astype(np.float32)
BATCH = {name: DRAW.integers(5, size=(3, 6)) for name in ('inputs', 'segments', 'positions', 'types')} | {
    'masked': np.array([[1, 4], [2, 0], [0, 0]]), 'targets': DRAW.integers(5, size=(3, 2)),
    'weights': np.float32([[1, 1], [1, 0], [0, 0]]), 'label': np.array([0, 1, 1]), 'example_weights': np.float32([1, 1, 0])}
AT_MASKS = np.take_along_axis(LOGITS, BATCH['masked'][..., None], 1)  # [3, 2, 5]


def words():
    """(loss, accuracy) over the three words that are to be found, in float64."""
    chances = scipy.special.log_softmax(np.float64(AT_MASKS), -1)
    own = -np.take_along_axis(chances, BATCH['targets'][..., None], -1)[..., 0]
    right = AT_MASKS.argmax(-1) == BATCH['targets']
    return tuple(((x * BATCH['weights']).sum(), 3) for x in (own, right))


def sentences():
    """The same over the two rows that do not pad."""
    own = -scipy.special.log_softmax(np.float64(NEXT), -1)[range(3), BATCH['label']]
    right = NEXT.argmax(-1) == BATCH['label']
    return tuple((x[:2].sum(), 2) for x in (own, right))


class MaskedTest(parameterized.TestCase):
    def assert_terms(self, found, **wanted):
        self.assertSameElements(found, wanted)
        for name, numbers in wanted.items():
            np.testing.assert_allclose([float(x) for x in found[name]], numbers, rtol=1e-5, err_msg=name)

    def test_words_that_are_to_be_found(self):
        loss, accuracy = words()
        self.assertIn('masked', MaskedTokens().inputs(BATCH))
        self.assert_terms(MaskedTokens().terms({'logits': AT_MASKS}, BATCH), loss=loss, accuracy=accuracy)

    def test_logits_everywhere_have_the_same_loss(self):
        loss, accuracy = words()
        task = MaskedTokens(everywhere=True)
        self.assertNotIn('masked', task.inputs(BATCH))
        self.assert_terms(task.terms({'logits': LOGITS}, BATCH), loss=loss, accuracy=accuracy)

    def test_the_next_sentence(self):
        loss, accuracy = sentences()
        self.assert_terms(NextSentencePrediction().terms({'next_logits': NEXT}, BATCH), loss=loss, accuracy=accuracy)

    def test_both(self):
        (masked, accuracy), (following, pairs_accuracy) = words(), sentences()
        task = BertPretraining()
        self.assertEqual(task.coefficients, {'masked': 1.0, 'pairs': 1.0})
        self.assert_terms(task.terms({'logits': AT_MASKS, 'next_logits': NEXT}, BATCH), masked=masked, pairs=following,
                          accuracy=accuracy, pairs_accuracy=pairs_accuracy)


    def test_words_of_spans_from_their_boundaries(self):
        """lm / 3 + 0.5·sbo / 2, where the third word has no boundaries."""
        batch = BATCH | {'boundaries': np.ones((3, 2, 3), int), 'boundary_weights': np.float32([[1, 0], [1, 0], [0, 0]])}
        logits = DRAW.normal(size=(3, 2, 5)).astype(np.float32)
        chances = scipy.special.log_softmax(np.float64(logits), -1)
        own = -np.take_along_axis(chances, BATCH['targets'][..., None], -1)[..., 0] * batch['boundary_weights']
        right = (logits.argmax(-1) == BATCH['targets']) * batch['boundary_weights']
        (masked, accuracy), task = words(), SpanPretraining(boundary=0.5)
        self.assertEqual(task.coefficients, {'masked': 1.0, 'boundary': 0.5})
        self.assertIn('boundaries', task.inputs(batch))
        self.assert_terms(task.terms({'logits': AT_MASKS, 'boundary_logits': logits}, batch), masked=masked,
                          accuracy=accuracy, boundary=(own.sum(), 2), boundary_accuracy=(right.sum(), 2))
        with self.assertRaisesRegex(ValueError, r"gives logits; set model.head='SpanBoundary\(\)'"):
            task.terms({'logits': AT_MASKS}, batch)
        for weight in (0.0, -1.0, float('inf')):
            with self.assertRaisesRegex(ValueError, 'expected a weight above 0'):
                SpanPretraining(boundary=weight)


class StuckTest(parameterized.TestCase):
    """The remark on a loss that stays at the plateau, 6.0."""
    DATA = types.SimpleNamespace(plateau=6.0)

    def rows(self, losses, rates=None, term='loss', every=100):
        return [{'step': every * number, term: loss, 'learning_rate': rate}
                for number, (loss, rate) in enumerate(zip(losses, rates or [1.0] * len(losses)), 1)]

    @parameterized.parameters(
        ([7.0, 6.1] + [5.9] * 9, True), ([7.0, 6.1] + [5.9] * 8, False),  # 1,000 steps after the first row
        ([6.0] * 10 + [5.0], False), ([6.0] * 10 + [5.0, 6.0], False), ([5.0] + [6.2] * 12, True), ([5.8] * 40, False))
    def test_is_told_after_a_thousand_steps(self, losses, told):
        for task, term in ((MaskedTokens(), 'loss'), (MaskedTokens(label_smoothing=0.1), 'cross_entropy'),
                           (BertPretraining(), 'masked'), (SpanPretraining(), 'masked'), (ReplacedTokens(), 'generator'),
                           (Distillation(), 'masked')):
            remark = task.remark(self.rows(losses, term=term), self.DATA, 10_000)
            self.assertEqual(bool(remark), told, task)
            if told:
                self.assertRegex(remark, rf'^CAUTION: after 1,\d00 steps .* is {losses[-1]:.2f}, no better than 6.00, .* lower '
                                         r'optimizer.learning_rate or .* warm-up .*Rotary\(\).*PreNorm.* larger .* data.show')

    def test_the_warm_up_does_not_count(self):
        rates = [*np.arange(1, 21) / 20, *[0.9] * 10]
        for count, told in ((20, False), (29, False), (30, True)):
            remark = MaskedTokens().remark(self.rows([6.0] * count, rates[:count]), self.DATA, 10_000)
            self.assertEqual(bool(remark), told, count)

    def test_is_told_at_the_end_of_a_shorter_run(self):
        """Where more steps help too, and not before: until then the loss may leave the plateau."""
        for losses, steps, told in (([7.0, 6.1, 5.9], 300, True), ([7.0, 6.1, 5.9], 400, False), ([7.0, 6.1, 5.7], 300, False),
                                    ([6.0] * 9, 900, True), ([7.0, 6.1], 200, False)):
            remark = MaskedTokens().remark(self.rows(losses), self.DATA, steps)
            self.assertEqual('Usually more train.steps, a lower optimizer.learning_rate' in remark, told, losses)
        self.assertNotIn('more train.steps', MaskedTokens().remark(self.rows([6.0] * 11), self.DATA, 1100))
        rates = [*np.arange(1, 21) / 20, 0.9]
        self.assertEqual(MaskedTokens().remark(self.rows([6.0] * 21, rates), self.DATA, 2100), '')

    def test_data_that_do_not_know_it(self):
        data = types.SimpleNamespace(plateau=float('nan'))
        self.assertEqual(MaskedTokens().remark(self.rows([6.0] * 30), data, 3000), '')
        self.assertEqual(NextSentencePrediction().remark(self.rows([6.0] * 30), self.DATA, 3000), '')


if __name__ == '__main__':
    absltest.main()
