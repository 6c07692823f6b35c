import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.layers.dense import Dense, Parameters
from transformer.layers.embedding import Embedding
from transformer.layers.initial import zeros
from transformer.layers.roles import Role, Wanted, declare, matrix, table, vector

KEY = jax.random.key(0)


class Sum(nn.Module):
    """x + v + a row, with parameters of its own and of a part."""

    @nn.compact
    def __call__(self, x):
        own = declare(self, 'own', Wanted(zeros, x.shape[-1:], vector(heads=0)))
        return x + own + Parameters({'rows': Wanted(nn.initializers.ones, (3, x.shape[-1]), table())}, name='part')()['rows'][0]


class RoleTest(parameterized.TestCase):
    @parameterized.parameters(
        (matrix(), 1, vector()), (matrix(inner=1), 1, vector(inner=0)), (matrix(inner=0), 1, vector()), (table(1), 1, vector()),
        (matrix((0,), (1, 2), heads=1, shared=True), 1, vector(heads=0, shared=True)),
        (matrix((0, 1), (2,), heads=0, shared=True), 2, vector()))
    def test_a_bias_is_a_vector_over_the_outputs(self, role, inputs, wanted):
        self.assertEqual(role.of_bias(inputs), wanted)

    def test_of_what_is_wanted_without_one_is_a_vector(self):
        self.assertEqual(Wanted(zeros, (3,)).role, Role('vector'))

    def test_stand_beside_the_parameters_when_these_begin_and_cost_nothing_later(self):
        x = np.ones((2, 4), np.float32)
        variables = Sum().init(KEY, x)
        self.assertEqual(variables['roles'], {'own': vector(heads=0), 'part': {'rows': table()}})
        self.assertEqual(jax.eval_shape(lambda: Sum().init(KEY, x))['roles'], variables['roles'])
        self.assertEmpty(jax.tree.leaves(variables['roles']))  # no arrays: a program may give them back
        params = {'params': variables['params']}
        np.testing.assert_array_equal(Sum().apply(params, x), x + 1)
        self.assertEqual(str(jax.make_jaxpr(Sum().apply)(params, x)), str(jax.make_jaxpr(Sum().apply)(variables, x)))

    @parameterized.parameters((1, 3, matrix((0,), (1,))), (2, 3, matrix((0, 1), (2,))), (1, (3, 2), matrix((0,), (1, 2))),
                              (2, (3, 2), matrix((0, 1), (2, 3))))
    def test_a_dense_layer_is_a_matrix_of_its_own_axes(self, axes, features, wanted):
        found = Dense(features, axes).init(KEY, jnp.ones((2, 4, 5)))['roles']
        self.assertEqual(found, {'kernel': wanted, 'bias': vector()})

    def test_a_dense_layer_may_have_another(self):
        role = matrix((0,), (1, 2), heads=1)
        found = Dense((3, 2), role=role, bias=False).init(KEY, jnp.ones((2, 4)))['roles']
        self.assertEqual(found, {'kernel': role})

    def test_an_embedding_is_a_table(self):
        self.assertEqual(Embedding(5, 3).init(KEY, jnp.zeros(2, int))['roles'], {'embedding': table()})


class ParametersTest(parameterized.TestCase):
    def test_of_another_shape_are_fitted_where_they_can_be(self):
        wanted = {'rows': Wanted(zeros, (3,), table()), 'other': Wanted(zeros, (2,))}
        given = {'params': {'rows': jnp.arange(6.0), 'other': jnp.ones(2)}}
        found = Parameters(wanted, lambda name, x: x[::2]).apply(given)
        np.testing.assert_array_equal(found['rows'], [0, 2, 4])
        np.testing.assert_array_equal(found['other'], [1, 1])
        with self.assertRaisesRegex(Exception, r'\(3,\)'):
            Parameters(wanted).apply(given)


if __name__ == '__main__':
    absltest.main()
