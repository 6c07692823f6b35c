"""Windows against attention over all patches under the equivalent mask of pairs, one pair at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.mechanisms import times
from transformer.attention.context import Context
from transformer.attention.masks.patterns import Causal
from transformer.attention.mechanism import Given, Softmax
from transformer.attention.mechanisms.alternatives import Recurrence
from transformer.attention.mechanisms.linear import Linear, Performer
from transformer.attention.mechanisms.projected import MemoryCompressed
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.attention.multi_head import MultiHead
from transformer.attention.partition import AlternatePartition, Whole
from transformer.attention.positions.base import Encoding, NoPositions, Sizes
from transformer.attention.positions.relative import SwinBias
from transformer.attention.scores import Location
from transformer.layers.numerics import Numerics
from vit.layers.windows import Windows

RNG = np.random.default_rng(0)
HEADS, WIDTH = 2, 6


def context(grid, positions=NoPositions(), mask=None, **more):
    sizes = Sizes(grid[0] * grid[1], WIDTH, HEADS, WIDTH // HEADS, grid=grid)
    row = jnp.arange(sizes.length)
    return Context(*([mask] if mask else []), encoding=Encoding(positions, {}, row, row, sizes), **more)


def attended(windows, x, grid, params, *, positions=SwinBias(), **more):
    """The attention of patches in windows [B, T, D]."""
    layer = MultiHead(HEADS, numerics=Numerics(x.dtype.name))
    groups = windows(x, context(grid, positions, **more))
    return groups.whole(layer.apply({'params': params}, groups.x, context=groups.context)[0])


def parameters(windows, grid, positions=SwinBias(), width=WIDTH):
    x = np.zeros((1, grid[0] * grid[1], width))
    groups = windows(x, context(grid, positions))
    shapes = jax.eval_shape(lambda: MultiHead(HEADS).init(models.KEY, groups.x, context=groups.context)['params'])
    return jax.tree.map(lambda s: 0.5 * RNG.normal(size=s.shape), shapes)


def shifted_mask():
    """Of four windows of 3x3 patches, of which the last have regions whose patches are not neighbours in the row."""
    return Windows(3, shift=1)(np.zeros((1, 36, WIDTH)), context((6, 6))).context.mask


def by_pairs(windows, x, grid, params):
    """The same in numpy: for each patch the patches, and the padding, that it sees, by where they are in the image."""
    (height, width), (size, shift) = grid, windows.fit(grid)
    cells = [-(-side // one) * one for side, one in zip(grid, size)]
    project = lambda name, row: np.einsum('d,dnh->nh', row, params[name]['kernel']) + params[name]['bias']
    table, out = params['positions']['bias'], np.zeros_like(x)

    def place(row, column):
        """(window, region, place in the window) of a patch or of padding."""
        found = []
        for at, side, cell, one, by in zip((row, column), grid, cells, size, shift):
            if windows.roll_first:
                moved = (at - by) % side if at < side else at
            else:
                moved = (at - by) % cell
            found.append((moved // one, (moved >= cell - one) + (moved >= cell - by) if by else 0, moved % one))
        return [tuple(axis[i] for axis in found) for i in range(3)]

    every = [(row, column) for row in range(cells[0]) for column in range(cells[1])]
    for b in range(len(x)):
        value = lambda at: x[b, at[0] * width + at[1]] if at[0] < height and at[1] < width else np.zeros(WIDTH)  # noqa: B023
        for row in range(height):
            for column in range(width):
                window, region, mine = place(row, column)
                seen = [at for at in every if place(*at)[:2] == [window, region]]
                heads = np.zeros((HEADS, WIDTH // HEADS))
                query = project('query', value((row, column))) * (WIDTH // HEADS) ** -0.5
                for n in range(HEADS):
                    scores = []
                    for at in seen:
                        theirs = place(*at)[2]
                        offset = theirs[0] - mine[0] + size[0] - 1, theirs[1] - mine[1] + size[1] - 1
                        scores.append(query[n] @ project('key', value(at))[n] + table[(*offset, n)])
                    weights = np.exp(scores - np.max(scores))
                    heads[n] = sum(w * project('value', value(at))[n] for w, at in zip(weights / weights.sum(), seen))
                out[b, row * width + column] = np.einsum('nh,nhd->d', heads, params['output']['kernel'])
    return out + params['output']['bias']


class WindowsTest(parameterized.TestCase):
    @parameterized.parameters(
        ((4, 4), Windows(2)), ((4, 6), Windows(2, shift=1)), ((6, 3), Windows(3, shift=1)), ((5, 4), Windows(2)),
        ((5, 7), Windows(3, shift=1)), ((5, 7), Windows(3, shift=2)), ((3, 2), Windows(5, shift=2)),
        ((2, 5), Windows(3, shift=1)),
        ((2, 5), Windows(3, shift=1, shrink='sides')), ((2, 3), Windows(4, shift=2, shrink='sides')),
        ((2, 3), Windows(4, shrink='never')), ((4, 6), Windows(2, shift=1, roll_first=True)),
        ((5, 7), Windows(3, shift=1, roll_first=True)))
    def test_equals_attention_under_the_equivalent_mask_of_pairs(self, grid, windows):
        with jax.enable_x64(True):
            x, params = RNG.normal(size=(2, grid[0] * grid[1], WIDTH)), parameters(windows, grid)
            found = jax.jit(lambda x, params: attended(windows, x, grid, params))(x, params)
            np.testing.assert_allclose(found, by_pairs(windows, x, grid, params), rtol=0, atol=1e-12)

    def test_rolled_before_it_is_padded(self):
        """Without padding that is the same; with it, other patches meet."""
        with jax.enable_x64(True):
            for grid, same in (((6, 3), True), ((5, 7), False)):
                first, then = Windows(3, shift=1, roll_first=True), Windows(3, shift=1)
                x, params = RNG.normal(size=(1, grid[0] * grid[1], WIDTH)), parameters(then, grid)
                one, other = (np.asarray(attended(windows, x, grid, params)) for windows in (first, then))
                self.assertEqual(np.allclose(one, other, rtol=0, atol=1e-12), same)

    @parameterized.parameters(
        (Windows(3, shift=1), (6, 6), ((3, 3), (1, 1))), (Windows(3, shift=1), (4, 3), ((3, 3), (0, 0))),
        (Windows(3, shift=1), (2, 7), ((2, 2), (0, 0))), (Windows(3, shift=1, shrink='sides'), (2, 7), ((2, 3), (0, 1))),
        (Windows(3, shift=1, shrink='sides'), (3, 3), ((3, 3), (0, 0))),
        (Windows(3, shift=1, shrink='never'), (2, 7), ((3, 3), (1, 1))))
    def test_windows_that_are_larger_than_the_grid(self, windows, grid, wanted):
        self.assertEqual(windows.fit(grid), wanted)

    @parameterized.parameters(Windows(2), Windows(3, shift=1))
    def test_each_patch_has_a_row_with_the_keys_of_its_window(self, windows):
        grid, several = (4, 5), np.arange(1, 41.0).reshape(2, 20, 1)
        inside = windows(several, context(grid))
        numbers = inside.x[..., 0]  # 0 is padding
        rows = np.asarray(inside.rows(100 * numbers[:, None, :, None] + numbers[:, None, None, :]))
        keys = windows.keys(grid)
        self.assertEqual((rows.shape, keys.shape), ((2, 1, 20, windows.size ** 2), (20, windows.size ** 2)))
        found = np.where(keys >= 0, several[:, keys, 0], 0) + 100 * several * (keys >= 0)
        np.testing.assert_array_equal(rows[:, 0], found)
        self.assertTrue(all((row == number).sum() == 1 for number, row in enumerate(keys)))  # a patch sees itself
        np.testing.assert_array_equal(inside.whole(inside.x), several)

    def test_masks_and_positions_are_those_of_the_window(self):
        inside = Windows(2, shift=1)(np.zeros((3, 16, WIDTH)), context((4, 4), mask=Causal()))
        self.assertEqual((inside.context.encoding.sizes.grid, inside.context.encoding.sizes.length), ((2, 2), 4))
        visible = np.asarray(inside.context.mask(jnp.arange(4), jnp.arange(4)))
        self.assertEqual(visible.shape, (12, 4, 4))
        self.assertFalse(np.triu(visible[0], 1).any())
        self.assertEqual(visible[0].sum(), 10)
        self.assertEqual(visible[3].sum(), 4)  # the last one has a patch of each corner

    @parameterized.parameters(Linear(), Performer(features=8))
    def test_regions_that_are_not_runs_of_positions_are_kept_apart(self, mechanism):
        arrays = RNG.normal(size=(3, 4, 9, HEADS, 3)).astype(np.float32)  # queries, keys and values in 4 windows of 9 patches
        for mask in (shifted_mask(), Causal() & shifted_mask()):
            matrix = mechanism.weights({}, *arrays, Given(mask))
            for chunk in (2, 64):
                found = dataclasses.replace(mechanism, chunk=chunk)({}, *arrays, Given(mask))
                np.testing.assert_allclose(found, times(matrix, arrays[2]), atol=1e-5)

    def test_learnt_places_are_those_in_the_window(self):
        query, key, value = RNG.normal(size=(3, 4, 9, HEADS, 3)).astype(np.float32)
        table = RNG.normal(size=(12, HEADS, 3)).astype(np.float32)
        scores, visible = Softmax(score=Location(12)).scores({'table': table}, query, key, value, Given(shifted_mask()))
        wanted = np.einsum('btnh,snh->bnts', query, table[:9])
        np.testing.assert_allclose(scores, wanted, atol=1e-5)
        self.assertFalse(np.asarray(visible).all())
        own = RNG.normal(size=(HEADS, 12, 12)).astype(np.float32)
        scores, _ = Synthesizer('random', length=12).scores({'scores': own}, None, None, value, Given(shifted_mask()))
        np.testing.assert_allclose(scores, np.broadcast_to(own[:, :9, :9], scores.shape), atol=1e-6)

    @parameterized.parameters((MemoryCompressed(), None), (Recurrence(), Causal()))
    def test_attention_that_needs_runs_of_positions_is_refused(self, mechanism, mask):
        groups = Windows(3, shift=1)(np.zeros((1, 36, WIDTH)), context((6, 6), mask=mask))
        with self.assertRaisesRegex(ValueError, 'needs documents that are runs of positions.*use Windows.*without a shift'):
            jax.eval_shape(lambda: MultiHead(HEADS, mechanism=mechanism).init(models.KEY, groups.x, context=groups.context))

    def test_each_example_keeps_its_factors_of_heads(self):
        factors = RNG.normal(size=(3, 1, HEADS)).astype(np.float32)
        inside = Windows(2)(np.zeros((3, 16, WIDTH)), context((4, 4), head_mask={'attention': factors, 'other': factors[0, 0]}))
        np.testing.assert_array_equal(inside.context.head_mask['attention'], np.repeat(factors, 4, 0))
        np.testing.assert_array_equal(inside.context.head_mask['other'], factors[0, 0])

    @parameterized.parameters(
        (dict(size=0), 'size is 0; expected at least 1'), (dict(size=2, shift=2), 'shift is 2; expected one from 0 to 1'),
        (dict(size=2, shift=-1), 'shift is -1'), (dict(shrink='all'), "shrink is 'all'; expected one of grid, sides, never"))
    def test_refused(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            Windows(**fields)

    def test_refused_where_there_is_no_grid(self):
        for sizes, message in ((Sizes(4), 'this model has no patches in a grid; use Whole'),
                               (Sizes(5, grid=(2, 2), extra=1), "other tokens in front of them; use Whole.*pool='mean'")):
            with self.assertRaisesRegex(ValueError, message):
                Windows(2)(np.zeros((1, 4, 2)), Context(encoding=Encoding(sizes=sizes)))

    def test_refused_for_some_of_the_patches(self):
        with self.assertRaisesRegex(ValueError, 'needs all patches of the grid of 4x4, and is given 3; use Whole'):
            Windows(2)(np.zeros((1, 3, 2)), context((4, 4)))


class AlternateTest(absltest.TestCase):
    def test_every_other_layer(self):
        parts = AlternatePartition(Windows(2), AlternatePartition(Windows(3), Whole()))
        self.assertEqual(parts.period, 4)
        self.assertEqual([parts.of_layer(i) for i in range(5)],
                         [Windows(2), Windows(3), Windows(2), Whole(), Windows(2)])
        with self.assertRaisesRegex(TypeError, 'of_layer'):
            parts(np.zeros((1, 4, 2)), context((2, 2)))
        self.assertTrue(dataclasses.is_dataclass(parts))


if __name__ == '__main__':
    absltest.main()
