import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from training.report import flops
from transformer.attention.kernels import accelerated
from transformer.attention.kernels.attend import attend, choose, plain
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import BlockDiagonal, Causal, Full, Global, Random, Window
from transformer.attention.positions.base import PositionTerm, Sizes
from transformer.attention.positions.relative import Alibi, Shaw
from transformer.attention.scores import Additive
from transformer.layers.numerics import Numerics

RNG = np.random.default_rng(0)
B, T, N, K, H = 2, 256, 4, 2, 16
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=s).astype(np.float32) for s in (
    (B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H)))
NUMBERS = jnp.asarray([[1] * 100 + [2] * 120 + [0] * 36, [1] * 256])
SEGMENTS = Segments(NUMBERS, NUMBERS)
MASKS = {
    'full': Full(), 'causal': Causal(), 'causal_window': Causal() & Window(50), 'window_causal': Window(50) & Causal(),
    'longformer': Causal() & (Window(20) | Global(3)), 'segments': SEGMENTS, 'causal_segments': Causal() & SEGMENTS}
BFLOAT16 = Numerics('bfloat16')


def outcome(kernel, *arrays, **more):
    @jax.jit
    def both(*arrays):
        out, pull = jax.vjp(lambda *a: kernel(*a, **more), *arrays)
        return out, pull(COTANGENT[:, :out.shape[1]])
    return both(*arrays)


def assert_same(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), got, wanted)


class SplashTest(parameterized.TestCase):
    """The kernel of a TPU, emulated."""

    @parameterized.named_parameters(*MASKS.items())
    def test_gives_what_the_plain_kernel_gives(self, mask):
        self.assertIsNone(accelerated._splash_lacks(QUERY, KEY, mask, ()))
        got = outcome(accelerated.splash, QUERY, KEY, VALUE, mask=mask, numerics=Numerics(), interpret=True)
        assert_same(got, outcome(plain, QUERY, KEY, VALUE, mask=mask))

    def test_each_device_computes_its_rows_and_heads(self):
        mesh = jax.make_mesh((2, 1, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:4])
        with jax.set_mesh(mesh):
            got = outcome(accelerated.splash, QUERY, KEY, VALUE, mask=Causal() & SEGMENTS, numerics=Numerics(), interpret=True)
        assert_same(got, outcome(plain, QUERY, KEY, VALUE, mask=Causal() & SEGMENTS))

    @parameterized.parameters(
        (1024, Causal(), 2), (2048, Causal(), 4), (8192, Causal(), 4), (16384, Causal(), 0), (2560, Causal(), 0),
        (8192, Causal() & Window(size=512), 0), (2048, Causal() & Window(size=512), 4))
    def test_gradients_of_queries_are_written_for_at_most_four_blocks_of_keys(self, length, mask, blocks):
        """By two kernels, which write none for blocks, if the blocks are too large or compute more of what the mask hides."""
        row = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.bfloat16)
        kernel = lambda *rows: accelerated.splash(*rows, mask=mask, numerics=BFLOAT16, interpret=True)
        gradient = jax.grad(lambda *rows: kernel(*rows).astype(jnp.float32).sum(), argnums=(0, 1, 2))
        text = str(jax.make_jaxpr(gradient)(row, row, row))
        found = {int(count) for count in re.findall(rf'bf16\[1,2,(\d+),1,{length},64\]', text)}
        self.assertEqual(found, {blocks} - {0})

    @parameterized.parameters(
        (1024, Causal(), 2 * 3 / 4, 5 * 3 / 4), (8192, Causal(), 2 * 17 / 32, 5 * 5 / 8), (1024, Full(), 2, 5),
        (16384, Causal(), 2 * 33 / 64, 7 * 33 / 64), (8192, Causal() & Window(size=512), 2 * 31 / 256, 7 * 31 / 256))
    def test_operations_are_those_of_the_blocks_that_are_not_hidden(self, length, mask, forward, backward):
        """In products of all queries with all keys: squares of 512, but 256 queries forward, and in gradients by one kernel as
        many keys as are a fourth of them."""
        row = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.bfloat16)
        kernel = lambda *rows: accelerated.splash(*rows, mask=mask, numerics=BFLOAT16, interpret=True)

        def layers(query, key, value):  # whose attention is computed again in the gradients
            again = jax.checkpoint(lambda query: kernel(query, key, value))
            return jax.lax.scan(lambda query, _: (again(query), None), query, None, length=3)[0].astype(jnp.float32).sum()

        product = 2 * 2 * length ** 2 * 64
        self.assertAlmostEqual(flops.count(kernel, row, row, row) / product, forward, delta=1e-3)
        self.assertAlmostEqual(flops.count(jax.grad(layers, (0, 1, 2)), row, row, row) / 3 / product, 2 * forward + backward,
                               delta=1e-3)

    def test_blocks_of_keys_that_are_computed_in_several_parts(self):
        arrays = jax.random.normal(jax.random.key(0), (3, 1, 640, 2, 64))
        gradients = lambda kernel, **more: jax.jit(jax.grad(
            lambda *given: jnp.sin(kernel(*given, mask=Full(), **more)).sum(), (0, 1, 2)))(*arrays)
        assert_same(gradients(accelerated.splash, numerics=Numerics(), interpret=True), gradients(plain))

    @parameterized.parameters(
        (Padding(jnp.array([3, 4])), (), 'masks of the data other than Segments'),
        (Causal() | SEGMENTS, (), 'masks of the data other than Segments'),
        (~Causal(), (), 'masks under which a query sees nothing'), (Full(), (jnp.ones((1, 1)),), 'a bias'))
    def test_what_it_lacks(self, mask, bias, message):
        self.assertIn(message, accelerated._splash_lacks(QUERY, KEY, mask, bias))
        for query, key in ((QUERY[:, :100], KEY), (QUERY, KEY[:, :100])):
            self.assertIn('multiples of 128', accelerated._splash_lacks(query, key, Full(), ()))


class CudnnTest(parameterized.TestCase):
    """The keywords that cuDNN is called with, given to XLA's implementation of the same function."""

    @parameterized.named_parameters(*MASKS.items(), ('padding', Padding(jnp.array([40, 0]))), ('nothing', ~Full()),
                                    ('block', BlockDiagonal(7)), ('ahead', ~Causal()))
    def test_gives_what_the_plain_kernel_gives(self, mask):
        cut = lambda x: x[:, :64]
        mask = jax.tree.map(lambda x: x[..., :64], mask)
        arrays = tuple(map(cut, (QUERY, KEY, VALUE)))
        got = outcome(accelerated.cudnn, *arrays, mask=mask, numerics=Numerics(), implementation='xla')
        assert_same(got, outcome(plain, *arrays, mask=mask))

    @parameterized.product(mask=('full', 'causal', 'causal_window', 'segments', 'longformer'), queries=(63, 64), keys=(63, 64))
    def test_odd_lengths_are_made_even(self, mask, queries, keys):
        mask = Segments(NUMBERS[:, :queries], NUMBERS[:, :keys]) if mask == 'segments' else MASKS[mask]
        arrays, given = (QUERY[:, :queries], KEY[:, :keys], VALUE[:, :keys]), []
        called = jax.nn.dot_product_attention
        self.enter_context(mock.patch.object(
            jax.nn, 'dot_product_attention', lambda *arrays, **more: given.extend(arrays) or called(*arrays, **more)))
        for bias in ((), (jnp.float32(RNG.normal(size=(N, 1, keys))),)):
            got = outcome(accelerated.cudnn, *arrays, mask=mask, bias=bias, numerics=Numerics(), implementation='xla')
            assert_same(got, outcome(plain, *arrays, mask=mask, bias=bias))
        self.assertEqual({x.shape[1] for x in given}, {64})

    @parameterized.parameters(({}, (63, 63)), ({'mask': (1, 1)}, (63, 63)), ({'bias': (2, 4)}, (63, 64)), (
        {'mask': (2, 1), 'bias': (1, 4)}, (64, 63)))
    def test_what_is_added_is_not_seen_and_sees_something(self, given, lengths):
        queries, keys = lengths
        keywords = {name: jnp.ones((*front, queries, keys), {'mask': bool, 'bias': jnp.bfloat16}[name])
                    for name, front in given.items()}
        arrays = (jnp.ones((2, length, 4, 8), jnp.bfloat16) for length in (queries, keys, keys))
        *arrays, made = accelerated._even(*arrays, keywords)
        self.assertEqual([x.shape for x in arrays], [(2, 64, 4, 8)] * 3)
        visible = np.ones((1, 1, 64, 64), bool)
        if 'mask' in made:
            visible = visible & np.asarray(made['mask'])
        if 'bias' in made:
            visible = visible & (np.asarray(made['bias'], np.float32) > -1e30)
            self.assertTrue(np.isfinite(np.asarray(made['bias'], np.float32)).all())
        self.assertTrue(visible[..., :queries, :keys].all())
        self.assertEqual('key_value_seq_lengths' in made, not given)
        if given and keys < 64:
            self.assertFalse(visible[..., :queries, keys:].any())
        if 'mask' in made:
            self.assertTrue(np.asarray(made['mask']).any(-1).all())

    def test_the_gradient_of_a_bias_over_odd_lengths(self):
        bias = jnp.float32(RNG.normal(size=(B, N, 63, 63)))
        arrays = [x[:, :63] for x in (QUERY, KEY, VALUE)]
        gradient = lambda kernel, **more: jax.grad(lambda bias: jnp.sum(COTANGENT[:, :63] * kernel(
            *arrays, mask=Causal(), bias=(bias,), numerics=Numerics(), **more)))(bias)
        assert_same(gradient(accelerated.cudnn, implementation='xla'), gradient(plain))

    def test_bias_and_another_number_of_keys(self):
        bias = jnp.float32(RNG.normal(size=(N, 1, 32)))
        arrays = QUERY[:, :16], KEY[:, :32], VALUE[:, :32]
        for mask in (Full(), Causal(), Causal() & Window(3)):
            got = outcome(accelerated.cudnn, *arrays, mask=mask, bias=(bias, bias), numerics=Numerics(), implementation='xla')
            assert_same(got, outcome(plain, *arrays, mask=mask, bias=(2 * bias,)))

    def test_positions_that_add_to_the_scores(self):
        arrays, bias = [x[:, :32] for x in (QUERY, KEY, VALUE)], (PositionTerm(Alibi(), Sizes(heads=N)),)
        got = outcome(accelerated.cudnn, *arrays, mask=Causal(), bias=bias, numerics=Numerics(), implementation='xla')
        assert_same(got, outcome(plain, *arrays, mask=Causal(), bias=bias))

    @parameterized.parameters((Full(), {}), (Causal(), {'is_causal': True}),
                              (Causal() & Window(5), {'is_causal': True, 'local_window_size': (4, 0)}), (Window(5), None))
    def test_patterns_that_need_no_booleans(self, mask, keywords):
        self.assertEqual(accelerated._keywords(mask, T, T), keywords)


class ChooseTest(parameterized.TestCase):
    def on(self, backend, **more):
        given = dict(mask=Causal(), numerics=BFLOAT16) | more
        with mock.patch.object(jax, 'default_backend', lambda: backend):
            return choose(QUERY, KEY, VALUE, **given)

    def test_the_fused_kernel_of_the_device_where_it_can(self):
        self.assertEqual(self.on('gpu').name, 'cudnn')
        self.assertEqual(self.on('tpu').name, 'rows')
        long = jax.ShapeDtypeStruct((16, 4096, 4, 64), jnp.float32)
        with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
            self.assertEqual(choose(long, long, long, mask=Causal()).name, 'splash')
            choice = choose(long, long, long, mask=Causal(), bias=jnp.ones((1, 1)))
        self.assertEqual(choice.name, 'blockwise')
        self.assertIn('rows: rows of more than 512 keys in float32; splash: a bias', choice.why)

    def test_positions_that_add_to_the_scores_have_a_fused_kernel(self):
        bias = PositionTerm(Alibi(), Sizes(heads=N)),
        self.assertEqual([self.on(backend, bias=bias).name for backend in ('gpu', 'tpu')], ['cudnn', 'rows'])

    @parameterized.parameters(
        ('gpu', dict(numerics=Numerics()), 'cudnn: float32, as it has 16-bit types only'),
        ('gpu', dict(rate=0.1), 'cudnn: dropout of the weights'),
        ('gpu', dict(bias=(PositionTerm(Shaw(), Sizes()),)), 'scores other than products'),
        ('tpu', dict(bias=(PositionTerm(Shaw(), Sizes()),)), 'rows: scores other than products'),
        ('tpu', dict(positions=(jnp.arange(T)[None], jnp.arange(T))), 'positions other than those of the row'))
    def test_why_it_is_not(self, backend, more, why):
        choice = self.on(backend, **more)
        self.assertEqual(choice.name, 'plain')
        self.assertIn(why, choice.why)

    def test_scores_that_need_more_memory(self):
        rows = jax.ShapeDtypeStruct((16, 256, 8, 64), jnp.float32)
        score = Additive(width=64)
        parameters = {name: jnp.zeros(one.shape) for name, one in score.parameters(8, 8, 64, 64).items()}
        _, _, bias = jax.eval_shape(score.prepare, parameters, rows, rows)
        with mock.patch.object(jax, 'default_backend', lambda: 'gpu'):
            self.assertEqual(choose(rows, rows, rows).name, 'plain')
            choice = choose(rows, rows, rows, bias=bias)
        self.assertEqual(choice.name, 'blockwise')
        self.assertIn('2.1 GB', choice.why)

    def test_a_row_that_is_longer_than_its_mask_knows_is_refused(self):
        for implementation in ('plain', 'blockwise', 'auto'):
            with self.assertRaisesRegex(ValueError, f'rows of up to 16 positions, but this one has {T}'):
                attend(QUERY, KEY, VALUE, mask=Causal() & Random(1, 4, 16), implementation=implementation)

    @parameterized.parameters(
        ('gpu', 8, 8, None), ('gpu', 128, 128, None), ('gpu', 136, 136, 'cudnn: heads that are wider than 128'),
        ('gpu', 12, 12, 'or not a multiple of 8'), ('gpu', 16, 24, 'cudnn: values of another width'),
        ('tpu', 12, 12, None), ('tpu', 16, 24, 'rows: values of another width'))
    def test_widths(self, backend, width, value_width, why):
        query, key, value = (jax.ShapeDtypeStruct((B, T, heads, w), jnp.float32)
                             for heads, w in ((N, width), (K, width), (K, value_width)))
        with mock.patch.object(jax, 'default_backend', lambda: backend):
            choice = choose(query, key, value, numerics=BFLOAT16)
        self.assertEqual(choice.name, 'plain' if why else {'gpu': 'cudnn', 'tpu': 'rows'}[backend])
        self.assertIn(why or 'the fused kernel', choice.why)

    def test_on_an_accelerator_long_rows_go_by_blocks(self):
        long = jax.ShapeDtypeStruct((4, 8192, 8, 64), jnp.float32)
        with mock.patch.object(jax, 'default_backend', lambda: 'gpu'):
            choice = choose(long, long, long)
        self.assertEqual(choice.name, 'blockwise')
        self.assertIn('8.6 GB', choice.why)

    def test_on_a_cpu_what_is_faster(self):
        long = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
        choice = choose(long, long, long, mask=Causal() & Window(64))
        self.assertEqual(choice.name, 'blockwise')
        self.assertRegex(choice.why, 'ms by blocks, .* ms with all scores at once')
        more = jax.ShapeDtypeStruct((3, 4096, 16, 64), jnp.float32)
        times = lambda x: np.float64(re.findall(r'([\d.e+]+) ms', choose(x, x, x, mask=Causal() & Window(64)).why))
        np.testing.assert_allclose(times(more), 6 * times(long), rtol=0.01)  # so many more heads in all
        short = jax.ShapeDtypeStruct((64, 16, 8, 64), jnp.float32)
        self.assertEqual(choose(short, short, short).name, 'plain')
        self.assertEqual(choose(long, long, long, positions=(jnp.zeros((1, 4096)), jnp.arange(4096))).name, 'plain')

    @parameterized.parameters(
        ('fast', "kernel 'fast' is not one of plain, blockwise, cudnn, rows, splash or 'auto'"),
        ('cudnn', "kernel 'cudnn' cannot do this: it needs a GPU, and this is cpu; use 'auto' or 'plain'"),
        ('rows', 'it needs a TPU'), ('splash', 'it needs a TPU'))
    def test_a_kernel_that_cannot_is_refused(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            attend(QUERY, KEY, VALUE, implementation=name)

    def test_attend_uses_what_is_chosen(self):
        with mock.patch('transformer.attention.kernels.attend.blockwise', return_value='blocks'):
            self.assertEqual(attend(QUERY, KEY, VALUE, implementation='blockwise'), 'blocks')


if __name__ == '__main__':
    absltest.main()
