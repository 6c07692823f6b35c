import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from transformer.attention.scores import Additive, Bilinear
from transformer.bahdanau import RecurrentEncoderDecoder
from transformer.encoder_decoder import EncoderDecoder
from transformer.memory_network import MemoryNetwork
from transformer.numerics import Numerics
from transformer.recurrent_attention import Bahdanau, Luong
from transformer.recurrent_lm import RecurrentLm
from transformer.story_transformer import StoryTransformer
from transformer.universal import Universal

IDS = np.ones((2, 4), int)
PAIR = {'inputs': IDS, 'segments': IDS, 'decoder_inputs': IDS, 'decoder_segments': IDS}
STORY = {'story': np.ones((2, 5, 4), int), 'question': IDS}
RECURRENT = RecurrentEncoderDecoder(vocab=7, source_vocab=0, layers=2, width=4, bidirectional=False)
MODELS = {'bahdanau': (RECURRENT.clone(attention=Bahdanau(score=Additive(3), combined=True, past=True)), PAIR),
          'luong': (RECURRENT.clone(attention=Luong(score=Bilinear(), window=2, predictive=True)), PAIR),
          'language': (RecurrentLm(vocab=7, length=4, width=4), {'inputs': IDS}),
          'transformer': (EncoderDecoder(vocab=7, source_vocab=0, layers=1, heads=2, width=8, depth=Universal(halting=True)),
                          PAIR),
          'memories': (MemoryNetwork(vocab=7, memory=5, width=4, tying='layerwise'), STORY),
          'stories': (StoryTransformer(vocab=7, layers=1, heads=2, width=8, depth=Universal(halting=True)), STORY)}
DTYPES = (('float32', 'float32', 2e-6), ('bfloat16', 'bfloat16', 2e-2))


def operands(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


class DenseTest(parameterized.TestCase):
    @parameterized.named_parameters(*DTYPES)
    def test_values_and_gradients_equal_float64(self, dtype, tolerance):
        x, kernel, dy = operands((2, 3, 4, 5), (4, 5, 6, 2), (2, 3, 6, 2))
        numerics = Numerics(dtype)

        @jax.jit
        def outcome(x, kernel):
            y, back = jax.vjp(lambda x, kernel: numerics.dense(x, kernel, axes=2), x, kernel)
            return y, *back(jnp.asarray(dy, dtype))

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

    def test_shapes_that_do_not_meet_are_refused(self):
        with self.assertRaisesRegex(ValueError, r'kernel \(5, 3\) got an input of shape \(2, 4\)'):
            Numerics().dense(jnp.ones((2, 4)), jnp.ones((5, 3)))

    def test_an_unknown_dtype_is_refused(self):
        with self.assertRaisesRegex(ValueError, "dtype is 'float16'; expected one of float32, bfloat16"):
            Numerics('float16')


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
        narrow = [equation for equation in products('bfloat16') if equation.params['precision'] != highest]
        self.assertNotEmpty(narrow)
        for equation in narrow:  # what is said to be exact is float32 in any case
            self.assertEqual({x.aval.dtype for x in equation.invars}, {jnp.dtype('bfloat16')}, equation.source_info.traceback)


if __name__ == '__main__':
    absltest.main()
