import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import differences
from training.config import resolve
from transformer.attention.pooling import Boxcar, Constant, Epanechnikov, Gaussian, Kernel, Pooling, Triangular, pool

T, S, D, C = 3, 5, 2, 2
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=s) for s in ((T, D), (S, D), (S, C), (T, C)))
FORMULAS = {Gaussian: lambda u: np.exp(-u ** 2 / 2), Boxcar: lambda u: float(u <= 1), Constant: lambda u: 1.0,
            Epanechnikov: lambda u: 0.75 * max(1 - u * u, 0.0), Triangular: lambda u: max(1 - u, 0.0)}
KERNELS = [Gaussian(1.3), Boxcar(1.3), Constant(), Epanechnikov(2.0), Triangular(2.0)]
WIDTHS = np.array([1.9, 1.3])  # one for each coordinate
SOME = RNG.random((T, S)) < 0.7
SOME[1] = False  # a query that may see nothing


def naive(query, key, value, kernel, width, visible=None):
    """(estimate, weights) in float64, one query and one key at a time."""
    weights = np.zeros((len(query), len(key)))
    for t, s in np.ndindex(weights.shape):
        if visible is None or visible[t, s]:
            weights[t, s] = FORMULAS[type(kernel)](np.sqrt((((query[t] - key[s]) / width) ** 2).sum()))
    for row in weights:
        row /= row.sum() or 1.0
    return weights @ value, weights


class PoolTest(parameterized.TestCase):
    @parameterized.product(kernel=KERNELS, width=(np.array(1.6), WIDTHS), visible=(None, SOME))
    def test_values_and_gradients_equal_a_float64_loop(self, kernel, width, visible):
        arrays = [x.copy() for x in (QUERY, KEY, VALUE, width)]

        @jax.jit
        def outcome(*arrays):
            run = lambda q, k, v, width: pool(q, k, v, kernel, width=width, visible=visible)
            (estimate, weights), back = jax.vjp(run, *arrays)
            return estimate, weights, back((jnp.float32(COTANGENT), jnp.zeros_like(weights)))

        estimate, weights, gradients = outcome(*map(np.float32, arrays))
        exact = lambda: naive(*arrays[:3], kernel, arrays[3], visible)
        np.testing.assert_allclose(estimate, exact()[0], atol=2e-6)
        np.testing.assert_allclose(weights, exact()[1], atol=2e-6)
        for name, gradient, array in zip(('query', 'key', 'value', 'width'), gradients, arrays):
            wanted = differences.gradient(lambda: (exact()[0] * COTANGENT).sum(), array)
            np.testing.assert_allclose(gradient, wanted, atol=2e-5, err_msg=name)
            if name == 'width':
                self.assertEqual(np.abs(wanted).max() > 1e-3, kernel.smooth)

    @parameterized.parameters(*KERNELS)
    def test_the_kernels_own_width_is_the_default(self, kernel):
        estimate, _ = pool(*map(jnp.float32, (QUERY, KEY, VALUE)), kernel)
        np.testing.assert_allclose(estimate, naive(QUERY, KEY, VALUE, kernel, kernel.width or 1.0)[0], atol=2e-6)

    @parameterized.parameters(*KERNELS)
    def test_weights_sum_to_one_and_the_order_of_keys_changes_nothing(self, kernel):
        query = jnp.float32(KEY + 0.1)  # in reach of a key at least
        estimate, weights = pool(query, jnp.float32(KEY), jnp.float32(VALUE), kernel)
        np.testing.assert_allclose(weights.sum(-1), np.ones(S), atol=1e-6)
        self.assertTrue((weights >= 0).all())
        order = np.array([3, 0, 4, 1, 2])
        shuffled, moved = pool(query, jnp.float32(KEY)[order], jnp.float32(VALUE)[order], kernel)
        np.testing.assert_allclose(shuffled, estimate, atol=1e-6)
        np.testing.assert_allclose(moved, weights[:, order], atol=1e-6)

    @parameterized.parameters(Boxcar(0.5), Epanechnikov(0.5), Triangular(0.5))
    def test_a_query_that_no_key_reaches_gives_zeros_and_finite_gradients(self, kernel):
        query = jnp.float32([[9.0, 9.0], KEY[2]])

        def outcome(*arrays):
            estimate, weights = pool(*arrays[:3], kernel, width=arrays[3])
            return jnp.square(estimate).sum(), (estimate, weights)

        arrays = (query, jnp.float32(KEY), jnp.float32(VALUE), jnp.float32(0.5))
        gradients, (estimate, weights) = jax.grad(outcome, (0, 1, 2, 3), has_aux=True)(*arrays)
        np.testing.assert_array_equal(estimate[0], np.zeros(C))
        np.testing.assert_array_equal(weights[0], np.zeros(S))
        np.testing.assert_allclose(weights[1].sum(), 1.0, rtol=1e-6)
        self.assertTrue(all(np.isfinite(g).all() for g in gradients))

    def test_a_gaussian_far_from_all_keys_takes_the_nearest(self):
        estimate, weights = pool(jnp.float32([[1e3]]), jnp.float32([[0.0], [1.0]]), jnp.float32([[5.0], [7.0]]), Gaussian(0.1))
        np.testing.assert_array_equal(weights, [[0.0, 1.0]])
        np.testing.assert_array_equal(estimate, [[7.0]])

    def test_edges(self):
        key = jnp.float32([[0.0], [0.5], [1.0], [1.5]])
        _, weights = pool(jnp.zeros((1, 1)), key, key, Boxcar(1.0))
        np.testing.assert_allclose(weights, [[1 / 3, 1 / 3, 1 / 3, 0]], rtol=1e-6)  # u = 1 is in reach
        _, weights = pool(jnp.zeros((1, 1)), key, key, Triangular(1.0))
        np.testing.assert_allclose(weights, [[2 / 3, 1 / 3, 0, 0]], rtol=1e-6)  # u = 1 has no weight
        _, weights = pool(jnp.zeros((1, 1)), key, key, Epanechnikov(1.0))
        np.testing.assert_allclose(weights, [[4 / 7, 3 / 7, 0, 0]], rtol=1e-6)
        np.testing.assert_allclose(np.exp(Epanechnikov().scores(jnp.float32([0.0, 0.25]))), [0.75, 0.5625], rtol=1e-6)

    @parameterized.parameters(*KERNELS)
    def test_leave_one_out_has_a_zero_diagonal_and_equals_removing_the_point(self, kernel):
        key, value = jnp.float32(KEY), jnp.float32(VALUE)
        estimate, weights = pool(key, key, value, kernel, own=jnp.arange(S))
        np.testing.assert_array_equal(np.diag(weights), np.zeros(S))
        for s in range(S):
            alone, _ = pool(key[s:s + 1], np.delete(key, s, 0), np.delete(value, s, 0), kernel)
            np.testing.assert_allclose(estimate[s], alone[0], atol=1e-6)
        moved = np.float32(VALUE)
        moved[1] += 9.0
        changed = pool(key, key, moved, kernel, own=jnp.arange(S))[0]
        np.testing.assert_array_equal(changed[1], estimate[1])

    def test_own_hides_that_key_beside_what_is_not_visible(self):
        visible = np.ones((T, S), bool)
        visible[:, 4] = False
        _, weights = pool(*map(jnp.float32, (QUERY, KEY, VALUE)), Gaussian(), visible=visible, own=jnp.array([2, -1, 0]))
        hidden = np.zeros((T, S), bool)
        hidden[[0, 2, 0, 1, 2], [2, 0, 4, 4, 4]] = True
        np.testing.assert_array_equal(np.asarray(weights) == 0, hidden)

    def test_a_small_width_gives_the_training_targets_back_unless_they_are_left_out(self):
        key, value = jnp.float32(KEY), jnp.float32(VALUE)
        errors = [float(jnp.square(pool(key, key, value, Gaussian(w))[0] - value).sum()) for w in (3.0, 1.0, 0.3, 0.01)]
        self.assertEqual(errors, sorted(errors, reverse=True))
        self.assertGreater(errors[0], 1.0)
        self.assertLess(errors[-1], 1e-9)
        left_out = pool(key, key, value, Gaussian(0.01), own=jnp.arange(S))[0]
        self.assertGreater(float(jnp.square(left_out - value).sum()), 1.0)

    @parameterized.parameters(((T, 3), (S, D), (S, C)), ((T, D), (4, D), (S, C)), ((T, D), (S, D), (S,)))
    def test_other_shapes_are_refused(self, *shapes):
        with self.assertRaisesRegex(ValueError, r'expected \[T, D\], \[S, D\] and \[S, C\]'):
            pool(*map(jnp.zeros, shapes), Gaussian())

    def test_a_wrong_number_of_widths_is_refused(self):
        with self.assertRaisesRegex(ValueError, '3 widths were given for points of 2 coordinates'):
            pool(jnp.zeros((T, D)), jnp.zeros((S, D)), jnp.zeros((S, C)), Gaussian(), width=jnp.ones(3))


class KernelTest(parameterized.TestCase):
    @parameterized.parameters(0, -1.0, float('nan'), float('inf'), 'wide')
    def test_widths_without_a_meaning_are_refused(self, width):
        for kernel in (Gaussian, Boxcar, Epanechnikov, Triangular):
            with self.assertRaisesRegex(ValueError, 'expected a number above 0'):
                kernel(width)

    @parameterized.parameters(('Gaussian(width=0.5)', Gaussian(0.5)), ('Boxcar(2)', Boxcar(2.0)), ('Constant()', Constant()),
                              ('Epanechnikov()', Epanechnikov(1.0)))
    def test_is_a_part_of_a_config(self, text, kernel):
        self.assertEqual(resolve.parse(text, Kernel, 'kernel'), kernel)
        self.assertEqual(resolve.parse(repr(kernel), Kernel, 'kernel'), kernel)


def as_tuples(array):
    return tuple(map(tuple, array.tolist()))


class PoolingTest(parameterized.TestCase):
    def model(self, **fields):
        return Pooling(as_tuples(KEY), as_tuples(VALUE), **fields)

    def made(self, **fields):
        model = self.model(**fields)
        return model, model.init(jax.random.key(0), jnp.float32(QUERY))['params']

    @parameterized.parameters((Gaussian(0.7), 'one', (), ()), (Gaussian(0.7), 'each', (), (D,)), (Boxcar(2.0), 'none', (), ()),
                              (Epanechnikov(), 'each', (2.0, 3.0), (D,)), (Boxcar(), 'none', (2.0, 3), (D,)),
                              (Constant(), 'none', (), ()))
    def test_begins_with_the_widths_given(self, kernel, learn, widths, shape):
        model, params = self.made(kernel=kernel, learn=learn, widths=widths)
        wanted = np.array(widths or kernel.width or 1.0)
        self.assertEqual(jax.tree.map(jnp.shape, params), {'log_width': shape})
        outputs = model.apply({'params': params}, jnp.float32(QUERY), own=jnp.array([0, -1, 2]))
        visible = np.ones((T, S), bool)
        visible[[0, 2], [0, 2]] = False
        exact, _ = naive(QUERY, KEY, VALUE, kernel, wanted, visible)
        np.testing.assert_allclose(outputs['estimate'], exact, atol=2e-6)
        self.assertEqual('width' in outputs, kernel.width is not None)
        if kernel.width is not None:
            np.testing.assert_allclose(outputs['width'], np.broadcast_to(wanted, shape), rtol=1e-6)

    @parameterized.parameters(('one', 1), ('each', D), ('none', 0))
    def test_learns_as_many_widths_as_it_should(self, learn, count):
        model, params = self.made(learn=learn)
        loss = lambda params: (model.apply({'params': params}, jnp.float32(QUERY))['estimate'] * COTANGENT).sum()
        gradient = jax.grad(loss)(params)['log_width']
        self.assertEqual(np.count_nonzero(gradient), count)
        width = np.ones(gradient.shape)
        exact = differences.gradient(lambda: (naive(QUERY, KEY, VALUE, Gaussian(), width)[0] * COTANGENT).sum(), width)
        if count:  # at a width of 1, the gradient of its logarithm is its own
            np.testing.assert_allclose(gradient, exact, atol=2e-5)

    def test_a_learnt_width_is_used(self):
        model, params = self.made()
        wide = model.apply({'params': {'log_width': params['log_width'] + 9}}, jnp.float32(QUERY))
        np.testing.assert_allclose(wide['estimate'], np.broadcast_to(VALUE.mean(0), (T, C)), atol=1e-4)
        np.testing.assert_allclose(wide['width'], np.exp(9), rtol=1e-5)

    def test_one_hot_values_give_a_distribution_over_classes(self):
        model = Pooling(((0.0,), (1.0,), (2.0,)), as_tuples(np.eye(2)[[0, 1, 1]]), kernel=Gaussian(0.5))
        query = jnp.float32([[0.1], [1.8]])
        estimate = model.apply({'params': {'log_width': jnp.log(0.5)}}, query)['estimate']
        np.testing.assert_allclose(estimate.sum(-1), [1, 1], rtol=1e-6)
        np.testing.assert_array_equal(estimate.argmax(-1), [0, 1])

    @parameterized.parameters(
        (dict(learn='all'), "model.learn is 'all'; expected one of none, one, each"),
        (dict(kernel=Boxcar()), 'no gradient with respect to a width; set model.learn to none'),
        (dict(kernel=Constant(), learn='each'), 'no gradient with respect to a width'),
        (dict(widths=(1.0, 2.0)), 'too much for model.kernel Gaussian.* with model.learn one; set it to ..,'),
        (dict(widths=(1.0, 2.0), learn='none', kernel=Constant()), 'too much for model.kernel Constant.. with'),
        (dict(widths=(1.0, 2.0, 3.0), learn='each'), 'expected a number above 0 for each of 2 coordinates'),
        (dict(widths=(1.0, 0.0), learn='each'), 'expected a number above 0 for each of 2 coordinates'),
        (dict(widths=(1.0, 'wide'), learn='none'), 'expected a number above 0 for each of 2 coordinates'))
    def test_what_cannot_be_learnt_is_refused(self, fields, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            self.made(**fields)


if __name__ == '__main__':
    absltest.main()
