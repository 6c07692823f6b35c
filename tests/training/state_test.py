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
        self.assertIs(self.state(average).evaluated, average)
        state = self.state({})
        self.assertIs(state.evaluated, state.params)

    def test_as_a_tree_it_has_all_that_makes_it(self):
        state = self.state({})
        self.assertEqual(jax.tree.structure(State(**state.tree())), jax.tree.structure(state))
        self.assertEqual(list(state.tree()), ['step', 'params', 'opt_state', 'average', 'sums', 'skipped'])

    def test_wide_numbers_stay_as_wide(self):
        with jax.enable_x64(True):
            tree = {name: np.ones(2, name) for name in ('float16', 'float32', 'float64')}
            self.assertEqual({x.dtype.name for x in wide(tree).values()}, {'float64'})
        self.assertEqual({x.dtype.name for x in wide({'a': jnp.ones(2, 'bfloat16'), 'b': jnp.ones(2)}).values()}, {'float32'})


if __name__ == '__main__':
    absltest.main()
