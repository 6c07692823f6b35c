import dataclasses
import itertools
import sys
from functools import partial
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

from tests import float64, mechanisms, models
from tests.marks import slow_but
from training import mesh as meshes
from transformer.attention import scores
from transformer.attention.context import Context
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.mechanism import Given, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.multi_head import MultiHead
from transformer.attention.pooling import Epanechnikov, Gaussian, Pooling
from transformer.attention.positions import absolute, relative
from transformer.attention.positions.base import Encoding, NoPositions, Sizes
from transformer.attention.positions.rotary import Rotary
from transformer.attention.scores import Additive, Bilinear
from transformer.decoding import generate
from transformer.decoding.strategies import DiverseBeam, Sample
from transformer.layers.dense import Dense
from transformer.layers.numerics import Numerics, real_dtype, wide
from transformer.layers.universal import Universal
from transformer.models.bahdanau import RecurrentEncoderDecoder
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.memory_network import MemoryNetwork
from transformer.models.recurrent import Lstm
from transformer.models.recurrent_attention import Bahdanau, Luong
from transformer.models.recurrent_lm import RecurrentLm
from transformer.models.story_transformer import StoryTransformer
from transformer.tasks.language_model import NextToken, SequenceToSequence
from transformer.tasks.pooling import PooledClassification, PooledRegression
from transformer.tasks.stories import MemoryAnswers

IDS = np.ones((2, 4), int)
PAIR = {'inputs': IDS, 'segments': IDS, 'decoder_inputs': IDS, 'decoder_segments': IDS}
STORY = {'story': np.ones((2, 5, 4), int), 'question': IDS}
SMALL = dict(vocab=7, layers=1, heads=2, width=8, depth=Universal(halting=True))
RECURRENT = RecurrentEncoderDecoder(vocab=7, source_vocab=0, layers=2, width=4, bidirectional=False)
MODELS = {'bahdanau': (RECURRENT.clone(attention=Bahdanau(score=Additive(3), combined=True, past=True)), PAIR),
          'luong': (RECURRENT.clone(attention=Luong(score=Bilinear(), window=2, predictive=True)), PAIR),
          'language': (RecurrentLm(vocab=7, length=4, width=4), {'inputs': IDS}),
          'transformer': (models.build(EncoderDecoder, **SMALL, source_vocab=0), PAIR),
          'memories': (MemoryNetwork(vocab=7, memory=5, width=4, tying='layerwise'), STORY),
          'stories': (models.build(StoryTransformer, **SMALL), STORY)}
DTYPES = (('float32', 'float32', 2e-6), ('bfloat16', 'bfloat16', 1e-2), ('mixed', 'mixed', 1e-2))
# Every score and every position encoding, one with the other, and every kernel that a CPU has with all scores.
SCORES = (scores.ScaledDot(), scores.Dot(), scores.Bilinear(), scores.Additive(width=4), scores.Cosine(),
          scores.Location(length=9), scores.Gaussian())
POSITIONS = (absolute.Learned(), absolute.Sinusoidal(), absolute.Sinusoidal(at='scores'),
             absolute.Sinusoidal(at='scores_times'), absolute.Sinusoidal2d(), Rotary(),
             Rotary(scaling='ntk', factor=2.0, interleaved=True), relative.Shaw(distance=2),
             relative.T5Bias(buckets=4, distance=5), relative.Alibi(), relative.SwinBias(), relative.TransformerXl(),
             relative.Disentangled(distance=3),
             relative.Tupe(), relative.Etc(distance=2))
KERNELS = 'plain', 'blockwise'
ATTENTION = {f'{type(score).__name__}_{type(kind).__name__}_{i}': (Softmax(score=score, implementation=kernel), kind)
             for i, (score, kind, kernel) in enumerate(zip(itertools.cycle(SCORES), POSITIONS, itertools.cycle(KERNELS)))}
ATTENTION |= {name: (mechanism, NoPositions()) for name, mechanism in mechanisms.CASES.items() if name != 'softmax'}
SEGMENTS = np.array([[1] * 9, [1, 1, 1, 2, 2, 2, 2, 0, 0]], np.int32)
PLACES = np.array([[*range(9)], [0, 1, 2, 0, 1, 2, 3, 0, 0]], np.int32)
POINTS = np.random.default_rng(2).uniform(0.1, 0.6, size=(5, 2)).astype(np.float32)
TOKENS = {'inputs': SEGMENTS, 'targets': SEGMENTS, 'segments': SEGMENTS, 'positions': PLACES,
          'weights': (SEGMENTS > 0).astype(np.float32)}
TEXTS = TOKENS | {f'decoder_{name}': TOKENS[name][:, :5] for name in ('inputs', 'segments', 'positions')} | {
    name: TOKENS[name][:, :5] for name in ('targets', 'weights')}
STORIES = {'story': np.arange(40, dtype=np.int32).reshape(2, 5, 4) % 7, 'question': SEGMENTS[:, :4],
           'label': np.array([1, 2], np.int32)}
SEEN = {'query': POINTS, 'own': np.arange(5, dtype=np.int32), 'target': POINTS}
POOLING = Pooling(keys=tuple(map(tuple, POINTS.tolist())), values=tuple(map(tuple, POINTS.tolist())), learn='each')
EXACT = {'bahdanau': (MODELS['bahdanau'][0].clone(bidirectional=True, dropout=0.1, outer_dropout=0.1), SequenceToSequence(),
                      TEXTS),
         'luong': (MODELS['luong'][0].clone(cell=Lstm()), SequenceToSequence(), TEXTS),
         'language': (MODELS['language'][0].clone(dropout=0.1), NextToken(label_smoothing=0.1, z_loss=1e-3), TOKENS),
         'memories': (MODELS['memories'][0], MemoryAnswers(linear_steps=3), STORIES),
         'regression': (POOLING.clone(kernel=Epanechnikov()), PooledRegression(), SEEN),
         'classification': (POOLING.clone(kernel=Gaussian()), PooledClassification(), SEEN)}


def operands(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def parameter_of(numerics):
    """(a parameter of 1/3 as it is read, the variables of its module)."""
    class Module(nn.Module):
        @nn.compact
        def __call__(self):
            return numerics.parameter(self, 'x', lambda key, shape, dtype: jnp.full(shape, 1 / 3, dtype), (3, 2))

    return Module().init_with_output(models.KEY)


class PolicyTest(parameterized.TestCase):
    def test_wide_is_at_least_float32(self):
        with jax.enable_x64(True):
            for given, wanted in (('bfloat16', 'float32'), ('float32', 'float32'), ('float64', 'float64')):
                self.assertEqual(wide(jnp.ones(2, given)).dtype, wanted)

    @parameterized.parameters('bfloat16', 'float32', 'mixed')
    def test_gradients_of_what_many_share_are_summed_in_float32(self, dtype):
        """4,096 equal terms."""
        numerics, ids = Numerics(dtype), jnp.ones(4096, int)
        y = numerics.cast(jnp.ones((4096, 2)))
        learned = lambda table: absolute.Learned()._rows({'embedding': table}, ids, None, y.dtype)
        gradients = jax.jit(jax.grad(lambda given: sum(wide(one).sum() for one in (
            numerics.plus(y, given['bias']), numerics.times(y, given['factors']), numerics.times(y, given['factor']),
            numerics.rows(given['table'], ids), learned(given['positions'])))))({
                'bias': jnp.zeros(2), 'factors': jnp.ones(2), 'factor': jnp.ones(()), 'table': jnp.zeros((3, 2)),
                'positions': jnp.zeros((3, 2))})
        rows = np.array([[0, 0], [4096, 4096], [0, 0]])
        wanted = {'bias': [4096, 4096], 'factors': [4096, 4096], 'factor': 8192, 'table': rows, 'positions': rows}
        for name, found in gradients.items():
            self.assertEqual(found.dtype, jnp.float32)
            np.testing.assert_array_equal(found, wanted[name], name)

    def test_devices_sum_the_rows_of_their_own_part_of_a_batch(self):
        """Whatever the table's sharding, which the gradient has in the end."""
        mesh = meshes.make(2, 2)
        ids = jax.ShapeDtypeStruct((8, 32), 'int32', sharding=meshes.batch_sharding(mesh))
        table = jax.ShapeDtypeStruct((512, 64), 'float32', sharding=NamedSharding(mesh, PartitionSpec(None, 'fsdp')))
        with jax.set_mesh(mesh):
            gradient = jax.jit(jax.grad(lambda table, ids: (wide(Numerics('bfloat16').rows(table, ids)) ** 2).sum()))
            text = gradient.lower(table, ids).compile().as_text()
        self.assertIn('all-reduce', text)
        self.assertNotRegex(text, r'\[8,32,64\]')

    def test_constants_have_the_type_that_is_enabled(self):
        self.assertEqual(real_dtype(), 'float32')
        with jax.enable_x64(True):
            self.assertEqual(real_dtype(), 'float64')

    @parameterized.product(dtype=('float32', 'bfloat16', 'float64'), stored=('float32', 'bfloat16', 'float64'))
    def test_parameters_are_drawn_in_float32_rounded_once_and_read_wide(self, dtype, stored):
        exact = 'float64' in (dtype, stored)
        with jax.enable_x64(exact):
            used, variables = parameter_of(Numerics(dtype, parameter_dtype=stored))
            kept = np.full((3, 2), np.float32(1 / 3)).astype(stored)
            np.testing.assert_array_equal(variables['params']['x'], kept, strict=True)
            np.testing.assert_array_equal(used, kept.astype('float64' if exact else 'float32'), strict=True)

    def test_a_parameter_of_another_shape_is_refused(self):
        layer = Dense(3, name='layer')
        with self.assertRaisesRegex(ValueError, r'The parameter kernel has the shape \(2, 4\), but the model needs \(2, 3\)'):
            layer.apply({'params': {'kernel': jnp.zeros((2, 4)), 'bias': jnp.zeros(3)}}, jnp.zeros((1, 2)))

    def test_applying_a_model_traces_no_initialiser(self):
        def initialiser(key, shape, dtype):
            drawn.append(shape)
            return jnp.zeros(shape, dtype)

        drawn, layer, x = [], Dense(3, kernel_init=initialiser), jnp.zeros((1, 2))
        params = layer.init(jax.random.key(0), x)
        self.assertEqual(drawn, [(2, 3)])
        layer.apply(params, x)
        self.assertLen(drawn, 1)

    @parameterized.parameters('dtype', 'parameter_dtype')
    def test_float64_where_jax_would_take_float32_is_refused(self, field):
        numerics = Numerics(**{field: 'float64'})
        with self.assertRaisesRegex(ValueError, 'float64 need the 64-bit types of JAX, which are switched off; call '):
            numerics.cast(parameter_of(numerics)[0])


class DenseTest(parameterized.TestCase):
    @parameterized.named_parameters(*DTYPES)
    def test_values_and_gradients_equal_float64(self, dtype, tolerance):
        x, kernel, dy = operands((2, 3, 4, 5), (4, 5, 6, 2), (2, 3, 6, 2))
        numerics = Numerics(dtype)

        @jax.jit
        def outcome(x, kernel):
            y, back = jax.vjp(lambda x, kernel: numerics.dense(x, kernel, axes=2), x, kernel)
            return y, *back(jnp.asarray(dy, y.dtype))

        y, dx, dkernel = outcome(x, kernel)
        a, b, c = (np.asarray(v, np.float64) for v in (x, kernel, dy))
        for got, wanted in ((y, np.einsum('...ij,ijkl->...kl', a, b)), (dx, np.einsum('btkl,ijkl->btij', c, b)),
                            (dkernel, np.einsum('btij,btkl->ijkl', a, c))):
            self.assertEqual(got.shape, wanted.shape)
            np.testing.assert_allclose(np.asarray(got, np.float64), wanted, atol=tolerance * np.abs(wanted).max())

    @parameterized.named_parameters(*DTYPES)
    def test_own_gradient_equals_the_rule_of_jax(self, dtype, tolerance):
        x, kernel = operands((2, 7, 5), (5, 3, 2))

        def outcome(dense_gradient):
            numerics = Numerics(dtype, dense_gradient)
            loss = lambda pair: jnp.sin(numerics.dense(*pair).astype(jnp.float32)).sum()
            return jax.jit(jax.value_and_grad(loss))((x, kernel))

        own, rule = outcome(True), outcome(False)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), own, rule)
        self.assertTrue(all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(own)))

    def test_own_gradient_forms_the_kernel_gradient_without_a_transpose(self):
        def transposes(dense_gradient):
            numerics = Numerics('float32', dense_gradient)
            gradient = jax.grad(lambda kernel: numerics.dense(jnp.ones((7, 5)), kernel).sum())
            return str(jax.make_jaxpr(gradient)(jnp.ones((5, 3)))).count('transpose')

        self.assertEqual(transposes(True), 0)
        self.assertGreater(transposes(False), 0)

    def test_scores_keep_the_float32_they_are_accumulated_in(self):
        a, b = operands((4, 64), (64, 8))
        rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (a, b)]
        scores = Numerics('bfloat16').scores('TD,DS->TS', a, b)
        self.assertEqual(scores.dtype, jnp.float32)
        np.testing.assert_allclose(scores, rounded[0] @ rounded[1], rtol=1e-5, atol=1e-5)  # bfloat16 would err by 4e-3

    def test_results_have_the_type_of_the_policy(self):
        x, kernel = operands((2, 5), (5, 3))
        for dtype in ('float32', 'bfloat16'):
            self.assertEqual(Numerics(dtype).dense(x, kernel).dtype, dtype)
            self.assertEqual(Numerics(dtype).einsum('TD,DF->TF', x, kernel).dtype, dtype)

    @parameterized.product(width=(6, 7, 24), stored_across=(False, True), called_across=(False, True), device=('cpu', 'tpu'))
    def test_mixed_products_are_those_of_rounded_operands(self, width, stored_across, called_across, device):
        x, kernel, dy = operands((5, 12), (12, width), (width, 5))
        numerics, rounded = Numerics('mixed'), lambda x: np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)

        def outcome(x, stored, dy):
            def layer(x, stored):
                kernel = stored.T if stored_across != called_across else stored
                return (numerics.across if called_across else numerics.dense)(x, kernel).T

            y, back = jax.vjp(layer, x, stored)
            return y, *back(dy)

        if device == 'cpu':  # XLA merges transpositions of parameters and results into products, where it can
            outcome = jax.jit(outcome)
        with mock.patch.object(sys.modules[Numerics.__module__], 'platform', lambda: device):
            y, dx, dstored = outcome(x, kernel.T if stored_across else kernel, dy)
        a, b, c = (rounded(v) for v in (x, kernel, dy))
        for got, wanted in ((y, (a @ b).T), (dx, (b @ c).T), (dstored, c @ a if stored_across else (c @ a).T)):
            self.assertEqual(got.dtype, jnp.float32)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)  # with operands in float32 it would err by 4e-3

    def test_shapes_that_do_not_meet_are_refused(self):
        with self.assertRaisesRegex(ValueError, r'kernel \(5, 3\) got an input of shape \(2, 4\)'):
            Numerics().dense(jnp.ones((2, 4)), jnp.ones((5, 3)))

    def test_an_unknown_dtype_is_refused(self):
        for field in ('dtype', 'parameter_dtype'):
            with self.assertRaisesRegex(ValueError, f"{field} is 'float16'; expected one of float32, bfloat16, float64"):
                Numerics(**{field: 'float16'})


class ModelsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, *case) for name, case in MODELS.items()))
    def test_every_product_follows_the_policy(self, model, batch):
        def products(dtype):
            loss = lambda p: model.clone(dtype=dtype).apply({'params': p}, **batch)['logits'].astype(jnp.float32).sum()
            found = models.equations(jax.make_jaxpr(jax.grad(loss))(models.drawn(model, **batch)).jaxpr)
            return [equation for equation in found if equation.primitive.name == 'dot_general']

        highest = (jax.lax.Precision.HIGHEST,) * 2
        for equation in products('float32'):
            self.assertEqual(equation.params['precision'], highest, equation.source_info.traceback)
        for dtype in ('bfloat16', 'mixed'):
            found = products(dtype)
            narrow = [equation for equation in found if equation.params['precision'] != highest]
            self.assertGreater(2 * len(narrow), len(found))
            for equation in narrow:  # what is said to be exact is float32 in any case
                self.assertEqual({x.aval.dtype for x in equation.invars}, {jnp.dtype('bfloat16')},
                                 equation.source_info.traceback)


@slow_but('test_mechanism', 'softmax', 'compressed')
class MixedTest(parameterized.TestCase):
    """Gradients of products in bfloat16 as XLA compiles them, which on a CPU fails at some such products."""

    @parameterized.named_parameters(*((name, *case) for name, case in MODELS.items()))
    def test_model(self, model, batch):
        def loss(dtype, params):
            return jnp.square(model.clone(dtype=dtype).apply({'params': params}, **batch)['logits']).mean()

        self.assert_near(loss, models.drawn(model, **batch))

    @parameterized.named_parameters(*mechanisms.CASES.items(), ('channels', ChannelGroups()),
                                    ('channels_2', ChannelGroups(version=2)))
    def test_mechanism(self, mechanism):
        arrays = mechanisms.drawn(key_heads=4, width=6)
        arrays, given = mechanisms.used(mechanism, *arrays), mechanisms.parameters_of(mechanism, *arrays)

        def loss(dtype, given):
            return jnp.square(mechanism(given[0], *given[1], Given(Full(), numerics=Numerics(dtype)))).mean()

        self.assert_near(loss, (given, arrays))

    def test_generation(self):
        model = models.build(Gpt, vocab=9, length=8, layers=1, heads=2, width=8)
        params = models.drawn(model, IDS)
        mixed, exact = (generate.generate(model.clone(dtype=dtype), params, [[3, 5]], steps=3, key=models.KEY, end=0, vocab=9,
                                          strategy=DiverseBeam(size=9, groups=1, count=9))[0] for dtype in ('mixed', 'float32'))
        scores = [{tuple(row.tokens): row.score for row in rows} for rows in (mixed, exact)]
        for tokens in {*scores[0]} & {*scores[1]}:
            self.assertAlmostEqual(scores[0][tokens], scores[1][tokens], delta=0.1)
        self.assertGreater(len({*scores[0]} & {*scores[1]}), 4)

    def assert_near(self, loss, params):
        mixed, exact = (jax.tree.leaves(jax.jit(jax.grad(partial(loss, dtype)))(params)) for dtype in ('mixed', 'float32'))
        smallest = 1e-3 * max(map(np.linalg.norm, exact))  # of a bias of keys it is 0 but for rounding
        for got, wanted in zip(mixed, exact, strict=True):
            self.assertEqual(got.dtype, jnp.float32)
            self.assertLess(np.linalg.norm(got - wanted), 0.05 * np.linalg.norm(wanted) + smallest)


@slow_but('test_models_and_tasks', *sorted({*EXACT} - {'bahdanau'}))
@slow_but('test_attention', *sorted({*ATTENTION} - {'hashing', 'nystrom', 'linear', 'gated', 'compressed'}))
class Float64Test(parameterized.TestCase):
    """No number of a program is narrower, so that gradients are those of central differences to nine digits."""

    def setUp(self):
        super().setUp()
        self.enter_context(jax.enable_x64(True))

    @parameterized.named_parameters(*((name, *case) for name, case in ATTENTION.items()))
    def test_attention(self, mechanism, kind):
        sizes = Sizes(length=9, width=16, heads=4, head_width=4, grid=(3, 3))
        layer = MultiHead(4, 0 if mechanism.projections == ('value',) else 2, mechanism=mechanism, numerics=Numerics('float64'))
        pattern = Causal() if mechanism.causal else Full()

        def apply(method, params, x, segments, places):
            encoding = Encoding(kind, params['shared'], places, places, sizes)
            mask = pattern & (Segments(segments, segments) if mechanism.packed else Padding((segments != 0).sum(1)))
            return method({'params': params['layer']}, encoding.at_input(x), context=Context(mask, encoding))

        def loss(*given):
            return jnp.sin(apply(layer.apply, *given)[0]).sum()

        x = np.random.default_rng(1).normal(size=(2, 9, 16))
        shared = {name: jax.ShapeDtypeStruct(wanted.shape, float) for name, wanted in kind.parameters(sizes).items()}
        init = lambda _, *given, **more: layer.init(models.KEY, *given, **more)['params']
        own = jax.eval_shape(partial(apply, init), {'layer': {}, 'shared': shared}, x, SEGMENTS, PLACES)
        float64.require_exact(self, loss, float64.drawn({'layer': own, 'shared': shared}), x, SEGMENTS, PLACES)

    @parameterized.named_parameters(*((name, *case) for name, case in EXACT.items()))
    def test_models_and_tasks(self, model, task, batch):
        model = model.clone(dtype='float64')

        def loss(params, batch):
            forward = lambda **inputs: model.apply({'params': params}, **inputs)
            terms = task.loss(forward, batch, key=models.KEY, step=5, train=True)
            return sum(c * terms[name][0] / terms[name][1] for name, c in task.coefficients.items()) + sum(
                0.0 * total / weight for total, weight in terms.values())

        params = float64.drawn(jax.eval_shape(lambda: model.init(models.KEY, **task.inputs(batch))['params']))
        float64.require_exact(self, loss, params, batch)

    @parameterized.parameters(absolute.Learned(), relative.SwinBias())
    def test_tables_of_images_of_another_size(self, kind):
        sizes = Sizes(width=16, heads=4, head_width=4, grid=(3, 3), extra=1)
        larger = dataclasses.replace(sizes, length=26, grid=(5, 5))
        (name, wanted), *_ = (kind.parameters(dataclasses.replace(sizes, length=10)) | kind.layer_parameters(sizes)).items()
        resized = jax.make_jaxpr(lambda table: kind.resized(name, table, larger))(np.zeros(wanted.shape))
        self.assertEqual(float64.narrow(resized), [])

    @parameterized.parameters(Sample(temperature=0.7, top_k=6, top_p=0.6, min_p=0.01, count=32), DiverseBeam(size=4, count=4))
    def test_generation(self, strategy):
        model = RecurrentLm(vocab=9, length=8, width=4, cell=Lstm(), dtype='float64')
        params = float64.drawn(jax.eval_shape(lambda: model.init(models.KEY, np.ones((1, 2), np.int32))['params']), 1.0)
        with mock.patch.object(generate, '_search', wraps=generate._search) as search:
            rows, = generate.generate(model, params, [[3, 5]], steps=3, strategy=strategy, key=models.KEY, end=0, vocab=9)
        arrays, fixed = search.call_args
        self.assertEqual(float64.narrow(jax.make_jaxpr(partial(generate._search, arrays[0], **fixed))(*arrays[1:])), [])
        apply = jax.jit(lambda params, row: jax.nn.log_softmax(model.apply({'params': params}, row)['logits'][0]))
        for row in rows:
            tokens = [3, 5, *row.tokens, *[0] * row.finished]
            gains = np.asarray(apply(params, np.pad(tokens, (0, 5 - len(tokens)))[None]))[1:len(tokens) - 1]
            chosen = gains[np.arange(len(gains)), tokens[2:]]
            np.testing.assert_allclose(row.score, chosen.sum(), rtol=1e-13)
            if isinstance(strategy, Sample):  # what is more probable than a token has not reached top_p yet
                share = np.exp(gains / 0.7) / np.sort(np.exp(gains / 0.7))[:, -6:].sum(-1, keepdims=True)
                self.assertLess(np.where(gains > chosen[:, None], share, 0).sum(-1).max(), 0.6)


if __name__ == '__main__':
    absltest.main()
