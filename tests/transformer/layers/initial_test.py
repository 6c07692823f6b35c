import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import float64, models
from tests.models import build, changed
from training.mesh import path_of
from transformer.attention.mechanism import Softmax
from transformer.attention.positions.relative import Shaw
from transformer.attention.scores import Dot
from transformer.layers.heads import Classes, NextWords
from transformer.layers.initial import T5, DTFixup, LeCun, MuP, PyTorch, Scaled, TFixup, Xavier
from transformer.layers.residual import NoNorm
from transformer.layers.stack import Blocks
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.recurrent_lm import RecurrentLm
from vit.models.hierarchical import Hierarchical
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

    @parameterized.parameters((1, 1.5), (3, 4.0))
    def test_dt_fixup_scales_what_the_paper_says(self, layers, largest):
        model = changed(GPT, layers=layers, residual=NoNorm(), head=NextWords(tied=False))
        plain, scaled = (begun(changed(model, initial=one)) for one in (Xavier(), DTFixup(largest)))
        found = {}
        for name, value in scaled.items():
            if not name.endswith('bias'):
                found.setdefault(round(float((value / plain[name]).mean()), 6), []).append(name)
                np.testing.assert_allclose(value, value.flat[0] / plain[name].flat[0] * plain[name], rtol=1e-5)
        one, factor = sorted(found, reverse=True)
        self.assertEqual(one, 1.0)  # embeddings, the output, queries and keys
        self.assertLen(found[factor], layers * 4)
        self.assertFalse([name for name in found[factor] if 'query' in name or 'key/' in name or 'block' not in name])
        self.assertAlmostEqual(4 * layers * factor ** 2 * largest ** 2, 1.0, places=4)

    @parameterized.parameters(TFixup(), DTFixup())
    def test_what_follows_the_stack_begins_as_with_xavier(self, initial):
        for made in initial.matrix(9), initial.output(9):
            key = jax.random.key(0)
            np.testing.assert_array_equal(made(key, (16, 8), jnp.float32), Xavier().matrix(9)(key, (16, 8), jnp.float32))

    def test_dt_fixup_refuses_a_norm_of_0_and_a_decoder(self):
        with self.assertRaisesRegex(ValueError, r'DTFixup\(largest=0.0\): expected a norm above 0'):
            DTFixup(0.0)
        with self.assertRaisesRegex(ValueError, 'for blocks with one attention; use TFixup'):
            DTFixup().attention(2, branches=3)

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


class MuPTest(parameterized.TestCase):
    @parameterized.parameters(Gpt, Bert, EncoderDecoder, Vit)
    def test_with_the_width_of_the_base_it_is_the_standard_form(self, cls):
        if cls is Vit:
            model, given = build(cls, classes=3, patch=2), {'image': np.ones((1, 4, 4, 3), np.float32)}
        else:
            sizes = {'source_vocab': 0} if cls is EncoderDecoder else {}
            model, given = build(cls, vocab=50, **sizes), {'inputs': TOKENS}
        more = {'decoder_inputs': TOKENS} if cls is EncoderDecoder else {}
        model = changed(model, width=WIDTH, heads=HEADS, layers=LAYERS)
        one, other = changed(model, initial=Scaled(0.05)), changed(model, initial=MuP(0.05, base=WIDTH))
        first, second = (models.init(each, *given.values(), **more) for each in (one, other))
        jax.tree.map(np.testing.assert_array_equal, first, second)
        outputs = [str(jax.make_jaxpr(lambda p, each=each: each.apply({'params': p}, **given, **more)['logits'])(first))
                   for each in (one, other)]
        self.assertEqual(*outputs)  # the same program

    def test_matrices_between_widths_begin_smaller_and_all_else_as_at_the_base(self):
        base = begun(changed(GPT, initial=MuP(0.05, base=WIDTH)))
        wide = changed(GPT, width=4 * WIDTH, head=NextWords(tied=False), initial=MuP(0.05, base=WIDTH))
        found = begun(wide)
        for name in ('tokens/embedding', 'positions/embedding', 'output/kernel'):
            self.assertAlmostEqual(found[name].std() / 0.05, 1.0, delta=0.03)
        for name in MATRICES:
            path = f'block_1/{name}/kernel'
            self.assertAlmostEqual(found[path].std() / base[path].std(), 0.5, delta=0.03)

    @parameterized.parameters((2, 0), (8, 4))  # as many heads as at the base, wider; or more heads as wide
    def test_outputs_equal_those_of_the_standard_form_with_the_factors_in_its_parameters(self, heads, head_width):
        width, base, given = 32, 8, {'inputs': np.arange(6)[None] % 5}
        model = build(Gpt, vocab=11, width=width, heads=heads, layers=2, length=8, dtype='float64', parameter_dtype='float64')
        with jax.enable_x64(True):
            params = jax.tree.map(jnp.asarray, float64.drawn(jax.eval_shape(lambda: model.init(models.KEY, **given)['params'])))
            of = lambda model, params: model.apply({'params': params}, **given)
            got = of(changed(model, initial=MuP(base=base, head_width=head_width)), params)
            own, before = width // heads, head_width or base // heads
            folded = jax.tree_util.tree_map_with_path(lambda keys, x: x * (
                math.sqrt(own) * math.sqrt(before) / own if 'attention/query' in path_of(keys)
                else base / width if path_of(keys).startswith('norm/') else 1.0), params)
            np.testing.assert_allclose(got['logits'], of(changed(model, initial=Scaled()), folded)['logits'], rtol=1e-11)
            np.testing.assert_allclose(got['hidden'] * base / width, of(model, folded)['hidden'], rtol=1e-11)
            self.assertEqual(got['logits'].dtype, np.float64)

    def test_queries_and_an_output_of_its_own_may_begin_with_zeros(self):
        found = begun(changed(GPT, head=NextWords(tied=False), initial=MuP(base=16, zero=True)))
        zero = {name for name, value in found.items() if not value.any() and not name.endswith('bias')}
        self.assertEqual(zero, {'output/kernel', *(f'block_{i}/attention/query/kernel' for i in range(LAYERS))})

    def test_cached_decoding_has_the_same_factors(self):
        model = changed(GPT, vocab=11, initial=MuP(0.3, base=8), length=8)
        params, tokens = models.init(model, TOKENS), np.arange(8)[None] % 11
        whole = model.apply({'params': params}, tokens)['logits']
        cache = model.init_cache(1)
        first = model.apply({'params': params}, tokens[:, :5], cache=cache, positions=np.arange(5)[None])
        rest = model.apply({'params': params}, tokens[:, 5:6], cache=first['cache'], positions=np.full((1, 1), 5))
        np.testing.assert_allclose(rest['logits'][:, 0], whole[:, 5], rtol=1e-4, atol=1e-6)

    def test_a_head_for_classes_divides_its_states(self):
        model = changed(GPT, head=Classes(classes=3, at='last', pooler=False), initial=MuP(base=16))
        params = jax.tree.map(jnp.ones_like, models.init(model, TOKENS))
        got = model.apply({'params': params}, TOKENS)
        wanted = np.float64(got['hidden'][:, -1]).sum(-1, keepdims=True) * 16 / WIDTH + 1  # kernel and bias are ones
        np.testing.assert_allclose(got['logits'], np.broadcast_to(wanted, (1, 3)), rtol=1e-5)

    def test_what_it_does_not_know_is_refused(self):
        for fields in ({'base': 0}, {'base': 8, 'head_width': -1}, {'base': 8, 'scale': -1.0}):
            with self.assertRaisesRegex(ValueError, r'MuP\(.*expected a '):
                MuP(**fields)
        for fields, said in (({'attention': Softmax(score=Dot())}, r'scores for Softmax\(\).* but this attention is Softmax\('),
                             ({'positions': Shaw()}, r'positions that do not look at content.*with Shaw\(')):
            with self.assertRaisesRegex(ValueError, said):
                models.init(changed(GPT, initial=MuP(base=8), **fields), TOKENS)
        with self.assertRaisesRegex(ValueError, 'embeddings of the width of the model; set embedding_width=0'):
            models.init(changed(Bert(vocab=9, embedding_width=4), layers=1, width=8, heads=2, initial=MuP(base=8)), TOKENS)
        with self.assertRaisesRegex(ValueError, r'MuP\(.* is for Transformers with one width; use Scaled\(scale=0.02\)'):
            models.init(RecurrentLm(vocab=9, initial=MuP(base=8)), TOKENS)
        stages = {'stage_0': Blocks(layers=1, heads=2, width=8, initial=MuP(base=8))}
        with self.assertRaisesRegex(ValueError, 'this one has stages; use Scaled'):
            models.init(Hierarchical(classes=3, stages=stages), np.zeros((1, 8, 8, 3), np.float32))


if __name__ == '__main__':
    absltest.main()
