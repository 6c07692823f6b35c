import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from training.state import State, wide


class StateTest(parameterized.TestCase):
    def state(self, average):
        return State(jnp.int32(3), {'a': jnp.ones(2, jnp.bfloat16)}, (), average, {}, jnp.int32(0))

    def test_what_is_evaluated_is_the_average_if_there_is_one(self):
        average = {'a': jnp.zeros(2)}
        self.assertIs(self.state(average).evaluated['params'], average)
        state = self.state({})
        self.assertIs(state.evaluated['params'], state.params)
        state = state.replace(statistics={'b': jnp.ones(1)})
        self.assertIs(state.evaluated['statistics'], state.statistics)
        state = state.replace(average=average, average_statistics={'b': jnp.zeros(1)})
        self.assertIs(state.evaluated['statistics'], state.average_statistics)

    def test_as_a_tree_it_has_all_that_makes_it(self):
        state = self.state({})
        self.assertEqual(jax.tree.structure(State(**state.tree())), jax.tree.structure(state))
        self.assertEqual(list(state.tree()), ['step', 'params', 'opt_state', 'average', 'sums', 'skipped', 'statistics',
                                              'average_statistics'])

    def test_wide_numbers_stay_as_wide(self):
        with jax.enable_x64(True):
            tree = {name: np.ones(2, name) for name in ('float16', 'float32', 'float64')}
            self.assertEqual({x.dtype.name for x in wide(tree).values()}, {'float64'})
        self.assertEqual({x.dtype.name for x in wide({'a': jnp.ones(2, 'bfloat16'), 'b': jnp.ones(2)}).values()}, {'float32'})


if __name__ == '__main__':
    absltest.main()
