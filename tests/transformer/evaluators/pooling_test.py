import dataclasses
import types

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.attention.pooling import Gaussian, Pooling, pool
from transformer.evaluators.pooling import Kernels
from transformer.tasks.pooling import PooledClassification, PooledRegression

RNG = np.random.default_rng(0)


def as_tuples(array):
    return tuple(map(tuple, np.asarray(array, np.float32).tolist()))


def measured(evaluator, keys, values, query, target, task, log_width, **fields):
    """(numbers, pictures) of an evaluator on two batches, the last of them padded by a row that would stand out."""
    model, pictures = Pooling(as_tuples(keys), as_tuples(values), **fields), {}
    apply = lambda **inputs: model.apply({'params': {'log_width': jnp.asarray(log_width)}}, **inputs)
    half = len(query) - len(query) // 2
    batches = [dict(query=q.astype(np.float32), target=t.astype(np.float32), example_weights=np.ones(half, np.float32))
               for q, t in ((query[:half], target[:half]), (query[half:], target[half:]))]
    if len(query) % 2:
        batches[1] |= {name: np.concatenate([batches[1][name], np.full((1, array.shape[1]), 9.0, np.float32)])
                       for name, array in (('query', query), ('target', target))}
        batches[1]['example_weights'][-1] = 0
    run = types.SimpleNamespace(model=model, task=task)
    snapshot = types.SimpleNamespace(run=run, model=model, apply=apply, picture=pictures.__setitem__)
    numbers = evaluator(snapshot, batches)
    assert set(evaluator.check(run, batches)) == set(numbers), numbers
    return numbers, pictures


class KernelsTest(parameterized.TestCase):
    def test_a_curve(self):
        x, query = np.sort(RNG.random((6, 1)), 0), np.linspace(0, 1, 5)[:, None]
        y, target = RNG.normal(size=(6, 1)), np.square(query)
        shuffled = np.array([3, 1, 0, 2, 4])
        numbers, pictures = measured(Kernels(width=0.4, widths=(0.1, 0.2)), x, y, query[shuffled], target[shuffled],
                                     PooledRegression(), np.log(0.25))
        self.assertEqual(list(numbers), ['gaussian_0.4', 'boxcar_0.4', 'constant', 'epanechnikov_0.4', 'triangular_0.4',
                                         'gaussian_0.1', 'gaussian_0.2'])
        estimate, weights = pool(*(jnp.float32(a) for a in (query, x, y)), Gaussian(0.25))
        self.assertAlmostEqual(numbers['constant'], np.square(y.mean() - target).mean(), places=5)

        self.assertEqual(set(pictures), {'kernels', 'widths'})
        titled = lambda figure: [axes for axes in figure.axes if axes.get_title()]
        self.assertEqual([axes.get_title().split('\n')[:2] for axes in titled(pictures['kernels'])],
                         [['Gaussian', 'width 0.4'], ['Boxcar', 'width 0.4'], ['Constant', 'no width'],
                          ['Epanechnikov', 'width 0.4'], ['Triangular', 'width 0.4']])
        own = titled(pictures['widths'])[-1]
        loss = np.square(np.asarray(estimate) - target).mean()
        self.assertEqual(own.get_title(), f'the run: Gaussian\nwidth 0.25\nloss {loss:.3f}')
        points, targets, line = own.get_lines()
        np.testing.assert_allclose(points.get_ydata(), y[:, 0], rtol=1e-6)
        np.testing.assert_allclose(targets.get_ydata(), target[:, 0], rtol=1e-6)  # sorted again
        np.testing.assert_allclose(line.get_ydata(), estimate[:, 0], rtol=1e-5)
        heat = [axes.images[0].get_array() for axes in pictures['widths'].axes if axes.images]
        self.assertLen(heat, 3)
        np.testing.assert_allclose(heat[-1], weights, rtol=1e-5)

    def test_classes_show_their_weights_alone_sorted_by_class(self):
        label = np.array([1, 0, 2, 1])
        keys, values, query = RNG.normal(size=(4, 2)), np.eye(3)[label], RNG.normal(size=(2, 2))
        numbers, pictures = measured(Kernels(widths=(1.0,)), keys, values, query, np.eye(3)[[2, 0]], PooledClassification(),
                                     np.log([1.0, 2.0]), learn='each')
        estimate, weights = pool(*(jnp.float32(a) for a in (query, keys, values)), Gaussian())
        self.assertAlmostEqual(numbers['gaussian_1'], -np.log([estimate[0, 2], estimate[1, 0]]).mean(), places=5)
        heat = [axes.images[0].get_array() for axes in pictures['widths'].axes if axes.images]
        np.testing.assert_allclose(heat[0], weights[np.array([1, 0])][:, np.argsort(label, kind='stable')], rtol=1e-5)
        titled = [axes for axes in pictures['widths'].axes if axes.get_title()]
        self.assertIn('width 1, 2', titled[-1].get_title())
        self.assertFalse(titled[0].get_lines())

    def test_of_many_widths_the_first_and_the_last_are_shown(self):
        points, target = RNG.normal(size=(4, 7)), np.eye(2)[[0, 1, 0, 1]]
        numbers, pictures = measured(Kernels(widths=(0.251, 0.252)), points, target, points + 0.1, target,
                                     PooledClassification(), np.log(np.arange(1, 8)), learn='each')
        self.assertContainsSubset({'gaussian_0.251', 'gaussian_0.252'}, numbers)
        self.assertIn('width 1, 2, 3, .., 7\n', [a for a in pictures['widths'].axes if a.get_title()][-1].get_title())

    def test_what_it_cannot_compare_is_refused(self):
        model = Pooling(((0.0,),), ((0.0,),))
        for evaluator, run, pattern in (
                (Kernels(), types.SimpleNamespace(model=dataclasses), 'Kernels compares kernels of pooling, but the model is'),
                (Kernels(widths=()), types.SimpleNamespace(model=model), 'widths of Kernels is empty'),
                (Kernels(widths=(0.1, -1.0)), types.SimpleNamespace(model=model), 'the width is -1.0; expected a number')):
            with self.assertRaisesRegex(ValueError, pattern):
                evaluator.check(run, [])


if __name__ == '__main__':
    absltest.main()
