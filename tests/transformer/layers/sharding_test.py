import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from tests import models
from training import mesh as meshes
from transformer.layers.sharding import BATCH, constrain, platform
from transformer.models.bahdanau import RecurrentEncoderDecoder
from transformer.models.memory_network import MemoryNetwork
from transformer.models.recurrent import Gru
from transformer.models.recurrent_lm import RecurrentLm

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 9, (8, 5))
STORY = {'story': RNG.integers(1, 9, (8, 6, 3)), 'question': IDS[:, :3]}
PAIR = {'inputs': IDS, 'segments': np.ones_like(IDS), 'decoder_inputs': IDS, 'decoder_segments': np.ones_like(IDS)}
MODELS = {'language model': (RecurrentLm(vocab=9, cell=Gru(), length=5, width=4), {'inputs': IDS}),
          'translation': (RecurrentEncoderDecoder(vocab=9, source_vocab=0, layers=2, width=4), PAIR),
          'memories': (MemoryNetwork(vocab=9, memory=6, width=4), STORY)}


class ConstrainTest(parameterized.TestCase):
    def test_splits_the_batch_over_the_mesh_that_is_set(self):
        mesh = jax.make_mesh((2, 2), BATCH, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
        with jax.set_mesh(mesh):
            x = jax.jit(lambda: constrain(jnp.zeros((8, 3)), BATCH))()
        self.assertEqual({shard.data.shape for shard in x.addressable_shards}, {(2, 3)})

    def test_does_nothing_without_a_mesh(self):
        x = jnp.zeros((7, 3))
        self.assertIs(constrain(x, BATCH), x)


class PlatformTest(absltest.TestCase):

    def test_that_of_the_mesh_goes_before_that_of_the_process(self):
        mesh = jax.make_mesh((1,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
        with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
            self.assertEqual(platform(), 'tpu')
            with jax.set_mesh(mesh):
                self.assertEqual(platform(), 'cpu')
                traced = []
                jax.jit(lambda x: traced.append(platform()) or x).lower(1.0)
        self.assertEqual(traced, ['cpu'])


class ModelsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, *case) for name, case in MODELS.items()))
    @pytest.mark.slow
    def test_each_device_computes_its_own_rows(self, model, batch):
        def gradient(params, batch):
            return jax.grad(lambda p: (model.apply({'params': p}, **batch)['logits'] ** 2).mean())(params)
        mesh, params = meshes.make(4, 1, 1), models.drawn(model, **batch)
        whole, parts = meshes.replicated(mesh), meshes.batch_sharding(mesh)
        with jax.set_mesh(mesh):
            program = jax.jit(gradient, in_shardings=(whole, parts), out_shardings=whole).lower(params, batch).compile()
            found = program(jax.device_put(params, whole), jax.device_put(batch, parts))
        self.assertEmpty(re.findall('(?:all-gather|all-to-all|collective-permute)[(-]', program.as_text()))
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        jax.tree.map(close, found, jax.jit(gradient)(params, batch))


if __name__ == '__main__':
    absltest.main()
