import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.tasks.losses import cross_entropy
from vit.tasks.classification import Classification

LOGITS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
LABEL = np.array([LOGITS[0].argmax(), (LOGITS[1].argmax() + 1) % 4, LOGITS[2].argmax()])


class ClassificationTest(parameterized.TestCase):
    def test_the_model_is_given_the_image_alone(self):
        self.assertEqual(Classification().inputs({'image': 1, 'label': 2, 'example_weights': 3}), {'image': 1})

    @parameterized.parameters(None, (1, 1, 1), (1, 0, 1), (0, 1, 0))
    def test_examples_count_by_their_weight(self, *weights):
        given = weights if len(weights) == 3 else None
        batch = {'label': LABEL} | ({'example_weights': jnp.float32(given)} if given else {})
        terms = Classification().terms({'logits': LOGITS}, batch)
        used = np.array(given or (1, 1, 1))
        for name, values in (('loss', cross_entropy(LOGITS, LABEL)), ('accuracy', [1, 0, 1])):
            self.assertAlmostEqual(float(terms[name][0]), float(np.asarray(values) @ used), places=5)
            self.assertEqual(float(terms[name][1]), used.sum())


if __name__ == '__main__':
    absltest.main()
