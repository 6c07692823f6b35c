import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import apply, build, changed
from training import mesh
from transformer.attention.partition import AlternatePartition, Whole
from transformer.attention.positions.absolute import bicubic
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.layers.feed_forward import Mlp
from vit.layers.patches import patches
from vit.layers.windows import Windows
from vit.models.vit import Vit

KEY = jax.random.key(0)
SMALL = build(Vit, classes=3, patch=2, layers=2, heads=2, width=8, feed_forward=Mlp(inner=12))
IMAGES = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
drawn = lambda model: models.drawn(model, IMAGES)
program = functools.cache(lambda model: models.Program(model, IMAGES))


class PatchesTest(parameterized.TestCase):
    @parameterized.parameters(1, 2)
    def test_equals_a_loop(self, size):
        wanted = [[image[y:y + size, x:x + size].reshape(-1)
                   for y in range(0, 4, size) for x in range(0, 6, size)] for image in IMAGES]
        np.testing.assert_array_equal(patches(IMAGES, size), wanted)

    @parameterized.parameters(3, 4, 5)
    def test_a_patch_that_does_not_divide_both_sides_is_refused(self, size):
        with self.assertRaisesRegex(ValueError, f'4x6 cannot be cut into patches of {size}x{size}'):
            patches(IMAGES, size)


class VitTest(parameterized.TestCase):
    @parameterized.parameters('cls', 'mean')
    def test_pooling(self, pool):
        model = changed(SMALL, pool=pool)
        params = drawn(model)
        outputs = jax.tree.map(np.asarray, apply(model, params, IMAGES))
        self.assertEqual(outputs['hidden'].shape, (2, 7 if pool == 'cls' else 6, 8))
        pooled = outputs['hidden'][:, 0] if pool == 'cls' else outputs['hidden'].mean(1)
        np.testing.assert_allclose(outputs['pooled'], pooled, atol=1e-6)
        np.testing.assert_allclose(outputs['logits'], pooled @ params['head']['kernel'] + params['head']['bias'], atol=1e-5)

    @parameterized.parameters('cls', 'mean')
    def test_without_positions_the_order_of_the_patches_does_not_matter(self, pool):
        model = changed(SMALL, pool=pool)
        params = drawn(model)
        order = np.random.default_rng(0).permutation(6)
        cut = IMAGES.reshape(2, 2, 2, 3, 2, 3).swapaxes(2, 3).reshape(2, 6, 2, 2, 3)[:, order]  # patches of the images
        shuffled = cut.reshape(2, 2, 3, 2, 2, 3).swapaxes(2, 3).reshape(IMAGES.shape)
        unordered = params | {'positions': jax.tree.map(jnp.zeros_like, params['positions'])}
        before, after = (jax.tree.map(np.asarray, apply(model, unordered, images)) for images in (IMAGES, shuffled))
        np.testing.assert_allclose(after['logits'], before['logits'], atol=1e-5)
        first = 1 if pool == 'cls' else 0
        np.testing.assert_allclose(after['hidden'][:, first:], before['hidden'][:, first:][:, order], atol=1e-5)
        difference = apply(model, params, shuffled)['logits'] - apply(model, params, IMAGES)['logits']
        self.assertGreater(float(jnp.abs(difference).max()), 1e-3)

    def test_names_and_shapes(self):
        shapes = jax.tree.map(jnp.shape, drawn(SMALL))
        self.assertEqual(set(shapes), {'patches', 'class_token', 'positions', 'block_0', 'block_1', 'norm', 'head'})
        self.assertEqual(shapes['patches'], {'kernel': (12, 8), 'bias': (8,)})
        self.assertEqual((shapes['class_token'], shapes['positions']), ((8,), {'embedding': (7, 8)}))
        self.assertEqual(shapes['head'], {'kernel': (8, 3), 'bias': (3,)})
        self.assertEqual(shapes['block_1']['feed_forward']['input'], {'kernel': (8, 12), 'bias': (12,)})
        self.assertEqual(shapes['block_1']['attention']['output'], {'kernel': (2, 4, 8), 'bias': (8,)})
        without = drawn(changed(SMALL, pool='mean'))
        self.assertNotIn('class_token', without)
        self.assertEqual(without['positions']['embedding'].shape, (6, 8))

    def test_names_and_shapes_of_the_tokens_in_front(self):
        """Registers have no rows in the table of positions."""
        model = changed(SMALL, distillation='logits', registers=3)
        shapes = jax.tree.map(jnp.shape, drawn(model))
        self.assertEqual(model.front, ('class', 'distillation', 'register 1', 'register 2', 'register 3'))
        self.assertEqual((shapes['distillation_token'], shapes['registers']), ((8,), (3, 8)))
        self.assertEqual(shapes['positions'], {'embedding': (8, 8)})
        self.assertEqual(shapes['distillation_head'], {'kernel': (8, 3), 'bias': (3,)})
        self.assertEqual(apply(model, drawn(model), IMAGES)['hidden'].shape, (2, 11, 8))
        token = changed(SMALL, distillation='token')
        self.assertNotIn('distillation_head', drawn(token))
        self.assertEqual(set(apply(token, drawn(token), IMAGES)), {'hidden', 'pooled', 'logits'})
        self.assertEqual(drawn(changed(SMALL, pool='both'))['head']['kernel'].shape, (16, 3))
        bare = changed(SMALL, pool='mean', registers=1)
        self.assertEqual((bare.front, drawn(bare)['positions']['embedding'].shape), (('register 1',), (6, 8)))

    @parameterized.parameters('none', 'logits')
    def test_registers_are_attended_to_in_any_order_and_not_read(self, distillation):
        model = changed(SMALL, registers=3, distillation=distillation)
        params, first = drawn(model), len(model.front)
        swapped = apply(model, params | {'registers': params['registers'][[2, 0, 1]]}, IMAGES)
        found, without = apply(model, params, IMAGES), apply(model, params | {'registers': 0 * params['registers']}, IMAGES)
        np.testing.assert_allclose(swapped['logits'], found['logits'], atol=1e-6)
        np.testing.assert_allclose(swapped['hidden'][:, first - 3:first],
                                   found['hidden'][:, first - 3:first][:, np.array([2, 0, 1])], atol=1e-5)
        self.assertGreater(float(np.abs(without['logits'] - found['logits']).max()), 1e-3)

    @parameterized.parameters('mean', 'both')
    def test_the_mean_is_that_of_the_patches(self, pool):
        model = changed(SMALL, pool=pool, registers=2)
        outputs, first = apply(model, drawn(model), IMAGES), len(model.front)
        self.assertEqual(first, 3 if pool == 'both' else 2)
        wanted = outputs['hidden'][:, first:].mean(1)
        if pool == 'both':
            wanted = np.concatenate([outputs['hidden'][:, 0], wanted], 1)
        np.testing.assert_allclose(outputs['pooled'], wanted, atol=1e-6)

    @parameterized.parameters('logits', 'probabilities')
    def test_both_heads_are_averaged(self, distillation):
        model = changed(SMALL, distillation=distillation, dtype='float64', parameter_dtype='float64')
        with jax.enable_x64(True):
            params = drawn(model)
            found = jax.tree.map(np.asarray, apply(model, params, IMAGES))
        each = []
        for name, head, row in (('cls_logits', 'head', 0), ('distillation_logits', 'distillation_head', 1)):
            kernel, bias = np.float64(params[head]['kernel']), np.float64(params[head]['bias'])
            each.append(found['hidden'][:, row] @ kernel + bias)
            np.testing.assert_allclose(found[name], each[-1], rtol=1e-10)
        softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        if distillation == 'logits':
            np.testing.assert_allclose(found['logits'], (each[0] + each[1]) / 2, rtol=1e-10)
        else:
            wanted = (softmax(each[0]) + softmax(each[1])) / 2
            np.testing.assert_allclose(np.exp(found['logits']), wanted, rtol=1e-10)

    def test_what_nothing_distinguishes_starts_apart(self):
        model = changed(SMALL, distillation='token', registers=2, positions=NoPositions())
        params = models.init(model, IMAGES)
        rows = np.concatenate([params['class_token'][None], params['distillation_token'][None], params['registers']])
        self.assertLen(np.unique(rows.round(4), axis=0), 4)

    def test_the_head_starts_at_zero(self):
        head = models.init(SMALL, IMAGES)['head']
        self.assertEqual(max(float(jnp.abs(p).max()) for p in jax.tree.leaves(head)), 0.0)

    def test_dropout_acts_only_with_a_key(self):
        params, model = drawn(SMALL), changed(SMALL, dropout=0.5, layers=1)
        logits = lambda model, **more: np.asarray(apply(model, params, IMAGES, **more)['logits'])
        np.testing.assert_array_equal(logits(model), logits(changed(model, dropout=0.0)))
        np.testing.assert_array_equal(logits(model, key=KEY), logits(model, key=KEY))
        self.assertGreater(np.abs(logits(model, key=KEY) - logits(model)).max(), 1e-2)

    def test_bfloat16_keeps_float32_parameters(self):
        model = changed(SMALL, dtype='bfloat16')
        shapes = jax.eval_shape(lambda: model.init(KEY, IMAGES)['params'])
        self.assertEqual({p.dtype for p in jax.tree.leaves(shapes)}, {jnp.dtype('float32')})
        params = drawn(model)
        low = apply(model, params, IMAGES)['logits']
        self.assertEqual(low.dtype, jnp.bfloat16)
        exact = apply(SMALL, params, IMAGES)['logits']
        np.testing.assert_allclose(low.astype(jnp.float32), exact, atol=0.01)  # it errs by 0.003

    @parameterized.parameters((dict(pool='max'), "pool is 'max'; expected one of cls, mean, both"),
                              (dict(heads=3), 'width 8 is not divisible by 3 heads'),
                              (dict(patch=4), 'choose a patch that divides both sides'),
                              (dict(distillation='both'), "distillation is 'both'; expected one of none, token, logits, prob"),
                              (dict(distillation='token', pool='mean'), "set pool='cls', or distillation='none'"),
                              (dict(registers=-1), 'registers is -1; expected 0 or more'))
    def test_refused(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            jax.eval_shape(lambda: changed(SMALL, **fields).init(KEY, IMAGES))


CHANGES = {'classes': 4, 'patch': 1, 'pool': 'mean', 'distillation': 'token', 'registers': 2, 'pooler': True,
           'patch_bias': False, 'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16', **models.OF_STACK}


class DropoutTest(parameterized.TestCase):
    def test_embedding_attention_weights_and_both_branches_of_each_layer_have_masks_of_their_own(self):
        keys = models.dropout_keys(changed(SMALL, layers=2, dropout=0.1), IMAGES)
        self.assertLen(keys, 1 + 3 * 2)
        self.assertLen(set(keys), len(keys))


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        base = changed(SMALL, dropout=0.2)  # where there is none, it does not matter where it is
        self.assertTrue(program(changed(base, **{field: value})) != program(base))

    def test_attention_in_windows(self):
        base = changed(SMALL, pool='mean')
        self.assertTrue(program(changed(base, partition=Windows(1))) != program(base))
        with self.assertRaisesRegex(ValueError, "other tokens in front of them; use Whole.., or pool='mean'"):
            jax.eval_shape(lambda: changed(SMALL, partition=Windows(1)).init(KEY, IMAGES))

    @parameterized.parameters(Windows(2), Windows(3), AlternatePartition(Windows(2), Whole()))
    def test_tables_of_windows_are_resized_where_a_window_is_another_for_images_of_another_size(self, partition):
        model = changed(SMALL, pool='mean', positions=SwinBias(), partition=partition)
        before, after = ({'image': jax.ShapeDtypeStruct((2, *sides, 3), np.float32)} for sides in ((4, 6), (10, 8)))
        grids = [[partition.of_layer(layer).grid(grid) for grid in ((2, 3), (5, 4))] for layer in (0, 1)]
        small, wanted = (mesh.flat(jax.eval_shape(lambda: model.init(KEY, jnp.zeros(one['image'].shape))['params']))  # noqa: B023
                         for one in (before, after))
        for number, (there, now) in enumerate(grids):
            path = f'block_{number}/attention/positions/bias'
            table = np.random.default_rng(0).normal(size=small[path].shape).astype(np.float32)
            got = model.fitted(path, table, before, **after)
            self.assertEqual((table.shape, got.shape), tuple((2 * h - 1, 2 * w - 1, 2) for h, w in (there, now)))
            np.testing.assert_allclose(got, bicubic(table, wanted[path].shape[:2]), atol=1e-6)
            self.assertIs(model.fitted(path, table, before, **before), table)

    def test_the_same_model_is_the_same_program(self):
        self.assertTrue(program.__wrapped__(SMALL) == program(SMALL))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(Vit) | {*models.OF_STACK}, set(CHANGES))


if __name__ == '__main__':
    absltest.main()
