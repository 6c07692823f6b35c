import math

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build, changed
from training.mesh import path_of
from transformer.layers.initial import T5, LeCun, PyTorch, Scaled, TFixup, Xavier
from transformer.layers.residual import NoNorm
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from vit.models.vit import Vit

WIDTH, HEADS, LAYERS = 64, 4, 2
GPT = build(Gpt, vocab=500, width=WIDTH, heads=HEADS, layers=LAYERS, length=100)
TOKENS = np.zeros((1, 4), int)
# rows and columns of each matrix, whatever dimensions it is shown in
MATRICES = {'attention/query': (64, 64), 'attention/key': (64, 64), 'attention/value': (64, 64), 'attention/output': (64, 64),
            'feed_forward/input': (64, 256), 'feed_forward/output': (256, 64)}


def begun(model, inputs=TOKENS, **more):
    """{name: array} of a model at the start."""
    return {path_of(keys): np.float64(p) for keys, p in
            jax.tree_util.tree_leaves_with_path(models.init(model, inputs, **more))}


class InitialTest(parameterized.TestCase):
    @parameterized.parameters(0.02, 0.05)
    def test_scaled(self, scale):
        found = begun(changed(GPT, initial=Scaled(scale)))
        for name in ('tokens', 'positions'):
            self.assertAlmostEqual(found[f'{name}/embedding'].std() / scale, 1.0, delta=0.03)
        for name in MATRICES:
            wanted = scale / math.sqrt(2 * LAYERS) if name.endswith('output') else scale
            kernel = found[f'block_1/{name}/kernel']
            self.assertAlmostEqual(kernel.std() / wanted, 1.0, delta=0.05)
            self.assertGreater(np.abs(kernel).max(), 3 * wanted)  # normal, not uniform

    def test_xavier(self):
        found = begun(changed(GPT, initial=Xavier()))
        for name in ('tokens', 'positions'):
            self.assertAlmostEqual(found[f'{name}/embedding'].std() * math.sqrt(WIDTH), 1.0, delta=0.03)
        for name, (rows, columns) in MATRICES.items():
            bound = math.sqrt(6 / (rows + columns))
            kernel = np.abs(found[f'block_1/{name}/kernel'])
            self.assertLessEqual(kernel.max(), bound * (1 + 1e-6))
            self.assertGreater(kernel.max(), 0.99 * bound)
            self.assertAlmostEqual(kernel.mean() / bound, 0.5, delta=0.02)

    def test_t5(self):
        found = begun(changed(GPT, initial=T5()))
        self.assertAlmostEqual(found['tokens/embedding'].std(), 1.0, delta=0.03)
        for name, (rows, _) in MATRICES.items():
            wanted = (rows * WIDTH // HEADS) ** -0.5 if name.endswith('query') else rows ** -0.5
            self.assertAlmostEqual(found[f'block_1/{name}/kernel'].std() / wanted, 1.0, delta=0.05)

    def test_lecun_has_a_variance_of_one_over_the_fan_in(self):
        found = begun(changed(GPT, initial=LeCun()))
        self.assertAlmostEqual(found['tokens/embedding'].std() * math.sqrt(WIDTH), 1.0, delta=0.03)
        for name, (rows, _) in MATRICES.items():
            kernel = found[f'block_1/{name}/kernel']
            self.assertAlmostEqual(kernel.std() * math.sqrt(rows), 1.0, delta=0.05)
            self.assertGreater(np.abs(kernel).max() * math.sqrt(rows), 3)  # normal, not uniform

    def test_pytorch_is_uniform_up_to_one_over_the_root_of_the_fan_in(self):
        found = begun(changed(GPT, initial=PyTorch()))
        self.assertAlmostEqual(found['tokens/embedding'].std(), 1.0, delta=0.03)
        for name, (rows, _) in MATRICES.items():
            kernel = np.abs(found[f'block_1/{name}/kernel']) * math.sqrt(rows)
            self.assertBetween(kernel.max(), 0.99, 1 + 1e-6)
            self.assertAlmostEqual(kernel.mean(), 0.5, delta=0.02)

    @parameterized.parameters(1, 3)
    def test_t_fixup_scales_what_the_paper_says(self, layers):
        model = changed(GPT, layers=layers, residual=NoNorm())
        plain, scaled = begun(changed(model, initial=Xavier())), begun(changed(model, initial=TFixup()))
        matrices, embeddings = 0.67 * layers ** -0.25, (9 * layers) ** -0.25
        for name, value in scaled.items():
            if name.endswith('bias'):
                np.testing.assert_array_equal(value, 0.0)
                continue
            factor = embeddings if 'embedding' in name else 1.0 if 'query' in name or 'key/' in name else matrices
            np.testing.assert_allclose(value, factor * plain[name], rtol=1e-5)
        # the equation that the factors of a stack of two branches solve (of the decoder's three: 9·layers·e⁴ = 1)
        self.assertAlmostEqual(2 * layers * (2 * matrices ** 2 * embeddings ** 2 + matrices ** 4), 1.0, places=2)

    @parameterized.parameters(Scaled(0.05), TFixup())
    def test_a_block_with_an_attention_to_a_source_has_three_branches(self, initial):
        layers = 4
        model = build(EncoderDecoder, vocab=500, source_vocab=0, width=WIDTH, heads=HEADS, layers=layers, initial=initial)
        found = {name: value.std() for name, value in begun(model, decoder_inputs=TOKENS).items()}
        for part in ('attention', 'feed_forward', 'cross_attention'):
            output = found[f'decoder/block_1/{part}/output/kernel']
            if isinstance(initial, Scaled):
                wanted = 0.05 / math.sqrt(3 * layers)
            else:
                rows, columns = MATRICES[f'{part.removeprefix("cross_")}/output']
                wanted = (9 * layers) ** -0.25 * math.sqrt(2 / (rows + columns))
            self.assertAlmostEqual(output / wanted, 1.0, delta=0.05, msg=part)
        wanted = 0.05 / math.sqrt(2 * layers) if isinstance(initial, Scaled) else 0.67 * layers ** -0.25 * math.sqrt(2 / 128)
        self.assertAlmostEqual(found['encoder/block_1/attention/output/kernel'] / wanted, 1.0, delta=0.05)

    @pytest.mark.slow
    def test_t_fixup_keeps_the_stream_from_growing_with_depth(self):
        def growth(initial, layers):
            model = build(Gpt, vocab=64, width=64, heads=4, layers=layers, length=8, residual=NoNorm(), initial=initial,
                        scan=True)
            tokens = np.random.default_rng(0).integers(64, size=(8, 8))
            params = models.init(model, tokens)
            first = params['tokens']['embedding'][tokens] + params['positions']['embedding']
            return float(jax.jit(model.apply)({'params': params}, tokens)['hidden'].var() / first.var())

        self.assertLess(growth(TFixup(), 8), 3.0)
        self.assertGreater(growth(Xavier(), 8), 20.0)

    def test_images_begin_as_told_but_for_their_own_embedding(self):
        image = np.zeros((1, 4, 4, 3), np.float32)
        model = build(Vit, classes=3, patch=2, layers=LAYERS, heads=HEADS, width=WIDTH)
        plain, other = begun(model, image), begun(changed(model, initial=Scaled(0.1)), image)
        for name in plain:
            moved = not np.array_equal(plain[name], other[name])
            self.assertEqual(moved, name.startswith('block') and name.endswith('kernel'), name)
        self.assertLess(np.abs(plain['block_0/feed_forward/input/kernel']).max(), math.sqrt(6 / (64 + 256)))

    def test_a_scale_below_0_is_refused(self):
        for scale in (-0.1, math.inf, math.nan):
            with self.assertRaisesRegex(ValueError, r'Scaled\(scale=.*\): expected a scale of 0 or more'):
                Scaled(scale)


if __name__ == '__main__':
    absltest.main()
