"""What the models of images can be asked, and that what they answer is what evaluators, readers and pictures take."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.models import build
from training import contracts
from transformer.layers.stack import Blocks
from vit.contracts import Filtering, Patched, Reconstructing, Staged
from vit.models.hierarchical import Hierarchical
from vit.models.mae import Mae
from vit.models.resnet import Basic, Resnet
from vit.models.vit import Vit

SIZES = dict(layers=1, heads=1, width=4)
MODELS = {'vit': build(Vit, classes=2, patch=4, registers=1, **SIZES), 'mae': build(Mae, patch=4, **SIZES),
          'hierarchical': Hierarchical(2, stages={'stage_0': Blocks(**SIZES)}),
          'resnet': Resnet(2, block=Basic(), widths=(4,), depths=(1,))}
ASKED = {Patched: {'vit', 'mae'}, Staged: {'hierarchical'}, Reconstructing: {'mae'}, Filtering: {*MODELS}}


class ContractsTest(parameterized.TestCase):
    @parameterized.parameters(*ASKED)
    def test_a_model_is_what_it_says(self, contract):
        self.assertEqual({name for name, model in MODELS.items() if isinstance(model, contract)}, ASKED[contract])
        for name in ASKED[contract]:
            self.assertEmpty(contracts.misfits(MODELS[name], contract))

    @parameterized.parameters(*ASKED[Patched])
    def test_the_tokens_are_those_in_front_and_the_patches(self, name):
        model, image = MODELS[name], np.zeros((1, 8, 12, 1), np.float32)
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), image)['params'])
        hidden = jax.eval_shape(lambda params: model.apply({'params': params}, image)['hidden'], params)
        self.assertEqual(hidden.shape[1], len(model.front) + (8 // model.patch) * (12 // model.patch))


if __name__ == '__main__':
    absltest.main()
