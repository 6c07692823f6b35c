import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.marks import slow_but
from tests.transformer.attention.positions.absolute_test import drawn
from transformer.attention.context import Context
from transformer.attention.kernels.attend import attend
from transformer.attention.kernels.blockwise import blockwise
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions import relative
from transformer.attention.positions.absolute import Sinusoidal
from transformer.attention.positions.base import Encoding, Offsets, Positions, Sizes
from transformer.attention.positions.relative import (
    Alibi,
    Disentangled,
    Etc,
    Shaw,
    SwinBias,
    T5Bias,
    TransformerXl,
    Tupe,
    alibi_slopes,
    t5_buckets,
)
from transformer.attention.positions.rotary import Rotary

B, T, N, K, H, D = 2, 13, 4, 2, 6, 10  # two query heads share a head of keys
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=(B, T, heads, H)).astype(np.float32) for heads in (N, K, K, N))
TEXT = Sizes(length=T, width=D, heads=N, head_width=H)
IMAGE = dataclasses.replace(TEXT, grid=(3, 4), extra=1)
FRONT = dataclasses.replace(TEXT, grid=(2, 5), extra=3, registers=1)
PLACES = np.concatenate([np.arange(5), np.arange(T - 5)])  # two documents in a row


def at(kind, o, distance):
    return np.clip(o, -distance, distance) + distance


def bucket(o, buckets, distance, both):
    """The paper's buckets by whole numbers: `exact` single positions, then the others j = 0, 1, ... from
    exact·(distance / exact)^(j / others) on."""
    first = 0
    if both:
        buckets //= 2
        first = buckets * (o > 0)
    away, exact = int(abs(o) if both else max(-o, 0)), buckets // 2
    others = buckets - exact
    reached = [j for j in range(others) if away ** others * exact ** j >= exact ** others * distance ** j]
    return first + (away if away < exact else exact + max(reached))


def wave(x):
    """Sines and cosines of one position, one at a time."""
    angle = [x / 10000 ** (i // 2 * 2 / D) for i in range(D)]
    return np.array([np.cos(a) if i % 2 else np.sin(a) for i, a in enumerate(angle)])


def of_swin(kind, p, q, k, n, t, s, sizes):
    (rows, columns), front = sizes.grid, sizes.extra
    if t < front or s < front:
        return q @ k / H ** 0.5 + p['extra'][0 if s >= front else 1 if t >= front else 2, n]
    (i, j), (a, b) = divmod(t - front, columns), divmod(s - front, columns)
    return q @ k / H ** 0.5 + p['bias'][a - i + rows - 1, b - j + columns - 1, n]


def of_xl(kind, p, q, k, n, t, s, sizes):
    where = np.einsum('d,dh->h', wave(t - s), p['projection'][:, n])
    return ((q + p['content'][n]) @ k + (q + p['position'][n]) @ where) / H ** 0.5


def of_deberta(kind, p, q, k, n, t, s, sizes):
    delta = lambda i, j: min(max(i - j + kind.distance, 0), 2 * kind.distance - 1)
    to, of = p['embedding'][delta(t, s)] @ p['keys'][:, n], p['embedding'][delta(s, t)] @ p['queries'][:, n]
    return (q @ k + q @ to + k @ of) / (3 * H) ** 0.5


def of_tupe(kind, p, q, k, n, t, s, sizes):
    place_t, place_s = (t, s) if sizes.grid else (PLACES[t], PLACES[s])
    apart = (p['embedding'][place_t] @ p['queries'][:, n]) @ (p['embedding'][place_s] @ p['keys'][:, n]) / (2 * H) ** 0.5
    apart += p['bias'][bucket(s - t, 32, 128, not sizes.causal), n] if kind.relative else 0
    if kind.untied and sizes.extra:
        apart = p['theta'][0, n] if t < sizes.extra else p['theta'][1, n] if s < sizes.extra else apart
    return q @ k / (2 * H) ** 0.5 + apart


def of_etc(kind, p, q, k, n, t, s, sizes):
    clipped, count = at(kind, s - t, kind.distance), 2 * kind.distance + 1
    label = {(False, False): clipped, (True, True): count + clipped, (True, False): 2 * count, (False, True): 2 * count + 1}
    return q @ (k + p['labels'][label[t < kind.tokens, s < kind.tokens]]) / H ** 0.5


SLOPES = {4: [1 / 4, 1 / 16, 1 / 64, 1 / 256]}
SCORES = {  # of one query and one key
    Shaw: lambda kind, p, q, k, n, t, s, _: q @ (k + p['keys'][at(kind, s - t, kind.distance)]) / H ** 0.5,
    T5Bias: lambda kind, p, q, k, n, t, s, sizes: (
        q @ k / H ** 0.5 + p['bias'][bucket(s - t, kind.buckets, kind.distance, not sizes.causal), n]),
    Alibi: lambda kind, p, q, k, n, t, s, _: q @ k / H ** 0.5 - SLOPES[N][n] * abs(t - s),
    SwinBias: of_swin, TransformerXl: of_xl, Disentangled: of_deberta, Tupe: of_tupe, Etc: of_etc,
    Sinusoidal: lambda kind, p, q, k, n, t, s, _: (
        q @ k / H ** 0.5 * (wave(t) @ wave(s) / (D / 2)) if kind.at == 'scores_times'
        else q @ k / H ** 0.5 + kind.scale ** 2 * wave(t) @ wave(s) / D ** 0.5)}
KINDS = [Shaw(2), Shaw(30), T5Bias(), T5Bias(8, 6), T5Bias(8, 12), Alibi(), TransformerXl(), Disentangled(3), Disentangled(4),
         Tupe(), Tupe(relative=False), Etc(2, 3), Etc(3, 4), Sinusoidal('scores', 0.7), Sinusoidal('scores_times')]
OF_IMAGES = [SwinBias(), Tupe(), Tupe(untied=False), T5Bias(8, 6)]
# (encoding, sizes, mask); the direction counts in buckets alone
CASES = [(kind, dataclasses.replace(TEXT, causal=mask.causal), mask) for i, kind in enumerate(KINDS)
         for mask in ((Causal(), Full()) if kind in (T5Bias(), Tupe()) else (Causal(), Full())[i % 2:][:1])]
CASES += [(kind, IMAGE, Full()) for kind in OF_IMAGES] + [(kind, FRONT, Full()) for kind in (SwinBias(), Tupe())]
NAMES = {1: 'image', 3: 'front'}
CASES = [dict(testcase_name=f'{kind}_{mask}_{NAMES.get(sizes.extra, "text")}', kind=kind, sizes=sizes, mask=mask)
         for kind, sizes, mask in CASES]


def parameters(kind, sizes):
    return drawn(kind.parameters(sizes)), drawn(kind.layer_parameters(sizes))


def entries(kind, sizes, shared, own):
    places = (None, None) if sizes.grid else (jnp.array(PLACES),) * 2
    return kind.bias(shared, own, *places, sizes)


def naive(kind, sizes, mask, p):
    """Attention in float64, one pair at a time."""
    out = np.zeros((B, T, N, H))
    visible = np.broadcast_to(mask(np.arange(T), np.arange(T)), (T, T))
    p = {name: np.float64(x) for name, x in p.items()}
    for b, t, n in np.ndindex(B, T, N):
        seen = np.flatnonzero(visible[t])
        query, keys, values = np.float64(QUERY[b, t, n]), np.float64(KEY[b, :, n // 2]), np.float64(VALUE[b, :, n // 2])
        weights = np.exp([SCORES[type(kind)](kind, p, query, keys[s], n, t, s, sizes) for s in seen])
        for weight, s in zip(weights / weights.sum(), seen):
            out[b, t, n] += weight * values[s]
            if isinstance(kind, Shaw):
                out[b, t, n] += weight * p['values'][at(kind, s - t, kind.distance)]
    return out


@slow_but('test_equals_a_float64_loop_by_the_plain_kernel_and_by_blocks_with_the_same_gradients',
          *(one['testcase_name'] for one in CASES if one['kind'] not in (T5Bias(8, 12), Disentangled(4), Etc(3, 4), Shaw(30))))
class ScoresTest(parameterized.TestCase):
    @parameterized.named_parameters(*CASES)
    def test_equals_a_float64_loop_by_the_plain_kernel_and_by_blocks_with_the_same_gradients(self, kind, sizes, mask):
        shared, own = parameters(kind, sizes)

        @functools.partial(jax.jit, static_argnums=0)
        def outcome(kernel, *given):
            def mixed(query, key, value, shared, own):
                return kernel(query, key, value, mask=mask, bias=entries(kind, sizes, shared, own))
            out, back = jax.vjp(mixed, *given)
            return out, back(jnp.asarray(COTANGENT))

        plain = functools.partial(attend, implementation='plain')
        given = QUERY, KEY, VALUE, shared, own
        (out, gradients), (by_blocks, by_blocks_gradients) = (
            outcome(kernel, *given) for kernel in (plain, functools.partial(blockwise, size=8)))
        np.testing.assert_allclose(out, naive(kind, sizes, mask, shared | own), rtol=1e-4, atol=5e-5)
        np.testing.assert_allclose(by_blocks, out, rtol=1e-4, atol=2e-5)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5), by_blocks_gradients, gradients)
        for name, gradient in (gradients[3] | gradients[4]).items():
            self.assertGreater(float(jnp.abs(gradient).max()), 1e-4, name)

    @parameterized.named_parameters(*((str(kind), kind) for kind in (Shaw(2), T5Bias(8, 6), Disentangled(3), Etc(2, 3))))
    def test_an_accelerator_computes_the_same_in_another_way(self, kind):
        shared, own = jax.tree.map(jnp.asarray, parameters(kind, TEXT))
        scores, row = RNG.normal(size=(B, N, T, T)).astype(np.float32), jnp.arange(T)

        def changed(shared, own):
            term, = kind.bias(shared, own, None, None, TEXT)
            out = term(scores, QUERY, KEY, row, row)
            return out, term.values(scores, row, row) if term.values else jnp.zeros(())

        def outcome():
            out, back = jax.vjp(changed, shared, own)
            return out, back(jax.tree.map(jnp.cos, out))
        one = outcome()
        for device in 'gpu', 'tpu':
            with mock.patch.object(jax, 'default_backend', lambda device=device: device):
                other, index = outcome(), Offsets(row, row, 2).index
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=5e-5, atol=5e-5), other, one)
            self.assertIsNone(index)
        self.assertIsNotNone(Offsets(row, row, 2).index)

    @parameterized.named_parameters(*((str(kind), kind) for kind in KINDS if not isinstance(kind, Tupe | Etc)))
    def test_does_not_change_when_all_positions_move_on(self, kind):
        shared, own = parameters(kind, TEXT)
        term, = kind.bias(shared, own, None, None, TEXT)
        moved = lambda step: term(scores, QUERY, KEY, jnp.arange(T) + step, jnp.arange(T) + step)
        scores = RNG.normal(size=(B, N, T, T)).astype(np.float32)
        np.testing.assert_allclose(moved(9), moved(0), atol=1e-5)
        self.assertGreater(np.abs(term(scores, QUERY, KEY, jnp.arange(T) + 2, jnp.arange(T)) - moved(0)).max(), 1e-2)

    @parameterized.named_parameters(*((str(kind), kind) for kind in KINDS))
    def test_queries_at_positions_of_their_own_in_every_row(self, kind):
        shared, own = parameters(kind, TEXT)
        term, = kind.bias(shared, own, None, None, TEXT)
        t, s = jnp.array([[3, 4], [7, 2]]), jnp.arange(T)
        scores, queries = RNG.normal(size=(B, N, 2, T)).astype(np.float32), QUERY[:, :2]
        together = term(scores, queries, KEY, t, s)
        weights = jax.nn.softmax(together)
        for b, i in np.ndindex(B, 2):
            one = term(scores[b:b + 1, :, i:i + 1], queries[b:b + 1, i:i + 1], KEY[b:b + 1], t[b, i:i + 1], s)
            np.testing.assert_allclose(together[b, :, i], one[0, :, 0], atol=1e-5)
            if term.values:
                more = term.values(weights[b:b + 1, :, i:i + 1], t[b, i:i + 1], s)
                np.testing.assert_allclose(term.values(weights, t, s)[b, :, i], more[0, :, 0], atol=1e-5)

    @parameterized.product(kind=(T5Bias(8, 6), Tupe()), mask=(Causal(), Full()))
    def test_a_layer_looks_one_way_under_a_causal_mask_and_else_both(self, kind, mask):
        layer, row, sizes = MultiHead(2), jnp.arange(20), dataclasses.replace(TEXT, length=20, heads=2)
        x = RNG.normal(size=(1, 20, D)).astype(np.float32)
        run = lambda params, shared: layer.apply(
            params, x, context=Context(mask, Encoding(kind, shared, row, row, sizes)))[0]
        shared = drawn(kind.parameters(sizes))
        shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, context=Context(mask)))
        params = jax.tree.map(lambda s: RNG.normal(size=s.shape).astype(np.float32), shapes)
        gradient = jax.jit(jax.grad(lambda shared: (run(params, shared) * x).sum()))(shared)['bias']
        buckets, distance = (8, 6) if isinstance(kind, T5Bias) else (32, 128)
        used = {bucket(o, buckets, distance, not mask.causal) for o in range(-19, 1 if mask.causal else 20)}
        self.assertEqual(set(np.flatnonzero(np.any(gradient, 1))), used)

    def test_every_encoding_is_tried_and_every_field(self):
        known = {cls for cls in vars(relative).values() if isinstance(cls, type) and issubclass(cls, Positions)
                 and cls.__module__ == relative.__name__ and not cls.__name__.startswith('_')}
        tried = [*KINDS, *OF_IMAGES]
        self.assertEqual(known, {type(kind) for kind in tried} - {Sinusoidal})
        for cls in known:
            for name in (field.name for field in dataclasses.fields(cls)):
                self.assertGreater(len({getattr(kind, name) for kind in tried if type(kind) is cls}), 1, (cls, name))

    def test_in_bfloat16_products_are_of_that_type_and_scores_stay_wide(self):
        narrow = lambda x: jnp.asarray(x, jnp.bfloat16)
        scores = np.zeros((B, N, T, T), np.float32)
        for kind in (Shaw(2), T5Bias(8, 6), TransformerXl(), Disentangled(3), Tupe(), Etc(2, 3)):
            shared, own = jax.tree.map(jnp.asarray, parameters(kind, TEXT))
            term, = kind.bias(shared, own, None, None, TEXT)
            call = lambda q, k, term=term: term(scores, q, k, jnp.arange(T), jnp.arange(T))
            got = call(narrow(QUERY), narrow(KEY))
            self.assertEqual(got.dtype, jnp.float32, kind)
            wanted = call(QUERY, KEY)
            np.testing.assert_allclose(got, wanted, rtol=0, atol=0.012 * np.abs(wanted).max())  # they err by 0.004 at most
            products = [e for e in jax.make_jaxpr(call)(narrow(QUERY), narrow(KEY)).eqns if e.primitive.name == 'dot_general']
            self.assertTrue(all(v.aval.dtype == jnp.bfloat16 for e in products for v in e.invars), kind)


class TablesTest(parameterized.TestCase):
    def test_slopes_of_alibi(self):
        np.testing.assert_array_equal(alibi_slopes(8), [2.0 ** -i for i in range(1, 9)])
        np.testing.assert_array_equal(alibi_slopes(1), [2.0 ** -8])
        # Of 12 heads those of 8, then every other one of 16, as the authors' code has them.
        np.testing.assert_allclose(alibi_slopes(12)[8:], [2.0 ** -0.5, 2.0 ** -1.5, 2.0 ** -2.5, 2.0 ** -3.5], rtol=1e-6)
        np.testing.assert_array_equal(alibi_slopes(12)[:8], alibi_slopes(8))

    @parameterized.parameters((32, 128, True), (32, 128, False), (8, 12, True), (64, 256, False))
    def test_buckets_of_t5(self, buckets, distance, both):
        wanted = [bucket(o, buckets, distance, both) for o in range(-distance, distance + 1)]
        np.testing.assert_array_equal(t5_buckets(buckets, distance, both), wanted)

    def test_buckets_of_t5_as_they_are_known(self):
        # https://github.com/google-research/text-to-text-transfer-transformer: 8 single positions, then these ranges.
        after = t5_buckets(32, 128, True)[129:]  # keys 1, 2, ... positions after the query
        first = [int(np.argmax(after == b)) + 1 for b in range(17, 32)]
        self.assertEqual(first, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91])
        before = t5_buckets(32, 128, False)[:129][::-1]  # 0, 1, ... before it, under a causal mask
        first = [int(np.argmax(before == b)) for b in range(32)]
        self.assertEqual(first, [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113])

    def test_buckets_are_those_of_the_paper_unless_told_otherwise(self):
        self.assertEqual(T5Bias(), T5Bias(buckets=32, distance=128))

    def test_rows_of_pairs(self):
        t, s = jnp.arange(3, 8), jnp.arange(2, 6)
        pairs = Offsets(t, s)
        x = RNG.normal(size=(2, 3, 5, 8)).astype(np.float32)
        wanted = [[x[..., i, list(pairs.offsets).index(s[j] - t[i])] for j in range(4)] for i in range(5)]
        np.testing.assert_array_equal(pairs.spread(x), np.moveaxis(wanted, (0, 1), (-2, -1)))
        for queries in (t, jnp.stack([t, t[::-1]])):
            pairs = Offsets(queries, jnp.arange(9))
            weights = RNG.normal(size=(2, 3, 5, 9)).astype(np.float32)
            x = RNG.normal(size=(2, 3, 5, len(pairs.offsets))).astype(np.float32)
            one, other = (pairs.spread(x) * weights).sum(), (pairs.collect(weights) * x).sum()
            self.assertAlmostEqual(float(one), float(other), places=3)

    def test_swins_table_is_resized_for_images_of_another_size(self):
        table = RNG.normal(size=(5, 7, N)).astype(np.float32)
        self.assertEqual(SwinBias().resized('bias', table, dataclasses.replace(IMAGE, grid=(6, 8))).shape, (11, 15, N))
        flat = np.ones((5, 7, N), np.float32)
        np.testing.assert_allclose(SwinBias().resized('bias', flat, dataclasses.replace(IMAGE, grid=(2, 2))), 1.0, atol=1e-5)
        larger = SwinBias().resized('bias', table, dataclasses.replace(IMAGE, grid=(8, 11)))
        np.testing.assert_allclose(larger[1::3, 1::3], table, atol=1e-6)  # curves go through the points
        again = SwinBias().resized('bias', larger, dataclasses.replace(IMAGE, grid=(3, 4)))
        np.testing.assert_allclose(again, table, atol=1e-6)  # nothing is smoothed
        extra = RNG.normal(size=(3, N)).astype(np.float32)  # of a class token
        self.assertIs(SwinBias().resized('extra', extra, dataclasses.replace(IMAGE, extra=1, grid=(8, 11))), extra)

    @parameterized.parameters(
        (lambda: Shaw(0), 'distance is 0; expected at least 1'), (lambda: Disentangled(0), 'distance is 0'),
        (lambda: T5Bias(buckets=2), 'buckets is 2; expected at least 4'), (lambda: T5Bias(32, 16), 'has to be more than 16'),
        (lambda: Etc(tokens=0), 'tokens is 0'), (lambda: Etc(distance=0), 'distance is 0'),
        (lambda: SwinBias().layer_parameters(TEXT), r'SwinBias\(\) is for the patches of an image, and this model has none'),
        (lambda: Tupe().resized('embedding', np.zeros((3, 2)), IMAGE), 'made for images of another size'),
        (lambda: Rotary(scaling='linear', factor=0.5), 'a factor from 1'))
    def test_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


if __name__ == '__main__':
    absltest.main()
