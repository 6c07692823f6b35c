import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import apply, build, changed
from training.config import resolve
from transformer.attention.masks.patterns import Window
from transformer.attention.positions.absolute import Learned, Sinusoidal, Sinusoidal2d
from transformer.attention.positions.base import Positions
from transformer.attention.positions.relative import SwinBias
from transformer.attention.positions.rotary import Rotary
from transformer.layers.feed_forward import Mlp
from vit.layers.patches import joined, patches
from vit.models.mae import Mae, shuffled, standardised
from vit.models.vit import Vit, rows_of

KEY = jax.random.key(0)
SMALL = build(Mae, patch=2, layers=1, heads=2, width=8, feed_forward=Mlp(inner=12))
IMAGES = np.random.default_rng(0).normal(size=(3, 4, 8, 2)).astype(np.float32)
NOISE = np.random.default_rng(1).random((3, 8)).astype(np.float32)
ENCODINGS = *(cls() for cls in resolve.subclasses(Positions).values()), Sinusoidal(at='scores'), Sinusoidal(at='scores_times')
drawn = functools.cache(lambda model: models.drawn(model, IMAGES))
program = functools.cache(lambda model: models.Program(model, IMAGES, output='pixels'))


class MaskingTest(parameterized.TestCase):
    def test_equals_a_loop(self):
        shuffle, restore, mask = map(np.asarray, shuffled(NOISE, 3))
        for row, noise in enumerate(NOISE):
            order = sorted(range(8), key=lambda patch: noise[patch])
            self.assertEqual(shuffle[row].tolist(), order)
            self.assertEqual(mask[row].tolist(), [0.0 if patch in order[:3] else 1.0 for patch in range(8)])
            self.assertEqual([order[place] for place in restore[row]], list(range(8)))

    def test_restoring_undoes_the_shuffle(self):
        x = np.random.default_rng(0).normal(size=(3, 8, 5))
        shuffle, restore, _ = shuffled(NOISE, 3)
        np.testing.assert_array_equal(rows_of(rows_of(x, shuffle), restore), np.float32(x))

    @parameterized.parameters((0.75, 2), (0.5, 4), (0.6, 3), (0.0, 8), (0.87, 1))
    def test_every_image_has_as_many_masked_patches(self, ratio, keep):
        model = changed(SMALL, mask_ratio=ratio)
        found = apply(model, drawn(SMALL), IMAGES, noise=NOISE)
        self.assertEqual(found['mask'].sum(1).tolist(), [8 - keep] * 3)
        self.assertEqual(found['hidden'].shape, (3, 1 + keep, 8))
        if ratio:
            for drawing in ({'key': KEY}, {'seed': jnp.arange(3)}):
                self.assertEqual(apply(model, drawn(SMALL), IMAGES, **drawing)['mask'].sum(1).tolist(), [8 - keep] * 3)

    def test_the_share_is_computed_in_floats(self):
        """int(10·(1 - 0.9)) is 0, as 1 - 0.9 is less than a tenth."""
        images = np.zeros((1, 4, 10, 1), np.float32)
        with self.assertRaisesRegex(ValueError, 'mask_ratio=0.9 keeps none of 10 patches; lower it'):
            jax.eval_shape(lambda: changed(SMALL, mask_ratio=0.9).init(KEY, images))

    @parameterized.parameters((dict(mask_ratio=1.0), 'mask_ratio is 1.0; expected a share in'),
                              (dict(mask_ratio=-0.1), 'mask_ratio is -0.1; expected a share in'))
    def test_refused_shares(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            changed(SMALL, **fields)

    def test_without_masked_patches_there_is_nothing_to_learn(self):
        with self.assertRaisesRegex(ValueError, 'model.mask_ratio=0.0 masks none of 8 patches; raise it'):
            changed(SMALL, mask_ratio=0.0).apply({'params': drawn(SMALL)}, IMAGES, key=KEY)

    def test_noise_of_another_shape_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'The noise is \[3, 7\] for \[3, 8\] patches'):
            SMALL.apply({'params': drawn(SMALL)}, IMAGES, noise=NOISE[:, :7])


class MaeTest(parameterized.TestCase):
    @parameterized.parameters('cls', 'mean', 'both')
    def test_masked_pixels_cannot_affect_what_is_predicted(self, pool):
        model = changed(SMALL, pool=pool)
        params = drawn(model)
        before = apply(model, params, IMAGES, noise=NOISE)
        masked = np.asarray(before['mask'])[..., None]
        cut = np.asarray(patches(IMAGES, 2))
        others = np.where(masked == 1, 7 * cut[::-1], cut)
        after = apply(model, params, np.asarray(joined(others, 2, 4, 8)), noise=NOISE)
        for name in ('hidden', 'pooled', 'pixels'):
            np.testing.assert_array_equal(after[name], before[name], name)
        self.assertGreater(np.abs(after['targets'] - before['targets']).max(), 1.0)
        seen = np.where(masked == 0, 7 * cut[::-1], cut)
        moved = apply(model, params, np.asarray(joined(seen, 2, 4, 8)), noise=NOISE)
        self.assertGreater(np.abs(moved['pixels'] - before['pixels']).max(), 0.1)

    def test_without_noise_seed_or_key_nothing_is_masked(self):
        """The outputs are those of a ViT with the encoder's parameters."""
        found = apply(SMALL, drawn(SMALL), IMAGES)
        encoder = Vit(0, 2, stack=SMALL.encoder)
        wanted = apply(encoder, drawn(SMALL)['encoder'], IMAGES)
        self.assertEqual(set(found), {'hidden', 'pooled'})
        for name, x in found.items():
            np.testing.assert_array_equal(x, wanted[name])

    def test_the_mean_beside_the_class_token_does_not_affect_what_is_predicted(self):
        found, wanted = (apply(changed(SMALL, pool=pool), drawn(SMALL), IMAGES, noise=NOISE) for pool in ('both', 'cls'))
        for name in ('hidden', 'pixels'):
            np.testing.assert_array_equal(found[name], wanted[name], name)

    def test_the_mask_of_an_image_follows_from_its_seed(self):
        mask = lambda images, **drawing: np.asarray(apply(SMALL, drawn(SMALL), images, **drawing)['mask'])
        whole = mask(IMAGES, seed=jnp.array([5, 6, 7]))
        np.testing.assert_array_equal(mask(IMAGES[1:], seed=jnp.array([6, 7])), whole[1:])
        np.testing.assert_array_equal(mask(IMAGES, key=KEY), mask(IMAGES, key=KEY))
        others = [mask(IMAGES, key=jax.random.key(number)).tolist() for number in range(4)]
        self.assertGreater(len({str(one) for one in others}), 1)
        self.assertGreater(len({str(row) for one in others for row in one}), 2)  # nor are the rows alike

    def test_names_and_shapes(self):
        params = models.drawn(changed(SMALL, positions=Learned()), IMAGES)
        shapes = jax.tree.map(jnp.shape, params)
        self.assertEqual(set(shapes), {'encoder', 'decoder'})
        self.assertEqual(set(shapes['encoder']), {'patches', 'class_token', 'positions', 'block_0', 'norm'})
        self.assertEqual(set(shapes['decoder']), {'embed', 'mask_token', 'positions', 'block_0', 'norm', 'pixels'})
        self.assertEqual(shapes['decoder']['pixels'], {'kernel': (8, 8), 'bias': (8,)})
        self.assertEqual(shapes['decoder']['positions'], {'embedding': (9, 8)})

    def test_each_stack_has_its_sizes(self):
        model = changed(SMALL, **{'encoder.width': 12, 'encoder.layers': 2, 'decoder.heads': 4})
        found = apply(model, models.drawn(model, IMAGES), IMAGES, noise=NOISE, capture=('attention',))
        self.assertEqual(found['hidden'].shape, (3, 3, 12))
        self.assertEqual({name: x.shape[1:] for name, x in found.items() if 'block' in name}, {
            'encoder/block_0/attention': (2, 3, 3), 'encoder/block_1/attention': (2, 3, 3),
            'decoder/block_0/attention': (4, 9, 9)})

    @parameterized.parameters('encoder', 'decoder')
    def test_heads_are_switched_off(self, stack):
        name = f'{stack}/attention'
        self.assertIn(name, SMALL.attentions)
        params, off = drawn(SMALL), {name: jnp.zeros((1, 2))}
        without = jax.tree.map(lambda x: x, params)
        without[stack]['block_0']['attention']['output'] = params[stack]['block_0']['attention']['output'] | {
            'kernel': np.zeros((2, 4, 8), np.float32)}
        wanted = apply(SMALL, without, IMAGES, noise=NOISE)['pixels']
        found = apply(SMALL, params, IMAGES, noise=NOISE, head_mask=off)['pixels']
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    def test_the_encoder_alone(self):
        model = changed(SMALL, decodes=False)
        self.assertEqual(set(models.drawn(model, IMAGES)), {'encoder'})
        self.assertEqual(set(model.attentions), {'encoder/attention'})
        found, wanted = (apply(one, drawn(SMALL), IMAGES, noise=NOISE) for one in (model, SMALL))
        self.assertEqual(set(found), {'hidden', 'pooled', 'mask', 'restore'})
        np.testing.assert_array_equal(found['hidden'], wanted['hidden'])

    def test_images_of_another_size_are_refused_by_a_table_of_the_decoder(self):
        model = changed(SMALL, **{'decoder.positions': Learned()})
        params, wider = models.drawn(model, IMAGES), np.zeros((1, 4, 12, 2), np.float32)
        with self.assertRaisesRegex(ValueError, 'The decoder has positions for images of 8 patches; give images of the size'):
            model.apply({'params': params}, wider, noise=np.zeros((1, 12)))
        self.assertEqual(apply(SMALL, drawn(SMALL), wider, noise=np.zeros((1, 12)))['pixels'].shape, (1, 12, 8))

    def test_dropout_acts_only_with_a_key(self):
        params, model = drawn(SMALL), changed(SMALL, dropout=0.5)
        pixels = lambda model, **more: np.asarray(apply(model, params, IMAGES, noise=NOISE, **more)['pixels'])
        np.testing.assert_array_equal(pixels(model), pixels(SMALL))
        self.assertGreater(np.abs(pixels(model, key=KEY) - pixels(model)).max(), 1e-2)

    def test_every_dropout_mask_is_another(self):
        keys = models.dropout_keys(changed(SMALL, dropout=0.1), IMAGES)
        self.assertLen(keys, 2 * (1 + 3))  # in each stack the embedding and three masks of its block
        self.assertLen(set(keys), len(keys))


class TargetsTest(parameterized.TestCase):
    def test_standardised_equals_a_loop(self):
        with jax.enable_x64(True):
            x = np.random.default_rng(0).normal(size=(2, 3, 8)) * np.array([1.0, 1e-4, 0.0])[:, None]
            found, mean, deviation = standardised(jnp.asarray(x))
        for row in np.ndindex(2, 3):
            average = sum(x[row]) / 8
            root = (sum((one - average) ** 2 for one in x[row]) / 7 + 1e-6) ** 0.5
            np.testing.assert_allclose(found[row], (x[row] - average) / root, rtol=0, atol=1e-10)
            np.testing.assert_allclose((mean[row][0], deviation[row][0]), (average, root), rtol=0, atol=1e-10)

    def test_a_single_number_has_no_variance(self):
        with self.assertRaisesRegex(ValueError, 'normalize=True needs the variance within a patch, and a patch of one pixel'):
            changed(SMALL, patch=1, normalize=True).apply({'params': {}}, IMAGES[..., :1])

    def test_joined_is_the_inverse_of_patches(self):
        np.testing.assert_array_equal(joined(patches(IMAGES, 2), 2, 4, 8), IMAGES)

    @parameterized.parameters(False, True)
    def test_targets_become_the_image_again(self, normalize):
        model = changed(SMALL, normalize=normalize)
        targets = apply(model, drawn(SMALL), IMAGES, noise=NOISE)['targets']
        plain = np.asarray(patches(IMAGES, 2))
        self.assertEqual(bool(np.abs(targets - plain).max() > 0.1), normalize)
        np.testing.assert_allclose(model.images(targets, IMAGES), IMAGES, atol=1e-5)


class KeptTest(parameterized.TestCase):
    @parameterized.parameters(Learned(), Sinusoidal2d(), Rotary())
    def test_patches_keep_their_positions_in_any_order(self, positions):
        """A ViT that sees all patches in another order gives each the same state."""
        model = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8, positions=positions)
        params = models.drawn(model, IMAGES)
        order = np.stack([np.random.default_rng(row).permutation(8) for row in range(3)])
        found, wanted = (apply(model, params, IMAGES, **kept) for kept in ({'kept': order}, {}))
        np.testing.assert_allclose(found['logits'], wanted['logits'], atol=1e-5)
        np.testing.assert_allclose(found['hidden'][:, 1:], rows_of(wanted['hidden'][:, 1:], order), atol=1e-5)

    @parameterized.parameters(dict(positions=SwinBias()), dict(mask=Window(2)))
    def test_what_tells_patches_apart_by_their_places_in_the_row_is_refused(self, **fields):
        model = build(Vit, classes=0, patch=2, layers=1, heads=2, width=8, **fields)
        with self.assertRaisesRegex(ValueError, 'by their places in the row, of which some are left out here'):
            model.apply({'params': models.drawn(model, IMAGES)}, IMAGES, kept=np.zeros((3, 2), int))

    @parameterized.parameters(*((stack, kind) for stack in ('encoder', 'decoder') for kind in ENCODINGS))
    def test_every_encoding_is_taken_or_refused(self, stack, kind):
        """The decoder has all patches in their order; those that the encoder takes need no order."""
        model = changed(SMALL, **{f'{stack}.positions': kind})
        begin = lambda: jax.eval_shape(lambda: model.init(KEY, IMAGES))
        if stack == 'encoder' and kind.in_scores:
            with self.assertRaisesRegex(ValueError, 'by their places in the row, of which some are left out here'):
                begin()
        else:
            begin()

    def test_which_encodings_are_in_the_scores(self):
        self.assertEqual({type(kind).__name__ for kind in ENCODINGS if not kind.in_scores},
                         {'Learned', 'NoPositions', 'Rotary', 'Sinusoidal', 'Sinusoidal2d'})

    def test_of_fewer_patches_equals_dropping_after_positions_are_added(self):
        """Without attention between patches, those that are kept have the states that they have among all."""
        model = build(Vit, classes=0, patch=2, pool='mean', layers=1, heads=2, width=8, positions=Learned())
        params = models.drawn(model, IMAGES)
        params['block_0']['attention']['output'] = jax.tree.map(jnp.zeros_like, params['block_0']['attention']['output'])
        kept = np.array([[7, 2], [0, 1], [3, 6]])
        found, wanted = (apply(model, params, IMAGES, **given)['hidden'] for given in ({'kept': kept}, {}))
        np.testing.assert_allclose(found, rows_of(wanted, kept), atol=1e-6)


CHANGES = {'patch': 1, 'pool': 'mean', 'mask_ratio': 0.5, 'dense_gradient': False, 'dtype': 'bfloat16',
           'parameter_dtype': 'bfloat16', 'encoder.layers': 2, 'decoder.layers': 2}
ASIDE = {'normalize', 'decodes'}  # which have tests of their own


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        self.assertTrue(program(changed(SMALL, **{field: value})) != program(SMALL))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(Mae) | {'encoder.layers', 'decoder.layers'}, {*CHANGES} | ASIDE)


if __name__ == '__main__':
    absltest.main()
