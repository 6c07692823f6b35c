import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from transformer.attention.kernels import rows
from transformer.attention.kernels.attend import mixed, plain, weights_of
from transformer.attention.kernels.terms import arrays_of
from transformer.attention.masks.data import Explicit, Marked, Padding, Segments
from transformer.attention.masks.patterns import BlockDiagonal, Causal, Full, Global, Window
from transformer.attention.positions.base import PositionTerm, Sizes
from transformer.attention.positions.relative import Alibi, Shaw, SwinBias, T5Bias
from transformer.layers.numerics import Numerics

RNG = np.random.default_rng(0)
B, T, N, K, H = 4, 260, 4, 2, 16
NUMBERS = jnp.asarray([[1] * 100 + [2] * 120 + [0] * 40, [1] * 260, [3] * 259 + [0], [0] * 260])
MASKS = {
    'full': Full(), 'causal': Causal(), 'window': Causal() & Window(20), 'longformer': Causal() & (Window(20) | Global(3)),
    'blocks': BlockDiagonal(7), 'ahead': ~Causal(), 'nothing': ~Full(), 'padding': Padding(jnp.array([40, 0, 260, 129])),
    'segments': Segments(NUMBERS, NUMBERS), 'causal_segments': Causal() & Segments(NUMBERS, NUMBERS),
    'prefix': Causal() | Marked(NUMBERS == 1), 'two': Padding(jnp.array([40, 7, 260, 129])) & Segments(NUMBERS, NUMBERS),
    'explicit': Explicit(jnp.asarray(RNG.random((B, T, T)) < 0.1))}


def arrays(queries=T, keys=T, heads=N, key_heads=K, width=H, batch=B):
    shapes = (batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, width)
    return [RNG.normal(size=shape).astype(np.float32) for shape in shapes]


def outcome(kernel, given, bias=(), numerics=Numerics(), **more):
    """The output, and the gradients of arrays and biases."""
    cotangent = np.random.default_rng(1).normal(size=given[0].shape).astype(np.float32)

    @jax.jit
    def both(given, bias):
        out, pull = jax.vjp(lambda given, bias: kernel(*given, bias=bias, numerics=numerics, **more), given, bias)
        return out, pull(cotangent.astype(out.dtype))
    return both(given, bias)


def assert_same(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, wanted)


def emulated(*given, **more):
    return rows.rows(*given, interpret=True, **more)


class RowsTest(parameterized.TestCase):
    """The kernel of a TPU, emulated."""

    @parameterized.named_parameters(*MASKS.items())
    def test_gives_what_the_plain_kernel_gives(self, mask):
        given = arrays()
        self.assertIsNone(rows.lacks(*given[:2], mask=mask, bias=(), numerics=Numerics()))
        assert_same(outcome(emulated, given, mask=mask), outcome(plain, given, mask=mask))

    @parameterized.parameters(
        (5, 300, 4, 4, 16), (197, 49, 3, 3, 64), (1, 7, 5, 5, 64), (1030, 1024, 2, 1, 8), (49, 49, 6, 3, 32),
        (20, 20, 2, 2, 80), (20, 20, 2, 2, 256))
    def test_other_lengths_numbers_of_heads_and_widths(self, queries, keys, heads, key_heads, width):
        given = arrays(queries, keys, heads, key_heads, width)
        mask = Causal() | Full() if queries != keys else Causal()
        assert_same(outcome(emulated, given, mask=mask), outcome(plain, given, mask=mask))

    @parameterized.parameters((N, T, T), (B, N, T, T), (B, 1, 1, T), (N, 1, T), (1, T, 1), ())
    def test_the_gradient_of_a_bias(self, *shape):
        given, bias = arrays(), (jnp.float32(RNG.normal(size=shape)), jnp.float32(RNG.normal(size=(N, 1, T))))
        assert_same(outcome(emulated, given, bias, mask=Causal()), outcome(plain, given, bias, mask=Causal()))

    @parameterized.parameters(T5Bias(), Alibi(), SwinBias())
    def test_positions_that_add_to_the_scores(self, kind):
        grid = (13, 20) if isinstance(kind, SwinBias) else None
        sizes = Sizes(length=T, width=N * H, heads=N, head_width=H, grid=grid)
        parameters = {name: jnp.float32(RNG.normal(size=one.shape))
                      for name, one in (kind.parameters(sizes) | kind.layer_parameters(sizes)).items()}
        given, bias = arrays(), (PositionTerm(kind, sizes, parameters),)
        self.assertTrue(bias[0].additive)
        assert_same(outcome(emulated, given, bias, mask=Causal()), outcome(plain, given, bias, mask=Causal()))

    @parameterized.parameters(
        ((T, T, N, K, H, B), ()), ((20, 20, 5, 5, 64, 6), ((5, 20, 20),)), ((20, 20, 5, 5, 64, 6), ((6, 5, 20, 20),)),
        ((20, 20, 6, 3, 64, 6), ((6, 1, 1, 20), (20, 20))), ((20, 20, 6, 3, 64, 6), ((6, 20, 20),)))
    def test_dropout_drops_by_a_hash_of_the_place_row_and_head(self, sizes, biases):
        """With several rows and groups of heads a step, the last of which is not full."""
        given, rate, key = arrays(*sizes), 0.3, jax.random.key(5)
        bias, (length, _, heads, *_, batch) = tuple(jnp.float32(RNG.normal(size=shape)) for shape in biases), sizes
        numbers = NUMBERS[jnp.arange(batch) % B, -length:]
        mask = Causal() & Padding(jnp.arange(batch) * 4) & Segments(numbers, numbers)
        seeds = jax.random.bits(key, (2,), jnp.uint32).astype(jnp.int32)
        cells = rows.of_cell(*seeds, jnp.arange(batch)[:, None, None, None], jnp.arange(heads)[:, None, None])
        places = jnp.arange(length)[:, None] * rows.LONGEST + jnp.arange(length)
        kept = rows.hashed(places, *cells) >= rows.least_kept(rate)

        def wanted(query, key, value, mask, bias, numerics):
            weights = weights_of(query, key, mask=mask, bias=bias, numerics=numerics)
            return mixed(jnp.where(kept, weights / (1 - rate), 0.0), value, numerics=numerics)
        found = outcome(emulated, given, bias, mask=mask, rate=rate, dropout_key=key)
        assert_same(found, outcome(wanted, given, bias, mask=mask))

    def test_a_bias_that_hides_all_keys(self):
        given, bias = arrays(20, 20), jnp.zeros((20, 20)).at[3].set(-jnp.inf)
        found = outcome(emulated, given, (bias,), mask=Full())
        self.assertFalse(np.any(found[0][:, 3]))
        assert_same(found, outcome(plain, given, (bias,), mask=Full()))

    def test_what_dropout_keeps_is_independent_of_place_row_and_head(self):
        seeds = jax.random.bits(jax.random.key(0), (2,), jnp.uint32).astype(jnp.int32)
        row, head = (jnp.arange(8)[x, None, None] for x in np.indices((8, 8)).reshape(2, 64))
        places = jnp.arange(128)[:, None] * rows.LONGEST + jnp.arange(128)
        kept = np.asarray(rows.hashed(places, *rows.of_cell(*seeds, row, head)) >= rows.least_kept(0.3)) - 0.7
        deviation = (0.21 / kept.size) ** 0.5
        self.assertLess(abs(kept.mean()), 5 * deviation)
        shifts = ((1, 0), (8, 0), (1, 1), (1, 2), ((1, 1), (1, 2)))  # to the next head, row, query, key, and the diagonal
        for other in (np.roll(kept, *shift) for shift in shifts):
            self.assertLess(abs((kept * other).mean()), 5 * 0.21 / kept.size ** 0.5)
        for axis in (0, 1, 2):  # no row, column or head is dropped more often than others
            means = kept.mean(axis=tuple({0, 1, 2} - {axis}))
            self.assertLess(abs(means).max(), 5 * (0.21 * len(means) / kept.size) ** 0.5)

    def test_each_device_computes_its_rows_and_heads(self):
        mesh = jax.make_mesh((2, 1, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:4])
        given, mask = arrays(), Causal() & MASKS['segments']
        bias = jnp.float32(RNG.normal(size=(N, T, T))), jnp.float32(RNG.normal(size=(B, 1, 1, T)))
        for more in ((bias[:1], {}), (bias, {}), ((), dict(rate=0.5, dropout_key=jax.random.key(0)))):
            wanted = outcome(emulated, given, more[0], mask=mask, **more[1])
            with jax.set_mesh(mesh):
                assert_same(outcome(emulated, given, more[0], mask=mask, **more[1]), wanted)

    @parameterized.parameters((3, 4, 2), (4, 3, 3), (1, 2, 1))
    def test_what_the_devices_do_not_divide_is_computed_by_each(self, batch, heads, key_heads):
        mesh = jax.make_mesh((1, 2, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:4])
        given, bias = arrays(20, 20, heads, key_heads, batch=batch), (jnp.float32(RNG.normal(size=(heads, 20, 20))),)
        more = dict(mask=Causal(), rate=0.5, dropout_key=jax.random.key(0))
        wanted = outcome(emulated, given, bias, **more)
        with jax.set_mesh(mesh):
            assert_same(outcome(emulated, given, bias, **more), wanted)

    def test_a_batch_of_calls(self):
        given, bias = [np.stack([x, x[::-1]]) for x in arrays(20, 20)], (jnp.float32(RNG.normal(size=(2, N, 20, 20))),)
        each = lambda kernel: jax.vmap(lambda given, bias: outcome(kernel, given, bias, mask=Causal()))(given, bias)
        assert_same(each(emulated), each(plain))

    def test_in_bfloat16_it_is_as_close_to_float32_as_the_plain_kernel(self):
        given = [np.asarray(x, jnp.bfloat16).astype(np.float32) for x in arrays(key_heads=N)]
        exact = outcome(plain, given, mask=Causal())
        error = lambda kernel: [float(np.abs(np.float32(a) - b).mean()) for a, b in zip(jax.tree.leaves(
            outcome(kernel, given, mask=Causal(), numerics=Numerics('bfloat16'))), jax.tree.leaves(exact))]
        for mine, plains in zip(error(emulated), error(plain)):
            self.assertLess(mine, 1.5 * plains)

    @parameterized.parameters(
        (dict(numerics=Numerics('mixed')), 'numbers in mixed'), (dict(keys=513), 'more than 512 keys in float32'),
        (dict(keys=1025, numerics=Numerics('bfloat16')), 'more than 1024 keys in bfloat16'),
        (dict(queries=8192, keys=512, width=128), 'MB beside the processor, and has 16'),
        (dict(queries=1024, keys=512, bias=(jnp.ones(()),)), 'MB beside the processor'))
    def test_what_it_lacks(self, given, message):
        sizes = dict(queries=256, keys=256, width=64) | {k: v for k, v in given.items() if k in ('queries', 'keys', 'width')}
        row = lambda length: jax.ShapeDtypeStruct((2, length, 4, sizes['width']), jnp.float32)
        more = dict(mask=Full(), bias=(), numerics=Numerics()) | {k: v for k, v in given.items() if k in ('bias', 'numerics')}
        self.assertIn(message, rows.lacks(row(sizes['queries']), row(sizes['keys']), **more))

    @parameterized.parameters(
        (dict(mask=Causal() & (Window(20) | Global(3)) & (Window(30) | Global(3))), 1024, 4, 2, 128),
        (dict(bias=jnp.ones(())), 256, 8, 8, 16),
        (dict(mask=Causal() & Padding(jnp.ones(2)), bias=jnp.ones((1, 12, 1, 1))), 512, 12, 12, 64))
    def test_what_it_does_not_lack(self, given, length, heads, key_heads, width):
        row = lambda heads: jax.ShapeDtypeStruct((2, length, heads, width), jnp.float32)
        more = dict(mask=Full(), numerics=Numerics('bfloat16')) | given | {'bias': (given['bias'],) if 'bias' in given else ()}
        self.assertIsNone(rows.lacks(row(heads), row(key_heads), **more))

    def test_other_terms_are_no_arrays(self):
        sizes = Sizes(length=8, width=8, heads=2, head_width=4)
        self.assertFalse(PositionTerm(Shaw(), sizes).additive)
        array = jnp.ones((2, 8, 8))
        self.assertIs(arrays_of((array,), 8, 8)[0], array)


if __name__ == '__main__':
    absltest.main()
