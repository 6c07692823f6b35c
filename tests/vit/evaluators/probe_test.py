import types

import numpy as np
from absl.testing import absltest, parameterized
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests import experiments
from training import run as runs
from vit.evaluators import probe
from vit.evaluators.probe import LinearProbe, fitted

RNG = np.random.default_rng(0)
LABELS = RNG.integers(3, size=400)
# Each class has its mean; the scales of the features differ a millionfold, and one is constant.
FEATURES = (RNG.normal(size=(400, 5)) + RNG.normal(size=(3, 5))[LABELS]) * 10.0 ** np.arange(-3, 2)
FEATURES[:, 2] = 7.0


class FittedTest(parameterized.TestCase):
    def test_equals_a_pipeline_of_scikit_learn_with_the_chosen_strength(self):
        predict, strength = fitted(FEATURES[:300], LABELS[:300], choosing=0.2)
        order = np.random.default_rng(0).permutation(300)
        aside, rest = order[:60], order[60:]
        made = lambda c: make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=500))
        scores = [made(c).fit(FEATURES[rest], LABELS[rest]).score(FEATURES[aside], LABELS[aside]) for c in probe.STRENGTHS]
        self.assertEqual(strength, probe.STRENGTHS[int(np.argmax(scores))])
        wanted = made(strength).fit(FEATURES[:300], LABELS[:300]).predict(FEATURES[300:])
        self.assertGreaterEqual((predict(FEATURES[300:]) == wanted).mean(), 0.99)
        self.assertGreater((predict(FEATURES[300:]) == LABELS[300:]).mean(), 0.6)

    def test_examples_that_are_not_chosen_do_not_count(self):
        order = np.random.default_rng(0).permutation(400)
        changed = FEATURES.copy()
        changed[order[300:]] = 1e6
        (one, _), (other, _) = (fitted(x, LABELS, choosing=0.1, limit=300) for x in (FEATURES, changed))
        np.testing.assert_array_equal(one(FEATURES), other(FEATURES))

    def test_one_class_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'A linear probe is fitted to 9 examples of less than two classes; give'):
            fitted(FEATURES[:10], np.zeros(10, int), choosing=0.1)


class Probed:
    """A snapshot whose model gives the features in the images."""

    def __init__(self, model=None, **outputs):
        self.model, self.outputs, self.views = model, outputs, []
        task = types.SimpleNamespace(inputs=lambda batch: {'image': batch['image']})
        self.run = types.SimpleNamespace(task=task, eval_rows=64)
        self.data = types.SimpleNamespace(evaluation=self.evaluation)

    def evaluation(self, split, rows):
        self.views.append((split, rows))
        return self.batches(slice(0, 300))

    def batches(self, part):
        batch = {'image': FEATURES[part], 'label': LABELS[part], 'example_weights': np.ones(len(LABELS[part]), np.float32)}
        batch['example_weights'][-1] = 0.0  # the last row pads
        batch['image'] = np.where(batch['example_weights'][:, None] > 0, batch['image'], np.nan)
        return [batch]

    def apply(self, image):
        return {name: make(image) for name, make in self.outputs.items()}


class LinearProbeTest(parameterized.TestCase):
    def test_measures_examples_on_which_it_was_not_fitted(self):
        snapshot = Probed(pooled=lambda image: image)
        found = LinearProbe('pooled', train='train[:1%]')(snapshot, snapshot.batches(slice(300, 400)))
        self.assertEqual(snapshot.views, [('train[:1%]', 64)])
        predict, strength = fitted(FEATURES[:299].astype(np.float32).astype(np.float64), LABELS[:299], choosing=0.1)
        wanted = predict(FEATURES[300:399].astype(np.float32)) == LABELS[300:399]
        self.assertEqual(found, {'accuracy': wanted.mean(), 'C': strength})
        each = LinearProbe('pooled', train='train[:1%]').each(snapshot, snapshot.batches(slice(300, 400)))
        np.testing.assert_array_equal(LinearProbe().right(each)['accuracy'], wanted)

    def test_the_mean_over_positions(self):
        """Of states whose mean is the feature; without it they are noise."""
        noise = 1e3 * np.random.default_rng(1).normal(size=(1, 5))
        snapshot = Probed(pooled=lambda image: image, hidden=lambda image: np.stack([image + noise, image - noise], 1))
        found = [LinearProbe(feature=name)(snapshot, snapshot.batches(slice(300, 400))) for name in ('pooled', 'hidden')]
        self.assertAlmostEqual(found[0]['accuracy'], found[1]['accuracy'], places=1)

    @parameterized.parameters((types.SimpleNamespace(patch=2, front=('class', 'register 1')), 2), (None, 0))
    def test_tokens_in_front_of_the_patches_do_not_count(self, model, front):
        """Nor where they stand: the features are those of the same vectors."""
        tokens = lambda image: np.stack([np.full_like(image, 1e6)] * front + [image, image], 1)
        square = lambda image: np.tile(image[:, None, None], (1, 3, 2, 1))
        wanted = LinearProbe('pooled')(Probed(pooled=lambda image: image), Probed().batches(slice(300, 400)))
        for made in (tokens, square)[:1 if front else 2]:
            snapshot = Probed(model, hidden=made)
            self.assertEqual(LinearProbe()(snapshot, snapshot.batches(slice(300, 400))), wanted)

    def test_labels_without_a_reason_are_guessed(self):
        rng = np.random.default_rng(2)
        snapshot = Probed(pooled=lambda image: rng.normal(size=image.shape))
        found = LinearProbe('pooled', limit=200, choosing=0.5)(snapshot, snapshot.batches(slice(300, 400)))
        self.assertLess(found['accuracy'], 0.5)

    @parameterized.parameters(
        (dict(feature='nope'), "feature='nope', and the model of this run gives hidden, logits, pooled; choose one"),
        (dict(choosing=1.0), 'choosing=1.0 and limit=0; expected a share between 0 and 1'),
        (dict(limit=-1), 'choosing=0.1 and limit=-1; expected'))
    def test_refused(self, fields, message):
        run = runs.build(experiments.tiny_images(), runs.meshes.make(1, 1, 1))
        batches = run.data.evaluation('valid', 8)
        self.assertEqual(LinearProbe().check(run, batches), ('accuracy', 'C'))
        self.assertEqual(LinearProbe(feature='hidden').check(run, batches), ('accuracy', 'C'))
        with self.assertRaisesRegex(ValueError, message):
            LinearProbe(**fields).check(run, batches)
        with self.assertRaisesRegex(ValueError, 'LinearProbe needs a class for each example, and data.images.labelled:Images'):
            LinearProbe().check(run, [{'image': np.zeros((2, 8, 8, 1))}])


if __name__ == '__main__':
    absltest.main()
