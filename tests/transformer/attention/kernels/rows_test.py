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


def assert_same(got, wanted, tolerance=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)


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
        assert_same(outcome(emulated, given, mask=mask), outcome(plain, given, mask=mask), 1e-4)

    @parameterized.parameters((N, T, T), (B, N, T, T), (B, 1, 1, T), (N, 1, T), (1, T, 1), ())
    def test_the_gradient_of_a_bias(self, *shape):
        given, bias = arrays(), (jnp.float32(RNG.normal(size=shape)), jnp.float32(RNG.normal(size=(N, 1, T))))
        assert_same(outcome(emulated, given, bias, mask=Causal()), outcome(plain, given, bias, mask=Causal()), 1e-4)

    @parameterized.parameters(T5Bias(), Alibi(), SwinBias())
    def test_positions_that_add_to_the_scores(self, kind):
        grid = (13, 20) if isinstance(kind, SwinBias) else None
        sizes = Sizes(length=T, width=N * H, heads=N, head_width=H, grid=grid)
        parameters = {name: jnp.float32(RNG.normal(size=one.shape))
                      for name, one in (kind.parameters(sizes) | kind.layer_parameters(sizes)).items()}
        given, bias = arrays(), (PositionTerm(kind, sizes, parameters),)
        self.assertTrue(bias[0].additive)
        assert_same(outcome(emulated, given, bias, mask=Causal()), outcome(plain, given, bias, mask=Causal()), 1e-4)

    def test_dropout_drops_by_a_hash_of_the_place_row_and_head(self):
        given, rate, key = arrays(), 0.3, jax.random.key(5)
        seeds = jax.random.bits(key, (B, N, 2), jnp.uint32).astype(jnp.int32)
        places = jnp.arange(T)[:, None] * rows.LONGEST + jnp.arange(T)
        kept = rows.hashed(places, *(seeds[:, :, i, None, None] for i in (0, 1))) >= round(rate * 2 ** 31)

        def wanted(query, key, value, mask, bias, numerics):
            weights = weights_of(query, key, mask=mask, numerics=numerics)
            return mixed(jnp.where(kept, weights / (1 - rate), 0.0), value, numerics=numerics)
        found = outcome(emulated, given, mask=Causal(), rate=rate, dropout_key=key)
        assert_same(found, outcome(wanted, given, mask=Causal()))

    def test_what_dropout_keeps_is_independent_of_place_row_and_head(self):
        seeds = jax.random.bits(jax.random.key(0), (64, 2), jnp.uint32).astype(jnp.int32)[:, :, None, None]
        places = jnp.arange(128)[:, None] * rows.LONGEST + jnp.arange(128)
        kept = np.asarray(rows.hashed(places, seeds[:, 0], seeds[:, 1]) >= round(0.3 * 2 ** 31)) - 0.7
        deviation = (0.21 / kept.size) ** 0.5
        self.assertLess(abs(kept.mean()), 5 * deviation)
        for other in (np.roll(kept, 1, 0), np.roll(kept, 1, 1), np.roll(kept, 1, 2), np.roll(kept, (1, 1), (1, 2))):
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

    def test_in_bfloat16_it_is_as_close_to_float32_as_the_plain_kernel(self):
        given = [np.asarray(x, jnp.bfloat16).astype(np.float32) for x in arrays(key_heads=N)]
        exact = outcome(plain, given, mask=Causal())
        error = lambda kernel: [float(np.abs(np.float32(a) - b).mean()) for a, b in zip(jax.tree.leaves(
            outcome(kernel, given, mask=Causal(), numerics=Numerics('bfloat16'))), jax.tree.leaves(exact))]
        for mine, plains in zip(error(emulated), error(plain)):
            self.assertLess(mine, 1.1 * plains)

    @parameterized.parameters(
        (dict(numerics=Numerics('mixed')), 'numbers in mixed'), (dict(keys=1025), 'more than 1024 keys'),
        (dict(queries=4096, keys=1024, width=128), 'MB beside the processor, of 16'),
        (dict(queries=1024, keys=1024, bias=(1,)), 'MB beside the processor'))
    def test_what_it_lacks(self, given, message):
        sizes = dict(queries=256, keys=256, width=64) | {k: v for k, v in given.items() if k in ('queries', 'keys', 'width')}
        row = lambda length: jax.ShapeDtypeStruct((2, length, 4, sizes['width']), jnp.float32)
        more = dict(mask=Full(), bias=(), numerics=Numerics()) | {k: v for k, v in given.items() if k in ('bias', 'numerics')}
        self.assertIn(message, rows.lacks(row(sizes['queries']), row(sizes['keys']), **more))

    def test_other_terms_are_no_arrays(self):
        sizes = Sizes(length=8, width=8, heads=2, head_width=4)
        self.assertFalse(PositionTerm(Shaw(), sizes).additive)
        array = jnp.ones((2, 8, 8))
        self.assertIs(arrays_of((array,), 8, 8)[0], array)


if __name__ == '__main__':
    absltest.main()
