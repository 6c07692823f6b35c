import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from transformer.sharding import BATCH, constrain


class ConstrainTest(parameterized.TestCase):
    def test_splits_the_batch_over_the_mesh_that_is_set(self):
        mesh = jax.make_mesh((2, 2), BATCH, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
        with jax.set_mesh(mesh):
            x = jax.jit(lambda: constrain(jnp.zeros((8, 3)), BATCH))()
        self.assertEqual({shard.data.shape for shard in x.addressable_shards}, {(2, 3)})

    def test_does_nothing_without_a_mesh(self):
        x = jnp.zeros((7, 3))
        self.assertIs(constrain(x, BATCH), x)


if __name__ == '__main__':
    absltest.main()
