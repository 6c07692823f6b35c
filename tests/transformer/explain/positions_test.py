import io

import numpy as np
from absl.testing import absltest
from PIL import Image

from transformer.attention.positions.absolute import Learned, sinusoid
from transformer.attention.positions.relative import Disentangled
from transformer.explain import positions as position_pictures
from transformer.layers.stack import Blocks, Stack
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from vit.layers.stages import Patches
from vit.models.hierarchical import Hierarchical


def panels(figure):
    """The arrays that a figure shows, without its colour bar."""
    return [image.get_array() for axes in figure.axes for image in axes.get_images()]


def size(figure):
    with io.BytesIO() as file:
        figure.savefig(file)
        with Image.open(file) as image:
            return image.size


class PicturesTest(absltest.TestCase):
    def test_sinusoids_by_position_and_feature(self):
        figure = position_pictures.sinusoids(20, 7)
        np.testing.assert_allclose(panels(figure)[0], sinusoid(np.arange(20), 7))
        self.assertGreater(min(size(figure)), 200)

    def test_similarities_are_cosines(self):
        table = np.array([[1, 0], [3, 0], [0, 2], [-1, 1], [0, 0]])
        half = 0.5 ** 0.5
        wanted = [[1, 1, 0, -half, 0], [1, 1, 0, -half, 0], [0, 0, 1, half, 0], [-half, -half, half, 1, 0], [0, 0, 0, 0, 0]]
        np.testing.assert_allclose(position_pictures.similarities(table), wanted, atol=1e-12)
        np.testing.assert_allclose(panels(position_pictures.similarity(table))[0], wanted, atol=1e-12)

    def test_patches_of_an_image_are_shown_where_they_are_without_the_class_token(self):
        table = np.random.default_rng(0).normal(size=(7, 5))
        shown = panels(position_pictures.similarity(table, grid=(2, 3)))
        self.assertLen(shown, 6)
        for i, panel in enumerate(shown):
            np.testing.assert_allclose(panel, position_pictures.similarities(table)[1 + i, 1:].reshape(2, 3))
        self.assertGreater(min(size(position_pictures.similarity(table, (2, 3)))), 100)

    def test_rows_that_are_of_no_position_are_left_out(self):
        table = np.arange(32.0).reshape(8, 4)
        bart = EncoderDecoder(vocab=3, source_vocab=0, encoder=Stack(positions=Learned(offset=2)))
        params = {'tokens': {}, 'encoder': {'positions': {'embedding': table}}, 'decoder': {}}
        np.testing.assert_array_equal(position_pictures.learnt(bart, params), table[2:])
        both = {'decoder': {'positions': {'embedding': table[:, :2]}}, 'encoder': {'positions': {'embedding': table}}}
        one = Stack(positions=Learned())
        np.testing.assert_array_equal(  # the encoder's, in whatever order a file has them
            position_pictures.learnt(EncoderDecoder(vocab=3, source_vocab=0, encoder=one, decoder=one), both), table)
        shifted = Hierarchical(0, Patches(2), positions=Learned())
        np.testing.assert_array_equal(position_pictures.learnt(shifted, {'positions': {'embedding': table}}), table)
        stages = Hierarchical(0, Patches(2), stages={'stage_0': Blocks(), 'stage_1': Blocks(positions=Learned())})
        in_stage = {'patches': {}, 'stage_0': {}, 'stage_1': {'positions': {'embedding': table}}}
        np.testing.assert_array_equal(position_pictures.learnt(stages, in_stage), table)
        several = Hierarchical(0, Patches(2), stages={name: Blocks(positions=Learned()) for name in ('stage_0', 'stage_1')})
        np.testing.assert_array_equal(position_pictures.learnt(several, {
            'stage_1': {'positions': {'embedding': table[:2]}}, 'stage_0': {'positions': {'embedding': table}}}), table)
        of_distances = Bert(vocab=3, length=16, stack=Stack(positions=Disentangled(distance=4)))
        with self.assertRaisesRegex(ValueError, 'has learnt no table of positions'):
            position_pictures.learnt(of_distances, {'positions': {'embedding': table}})

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, 'has learnt no table of positions'):
            position_pictures.learnt(Gpt(vocab=3), {'tokens': {}})
        with self.assertRaisesRegex(ValueError, '7 positions has no grid of 3x3 patches'):
            position_pictures.similarity(np.ones((7, 5)), (3, 3))


if __name__ == '__main__':
    absltest.main()
