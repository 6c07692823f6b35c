import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from configs import base
from tests import models
from tests.models import apply, drawn
from training import contracts, mesh
from transformer.attention.mechanism import AlternateAttention, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.partition import AlternatePartition, Whole
from transformer.attention.positions.absolute import Learned, Sinusoidal2d
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.attention.positions.rotary import Rotary
from transformer.layers.activations import Gelu
from transformer.layers.convolution import Convolution2d
from transformer.layers.feed_forward import Mlp
from transformer.layers.numerics import Numerics
from transformer.layers.residual import Convolved, NoNorm
from transformer.layers.stack import Blocks
from transformer.layers.universal import Groups
from vit.layers.stages import Convolutions, Downsampling, Merging, Patches, PatchMerging
from vit.layers.windows import Windows
from vit.models.hierarchical import Hierarchical
from vit.models.vit import Vit

KEY = jax.random.key(0)
FIRST = Blocks(layers=2, heads=2, width=8, partition=AlternatePartition(Windows(2), Windows(2, shift=1)), positions=SwinBias(),
               feed_forward=Mlp(inner=12))
SMALL = Hierarchical(3, Patches(2), stages={'stage_0': FIRST, 'stage_1': dataclasses.replace(FIRST, width=12, layers=1)})
# Blocks without norms, for tests in which branches add nothing or known numbers.
PLAIN = Blocks(layers=2, heads=1, width=8, positions=NoPositions(), residual=NoNorm())
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
program = functools.cache(lambda model: models.Program(model, IMAGES))


def with_stage(model, number=0, **fields):
    name = f'stage_{number}'
    return model.clone(stages={**model.stages, name: dataclasses.replace(model.stages[name], **fields)})


@dataclasses.dataclass(frozen=True)
class _Corner(Merging):
    """Stands for a merging: the patch in the corner of each square."""

    def __call__(self, x, width, numerics):
        return jnp.pad(x[:, ::2, ::2], [(0, 0)] * 3 + [(0, width - x.shape[-1])])


class PartsTest(parameterized.TestCase):
    @parameterized.parameters((4, 6, 2), (5, 3, 2), (4, 4, 4), (7, 5, 3))
    def test_patches_are_padded_at_the_bottom_and_on_the_right(self, height, width, size):
        image, model = np.random.default_rng(0).normal(size=(1, height, width, 2)), SMALL.clone(stem=Patches(size, norm=False))
        with jax.enable_x64(True):
            model = with_stage(model.clone(dtype='float64', parameter_dtype='float64'), 0, partition=Whole())
            params = jax.tree.map(np.float64, drawn(model, image))
            stem = lambda image: model.stem(image, 8, Numerics('float64'))
            found = jax.tree.map(np.asarray, _within(stem, params, image))[0]
        rows, columns = -(-height // size), -(-width // size)
        self.assertEqual((found.shape[:2], model.stem.grid((height, width))), ((rows, columns), (rows, columns)))
        for row, column in np.ndindex(rows, columns):
            square = np.zeros((size, size, 2))
            for y, x in np.ndindex(size, size):
                if row * size + y < height and column * size + x < width:
                    square[y, x] = image[0, row * size + y, column * size + x]
            wanted = square.reshape(-1) @ params['patches']['kernel'] + params['patches']['bias']
            np.testing.assert_allclose(found[row, column], wanted, rtol=0, atol=1e-12)

    @parameterized.parameters((4, 4), (3, 5))
    def test_merging_goes_down_the_columns(self, height, width):
        x = np.random.default_rng(0).normal(size=(1, height, width, 3))
        params = {'merging': {'kernel': np.random.default_rng(1).normal(size=(12, 5))}, 'merging_norm': {
            'scale': np.random.default_rng(2).normal(size=12), 'bias': np.random.default_rng(3).normal(size=12)}}
        with jax.enable_x64(True):
            found = np.asarray(_within(lambda x: PatchMerging()(x, 5, Numerics('float64', True, 'float64')), params, x))[0]
        self.assertEqual(found.shape[:2], PatchMerging().grid((height, width)))
        for row, column in np.ndindex(found.shape[:2]):
            four = [x[0, y, z] if y < height and z < width else np.zeros(3) for y, z in (
                (2 * row, 2 * column), (2 * row + 1, 2 * column), (2 * row, 2 * column + 1), (2 * row + 1, 2 * column + 1))]
            four = np.concatenate(four)
            normal = (four - four.mean()) / np.sqrt(four.var() + 1e-5)
            wanted = (normal * params['merging_norm']['scale'] + params['merging_norm']['bias']) @ params['merging']['kernel']
            np.testing.assert_allclose(found[row, column], wanted, rtol=0, atol=1e-12)

    @parameterized.parameters((4, 4, 2), (3, 5, 2), (3, 5, 3))
    def test_downsampling_is_a_convolution_after_the_norm(self, height, width, size):
        """With zeros where the squares go beyond the patches, which the norm has not seen."""
        draw = np.random.default_rng(0)
        x, kernel, bias = draw.normal(size=(1, height, width, 3)), draw.normal(size=(size, size, 3, 5)), draw.normal(size=5)
        params = {'merging': {'kernel': kernel, 'bias': bias}, 'merging_norm': {'scale': np.ones(3), 'bias': np.ones(3)}}
        with jax.enable_x64(True):
            part = Downsampling(size)
            found = np.asarray(_within(lambda x: part(x, 5, Numerics('float64', True, 'float64')), params, x))[0]
        self.assertEqual(found.shape[:2], part.grid((height, width)))
        normal = 1 + (x[0] - x[0].mean(-1, keepdims=True)) / np.sqrt(x[0].var(-1, keepdims=True) + 1e-5)
        before = 0 if size == 2 else size // 2
        whole = np.pad(normal, ((before, size), (before, size), (0, 0)))
        for row, column in np.ndindex(found.shape[:2]):
            square = whole[2 * row:2 * row + size, 2 * column:2 * column + size]
            np.testing.assert_allclose(found[row, column], np.einsum('pqc,pqcd->d', square, kernel) + bias, rtol=0, atol=1e-12)

    def test_early_convolutions(self):
        """Each of twice the width, with norms after and an activation between; the order of padding is that of the strides."""
        stem, image = Convolutions(size=3, strides=(2, 1)), np.random.default_rng(0).normal(size=(1, 5, 8, 2))
        model = SMALL.clone(stem=stem, dtype='float64', parameter_dtype='float64')
        with jax.enable_x64(True):
            params = jax.tree.map(np.float64, drawn(model, image))
            found = np.asarray(_within(lambda image: stem(image, 8, Numerics('float64', True, 'float64')), params, image))
            x = np.pad(image, ((0, 0), (0, 1), (0, 0), (0, 0)))
            for i, (stride, width) in enumerate(((2, 4), (1, 8))):
                layer = Convolution2d(width, 3, stride, Numerics('float64', True, 'float64'), bias=True)
                x = np.asarray(layer.apply({'params': params[f'stem_{i}']}, x))
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
                x = x * params[f'stem_{i}_norm']['scale'] + params[f'stem_{i}_norm']['bias']
                x = np.maximum(x, 0) if i == 0 else x
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-10)
        self.assertEqual((found.shape[1:3], stem.grid((5, 8))), ((3, 4), (3, 4)))

    @parameterized.parameters(
        (lambda: Patches(0), 'size is 0; expected at least 1'), (lambda: Convolutions(size=2), 'size is 2; expected an odd'),
        (lambda: Convolutions(strides=()), 'expected a number for each convolution'),
        (lambda: Downsampling(4), 'size is 4; expected 2, or an odd number'),
        (lambda: Convolved(size=2), 'size is 2; expected an odd number'))
    def test_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


def _within(function, params, x):
    """A function of parts whose submodules belong to a module."""
    import flax.linen as nn

    class Around(nn.Module):
        @nn.compact
        def __call__(self, x):
            return function(x)

    return Around().apply({'params': params}, x)


def _resized(table, grid):
    """Cubic convolution of a table [rows, columns, ..] (Keys 1981) with a = -0.75, beyond whose edges they repeat."""
    def weight(d, a=-0.75):
        return (a + 2) * d ** 3 - (a + 3) * d ** 2 + 1 if d <= 1 else a * (d ** 3 - 5 * d ** 2 + 8 * d - 4) if d < 2 else 0.0

    for axis, size in enumerate(grid):
        rows, out = np.moveaxis(table, axis, 0), []
        for i in range(size):
            at = (i + 0.5) * len(rows) / size - 0.5
            near = range(int(np.floor(at)) - 1, int(np.floor(at)) + 3)
            out.append(sum(weight(abs(at - j)) * rows[min(max(j, 0), len(rows) - 1)] for j in near))
        table = np.moveaxis(np.stack(out), 0, axis)
    return table


class HierarchicalTest(parameterized.TestCase):
    def test_names_and_shapes(self):
        shapes = jax.tree.map(jnp.shape, drawn(SMALL, IMAGES))
        self.assertEqual(set(shapes), {'patches', 'patches_norm', 'stage_0', 'stage_1', 'norm', 'head'})
        self.assertEqual(set(shapes['stage_0']), {'block_0', 'block_1'})
        self.assertEqual(set(shapes['stage_1']), {'merging', 'merging_norm', 'block_0'})
        self.assertEqual((shapes['stage_1']['merging'], shapes['norm']['scale']), ({'kernel': (32, 12)}, (12,)))
        self.assertEqual(shapes['stage_0']['block_1']['attention']['positions'], {'bias': (3, 3, 2)})

    @parameterized.parameters((8, 8), (7, 9), (1, 1), (3, 14), (5, 2))
    def test_images_of_any_height_and_width(self, height, width):
        image = np.ones((2, height, width, 1), np.float32)
        outputs = jax.eval_shape(lambda params: SMALL.apply({'params': params}, image, capture=('attention',)),
                                 drawn(SMALL, image))
        grids = SMALL.grids((height, width))
        self.assertEqual(outputs['logits'].shape, (2, 3))
        self.assertEqual(outputs['hidden'].shape, (2, grids['stage_1'][0] * grids['stage_1'][1], 12))
        tokens = grids['stage_0'][0] * grids['stage_0'][1]
        in_window = SMALL.stages['stage_0'].partition.of_layer(1).fit(grids['stage_0'])[0]
        self.assertEqual(outputs['stage_0/block_1/attention'].shape, (2, 2, tokens, in_window[0] * in_window[1]))

    def test_pooling(self):
        for first in (False, True):
            model = SMALL.clone(pool_first=first)
            params = drawn(model, IMAGES)
            found = jax.tree.map(np.float64, apply(model, params, IMAGES))
            mean = found['hidden'].mean(1)
            if first:
                mean = (mean - mean.mean(-1, keepdims=True)) / np.sqrt(mean.var(-1, keepdims=True) + 1e-5)
                mean = mean * params['norm']['scale'] + params['norm']['bias']
            np.testing.assert_allclose(found['pooled'], mean, atol=1e-5)
            np.testing.assert_allclose(found['logits'], mean @ params['head']['kernel'] + params['head']['bias'], atol=1e-5)

    def test_the_gradient_reaches_a_neighbouring_window_only_after_a_shifted_block(self):
        """Of a patch in the middle, which a corner of its shifted window brings together with those of other windows."""
        def reached(layers):
            blocks = dataclasses.replace(FIRST, layers=layers)
            model = Hierarchical(0, Patches(1, norm=False), stages={'stage_0': blocks})
            image = IMAGES[:1, :4, :4]
            params = drawn(model, image)
            of = lambda image: model.apply({'params': params}, image)['hidden'][0, 5].sum()
            return {divmod(int(at), 4) for at in np.flatnonzero(jax.grad(of)(image)[0, :, :, 0])}

        window = {(row, column) for row in (0, 1) for column in (0, 1)}
        self.assertEqual(reached(1), window)
        # The patch sees (1, 1), (1, 2), (2, 1) and (2, 2), each of which has seen its own window.
        self.assertEqual(reached(2), {(row, column) for row in range(4) for column in range(4)})

    def test_convolutions_before_every_branch(self):
        """As if a convolution alone were added to the stream; patches need a grid."""
        model = with_stage(SMALL, 0, residual=Convolved(), layers=1)
        params = drawn(model, IMAGES)
        self.assertContainsSubset({'attention_convolution', 'feed_forward_convolution'}, params['stage_0']['block_0'])
        plain = jax.tree.map(np.copy, params)
        for name in ('attention_convolution', 'feed_forward_convolution'):
            plain['stage_0']['block_0'][name] = jax.tree.map(np.zeros_like, plain['stage_0']['block_0'][name])
        without = apply(with_stage(SMALL, 0, layers=1), params, IMAGES)['logits']
        np.testing.assert_allclose(apply(model, plain, IMAGES)['logits'], without, atol=1e-6)
        found = apply(model, params, IMAGES)['logits']
        self.assertGreater(np.abs(found - without).max(), 1e-3)
        other = with_stage(SMALL, 0, residual=Convolved(activation=Gelu()), layers=1)
        self.assertGreater(np.abs(apply(other, params, IMAGES)['logits'] - found).max(), 1e-4)
        with self.assertRaisesRegex(ValueError, 'is for all patches of an image, without a class token; use PreNorm'):
            jax.eval_shape(lambda: models.build(Vit, classes=3, patch=4, layers=1, heads=1, width=4, residual=Convolved()).init(
                KEY, IMAGES))

    def test_attention_and_partition_alternate(self):
        model = with_stage(SMALL, 0, attention=AlternateAttention(Softmax(), ChannelGroups()), positions=NoPositions(),
                           partition=AlternatePartition(Windows(2), Whole()))
        params = drawn(model, IMAGES)
        weights = apply(model, params, IMAGES, capture=('attention',))
        self.assertEqual({name: x.shape for name, x in weights.items() if name.startswith('stage_0')}, {
            'stage_0/block_0/attention': (2, 2, 16, 4), 'stage_0/block_1/attention': (2, 1, 16, 16)})
        scanned = apply(with_stage(model, 0, scan=True), params, IMAGES)['logits']
        np.testing.assert_allclose(scanned, weights['logits'], atol=1e-6)
        with self.assertRaisesRegex(ValueError, 'layers with one block, which cannot alternate'):
            with_stage(model, 0, depth=Groups())

    def test_dropout_acts_only_with_a_key(self):
        model = SMALL.clone(dropout=0.5)
        params = drawn(model, IMAGES)
        logits = lambda model, **more: np.asarray(apply(model, params, IMAGES, **more)['logits'])
        np.testing.assert_array_equal(logits(model), logits(SMALL))
        self.assertGreater(np.abs(logits(model, key=KEY) - logits(model)).max(), 1e-2)

    def test_every_stage_has_dropout_masks_of_its_own(self):
        """One on the patches of the first stage, and in each of three blocks those on attention weights and both branches."""
        keys = models.dropout_keys(SMALL.clone(dropout=0.1), IMAGES)
        self.assertLen(keys, 1 + 3 * 3)
        self.assertLen(set(keys), len(keys))
        self.assertLen(models.dropout_keys(SMALL.clone(dropout=0.1, attention_dropout=0.0), IMAGES), 1 + 3 * 2)
        self.assertLen(models.dropout_keys(SMALL.clone(attention_dropout=0.1), IMAGES), 3)

    def test_dropout_acts_once_before_the_stages(self):
        """On the patches of the first stage: blocks whose branches add nothing show it, in whole patches of the next stage."""
        model = SMALL.clone(stem=Patches(1, norm=False), dropout=0.5, stages={'stage_0': PLAIN, 'stage_1': PLAIN},
                            merging=_Corner(), classes=0)
        params = jax.tree.map(np.zeros_like, drawn(model, IMAGES))
        params['patches']['bias'] = np.ones(PLAIN.width, np.float32)
        found = np.asarray(apply(model, params, IMAGES, key=KEY)['hidden'])
        self.assertEqual(set(np.unique(found)), {0.0, 2.0})
        self.assertAlmostEqual((found == 0).mean(), 0.5, delta=0.1)

    @parameterized.parameters((0.6, [[0.0, 0.2], [0.4, 0.6]]), (0.0, [[], []]))
    def test_drop_path_rises_linearly_over_all_stages(self, rate, wanted):
        model = SMALL.clone(drop_path=rate, stages={'stage_0': PLAIN, 'stage_1': PLAIN})
        self.assertEqual([*model.rates], ['stage_0', 'stage_1'])
        for found, paths in zip(model.rates.values(), wanted):
            np.testing.assert_allclose(found.paths, paths, rtol=1e-12)

    def test_drop_path_leaves_out_branches_with_the_rate_of_their_block(self):
        """Each of the eight branches of two stages adds 1 to a coordinate of its own; the first block keeps both of its own."""
        model = SMALL.clone(stem=Patches(2, norm=False), drop_path=0.6, classes=0, merging=_Corner(),
                            stages={'stage_0': PLAIN, 'stage_1': PLAIN})
        images = np.zeros((2000, 4, 4, 1), np.float32)
        params = jax.tree.map(np.zeros_like, drawn(model, images[:1]))
        for number, (stage, block) in enumerate(np.ndindex(2, 2)):
            for branch, coordinate in (('attention', 2 * number), ('feed_forward', 2 * number + 1)):
                params[f'stage_{stage}'][f'block_{block}'][branch]['output']['bias'] = np.eye(8, dtype=np.float32)[coordinate]
        found = np.asarray(apply(model, params, images, key=KEY)['hidden'])[:, 0]
        for number, rate in enumerate((0.0, 0.2, 0.4, 0.6)):
            for branch in found[:, 2 * number], found[:, 2 * number + 1]:
                np.testing.assert_allclose(np.unique(branch), sorted({0.0, 1 / (1 - rate)} if rate else {1.0}), rtol=1e-6)
                self.assertAlmostEqual((branch == 0).mean(), rate, delta=0.05)

    def test_a_rate_that_is_none_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'^drop_path is 1.0; expected a rate in \[0, 1\)'):
            SMALL.clone(drop_path=1.0)

    def test_heads_can_be_switched_off(self):
        params, factors = drawn(SMALL, IMAGES), {'stage_0/attention': np.array([[1.0, 0.0], [1.0, 1.0]], np.float32)}
        without = jax.tree.map(np.copy, params)
        without['stage_0']['block_0']['attention']['output']['kernel'][1] = 0
        found = apply(SMALL, params, IMAGES, head_mask=factors)['logits']
        np.testing.assert_allclose(found, apply(SMALL, without, IMAGES)['logits'], atol=1e-6)
        self.assertEqual(set(SMALL.attentions), {'stage_0/attention', 'stage_1/attention'})

    @parameterized.parameters(True, False)
    def test_scanned_and_computed_again_is_the_same(self, scan):
        params = drawn(SMALL, IMAGES)
        other = with_stage(SMALL, 0, scan=scan, remat='full')
        np.testing.assert_allclose(apply(other, params, IMAGES)['logits'], apply(SMALL, params, IMAGES)['logits'], atol=1e-6)

    def test_tables_are_resized_for_images_of_another_size(self):
        """Each from the grid that it had, of the image or of a window, to the one that it has now."""
        model = with_stage(SMALL.clone(positions=Learned()), partition=AlternatePartition(Windows(2), Windows(3, shift=1)))
        self.assertIsInstance(model, contracts.Fitting)
        before, image = (jax.ShapeDtypeStruct((1, *sides, 1), jnp.float32) for sides in ((4, 4), (12, 8)))
        with jax.enable_x64(True):
            small = mesh.flat(jax.tree.map(np.float64, drawn(model, IMAGES[:, :4, :4])))
            fitted, same = ({path: np.asarray(model.fitted(path, x, {'image': before}, image=now)) for path, x in small.items()}
                            for now in (image, before))
        jax.tree.map(np.testing.assert_array_equal, same, small)
        bias = 'stage_{}/block_{}/attention/positions/bias'.format
        wanted = small | {bias(0, 1): _resized(small[bias(0, 1)], (5, 5)), bias(1, 0): _resized(small[bias(1, 0)], (3, 3))}
        table = small['positions/embedding'].reshape(2, 2, 8)
        wanted['positions/embedding'] = _resized(table, (6, 4)).reshape(24, 8)
        self.assertEqual(small[bias(0, 0)].shape[:2], (3, 3))  # of a window of 2x2, which stays
        close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
        jax.tree.map(close, fitted, wanted)
        with jax.enable_x64(True):  # smaller again
            close(model.fitted(bias(0, 1), wanted[bias(0, 1)], {'image': image}, image=before),
                  _resized(wanted[bias(0, 1)], small[bias(0, 1)].shape[:2]))

    def test_the_helper_of_configs(self):
        found = base.stages(layers=(2, 3), widths=(8, 16), heads=(2, 4), positions='SwinBias()')
        self.assertEqual(found, {'stage_0': dict(layers=2, width=8, heads=2, positions='SwinBias()'),
                                 'stage_1': dict(layers=3, width=16, heads=4, positions='SwinBias()')})

    def test_stages_of_other_names_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'stages are named stage_0, last; expected stage_0, stage_1'):
            Hierarchical(3, stages={'stage_0': FIRST, 'last': FIRST}).in_order  # noqa: B018

    @parameterized.parameters(SwinBias(), Learned(at='layers'), Rotary())
    def test_positions_that_do_not_act_at_the_input_are_refused(self, positions):
        with self.assertRaisesRegex(ValueError, r'model.positions is (SwinBias|Learned|Rotary)\(.*give each stage its own, '
                                                'model.stages.stage_0.positions and so on'):
            SMALL.clone(positions=positions)

    def test_positions_that_act_at_the_input(self):
        for positions in (Learned(), Sinusoidal2d(), NoPositions()):
            self.assertEqual(SMALL.clone(positions=positions).positions, positions)


CHANGES = {'classes': 4, 'stem': Patches(4), 'positions': Learned(), 'stages': {'stage_0': FIRST}, 'merging': _Corner(),
           'pool_first': True, 'dropout': 0.1, 'attention_dropout': 0.1, 'drop_path': 0.1, 'dense_gradient': False,
           'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16'}
OF_STAGE = {'partition': Windows(2), 'positions': NoPositions(), 'layers': 1, 'width': 16}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        self.assertTrue(program(SMALL.clone(**{field: value})) != program(SMALL))

    @parameterized.named_parameters(*models.named(OF_STAGE))
    def test_field_of_a_stage_has_an_effect(self, field, value):
        self.assertTrue(program(with_stage(SMALL, **{field: value})) != program(SMALL))

    def test_the_same_model_is_the_same_program(self):
        self.assertTrue(program.__wrapped__(SMALL) == program(SMALL))

    def test_every_field_is_tried(self):
        fields = {field.name for field in dataclasses.fields(Hierarchical)} - {'parent', 'name'}
        self.assertEqual(fields, set(CHANGES))


if __name__ == '__main__':
    absltest.main()
