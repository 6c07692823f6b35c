import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from tests import models, recorded
from training import mesh
from training import step as steps
from training.optimizer import Optimizer
from training.state import State, initialised
from transformer.layers.activations import Silu
from transformer.layers.norm import BatchNorm
from vit.models.resnet import Basic, Bottleneck, Resnet, ResnetStem, max_pool
from vit.tasks.classification import Classification

KEY = jax.random.key(0)
IMAGES = np.random.default_rng(0).normal(size=(2, 9, 11, 3)).astype(np.float32)
SMALL = Resnet(3, stem=ResnetStem(4, 3, 1), block=Bottleneck(2), widths=(8, 12), depths=(1, 2))


def sizes(model, image=(1, 64, 64, 3)):
    shapes = jax.eval_shape(lambda: initialised(model, {'image': jnp.zeros(image)}, KEY))
    return [sum(x.size for x in jax.tree.leaves(tree)) for tree in shapes]


def train(model):
    """The program of a forward pass in training."""
    variables = jax.eval_shape(lambda: model.init(KEY, IMAGES))
    del variables['roles']
    apply = lambda given, images: model.apply(given, images, key=KEY, mutable=['statistics'])
    return str(jax.make_jaxpr(apply)(variables, IMAGES))


class ResnetTest(parameterized.TestCase):
    @parameterized.parameters(
        (dict(), 25_557_032),  # of torchvision
        (dict(block=Basic(), widths=(64, 128, 256, 512), depths=(2, 2, 2, 2)), 11_689_512),
        (dict(block=Basic(), widths=(64, 128, 256, 512), depths=(3, 4, 6, 3)), 21_797_672))
    def test_published_sizes(self, fields, parameters):
        self.assertEqual(sizes(Resnet(1000, **fields))[0], parameters)

    def test_each_norm_has_two_vectors_of_statistics(self):
        model = Resnet(10, ResnetStem(16, 3, 1, pool=False), Basic(), (16, 32, 64), (3, 3, 3))
        parameters, statistics = sizes(model, (1, 28, 28, 1))
        self.assertEqual(statistics, 2 * (7 * 16 + 7 * 32 + 7 * 64))  # 19 of the paper and two of shortcuts
        self.assertAlmostEqual(parameters / 1e6, 0.27, places=2)

    @parameterized.parameters(
        (ResnetStem(), False, (8, 8)), (ResnetStem(stride=1), False, (16, 16)), (ResnetStem(pool=False), False, (16, 16)),
        (ResnetStem(stride=1, pool=False), False, (32, 32)), (ResnetStem(stride=1, pool=False), True, (16, 16)))
    def test_resolution(self, stem, first, wanted):
        model = dataclasses.replace(SMALL, stem=stem, downsample_first=first)
        shape = lambda images: jax.eval_shape(lambda: model.init_with_output(KEY, images)[0]['hidden']).shape
        self.assertEqual(shape(jnp.zeros((1, 64, 64, 3))), (1, *wanted, 12))
        odd = shape(jnp.zeros((1, 63, 33, 3)))
        self.assertEqual(odd[1:3], (wanted[0], wanted[0] // 2 + 1))

    @parameterized.parameters((9, 11), (4, 4), (1, 6))
    def test_pooling_is_the_maximum_of_what_is_there(self, *shape):
        x = np.random.default_rng(1).normal(size=(2, *shape, 3)).astype(np.float32) - 5  # nothing around counts as 0
        found = max_pool(jnp.asarray(x))
        for i in range(-(-shape[0] // 2)):
            for j in range(-(-shape[1] // 2)):
                seen = x[:, max(0, 2 * i - 1):2 * i + 2, max(0, 2 * j - 1):2 * j + 2]
                np.testing.assert_array_equal(found[:, i, j], seen.max((1, 2)))

    def test_the_head_starts_at_zero(self):
        params, _ = initialised(SMALL, {'image': IMAGES}, KEY)
        self.assertEqual(max(float(jnp.abs(x).max()) for x in params['head'].values()), 0.0)
        self.assertNotIn('head', initialised(dataclasses.replace(SMALL, classes=0), {'image': IMAGES}, KEY)[0])

    @parameterized.parameters(
        (dict(), (1, 4, 9, 3), r'4x9 are too small for strides of 4 in all; give images of 3x3 or more', False),
        (dict(), (1, 2, 9, 3), r'2x9 are too small for strides of 4 in all; give images of 3x3 or more', True),
        (dict(stem=ResnetStem()), (1, 4, 4, 3), r'4x4 are too small for strides of 8 .* 5x5 or more', True),
        (dict(stem=ResnetStem()), (1, 4, 4, 3), 'or set model.stem.stride=1 and model.stem.pool=False', True),
        (dict(stem=ResnetStem(4, 3, 1, pool=False)), (1, 1, 1, 3), 'or use fewer stages, model.widths and model.depths', True),
        (dict(depths=(1,)), IMAGES.shape, r'widths is \(8, 12\) and model.depths \(1,\); expected a width', True),
        (dict(depths=(1, 0)), IMAGES.shape, 'a number of blocks, 1 or more', True),
        (dict(depths=(1, 1.5)), IMAGES.shape, 'a number of blocks, 1 or more', True),
        (dict(widths=('8', '12')), IMAGES.shape, r"widths is \('8', '12'\) .* expected a width", True),
        (dict(widths=(), depths=()), IMAGES.shape, 'for each stage', True),
        (dict(widths=(8, 13)), IMAGES.shape, r'Bottleneck\(reduction=2, early=False\) cannot reduce a width of 13', True))
    def test_refused(self, fields, shape, message, refused):
        build = lambda: jax.eval_shape(lambda: dataclasses.replace(SMALL, **fields).init(KEY, jnp.zeros(shape)))
        if not refused:
            build()
            return
        with self.assertRaisesRegex(ValueError, message):
            build()

    @parameterized.parameters(dict(width=0), dict(size=0), dict(size=4), dict(stride=0))
    def test_refused_stems(self, **fields):
        with self.assertRaisesRegex(ValueError, 'expected a width and a stride of at least 1, and a kernel with an odd side'):
            ResnetStem(**fields)

    def test_a_single_value_of_a_channel_is_refused_in_training(self):
        model = dataclasses.replace(SMALL, stem=ResnetStem(4, 3, 2))
        variables = jax.eval_shape(lambda: model.init(KEY, jnp.zeros((1, 5, 5, 3))))
        with self.assertRaisesRegex(ValueError, 'a single value has no variance'):
            jax.eval_shape(lambda v: model.apply({'params': v['params'], 'statistics': v['statistics']},
                                                 jnp.zeros((1, 5, 5, 3)), key=KEY), variables)


class ReferenceTest(parameterized.TestCase):
    def test_a_step_of_training_is_that_of_pytorch(self):
        """Parameters and running moments after a step of SGD on three images of 27x21, in float64."""
        found = recorded.case('resnet')
        rate = lambda step: 0.1
        with jax.enable_x64(True):
            model, variables = recorded.convert.variables_from_hf(recorded.REFERENCE / 'resnet', dtype='float64')
            params, tx = variables['params'], optax.sgd(rate)
            step = jax.jit(steps.make(model, Classification(), Optimizer(tx, rate), seed=0))
            state = State(jnp.int32(0), params, tx.init(params), {}, {t: jnp.zeros(2) for t in ('loss', 'accuracy')},
                          jnp.int32(0), variables['statistics'])
            images = found['input']['pixel_values'].astype(np.float64).transpose(0, 2, 3, 1)
            state, _ = step(state, {'image': images, 'label': np.arange(3)})
            family, *_ = recorded.convert.opened(recorded.REFERENCE / 'resnet')
            ours = family.write({name: np.asarray(x) for name, x in mesh.flat(state.params, state.statistics).items()}, model)
        self.assertSameElements(ours, found['stepped'])
        for name, wanted in found['stepped'].items():
            if not name.endswith('num_batches_tracked'):
                np.testing.assert_allclose(ours[name], wanted, rtol=0, atol=1e-10 * np.abs(wanted).max(), err_msg=name)


CHANGES = {
    'classes': 4, 'stem': ResnetStem(4, 3, 2), 'block': Basic(), 'widths': (8, 16), 'depths': (2, 2), 'downsample_first': True,
    'activation': Silu(), 'branch_activation': Silu(), 'norm': BatchNorm(0.2), 'dense_gradient': False, 'dtype': 'bfloat16',
    'parameter_dtype': 'bfloat16'}
INSIDE = {'stem.width': 8, 'stem.size': 5, 'stem.stride': 2, 'stem.pool': False, 'block.reduction': 4, 'block.early': True,
          'norm.momentum': 0.2, 'norm.epsilon': 1e-3, 'norm.frozen': True}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES | INSIDE))
    def test_field_has_an_effect(self, field, value):
        part, _, inside = field.partition('.')
        value = dataclasses.replace(getattr(SMALL, part), **{inside: value}) if inside else value
        gradient = field == 'dense_gradient'  # which shows in the gradient alone
        program = self.gradient if gradient else train
        self.assertNotEqual(program(dataclasses.replace(SMALL, **{part: value})), program(SMALL))

    def gradient(self, model):
        variables = jax.eval_shape(lambda: model.init(KEY, IMAGES))
        loss = lambda params, statistics: model.apply({'params': params, 'statistics': statistics}, IMAGES)['logits'].sum()
        return str(jax.make_jaxpr(jax.grad(loss))(variables['params'], variables['statistics']))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(Resnet), {*CHANGES})
        for part in (ResnetStem, Bottleneck, BatchNorm):
            front = {ResnetStem: 'stem', Bottleneck: 'block', BatchNorm: 'norm'}[part]
            self.assertEqual({f'{front}.{field.name}' for field in dataclasses.fields(part)},
                             {name for name in INSIDE if name.startswith(front)})


if __name__ == '__main__':
    absltest.main()
