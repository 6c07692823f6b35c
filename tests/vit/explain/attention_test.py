import io

import numpy as np
from absl.testing import absltest, parameterized

from display import figures
from tests.transformer.explain import pictures_test
from vit.explain import attention as pictures


class AttentionTest(parameterized.TestCase):
    @parameterized.product(front=((), ('class',), ('class', 'distillation'), ('register 1', 'register 2')), channels=(1, 3))
    def test_what_is_read_out_lies_over_the_image(self, front, channels):
        weights, found = pictures_test.drawn(2, 3, 6 + len(front))
        image = np.random.default_rng(0).random((4, 6, channels))
        rollout = weights['block_0'].mean(0)
        more = dict(patch=2, front=front, title='Attention of a run')
        figure = pictures.attention(weights, rollout, image, found, **more)
        self.assertEqual(figure.get_suptitle(), 'Attention of a run')
        figure.savefig(io.BytesIO(), format='png')
        over = [axes.images[1] for axes in figure.axes if len(axes.images) == 2]
        self.assertLen(over, 1 + 6)  # rollout and heads
        for panel, one in zip(over[1:], np.concatenate(list(weights.values()))):
            wanted = one[0, len(front):] if 'class' in front else one[len(front):, len(front):].mean(0)
            self.assertSequenceEqual(panel.get_extent(), (-0.5, 5.5, 3.5, -0.5))
            np.testing.assert_allclose(panel.get_alpha(), 0.8 * (wanted / wanted.max()).reshape(2, 3))
        lifted = pictures.read_out(rollout, front) - pictures.read_out(rollout, front).min()
        np.testing.assert_allclose(over[0].get_alpha(), 0.8 * (lifted / lifted.max()).reshape(2, 3))

    def test_without_rollout(self):
        weights, found = pictures_test.drawn(1, 1, 4)
        found[0] |= {'entropy': None}
        figure = pictures.attention(weights, None, np.zeros((2, 2, 1)), found, patch=1)
        figure.savefig(io.BytesIO(), format='png')
        self.assertLen([axes for axes in figure.axes if len(axes.images) == 2], 1)
        self.assertNotIn('entropy', figures.caption_of(figure))


if __name__ == '__main__':
    absltest.main()
