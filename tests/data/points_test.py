import json

import numpy as np
from absl.testing import absltest, parameterized

from data.points import Curve, Iris


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def everything(evaluation):
    """The rows that count, {name: array}."""
    batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
    return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}


class CurveTest(parameterized.TestCase):
    def test_the_curve_and_its_noise(self):
        train = everything(Curve(count=4000).open(None).evaluation('train', 1000))
        x, y = train['query'][:, 0].astype(np.float64), train['target'][:, 0]
        self.assertTrue((np.diff(x) >= 0).all() and 0 <= x[0] < 0.003 and 4.997 < x[-1] < 5)
        self.assertAlmostEqual(x.mean(), 2.5, delta=0.1)
        noise = y - 2 * np.sin(x) - x
        self.assertAlmostEqual(noise.mean(), 0.0, delta=0.05)
        self.assertAlmostEqual(noise.std(), 1.0, delta=0.05)
        exact = everything(Curve(noise=0.0).open(None).evaluation('train', 7))
        np.testing.assert_allclose(exact['target'], 2 * np.sin(exact['query']) + exact['query'], atol=1e-5)

    def test_validation_is_a_grid_without_noise(self):
        valid = everything(Curve(seed=5).open(None).evaluation('valid', 8))
        np.testing.assert_allclose(valid['query'][:, 0], np.arange(0, 5, 0.1), atol=1e-6)
        np.testing.assert_allclose(valid['target'], 2 * np.sin(valid['query']) + valid['query'], atol=1e-5)
        np.testing.assert_array_equal(valid['own'], np.full(50, -1))

    def test_the_seed_draws_the_points(self):
        facts = [Curve(seed=seed).open(None).facts for seed in (0, 0, 1)]
        self.assertEqual(facts[0], facts[1])
        self.assertNotEqual(facts[0]['keys'], facts[2]['keys'])
        digests = [Curve(**fields).open(None).digest('train') for fields in ({}, {}, {'seed': 1}, {'noise': 0.5}, {'count': 9})]
        self.assertEqual(digests[0], digests[1])
        self.assertLen(set(digests), 4)

    @parameterized.parameters((dict(count=0), 'data.count=0'), (dict(batch_size=0), 'data.batch_size=0'),
                              (dict(noise=-1.0), 'data.noise=-1.0'), (dict(noise=float('nan')), 'data.noise=nan'),
                              (dict(seed=-1), 'data.seed=-1'))
    def test_fields_out_of_range_are_refused(self, fields, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            Curve(**fields).open(None)


class IrisTest(parameterized.TestCase):
    def test_parts_share_no_flower_and_hold_all_species(self):
        opened = Iris().open(None)
        train, valid = (everything(opened.evaluation(split, 50)) for split in ('train', 'valid'))
        self.assertEqual((len(train['query']), len(valid['query'])), (112, 37))
        flowers = [{row.tobytes() for row in part['query']} for part in (train, valid)]
        self.assertEqual((len(flowers[0]), len(flowers[1])), (112, 37))
        self.assertEmpty(flowers[0] & flowers[1])
        for part in (train, valid):
            np.testing.assert_array_equal(part['target'].sum(1), np.ones(len(part['target'])))
            self.assertGreater(part['target'].mean(0).min(), 0.25)

    def test_targets_are_the_flowers_own(self):
        from sklearn import datasets

        bunch = datasets.load_iris()
        species = {x.astype(np.float32).tobytes(): y for x, y in zip(bunch.data, bunch.target)}
        rows = everything(Iris().open(None).evaluation('train', 112))
        self.assertEqual([species[x.tobytes()] for x in rows['query']], rows['target'].argmax(1).tolist())


class OpenPointsTest(parameterized.TestCase):
    @parameterized.parameters(Curve(count=10, batch_size=4), Iris(batch_size=8))
    def test_contract(self, config):
        opened = config.open('a/folder/that/is/not/there', None)
        batch = next(opened.train(0))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
        self.assertEqual(opened.count(batch), config.batch_size)
        self.assertEqual(opened.batches_per_epoch, len(opened.facts['keys']) / config.batch_size)
        keys, values = (np.asarray(opened.facts[name], np.float32) for name in ('keys', 'values'))
        np.testing.assert_array_equal(keys[batch['own']], batch['query'])  # to the bit: a point is found among the keys
        np.testing.assert_array_equal(values[batch['own']], batch['target'])
        hash(opened.facts['keys'] + opened.facts['values'])  # fields of a model that is an argument of jit
        self.assertNotEqual(opened.digest('train'), opened.digest('valid'))
        self.assertIn(f'{len(keys)} points of {keys.shape[1]} coordinates', opened.describe())

    def test_every_point_comes_once_an_epoch_in_another_order(self):
        opened = Curve(count=12, batch_size=4).open(None)
        iterators = [opened.train(seed) for seed in (0, 0, 1)]
        runs = [[next(iterator) for _ in range(6)] for iterator in iterators]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(equal(runs[0][0], runs[2][0]))
        for epoch in (runs[0][:3], runs[0][3:]):
            self.assertCountEqual(np.concatenate([batch['own'] for batch in epoch]).tolist(), range(12))
        self.assertFalse(equal(runs[0][0], runs[0][3]))

    def test_resumes_exactly(self):
        opened = Curve(count=10, batch_size=4).open(None)
        iterator = opened.train(0)
        for _ in range(4):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        rest = [next(iterator) for _ in range(5)]
        again = opened.train(0)
        again.set_state(state)
        self.assertTrue(all(equal(batch, next(again)) for batch in rest))

    def test_evaluation_takes_slices_and_pads(self):
        opened = Curve(count=10).open(None)
        evaluation = opened.evaluation('train[60%:]', 3)
        batches = list(evaluation)
        self.assertEqual([batch['example_weights'].tolist() for batch in batches], [[1, 1, 1], [1, 0, 0]])
        self.assertEqual([opened.count(batch) for batch in batches], [3, 1])
        np.testing.assert_array_equal(everything(evaluation)['own'], [6, 7, 8, 9])
        self.assertEqual(evaluation.facts, {'points': 4})

    def test_what_points_have_not_is_refused(self):
        opened = Curve().open(None)
        for call, pattern in ((lambda: opened.evaluation('test', 4), "'test' names no part.*; known are train, valid"),
                              (lambda: opened.evaluation('valid', 4, stride=2), 'Curve takes no stride'),
                              (lambda: opened.score(['a.txt'], 4), 'a.txt cannot be scored')):
            with self.assertRaisesRegex(ValueError, pattern):
                call()


if __name__ == '__main__':
    absltest.main()
