import types

import numpy as np
import scipy.optimize
import scipy.special
from absl.testing import absltest, parameterized

from tests import experiments
from training import run as runs
from vit.evaluators import probe
from vit.evaluators.probe import LinearProbe, fitted

RNG = np.random.default_rng(0)
LABELS = RNG.integers(3, size=400)
# Each class has its mean; the scales of the features differ a millionfold, and one is constant.
FEATURES = (RNG.normal(size=(400, 5)) + RNG.normal(size=(3, 5))[LABELS]) * 10.0 ** np.arange(-3, 2)
FEATURES[:, 2] = 7.0


def regression(x, labels, strength):
    """A function that predicts labels: logistic regression by scipy in float64, min ½·|W|² + C·sum of cross entropies over W
    and an intercept, of features scaled to mean 0 and deviation 1. Of two classes the first has the logit 0."""
    deviation = np.where(x.std(0) > 0, x.std(0), 1.0)
    scaled = lambda rows: np.concatenate([(rows - x.mean(0)) / deviation, np.ones((len(rows), 1))], 1)
    given, target = scaled(x), np.eye(labels.max() + 1)[labels]
    free = np.arange(target.shape[1]) > 0 if target.shape[1] == 2 else 1

    def loss(flat):
        weights = flat.reshape(given.shape[1], -1)
        logs = scipy.special.log_softmax(given @ weights, axis=1)
        slope = strength * given.T @ (np.exp(logs) - target)
        slope[:-1] += weights[:-1]
        return (weights[:-1] ** 2).sum() / 2 - strength * (target * logs).sum(), (free * slope).ravel()

    found = scipy.optimize.minimize(loss, np.zeros(given.shape[1] * target.shape[1]), jac=True, method='L-BFGS-B', options={
        'maxiter': 10_000, 'maxfun': 20_000, 'ftol': 1e-15, 'gtol': 1e-9})
    return lambda rows: (scaled(rows) @ found.x.reshape(given.shape[1], -1)).argmax(1)


def rare():
    """Two classes that differ clearly, and of which a strong penalty leaves the rare one out."""
    draw = np.random.default_rng(1)
    labels = (draw.random(400) < 0.1).astype(int)
    return draw.normal(size=(400, 3)) + 3 * labels[:, None], labels


def noisy():
    """One feature says something of the class, and 80 say nothing, to which a weak penalty fits."""
    draw = np.random.default_rng(1)
    labels, features = draw.integers(2, size=400), draw.normal(size=(400, 81))
    features[:, 0] += 1.5 * labels
    return features, labels


class FittedTest(parameterized.TestCase):
    @parameterized.named_parameters(('of_three_classes', lambda: (FEATURES, LABELS), 0.01),
                                    ('rare_class', rare, 10.0), ('noisy', noisy, 0.1))
    def test_equals_a_regression_in_float64_with_the_chosen_strength(self, data, best):
        features, labels = data()
        predict, chosen = fitted(features[:300], labels[:300], choosing=0.2)
        order = np.random.default_rng(0).permutation(300)
        aside, rest = order[:60], order[60:]
        scores = [(regression(features[rest], labels[rest], strength)(features[aside]) == labels[aside]).mean()
                  for strength in probe.STRENGTHS]
        self.assertEqual((chosen, probe.STRENGTHS[int(np.argmax(scores))]), (best, best))
        wanted = regression(features[:300], labels[:300], chosen)(features[300:])
        np.testing.assert_array_equal(predict(features[300:]), wanted)

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
        """Of states whose mean is the feature; each by itself is mostly noise."""
        noise = lambda image: 8 * FEATURES.std(0) * np.random.default_rng(1).normal(size=image.shape)
        snapshot = Probed(pooled=lambda image: image, first=lambda image: image + noise(image),
                          hidden=lambda image: np.stack([image + noise(image), image - noise(image)], 1))
        found = {name: LinearProbe(feature=name).each(snapshot, snapshot.batches(slice(300, 400)))['accuracy']
                 for name in ('pooled', 'hidden', 'first')}
        np.testing.assert_array_equal(found['hidden'], found['pooled'])
        self.assertGreater(found['pooled'].mean() - found['first'].mean(), 0.2)

    @parameterized.parameters((types.SimpleNamespace(patch=2, front=('class', 'register 1')), 2), (None, 0))
    def test_tokens_in_front_of_the_patches_do_not_count(self, model, front):
        """Nor where they stand: the features are those of the same vectors."""
        tokens = lambda image: np.stack([np.full_like(image, 1e6)] * front + [image, image], 1)
        square = lambda image: np.tile(image[:, None, None], (1, 3, 2, 1))
        wanted = LinearProbe('pooled')(Probed(pooled=lambda image: image), Probed().batches(slice(300, 400)))
        for made in (tokens, square)[:1 if front else 2]:
            snapshot = Probed(model, hidden=made)
            self.assertEqual(LinearProbe()(snapshot, snapshot.batches(slice(300, 400))), wanted)

    def test_examples_that_are_measured_are_not_learnt(self):
        """Of features that say nothing of the class, but which example it is, so that all that is fitted is predicted."""
        snapshot = Probed(pooled=lambda image: np.cos(1e4 * image @ np.random.default_rng(2).normal(size=(5, 400))))
        found = [LinearProbe('pooled')(snapshot, snapshot.batches(part))['accuracy']
                 for part in (slice(0, 300), slice(300, 400))]
        self.assertGreater(found[0], 0.7)
        self.assertBetween(found[1], 1 / 3 - 0.15, 1 / 3 + 0.15)  # three deviations of 99 examples

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
