import dataclasses
import io
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from display import figures
from tests import models
from tests.transformer.explain import pictures_test
from transformer.attention.mechanism import AlternateAttention, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.partition import AlternatePartition, Whole
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.explain.pictures import Maps
from transformer.layers.stack import Blocks
from vit.explain import attention as pictures
from vit.layers.stages import Patches
from vit.layers.windows import Windows
from vit.models.hierarchical import Hierarchical


def drawn(layers, heads, grid):
    """(the weights of patches, what is said of them, the cells) of a grid whose patches have two pixels a side."""
    heats, found = pictures_test.drawn(layers, heads, grid[0] * grid[1])
    return {name: x[:, 0] for name, x in heats.items()}, found, dict.fromkeys(heats, (*grid, 2))


def attention(layers=1, heads=1, image=(4, 4, 1), rollout=None, entropy=1.0, kinds=None, **more):
    """The figure of drawn weights; `kinds`: the heads of the layers."""
    heats, found, cells = drawn(layers, heads, (image[0] // 2, image[1] // 2))
    for one, kind in zip(found, kinds or [one['heads'] for one in found]):
        one |= {'heads': kind, 'entropy': None if kind == ['all heads'] else [entropy] * heads}
    return pictures.attention(heats, rollout, np.zeros(image), found, cells=cells, reads=pictures.ALL_PATCHES, **more)


class AttentionTest(parameterized.TestCase):
    @parameterized.product(front=((), ('class',), ('class', 'distillation'), ('register 1', 'register 2')), channels=(1, 3))
    def test_what_is_read_out_lies_over_the_image(self, front, channels):
        weights, found = pictures_test.drawn(2, 3, 6 + len(front))
        image, rollout = np.random.default_rng(0).random((4, 6, channels)), weights['block_0'].mean(0)
        names = [*front, *map(str, range(6))]
        figure = pictures.ImageView([Maps(weights, found, names, names, rollout=rollout)], title='Attention of a run',
                                    image=image, patch=2, front=front).figure()
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
        self.assertIn('the class token attends to' if 'class' in front else 'all patches attend to on average',
                      figures.caption_of(figure).replace('\n', ' '))

    def test_without_rollout(self):
        figure = attention(kinds=[['all heads']])
        figure.savefig(io.BytesIO(), format='png')
        self.assertLen([axes for axes in figure.axes if len(axes.images) == 2], 1)
        self.assertNotIn('entropy', figures.caption_of(figure))

    @parameterized.parameters((9, 6), (2, 12), (1, 16), (3, 1))
    def test_texts_are_inside_of_the_figure_and_do_not_meet(self, layers, heads):
        figure = attention(layers, heads, (28, 28, 1), np.full(196, 1 / 196), entropy=2.0)  # the highest: uniform
        figure.canvas.draw()
        beside = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label) if text.get_text()]
        self.assertTrue(any('rollout' in text.get_text() for text in beside))
        places = [text.get_window_extent() for text in beside]
        for text, place in zip(beside, places):
            self.assertGreaterEqual(place.x0, 0, text.get_text())
            self.assertLessEqual(place.x1, figure.bbox.width, text.get_text())
        titles = [place.padded(-1) for text, place in zip(beside, places) if 'head' in text.get_text()]
        self.assertLen(titles, layers * heads)
        panels = [axes.get_window_extent() for axes in figure.axes if len(axes.images) == 2]
        for number, place in enumerate(titles):
            self.assertFalse(any(place.overlaps(other) for other in [*titles[:number], *panels]), number)

    def test_layers_without_weights_of_patches_are_explained(self):
        said = [figures.caption_of(attention(2, kinds=kinds)).replace('\n', ' ') for kinds in (
            [[0], [0]], [['all heads'], [0]], [['all heads']] * 2)]
        self.assertEqual(['no rollout' in one for one in said], [False, True, True])
        self.assertEqual(['panels without one are of layers whose weights are no shares' in one for one in said],
                         [False, True, False])
        self.assertEqual(['or all heads of a layer together' in one for one in said], [False, True, True])


class StagesTest(parameterized.TestCase):
    def test_rollout_goes_through_merging_and_patches_may_go_beyond_the_image(self):
        """Of uniform attention in windows, whose shares are known."""
        snapshot = Snapshot(Hierarchical(0, Patches(2), stages={
            'stage_0': Blocks(layers=1, heads=1, width=4, positions=NoPositions(), partition=Windows(2)),
            'stage_1': Blocks(layers=1, heads=1, width=4, positions=NoPositions())}), np.ones((7, 5, 1), np.float32))
        view, found, more = pictures.of_stages(snapshot, 'image.png')
        self.assertEqual([one['layer'] for one in found], ['stage_0/block_0', 'stage_1/block_0'])
        self.assertEqual(snapshot.model.cells((7, 5)), {'stage_0': (4, 3, 2), 'stage_1': (2, 2, 4)})
        # The last column shares its windows with padding: of its two patches each has a quarter of a query's weights.
        self.assertAlmostEqual(found[0]['entropy'][0], (8 * np.log(4) + 4 * np.log(2)) / 12, places=5)
        self.assertAlmostEqual(found[0]['highest_entropy'], found[0]['entropy'][0], places=5)
        self.assertAlmostEqual(found[0]['confidence'][0], (8 / 4 + 4 / 2) / 12, places=5)
        self.assertEqual((more['image'], more['note']), ('image.png', 'its colours are converted'))
        own, other = (1 + 1 / 4) / (1 + 2 / 4), (1 / 4) / (1 + 2 / 4)  # of the residual connection and the two weights
        np.testing.assert_allclose(more['rollout'], np.array([[1 / 16, 1 / 16, (own + other) / 8]] * 4), atol=1e-6)
        self.assertAlmostEqual(found[1]['highest_entropy'], np.log(4), places=5)
        figure = view.figure()
        figure.savefig(io.BytesIO(), format='png')
        self.assertIn('the padding of windows has the rest of the weights', figures.caption_of(figure))
        over = [axes for axes in figure.axes if len(axes.images) == 2]
        self.assertLen(over, 3)  # rollout and two heads
        for axes, extent in zip(over, ((-0.5, 5.5, 7.5, -0.5), (-0.5, 5.5, 7.5, -0.5), (-0.5, 7.5, 7.5, -0.5))):
            self.assertSequenceEqual(axes.images[1].get_extent(), extent)
            self.assertEqual((axes.get_xlim(), axes.get_ylim()), ((-0.5, 4.5), (6.5, -0.5)))
        with self.assertRaisesRegex(ValueError, 'give --attention=OUT.png'):
            view.page()

        whole = Snapshot(snapshot.model, np.ones((8, 8, 1), np.float32))
        view, found, more = pictures.of_stages(whole, 'image.png')
        self.assertNotIn('padding', figures.caption_of(view.figure()))
        np.testing.assert_allclose(more['rollout'], np.full((4, 4), 1 / 16), atol=1e-6)
        self.assertAlmostEqual(found[0]['highest_entropy'], np.log(4), places=5)  # of a window

    @parameterized.parameters((12, 12), (14, 10))
    def test_rollout_of_weights_that_differ_equals_a_loop_over_windows(self, height, width):
        """Of weights that depend on the bias of a pair alone, in windows as they are, shifted and padded."""
        stack = Blocks(layers=2, heads=2, width=4, positions=SwinBias(),
                      partition=AlternatePartition(Windows(3), Windows(3, shift=1)))
        snapshot = Snapshot(Hierarchical(0, Patches(2), stages={
            'stage_0': stack, 'stage_1': dataclasses.replace(stack, layers=1)}), np.ones((height, width, 1), np.float32))
        draw = np.random.default_rng(0)
        for stage, layers in (('stage_0', 2), ('stage_1', 1)):
            for layer in range(layers):
                positions = snapshot.params[stage][f'block_{layer}']['attention']['positions']
                positions['bias'] = draw.normal(size=positions['bias'].shape).astype(np.float32)
        table = lambda stage, layer: snapshot.params[stage][f'block_{layer}']['attention']['positions']['bias']
        fine, coarse = ((-(-height // side), -(-width // side)) for side in (2, 4))
        flow = _mixed(fine, table('stage_0', 1), 3, 1) @ _mixed(fine, table('stage_0', 0), 3, 0)
        merging = np.zeros((coarse[0] * coarse[1], fine[0] * fine[1]))
        for row, column in np.ndindex(fine):
            merging[row // 2 * coarse[1] + column // 2, row * fine[1] + column] = 1
        size = 3 if min(coarse) > 3 else min(coarse)
        flow = _mixed(coarse, table('stage_1', 0), size, 0) @ (merging / merging.sum(1, keepdims=True)) @ flow
        _, _, more = pictures.of_stages(snapshot, 'image.png')  # of weights in float32
        np.testing.assert_allclose(more['rollout'], flow.mean(0).reshape(fine), rtol=0, atol=1e-6)

    @parameterized.parameters((((0, 1),), ((), (0,))), (((0, 1),), ((), ())), (((),), ((0, 1), (1,))))
    def test_rollout_where_layers_keep_no_head(self, *kept):
        """Such a layer, also all of a stage, passes every patch on."""
        snapshot = Snapshot(Hierarchical(0, Patches(2), stages={
            f'stage_{i}': Blocks(layers=len(row), heads=2, width=4, positions=NoPositions(), kept=row)
            for i, row in enumerate(kept)}), np.ones((8, 8, 1), np.float32))
        view, found, _ = pictures.of_stages(snapshot, 'image.png')
        self.assertEqual([one['heads'] for one in found], [list(heads) for row in kept for heads in row])
        whole = lambda row, count: np.linalg.matrix_power(np.eye(count) / 2 + 1 / (2 * count), sum(map(bool, row)))
        merging = np.array([[(row // 2, column // 2) == into for row, column in np.ndindex(4, 4)] for into in np.ndindex(2, 2)])
        wanted = whole(kept[1], 4) @ (merging / 4) @ whole(kept[0], 16)
        np.testing.assert_allclose(view.rollout, wanted.mean(0), atol=1e-6)
        view.figure().savefig(io.BytesIO(), format='png')

    def test_shares_of_merged_patches(self):
        np.testing.assert_allclose(pictures.unmerged(np.array([0.8, 0.2]), (2, 3, 2), (1, 2, 4)),
                                   [0.2, 0.2, 0.1, 0.2, 0.2, 0.1])

    def test_windows_take_memory_for_their_own_pairs_alone(self):
        """Of 4,096 patches, whose square has 67 MB in float32; and pictures of that square are refused before it is there."""
        snapshot = Snapshot(Hierarchical(0, Patches(1), stages={'stage_0': Blocks(
            layers=2, heads=1, width=2, positions=NoPositions(),
            partition=AlternatePartition(Windows(4), Windows(4, shift=2)))}), np.ones((64, 64, 1), np.float32))
        tracemalloc.start()
        view, _, more = pictures.of_stages(snapshot, 'image.png')
        view.figure()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLess(most, 6e7)  # most of it is matplotlib's
        self.assertAlmostEqual(np.sum(more['rollout']), 1.0)
        with self.assertRaisesRegex(ValueError, 'each of 64x64 patches, but a picture shows 1024 at most; leave it out'):
            pictures.of_stages(snapshot, 'image.png', steps=True)

    def test_steps_of_windows_are_drawn_between_all_patches(self):
        """Patches of two windows see each other in none."""
        snapshot = Snapshot(Hierarchical(0, Patches(2), stages={'stage_0': Blocks(
            layers=1, heads=2, width=4, positions=NoPositions(), partition=Windows(2))}), np.ones((8, 8, 1), np.float32))
        view, _, _ = pictures.of_stages(snapshot, 'image.png', steps=True)
        (section,), together = view.sections, lambda a, b: a[0] // 2 == b[0] // 2 and a[1] // 2 == b[1] // 2
        wanted = np.array([[together(query, key) for key in np.ndindex(4, 4)] for query in np.ndindex(4, 4)])
        scores, visible = section.steps['stage_0/block_0']
        np.testing.assert_allclose(section.layers['stage_0/block_0'], np.stack([wanted / 4] * 2), atol=1e-6)
        np.testing.assert_array_equal(visible, np.stack([wanted] * 2))
        self.assertEqual(scores.shape, (2, 16, 16))
        view.figure().savefig(io.BytesIO(), format='png')

    def test_channels_are_mixed_by_all_heads_together(self):
        snapshot = Snapshot(Hierarchical(0, Patches(2), stages={'stage_0': Blocks(
            layers=2, heads=2, width=4, positions=NoPositions(), partition=AlternatePartition(Windows(2), Whole()),
            attention=AlternateAttention(Softmax(), ChannelGroups()))}), np.ones((8, 8, 1), np.float32))
        view, found, more = pictures.of_stages(snapshot, 'image.png')
        self.assertEqual([one['heads'] for one in found], [[0, 1], ['all heads']])
        self.assertEqual((view.counted(), more['rollout']), ('Attention weights of 2 attention layers of 2 heads', None))
        titles = [axes.get_title() for axes in view.figure().axes]
        self.assertIn('all heads', titles)


def _mixed(grid, table, size, shift):
    """[T, T]: rows of the weights of the patches of a grid and of the identity, scaled to sum 1. A weight is the softmax of the
    biases, from `table` [2·size - 1, 2·size - 1, N], over the patches and the padding of a window."""
    cells, out = [-(-side // size) * size for side in grid], np.eye(grid[0] * grid[1])

    def place(at):
        """(window and region, place in the window)"""
        moved = [(one - shift) % cell for one, cell in zip(at, cells)]
        region = [(one >= cell - size) + (one >= cell - shift) if shift else 0 for one, cell in zip(moved, cells)]
        return [(one // size, part) for one, part in zip(moved, region)], [one % size for one in moved]

    for query in np.ndindex(*grid):
        window, mine = place(query)
        seen = [key for key in np.ndindex(*cells) if place(key)[0] == window]
        for n in range(table.shape[-1]):
            scores = [table[(*(b - a + size - 1 for a, b in zip(mine, place(key)[1])), n)] for key in seen]
            for key, weight in zip(seen, np.exp(scores) / np.exp(scores).sum()):
                if key[0] < grid[0] and key[1] < grid[1]:
                    out[query[0] * grid[1] + query[1], key[0] * grid[1] + key[1]] += weight / table.shape[-1]
    return out / out.sum(1, keepdims=True)


class Snapshot:
    """Stands for a run at its start, whose attention is uniform."""

    def __init__(self, model, image):
        self.model, self.data, self.image = model, self, image
        self.params = jax.tree.map(jnp.zeros_like, models.init(model, image[None]))

    def seen(self, path):
        return self.image, 'its colours are converted'

    def visible(self, image):
        return image

    def captured(self, *names, **inputs):
        found = self.model.apply({'params': self.params}, **inputs, capture=names)
        return {name: x for name, x in found.items() if name.rpartition('/')[2] in names}


if __name__ == '__main__':
    absltest.main()
