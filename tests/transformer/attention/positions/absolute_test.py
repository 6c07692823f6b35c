import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.marks import slow_but
from tests.models import build, changed
from training.config import resolve
from transformer.attention.context import Context
from transformer.attention.masks.patterns import Full
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions import absolute, base
from transformer.attention.positions.absolute import Learned, Sinusoidal, Sinusoidal2d, bicubic, sinusoid
from transformer.attention.positions.base import Encoding, NoPositions, Positions, Sizes
from transformer.attention.positions.relative import Alibi, Disentangled, Etc, Shaw, SwinBias, T5Bias, TransformerXl, Tupe
from transformer.attention.positions.rotary import Rotary
from transformer.models.gpt import Gpt
from vit.models.vit import Vit

RNG = np.random.default_rng(0)
SIZES = Sizes(length=9, width=8, heads=2, head_width=4)
IMAGE = dataclasses.replace(SIZES, length=7, grid=(2, 3), extra=1)
X = RNG.normal(size=(2, 7, 8)).astype(np.float32)
KEY = jax.random.key(0)
TOKENS = RNG.integers(11, size=(2, 8))
# Every encoding that text can have.
OF_TEXT = [NoPositions(), Learned(), Learned(at='layers'), Learned(at='queries_keys'), Sinusoidal(), Sinusoidal(at='layers'),
           Sinusoidal(at='queries_keys'), Sinusoidal(at='scores'), Sinusoidal(at='scores_times'), Rotary(),
           Rotary(scaling='ntk', factor=2.0), Shaw(2), T5Bias(4, 5), Alibi(), TransformerXl(), Disentangled(3), Tupe(),
           Etc(2, 2)]


def drawn(wanted, scale=1.0):
    """{name: array} from numpy for {name: `Wanted`}."""
    return {name: (scale * RNG.normal(size=one.shape)).astype(np.float32) for name, one in wanted.items()}


def variables(model, *inputs):
    shapes = jax.eval_shape(lambda: model.init(KEY, *inputs))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: (0.4 * rng.normal(size=s.shape)).astype(np.float32), shapes)


def wave(t, width, base=10000.0):
    """Vaswani et al. 2017, section 3.5, one number at a time."""
    return [math.cos(t / base ** ((i - 1) / width)) if i % 2 else math.sin(t / base ** (i / width)) for i in range(width)]


class SinusoidalTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 7, 8)
    def test_equals_the_formula(self, width):
        np.testing.assert_allclose(sinusoid(np.arange(50), width), [wave(t, width) for t in range(50)], atol=5e-6)

    def test_a_step_turns_each_pair_by_the_same_angle_wherever_it_begins(self):
        step, rows = 5, np.float64(sinusoid(np.arange(200), 8))
        turn = np.zeros((8, 8))
        for i in range(4):
            angle = step / 10000 ** (2 * i / 8)
            turn[2 * i:2 * i + 2, 2 * i:2 * i + 2] = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        np.testing.assert_allclose(rows[step:], rows[:-step] @ turn.T, atol=5e-5)

    @parameterized.parameters('input', 'layers', 'queries_keys')
    def test_is_added_at_its_place_and_at_no_other(self, place):
        kind, where = Sinusoidal(place, 0.5), np.array([[0, 1, 2, 3, 0, 1, 2], range(7)])
        wanted = X + 0.5 * np.array([[wave(t, 8) for t in row] for row in where])
        for at, hook in (('input', kind.at_input), ('layers', kind.at_layer), ('queries_keys', kind.at_source)):
            np.testing.assert_allclose(hook({}, X, where, SIZES), wanted if at == place else X, atol=1e-5)

    def test_on_a_grid_each_half_tells_one_side_and_the_class_token_gets_nothing(self):
        got = Sinusoidal2d(scale=2.0).at_input({}, X, np.arange(7), IMAGE)
        wanted = [[0] * 8] + [2 * np.array(wave(i, 4) + wave(j, 4)) for i in range(2) for j in range(3)]
        np.testing.assert_allclose(got - X, np.broadcast_to(wanted, X.shape), atol=1e-5)
        for place, hook in (('layers', 'at_layer'), ('queries_keys', 'at_source')):
            kind = Sinusoidal2d(place, 2.0)
            np.testing.assert_allclose(getattr(kind, hook)({}, X, np.arange(7), IMAGE), got, atol=1e-5)
            np.testing.assert_array_equal(kind.at_input({}, X, np.arange(7), IMAGE), X)
        odd = dataclasses.replace(IMAGE, width=5)
        self.assertEqual(Sinusoidal2d().at_input({}, X[..., :5], np.arange(7), odd).shape, (2, 7, 5))

    @parameterized.parameters(*itertools.product((False, True), repeat=2))
    def test_orders_of_two_dimensions(self, interleaved, columns_first):
        """A loop over the features; all sines before all cosines, with the columns first, as in the code of MAE."""
        with jax.enable_x64(True):
            kind = Sinusoidal2d(interleaved=interleaved, columns_first=columns_first)
            sizes = Sizes(length=7, width=8, grid=(2, 3), extra=1)
            found = kind.at_input({}, np.zeros((1, 7, 8)), np.arange(7), sizes)[0]
        np.testing.assert_array_equal(found[0], np.zeros(8))
        for number, (row, column) in enumerate(np.ndindex(2, 3), 1):
            wanted = []
            for place in (column, row) if columns_first else (row, column):
                pairs = [(np.sin(place / 10000 ** (i / 2)), np.cos(place / 10000 ** (i / 2))) for i in range(2)]
                wanted += [x for one in (pairs if interleaved else zip(*pairs)) for x in one]
            np.testing.assert_allclose(found[number], wanted, rtol=0, atol=1e-10)


class LearnedTest(parameterized.TestCase):
    def test_a_frozen_table_is_added_and_does_not_change(self):
        """It has no gradient and does not decay."""
        frozen = Learned(frozen=True)
        self.assertEqual((frozen.parameters(SIZES)['embedding'].role.kind, Learned().parameters(SIZES)['embedding'].role.kind),
                         ('vector', 'table'))
        table, where = drawn(frozen.parameters(SIZES)), np.arange(X.shape[1])
        added = lambda kind, table: kind.at_input(table, X, where, SIZES)
        np.testing.assert_array_equal(added(frozen, table), added(Learned(), table))
        gradient = lambda kind: jax.grad(lambda table: added(kind, table).sum())(table)['embedding']
        self.assertEqual([float(np.abs(gradient(kind)).max()) for kind in (frozen, Learned())], [0.0, 2.0])  # of two rows

    def test_rows_are_those_of_the_positions(self):
        table = drawn(Learned().parameters(SIZES))
        where = np.array([[0, 1, 2, 3, 0, 1, 2], range(2, 9)])
        np.testing.assert_allclose(Learned().at_input(table, X, where, SIZES), X + table['embedding'][where], atol=1e-6)

    def test_begins_as_the_embeddings_do_or_with_its_own_scale(self):
        sizes = dataclasses.replace(SIZES, length=100, width=100, table=jax.nn.initializers.normal(0.3))
        for kind, scale in ((Learned(), 0.3), (Learned(scale=0.7), 0.7)):
            start = kind.parameters(sizes)['embedding']
            self.assertAlmostEqual(float(start.initialiser(KEY, start.shape).std()), scale, delta=0.02)

    @parameterized.product(kind=(Learned, Sinusoidal, Sinusoidal2d), at=('input', 'layers', 'queries_keys'))
    def test_registers_get_no_rows_and_all_others_those_that_they_have_without_registers(self, kind, at):
        sizes, bare = dataclasses.replace(IMAGE, length=11, extra=5, registers=3), dataclasses.replace(IMAGE, length=8, extra=2)
        encoding = kind(at=at)
        parameters = drawn(encoding.parameters(sizes))
        self.assertEqual({name: x.shape for name, x in parameters.items()},
                         {name: one.shape for name, one in encoding.parameters(bare).items()})
        method = {'input': 'at_input', 'layers': 'at_layer', 'queries_keys': 'at_source'}[at]
        rows = lambda sizes, count, positions: np.asarray(getattr(encoding, method)(
            parameters, np.zeros((1, count, 8), np.float32), positions, sizes))[0]
        wanted = rows(bare, 8, np.arange(8))
        found = rows(sizes, 11, np.arange(11))
        np.testing.assert_array_equal(found, np.concatenate([wanted[:2], np.zeros((3, 8)), wanted[2:]]))
        np.testing.assert_array_equal(rows(sizes, 11, np.arange(11)[None]), found)
        self.assertTrue(wanted[2:].any())

    def test_is_interpolated_for_another_grid_and_the_class_token_keeps_its_row(self):
        table = np.array([9, 0, 1, 4, 9, 5, -2, 3, 7], np.float32)[:, None]  # a class token, and a grid of 2x4
        got = np.asarray(Learned().resized('embedding', table, dataclasses.replace(IMAGE, grid=(4, 8))))
        self.assertEqual(got[0], 9)
        half = np.asarray(Learned(offset=1).resized('embedding', np.concatenate([[[7]], table]), dataclasses.replace(
            IMAGE, grid=(1, 2))))
        np.testing.assert_array_equal(half[:2, 0], [7, 9])
        # of torch.nn.functional.interpolate(.., mode='bicubic', align_corners=False)
        np.testing.assert_allclose(bicubic(table[1:].reshape(2, 4, 1), (3, 6))[..., 0], [
            [-0.58112, 0.14822, 1.72483, 3.26902, 6.89518, 9.61518], [2.76042, 0.625, -0.26447, 2.48322, 6.125, 8.39063],
            [6.10195, 1.10178, -2.25376, 1.69742, 5.35482, 7.16608]], atol=1e-5)
        np.testing.assert_allclose(bicubic(table[1:].reshape(2, 4, 1), (1, 3))[..., 0], [[2.0, 0.79688, 7.42361]], atol=1e-5)

    @parameterized.parameters(((2, 4), (3, 6)), ((7, 9), (3, 4)), ((5, 5), (9, 2)))
    def test_smoothed_it_is_interpolated_as_images_are(self, trained, wanted):
        from PIL import Image

        rows = RNG.normal(size=(trained[0] * trained[1], 1)).astype(np.float32)
        images = Image.fromarray(rows.reshape(trained)).resize(wanted[::-1], Image.Resampling.BICUBIC)
        sizes = dataclasses.replace(IMAGE, extra=0, grid=wanted, trained=trained)
        got, without = (np.asarray(Learned(antialias=smooth).resized('embedding', rows, sizes)) for smooth in (True, False))
        np.testing.assert_allclose(got.reshape(wanted), np.asarray(images), atol=1e-5)
        self.assertGreater(np.abs(got - without).max(), 1e-2)

    def test_the_grid_of_training_has_the_shape_of_the_image_or_is_square(self):
        rows = np.arange(36, dtype=np.float32)[:, None]
        bare = dataclasses.replace(IMAGE, extra=0)
        for grid, trained in (((9, 4), (9, 4)), ((18, 8), (9, 4)), ((3, 5), (6, 6)), ((12, 12), (6, 6))):
            got = Learned().resized('embedding', rows, dataclasses.replace(bare, grid=grid))
            wanted = bicubic(rows.reshape(*trained, 1), grid)
            np.testing.assert_allclose(got, wanted.reshape(-1, 1), atol=1e-5)
        with self.assertRaisesRegex(ValueError, r'has 35 rows for patches, which form neither a square nor a grid'):
            Learned().resized('embedding', rows[1:], dataclasses.replace(bare, grid=(3, 4)))


class RotaryTest(parameterized.TestCase):
    def heads(self, kind, x, where):
        return np.asarray(kind.at_heads({}, {}, x, jnp.asarray(where)))

    @parameterized.product(interleaved=(False, True), scaling=(('none', 1.0), ('linear', 4.0), ('ntk', 4.0)),
                           base=(10000.0, 50.0))
    def test_equals_a_loop(self, interleaved, scaling, base):
        kind = Rotary(base, *scaling, interleaved)
        x = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)
        where = np.array([range(5), range(7, 12)])
        wanted = np.zeros(x.shape)
        stretched = base * 4.0 ** (8 / 6) if scaling[0] == 'ntk' else base
        for b, t, n, i in np.ndindex(2, 5, 3, 4):
            angle = where[b, t] / (4.0 if scaling[0] == 'linear' else 1.0) / stretched ** (2 * i / 8)
            one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + 4)
            pair = complex(x[b, t, n, one], x[b, t, n, two]) * complex(math.cos(angle), math.sin(angle))
            wanted[b, t, n, one], wanted[b, t, n, two] = pair.real, pair.imag
        np.testing.assert_allclose(self.heads(kind, x, where), wanted, atol=1e-5)

    def test_the_base_is_that_of_the_paper_unless_told_otherwise(self):
        self.assertEqual(Rotary(), Rotary(10000.0))

    def test_scores_depend_on_the_difference_alone(self):
        query, key = (RNG.normal(size=(1, 6, 2, 8)).astype(np.float32) for _ in range(2))
        def scores(first, apart=0):
            q, k = self.heads(Rotary(), query, first + np.arange(6)), self.heads(Rotary(), key, first + apart + np.arange(6))
            return np.einsum('BTNH,BSNH->BNTS', q, k)
        np.testing.assert_allclose(scores(40), scores(0), atol=1e-4)
        self.assertGreater(np.abs(scores(0, 3) - scores(0)).max(), 0.1)

    def test_of_longer_rows_the_slowest_pair_is_stretched_by_the_factor_and_the_fastest_kept_or_stretched_too(self):
        plain, linear, ntk = (kind.frequencies(64) for kind in (
            Rotary(), Rotary(scaling='linear', factor=8.0), Rotary(scaling='ntk', factor=8.0)))
        np.testing.assert_allclose(plain / linear, 8.0, rtol=1e-5)
        self.assertAlmostEqual(float(plain[0] / ntk[0]), 1.0)
        self.assertAlmostEqual(float(plain[-1] / ntk[-1]), 8.0, places=4)

    def test_two_wide_heads_and_narrow_numbers(self):
        x = RNG.normal(size=(1, 3, 1, 2)).astype(jnp.bfloat16)
        got = Rotary(scaling='ntk', factor=2.0).at_heads({}, {}, x, jnp.arange(3))
        self.assertEqual(got.dtype, jnp.bfloat16)
        np.testing.assert_allclose(np.linalg.norm(np.float32(got), axis=-1), np.linalg.norm(np.float32(x), axis=-1), rtol=2e-2)


@functools.partial(jax.jit, static_argnums=0)
def outcomes(model, params):
    """Logits of two rows, of two documents in one row, and of a cache filled with prompts of 5 and 2 tokens and then three
    times one token more, beside those that the rows have there."""
    apply = functools.partial(model.apply, params)
    row, ones = jnp.arange(8), jnp.ones(8, int)
    several = lambda whole, first, second: jnp.stack([whole, whole, jnp.concatenate([first, second])])
    inputs = jnp.concatenate([TOKENS, jnp.concatenate([TOKENS[0, :5], TOKENS[1, :3]])[None]])
    logits = apply(inputs, segments=several(ones, ones[:5], 2 * ones[:3]), positions=several(row, row[:5], row[:3]))['logits']
    lengths = jnp.array([5, 2])
    prompts = jnp.where(jnp.arange(5) < lengths[:, None], TOKENS[:, :5], 0)
    out = apply(prompts, positions=jnp.broadcast_to(jnp.arange(5), (2, 5)), cache=model.init_cache(2))

    def step(cache, t):
        at = (lengths + t)[:, None]
        out = apply(jnp.take_along_axis(jnp.asarray(TOKENS), at, 1), positions=at, cache=cache)
        return out['cache'], (out['logits'][:, 0], jnp.take_along_axis(logits[:2], at[..., None], 1)[:, 0])
    return logits[:2], logits[2], jax.lax.scan(step, out['cache'], jnp.arange(3))[1]


@slow_but('test_cached_decoding_and_packed_rows', *map(str, (
    NoPositions(), Learned(), Learned(at='layers'), Sinusoidal(at='layers'), Rotary(), Rotary(scaling='ntk', factor=2.0),
    Shaw(2), T5Bias(4, 5), TransformerXl(), Etc(2, 2))))
class GptTest(parameterized.TestCase):
    @parameterized.named_parameters(*((str(kind), kind) for kind in OF_TEXT))
    def test_cached_decoding_and_packed_rows(self, kind):
        model = build(Gpt, vocab=11, length=8, layers=1, heads=4, key_heads=2, width=8, positions=kind)
        whole, packed, (steps, wanted) = outcomes(model, variables(model, TOKENS))
        np.testing.assert_allclose(steps, wanted, atol=3e-6)
        np.testing.assert_allclose(packed[:5], whole[0, :5], atol=3e-6)
        if isinstance(kind, Etc):  # its global tokens are those of the row
            self.assertGreater(np.abs(packed[5:] - whole[1, :3]).max(), 1e-3)
        else:
            np.testing.assert_allclose(packed[5:], whole[1, :3], atol=3e-6)

    def test_every_encoding_is_tried(self):
        known = set(resolve.subclasses(Positions).values())
        self.assertEqual(known - {SwinBias, Sinusoidal2d}, {type(kind) for kind in OF_TEXT})

    def test_each_place_gives_a_program_of_its_own(self):
        programs = set()
        for place in absolute.PLACES:
            model = build(Gpt, vocab=11, length=8, layers=2, heads=2, width=8, positions=Learned(at=place))
            shapes = jax.eval_shape(lambda model=model: model.init(KEY, TOKENS))
            programs.add(str(jax.make_jaxpr(lambda p, model=model: model.apply(p, TOKENS)['logits'])(shapes)))
        self.assertLen(programs, 3)

    def test_rows_longer_than_those_of_training_need_an_encoding_that_means_something_there(self):
        longer = np.zeros((1, 9), int)
        for kind in {type(kind): kind for kind in OF_TEXT}.values():
            model = build(Gpt, vocab=11, length=8, layers=1, heads=2, width=8, positions=kind)
            params = jax.eval_shape(lambda model=model: model.init(KEY, TOKENS))
            run = lambda model=model, params=params, **more: jax.eval_shape(lambda p: model.apply(p, longer, **more), params)
            if kind.free_length:
                self.assertEqual(run()['logits'].shape, (1, 9, 11))
                with self.assertRaisesRegex(ValueError, 'longer than the 8 that this model takes'):
                    run(positions=np.arange(9)[None], cache=model.init_cache(1))
            else:
                with self.assertRaisesRegex(ValueError, 'longer than the 8 that this model takes'):
                    run()

    def test_scanned_and_recomputed_layers_give_the_same(self):
        for kind in (Shaw(2), Tupe()):
            model = build(Gpt, vocab=11, length=8, layers=2, heads=2, width=8, positions=kind)
            params = variables(model, TOKENS)
            apply = lambda model, params=params: jax.jit(model.apply)(params, TOKENS)['logits']
            np.testing.assert_allclose(apply(changed(model, scan=True, remat='full')), apply(model), atol=2e-6)


class LayerTest(parameterized.TestCase):
    def layer(self, kind, sizes=SIZES, order=slice(None)):
        """Two heads on X, of which the rows are put in another order first, and back."""
        layer = MultiHead(2)
        where = jnp.arange(7)
        shared = jax.tree.map(jnp.asarray, drawn(kind.parameters(sizes), 0.5))
        encoding = Encoding(kind, shared, where, where, sizes)
        params = variables(layer, X)['params'] | {'positions': drawn(kind.layer_parameters(sizes))}
        both = jnp.concatenate([X, X[:, order]])
        run = jax.jit(lambda x: layer.apply({'params': params}, encoding.at_layer(x), context=Context(Full(), encoding))[0])
        return np.split(np.asarray(run(both)), 2)

    def test_without_positions_attention_is_equivariant_to_permutations_and_with_them_it_is_not(self):
        order = np.array([3, 0, 6, 1, 2, 5, 4])
        straight, permuted = self.layer(NoPositions(), order=order)
        np.testing.assert_allclose(permuted, straight[:, order], atol=1e-5)
        for kind in (Learned(at='layers'), Sinusoidal(at='queries_keys'), Rotary(), Alibi()):
            straight, permuted = self.layer(kind, order=order)
            self.assertGreater(np.abs(permuted - straight[:, order]).max(), 1e-3, kind)

    def test_queries_and_keys_know_positions_and_values_do_not(self):
        # A single position: the weights are 1, so that nothing but the value counts.
        layer, x = MultiHead(2), X[:, :1]
        params = variables(layer, x)
        table = {'embedding': jnp.asarray(RNG.normal(size=(9, 8)), jnp.float32)}
        one = jnp.zeros(1, int)
        run = lambda kind: jax.jit(lambda: layer.apply(
            params, x, context=Context(encoding=Encoding(kind, table, one, one, SIZES)))[0])()
        np.testing.assert_allclose(run(Learned(at='queries_keys')), run(NoPositions()), atol=1e-6)


IMAGES, LARGER = (RNG.normal(size=(2, *side, 1)).astype(np.float32) for side in ((4, 6), (8, 12)))


class VitTest(parameterized.TestCase):
    @parameterized.parameters((Learned(), 'cls'), (Learned(), 'mean'), (Learned(at='layers'), 'cls'), (SwinBias(), 'cls'),
                              (SwinBias(), 'mean'), (Sinusoidal2d(), 'cls'), (T5Bias(4, 5), 'mean'), (Tupe(), 'cls'),
                              (Learned(), 'cls', 3, 'logits'), (SwinBias(), 'cls', 2), (Learned(), 'mean', 1))
    def test_an_image_of_another_size(self, kind, pool, registers=0, distillation='none'):
        model = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8, pool=pool, positions=kind, registers=registers,
                      distillation=distillation)
        params = variables(model, IMAGES)['params']
        apply = jax.jit(lambda params, image: model.apply({'params': params}, image)['logits'])
        if isinstance(kind, Tupe):
            with self.assertRaisesRegex(ValueError, r'Tupe\(.*made for images of another size'):
                apply(params, LARGER)
            return
        got = apply(params, LARGER)
        path_of = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
        wanted = jax.eval_shape(lambda: model.init(KEY, LARGER)['params'])
        fitted = jax.tree_util.tree_map_with_path(
            lambda keys, p: model.fitted(path_of(keys), p, {'image': IMAGES}, LARGER), params)
        self.assertEqual(jax.tree.map(jnp.shape, fitted), jax.tree.map(jnp.shape, wanted))
        np.testing.assert_allclose(apply(fitted, LARGER), got, atol=1e-6)

    @parameterized.parameters(((16, 12), (20, 16)), ((16, 12), (12, 16)), ((18, 8), (14, 14)))
    def test_the_grid_of_another_run_is_known(self, trained, wanted):
        """Also where the number of its patches does not tell it: 8 x 6, of the size of 6 x 8, and 9 x 4, of that of 6 x 6."""
        model = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8)
        before, after = ({'image': jax.ShapeDtypeStruct((2, *sides, 1), np.float32)} for sides in (trained, wanted))
        table = RNG.normal(size=(1 + trained[0] * trained[1] // 4, 8)).astype(np.float32)
        grid, new = ((sides[0] // 2, sides[1] // 2) for sides in (trained, wanted))
        got = model.fitted('positions/embedding', table, before, **after)
        np.testing.assert_array_equal(got[0], table[0])
        np.testing.assert_allclose(got[1:], bicubic(table[1:].reshape(*grid, 8), new).reshape(-1, 8), atol=1e-6)
        self.assertIs(model.fitted('positions/embedding', table, before, **before), table)
        self.assertIs(model.fitted('patches/bias', table, before, **after), table)

    def test_rows_and_columns_are_told_apart(self):
        # An image whose one patch differs: moving it by a row or by a column is not the same.
        model = build(Vit, classes=3, patch=2, layers=1, heads=2, width=8, pool='mean', positions=SwinBias())
        params = variables(model, LARGER[:, :8, :8])['params']
        images = np.zeros((2, 8, 8, 1), np.float32)
        images[0, :2, 4:6] = images[1, 4:6, :2] = 3.0
        across, down = jax.jit(model.apply)({'params': params}, images)['logits']
        self.assertGreater(np.abs(across - down).max(), 1e-4)

    @parameterized.parameters(
        (lambda: Learned(at='scores'), "at is 'scores'; expected one of input, layers, queries_keys"),
        (lambda: Sinusoidal(at='values'), "at is 'values'; expected one of input, layers, queries_keys, scores, scores_times"),
        (lambda: Sinusoidal2d(at='scores'), "at is 'scores'"),
        (lambda: Rotary(scaling='yarn'), "scaling is 'yarn'; expected none, linear or ntk"),
        (lambda: Rotary(factor=2.0), 'a factor does nothing without scaling'),
        (lambda: Rotary(base=0.5), 'a base above 1'),
        (lambda: Rotary().at_heads({}, {}, np.zeros((1, 2, 1, 3)), np.arange(2)), 'a head is 3 wide'),
        (lambda: Sinusoidal2d().at_input({}, X, np.arange(7), SIZES), 'for the patches of an image, and this model has none'))
    def test_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()

    def test_expressions(self):
        for text, kind in (("Rotary(scaling='ntk', factor=4)", Rotary(scaling='ntk', factor=4.0)), ('T5Bias()', T5Bias()),
                           ("Learned(at='layers', scale=0.1)", Learned('layers', 0.1)), ('SwinBias', SwinBias())):
            self.assertEqual(resolve.parse(text, Positions, 'positions'), kind)
        with self.assertRaisesRegex(ValueError, "did you mean 'Alibi'"):
            resolve.parse('Aliby()', Positions, 'positions')
        self.assertIn('NoPositions', resolve.subclasses(base.Positions))


if __name__ == '__main__':
    absltest.main()
