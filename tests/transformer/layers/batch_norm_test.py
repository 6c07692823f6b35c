import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import float64
from transformer.layers.norm import BatchNorm, BatchNormalized
from transformer.layers.numerics import Numerics

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(2.0, 3.0, (4, 3, 2, 5))
PARAMS = {'scale': DRAWN.normal(size=5), 'bias': DRAWN.normal(size=5)}
STATISTICS = {'mean': DRAWN.normal(size=5), 'variance': DRAWN.uniform(0.5, 2, 5)}
VARIABLES = {'params': PARAMS, 'statistics': STATISTICS}


def module(dtype='float64', **fields):
    return BatchNormalized(BatchNorm(**fields), Numerics(dtype, parameter_dtype=dtype))


def by_hand(x, mean, variance, epsilon=1e-5):
    """Channel by channel."""
    y = np.zeros_like(x)
    for c in range(x.shape[-1]):
        y[..., c] = (x[..., c] - mean[c]) / np.sqrt(variance[c] + epsilon) * PARAMS['scale'][c] + PARAMS['bias'][c]
    return y


def moments(x):
    values = [x[..., c].ravel() for c in range(x.shape[-1])]
    means = [sum(one) / len(one) for one in values]
    squares = [sum((one - mean) ** 2) for one, mean in zip(values, means)]
    return np.array(means), np.array(squares) / len(values[0]), np.array(squares) / (len(values[0]) - 1)


class BatchNormTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(jax.enable_x64(True))

    def assert_close(self, found, wanted):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)

    @parameterized.parameters(0.1, 0.3)
    def test_training_divides_by_the_biased_variance_and_keeps_the_unbiased_one(self, momentum):
        variables, running = VARIABLES, (STATISTICS['mean'], STATISTICS['variance'])
        for x in (X, 2 * X + 1):  # a second step goes on from the first
            mean, biased, unbiased = moments(x)
            y, changed = module(momentum=momentum).apply(variables, x, True, mutable=['statistics'])
            self.assert_close(y, by_hand(x, mean, biased))
            running = [(1 - momentum) * old + momentum * new for old, new in zip(running, (mean, unbiased))]
            self.assert_close(changed['statistics']['mean'], running[0])
            self.assert_close(changed['statistics']['variance'], running[1])
            variables = variables | changed

    @parameterized.parameters(1e-5, 1e-2)
    def test_elsewhere_it_uses_the_running_moments(self, epsilon):
        y, changed = module(epsilon=epsilon).apply(VARIABLES, X, mutable=['statistics'])
        self.assert_close(y, by_hand(X, STATISTICS['mean'], STATISTICS['variance'], epsilon))
        jax.tree.map(np.testing.assert_array_equal, changed['statistics'], STATISTICS)
        alone = module(epsilon=epsilon).apply(VARIABLES, X[:1])
        self.assert_close(alone, y[:1])  # other examples do not matter

    @parameterized.parameters(True, False)
    def test_gradients(self, train):
        loss = lambda given, x: jnp.sin(module().apply({'params': given['params'], 'statistics': STATISTICS}, given['x'],
                                                        train)).sum()
        float64.require_exact(self, loss, {'params': PARAMS, 'x': X}, 0.0)

    def test_frozen(self):
        """Nothing in it is trained, and the input alone has a gradient."""
        frozen = module(frozen=True)
        y, changed = frozen.apply(VARIABLES, X, True, mutable=['statistics'])
        self.assert_close(y, by_hand(X, STATISTICS['mean'], STATISTICS['variance']))
        jax.tree.map(np.testing.assert_array_equal, changed['statistics'], STATISTICS)
        score = lambda params, x: jnp.sin(frozen.apply({'params': params, 'statistics': STATISTICS}, x, True)).sum()
        of_params, of_x = jax.grad(score, (0, 1))(PARAMS, X)
        self.assertEqual(max(float(jnp.abs(x).max()) for x in of_params.values()), 0.0)
        self.assertGreater(float(jnp.abs(of_x).max()), 0.0)

    def test_it_begins_as_the_standard_normal(self):
        made = module().init(jax.random.key(0), X, True)
        self.assert_close(made['statistics']['mean'], np.zeros(5))
        self.assert_close(made['statistics']['variance'], np.ones(5))
        self.assertEqual({*made['params']}, {*made['roles']})

    def test_moments_stay_in_float32(self):
        low = BatchNormalized(BatchNorm(), Numerics('bfloat16', parameter_dtype='bfloat16'))
        made = low.init(jax.random.key(0), jnp.ones((2, 3)))
        self.assertEqual({x.dtype.name for x in made['statistics'].values()}, {'float32'})
        y, changed = low.apply(made, jnp.ones((2, 3), 'bfloat16'), True, mutable=['statistics'])
        self.assertEqual((y.dtype.name, changed['statistics']['mean'].dtype.name), ('bfloat16', 'float32'))

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, r'one value of each channel in \(1, 1, 1, 5\).*larger data.batch_size'):
            module().apply(VARIABLES, X[:1, :1, :1], True)
        module().apply(VARIABLES, X[:1, :1, :1])  # in evaluation one is enough
        with self.assertRaisesRegex(ValueError, 'running statistics, which were not given'):
            module().apply({'params': PARAMS}, X)
        for fields in (dict(momentum=1.5), dict(momentum=-0.1), dict(epsilon=0.0)):
            with self.assertRaisesRegex(ValueError, r'expected a momentum in \[0, 1\] and an epsilon above 0'):
                BatchNorm(**fields)


if __name__ == '__main__':
    absltest.main()
