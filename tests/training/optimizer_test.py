import math
from unittest import mock

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build
from training import mesh, optimizer, roles
from training.config import resolve
from transformer.attention.mechanism import Softmax
from transformer.attention.mechanisms.alternatives import Convolution
from transformer.attention.mechanisms.projected import MemoryCompressed
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.attention.positions.relative import Disentangled, TransformerXl
from transformer.attention.scores import Bilinear
from transformer.layers.initial import MuP, Scaled
from transformer.layers.roles import matrix, table, vector
from transformer.models.gpt import Gpt

TOKENS = np.zeros((1, 4), int)
SHAPES = {'block': {'kernel': (3, 2), 'bias': (2,)}, 'norm': {'scale': (2,)}}
ROLES = {'block/kernel': matrix(), 'block/bias': vector(), 'norm/scale': vector()}


def config_of(schedule='ConstantRate', *, learning_rate=0.1, weight_decay=0.0, rules=(), rates=((r'.*', 1.0),), clip=0.0,
              average=0.0, fields=None, name='AdamW', **own):
    config = resolve.describe(f'training.optimizer:{name}', **own)
    config.schedule = resolve.describe(f'training.schedules:{schedule}', **(fields or {}))
    config.learning_rate, config.weight_decay, config.decay_rules, config.clip = learning_rate, weight_decay, rules, clip
    config.rate_rules, config.average_decay = rates, average
    return config.lock()


def tree(function):
    return {group: {name: np.float32(function(shape)) for name, shape in part.items()} for group, part in SHAPES.items()}


def updated(config, params, gradients):
    """Parameters after one update for each of `gradients`."""
    tx = optimizer.make(config, 100, ROLES).tx
    state = tx.init(params)
    for g in gradients:
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def adamw(params, gradients, *, rate, b1, b2, eps, decay, clip):
    """Decoupled weight decay with bias correction (Loshchilov and Hutter 2019, algorithm 2), in float64."""
    flat = {(g, n): np.float64(p) for g, part in params.items() for n, p in part.items()}
    first, second = ({key: np.zeros_like(p) for key, p in flat.items()} for _ in range(2))
    for t, gradient in enumerate(gradients, 1):
        gradient = {(g, n): np.float64(p) for g, part in gradient.items() for n, p in part.items()}
        norm = math.sqrt(sum((g ** 2).sum() for g in gradient.values()))
        for key, g in gradient.items():
            g = g * min(1.0, clip / norm) if clip else g
            first[key] = b1 * first[key] + (1 - b1) * g
            second[key] = b2 * second[key] + (1 - b2) * g ** 2
            step = first[key] / (1 - b1 ** t) / (np.sqrt(second[key] / (1 - b2 ** t)) + eps)
            own = decay if key[1] == 'kernel' else 0.0
            flat[key] = flat[key] - rate(t - 1) * (step + own * flat[key])
    return flat


class AdamWTest(parameterized.TestCase):
    @parameterized.parameters(
        dict(), dict(weight_decay=0.3), dict(clip=0.5), dict(b1=0.5, b2=0.7, eps=1e-2),
        dict(weight_decay=0.3, clip=0.5, schedule='LinearDecay', fields={'warmup_steps': 2}))
    def test_equals_float64(self, **given):
        config, rng = config_of(**given), np.random.default_rng(0)
        params = tree(lambda shape: rng.normal(size=shape))
        gradients = [tree(lambda shape: rng.normal(size=shape)) for _ in range(4)]
        rate = lambda step: float(optimizer.schedule(config, 100)(step))
        wanted = adamw(params, gradients, rate=rate, b1=config.b1, b2=config.b2, eps=config.eps,
                       decay=config.weight_decay, clip=config.clip)
        got = updated(config, params, gradients)
        for (group, name), value in wanted.items():
            np.testing.assert_allclose(got[group][name], value, rtol=2e-5, atol=4e-6)  # float32 errs by 1e-6

    def test_decay_follows_roles_and_before_them_rules(self):
        ones, zeros = tree(np.ones), tree(np.zeros)
        got = updated(config_of(weight_decay=0.5), ones, [zeros])
        np.testing.assert_allclose(got['block']['kernel'], 1 - 0.1 * 0.5)
        np.testing.assert_array_equal(got['block']['bias'], 1.0)
        np.testing.assert_array_equal(got['norm']['scale'], 1.0)
        half = updated(config_of(weight_decay=0.5, rules=((r'norm/.*', 0.5),)), ones, [zeros])
        np.testing.assert_allclose(half['norm']['scale'], 1 - 0.1 * 0.25)
        np.testing.assert_allclose(half['block']['kernel'], 1 - 0.1 * 0.5)
        np.testing.assert_array_equal(half['block']['bias'], 1.0)
        other = updated(config_of(weight_decay=0.5, rules=((r'norm/.*', 0.5), (r'.*', 0.0))), ones, [zeros])
        np.testing.assert_allclose(other['norm']['scale'], 1 - 0.1 * 0.25)
        np.testing.assert_array_equal(other['block']['kernel'], 1.0)

    def test_rules_may_give_what_does_not_decay_a_decay_of_its_own(self):
        ones, zeros = tree(np.ones), tree(np.zeros)
        got = updated(config_of(weight_decay=0.5, rules=((r'.*/bias', 2.0),)), ones, [zeros])
        np.testing.assert_allclose(got['block']['bias'], 1 - 0.1 * 1.0)
        np.testing.assert_array_equal(got['norm']['scale'], 1.0)

    def test_a_parameter_that_no_rule_covers_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'No rule of optimizer.rate_rules covers the parameter norm/scale'):
            updated(config_of(rates=((r'block/.*', 1.0),)), tree(np.ones), [tree(np.ones)])

    @parameterized.parameters('rules', 'rates')
    def test_a_rule_that_matches_no_parameter_is_refused(self, name):
        field = {'rules': 'decay_rules', 'rates': 'rate_rules'}[name]
        config = config_of(**{name: ((r'blok/.*', 0.5), (r'.*', 1.0))})
        message = rf"'blok/\.\*', 0\.5\) of optimizer\.{field} matches no parameter.* such as block/"
        with self.assertRaisesRegex(ValueError, message):
            optimizer.make(config, 100, ROLES)

    def test_clipping_is_by_the_norm_of_all_gradients(self):
        config = config_of(clip=1.0, eps=1.0)  # with eps 1 Adam no longer hides the size of a gradient
        large, clipped = tree(lambda shape: np.full(shape, 7.0)), tree(lambda shape: np.full(shape, 1 / math.sqrt(10)))
        zeros = tree(np.zeros)
        first, second = updated(config, zeros, [large]), updated(config, zeros, [clipped])
        np.testing.assert_allclose(first['norm']['scale'], second['norm']['scale'], rtol=1e-5)
        free = updated(config_of(eps=1.0), zeros, [large])
        self.assertGreater(abs(free['norm']['scale'][0]), 2 * abs(first['norm']['scale'][0]))


class UpdateTest(parameterized.TestCase):
    def test_the_update_uses_the_rate_of_its_step(self):
        config = config_of('LinearDecay', fields={'warmup_steps': 2}, b1=0.0, b2=0.0, eps=1e-12)
        ones = tree(np.ones)
        moved = [float(updated(config, ones, [ones] * n)['norm']['scale'][0]) for n in range(4)]
        np.testing.assert_allclose(-np.diff(moved), [0.05, 0.1, 0.1], rtol=1e-5)

    def test_multiples_of_the_rate_follow_the_rules(self):
        rng = np.random.default_rng(0)
        params, gradients = (tree(lambda shape: rng.normal(size=shape)) for _ in range(2))
        plain = updated(config_of(weight_decay=0.5), params, [gradients])
        got = updated(config_of(weight_decay=0.5, rates=((r'norm/.*', 0.25), (r'.*', 1.0))), params, [gradients])
        np.testing.assert_array_equal(got['block']['kernel'], plain['block']['kernel'])
        np.testing.assert_allclose(got['norm']['scale'] - params['norm']['scale'],
                                   0.25 * (plain['norm']['scale'] - params['norm']['scale']), rtol=1e-5)

    def test_frozen_parameters_stay_and_count_nowhere(self):
        config = config_of(weight_decay=0.5, clip=1.0, eps=1.0, rates=((r'block/.*', 0.0), (r'.*', 1.0)))
        rng = np.random.default_rng(0)
        params = tree(lambda shape: rng.normal(size=shape))
        made = optimizer.make(config, 100, ROLES)
        held = jax.grad(lambda p: sum((x ** 2).sum() for x in jax.tree.leaves(made.hold(p))))(params)
        self.assertEqual(float(np.abs(held['block']['kernel']).max()), 0.0)
        np.testing.assert_allclose(held['norm']['scale'], 2 * params['norm']['scale'], rtol=1e-6)
        got = updated(config, params, [held] * 3)
        np.testing.assert_array_equal(got['block']['kernel'], params['block']['kernel'])
        # as if there were nothing else: clipping sees no gradient of what is frozen
        alone = {'norm': params['norm']}
        free = updated(config_of(weight_decay=0.5, clip=1.0, eps=1.0), alone, [{'norm': held['norm']}] * 3)
        np.testing.assert_array_equal(got['norm']['scale'], free['norm']['scale'])
        shapes = {x.shape for x in jax.tree.leaves(made.tx.init(params))}
        self.assertNotIn((3, 2), shapes)  # no moments of the frozen kernel

    def test_the_average_equals_float64(self):
        made = optimizer.make(config_of(average=0.6), 100, ROLES)
        rng = np.random.default_rng(0)
        series = [tree(lambda shape: rng.normal(size=shape)) for _ in range(8)]
        average = made.first_average(series[0])
        wanted = np.float64(series[0]['block']['kernel'])
        for n, params in enumerate(series[1:]):
            average = made.average(average, params, jnp.int32(n))
            decay = min(0.6, (1 + n) / (10 + n))
            wanted = decay * wanted + (1 - decay) * params['block']['kernel']
        np.testing.assert_allclose(average['block']['kernel'], wanted, rtol=1e-5, atol=1e-6)
        self.assertEqual(optimizer.make(config_of(), 100, ROLES).first_average(series[0]), {})


KERNELS = {'query': {'kernel': (6, 2, 4), 'bias': (2, 4)}, 'output': {'kernel': (2, 4, 6)}, 'input': {'kernel': (6, 9)},
           'tokens': {'embedding': (11, 6)}, 'each': {'kernel': (2, 4, 4)}}
KINDS = {'query/kernel': matrix((0,), (1, 2), heads=1), 'query/bias': vector(heads=0), 'input/kernel': matrix(inner=1),
         'output/kernel': matrix((0, 1), (2,), heads=0), 'tokens/embedding': table(),
         'each/kernel': matrix((1,), (2,), heads=0)}  # the last: one for each head
# how each kernel looks as the matrix it is
FORMS = {'query': (6, 8), 'output': (8, 6), 'input': (6, 9)}


def numbers(seed):
    rng = np.random.default_rng(seed)
    return {group: {name: rng.normal(size=shape).astype(np.float32) for name, shape in part.items()}
            for group, part in KERNELS.items()}


def directions(given, gradients, params=None):
    """What an optimizer makes of one gradient after the other."""
    tx, found = given.direction(KINDS), []
    state = tx.init(params or numbers(0))
    for g in gradients:
        got, state = tx.update(g, state, params or numbers(0))
        found.append(got)
    return found


WIDE = {'block/kernel': matrix(multiple=4.0), 'block/bias': vector(), 'norm/scale': vector()}


class MuPTest(parameterized.TestCase):
    """Rates that follow the width (transformer.layers.initial.MuP)."""

    @parameterized.parameters('AdamW', 'Lion')
    def test_a_matrix_takes_its_multiple_less_of_the_direction_and_as_much_decay(self, name):
        rng = np.random.default_rng(0)
        params, gradients = (tree(lambda shape: rng.normal(size=shape)) for _ in range(2))

        def moved(roles, decay):
            tx = optimizer.make(config_of(weight_decay=decay, name=name), 100, roles).tx
            return tx.update(gradients, tx.init(params), params)[0]

        plain, wide, decayed = moved(ROLES, 0.0), moved(WIDE, 0.0), moved(WIDE, 0.5)
        np.testing.assert_allclose(np.float64(plain['block']['kernel']) / 4, wide['block']['kernel'], rtol=1e-6)
        for group, other in (('block', 'bias'), ('norm', 'scale')):
            np.testing.assert_array_equal(wide[group][other], plain[group][other])
        np.testing.assert_allclose(decayed['block']['kernel'] - wide['block']['kernel'],
                                   -0.1 * 0.5 * params['block']['kernel'], rtol=1e-5, atol=1e-7)

    def test_with_the_width_of_the_base_training_is_that_of_the_standard_form(self):
        batch = models.packed_and_apart(11, 0)[1]
        given = {name: batch[name] for name in ('inputs', 'segments', 'positions')}

        def trained(initial):
            model = build(Gpt, vocab=11, width=16, heads=2, layers=2, length=8, initial=initial)
            tx = optimizer.make(config_of(weight_decay=0.1, learning_rate=0.01), 100, roles.of_model(model, given)).tx
            params, found = models.init(model, TOKENS), []
            state = tx.init(params)
            for _ in range(4):
                terms, gradients = models.losses(model, params, batch)
                updates, state = tx.update(gradients, state, params)
                params = optax.apply_updates(params, updates)
                found.append(float(terms['loss'][0]))
            return found

        self.assertEqual(trained(Scaled(0.05)), trained(MuP(0.05, base=16)))
        self.assertNotEqual(trained(Scaled(0.05)), trained(MuP(0.05, base=8)))

    @parameterized.parameters('SGD', 'Muon', 'Adafactor')
    def test_an_optimizer_with_rates_of_another_kind_is_refused(self, name):
        with self.assertRaisesRegex(ValueError, f'entries of about 1, as of AdamW and Lion; use one .* place of {name}'):
            optimizer.make(config_of(name=name), 100, WIDE)
        optimizer.make(config_of(name=name), 100, ROLES)

    def test_a_matrix_of_another_part_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'initial=MuP\(..\), which says nothing of the matrix other/kernel'):
            optimizer.make(config_of(), 100, WIDE | {'other/kernel': matrix()})


class DirectionsTest(parameterized.TestCase):
    GRADIENTS = [numbers(seed) for seed in (1, 2, 3)]

    def assert_directions(self, given, wanted, rtol=1e-5):
        """`wanted` yields the directions of one parameter from its gradients, in float64."""
        found = directions(given, self.GRADIENTS)
        for group, part in KERNELS.items():
            for name in part:
                series = [np.float64(g[group][name]) for g in self.GRADIENTS]
                for step, expected in enumerate(wanted(series)):
                    np.testing.assert_allclose(found[step][group][name], expected, rtol=rtol, atol=1e-6)

    @parameterized.parameters((0.0, False), (0.9, False), (0.9, True))
    def test_sgd(self, momentum, nesterov):
        def wanted(gradients):
            velocity = 0.0
            for g in gradients:
                velocity = momentum * velocity + g
                yield g + momentum * velocity if nesterov else velocity
        self.assert_directions(optimizer.SGD(momentum, nesterov), wanted)

    def test_lion(self):
        def wanted(gradients):
            moment = 0.0
            for g in gradients:
                yield np.sign(0.8 * moment + 0.2 * g)
                moment = 0.7 * moment + 0.3 * g
        self.assert_directions(optimizer.Lion(0.8, 0.7), wanted)

    @parameterized.product(factored_from=(1, 128), relative=(False, True), clipping=(0.5, 100.0))
    def test_adafactor(self, factored_from, relative, clipping):
        given = optimizer.Adafactor(decay_rate=0.7, clipping=clipping, relative=relative, factored_from=factored_from)
        found = directions(given, self.GRADIENTS)
        rms = lambda x: np.sqrt((x ** 2).mean())
        for group, name in (('query', 'kernel'), ('output', 'kernel'), ('input', 'kernel'), ('tokens', 'embedding'),
                            ('query', 'bias')):
            shape = KERNELS[group][name]
            form = FORMS[group] if name == 'kernel' else shape
            factored = factored_from == 1
            rows = columns = whole = 0.0
            parameter = np.float64(numbers(0)[group][name])
            for step, gradients in enumerate(self.GRADIENTS, 1):
                g = np.float64(gradients[group][name]).reshape(form)
                b2 = 1 - step ** -0.7
                square = g ** 2 + 1e-30
                if factored:
                    rows = b2 * rows + (1 - b2) * square.mean(1)
                    columns = b2 * columns + (1 - b2) * square.mean(0)
                    v = np.outer(rows, columns) / rows.mean()
                else:
                    v = whole = b2 * whole + (1 - b2) * square
                u = g / np.sqrt(v)
                u /= max(1.0, rms(u) / clipping)
                u *= max(1e-3, rms(parameter)) if relative else 1.0
                np.testing.assert_allclose(found[step - 1][group][name], u.reshape(shape), rtol=1e-4, err_msg=group)

    @parameterized.parameters(True, False)
    def test_muon(self, nesterov):
        given = optimizer.Muon(momentum=0.9, nesterov=nesterov, b1=0.8, b2=0.7)
        found = directions(given, self.GRADIENTS)
        for group, form in FORMS.items():
            moment = 0.0
            for step, gradients in enumerate(self.GRADIENTS):
                g = np.float64(gradients[group]['kernel']).reshape(form)
                moment = 0.9 * moment + g
                x = g + 0.9 * moment if nesterov else moment
                x = x / np.linalg.norm(x)
                for _ in range(5):  # on the left or on the right, it is the same odd polynomial of the singular values
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                got = np.float64(found[step][group]['kernel']).reshape(form)
                np.testing.assert_allclose(got, 0.2 * math.sqrt(max(form)) * x, rtol=1e-3, atol=1e-4)
                values = np.linalg.svd(got, compute_uv=False) / (0.2 * math.sqrt(max(form)))
                self.assertTrue((values > 0.6).all() and (values < 1.3).all(), values)  # nearly orthogonal
        adam = directions(optimizer.AdamW(0.8, 0.7), self.GRADIENTS)
        for group, name in (('tokens', 'embedding'), ('query', 'bias'), ('each', 'kernel')):
            np.testing.assert_allclose(found[-1][group][name], adam[-1][group][name], rtol=1e-6)

    def test_muon_multiplies_small_matrices_of_one_shape_together_on_an_accelerator(self):
        sizes = {'a': (2, 5), 'b': (5, 2), 'c': (2, 5), 'd': (3, 3), 'e': (2, 5)}
        given = {name: jax.random.normal(jax.random.key(i), size) for i, (name, size) in enumerate(sizes.items())}
        transformation = optimizer.Muon().direction(dict.fromkeys(sizes, matrix()))
        update = lambda x: transformation.update(x, transformation.init(x), x)[0]
        alone = update(given)
        products = lambda: str(jax.make_jaxpr(lambda x: update(x))(given)).count('dot_general')
        each = 3 * optimizer.Muon().iterations
        self.assertEqual(products(), 5 * each)
        with mock.patch.object(optimizer, 'platform', lambda: 'gpu'):
            together = update(given)
            self.assertEqual(products(), 2 * each)  # of four, b lying down, and of d
            with mock.patch.object(optimizer, 'TOGETHER', 2 * 2 * 5):
                self.assertEqual(products(), 3 * each)
            with jax.set_mesh(mesh.make(1, 8)):  # which would move b to the devices that have parts of the others
                self.assertEqual(products(), 3 * each)
        for name in sizes:
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-4, atol=1e-5, err_msg=name)

    @parameterized.parameters(optimizer.Muon(), optimizer.Adafactor(factored_from=2))
    def test_axes_of_a_matrix_may_lie_in_any_order(self, given):
        gradient = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)

        def direction(x, role):
            transformation = given.direction({'kernel': role})
            return transformation.update({'kernel': x}, transformation.init({'kernel': x}), {'kernel': x})[0]['kernel']

        found = direction(gradient.transpose(2, 0, 1), matrix((1,), (2, 0)))
        np.testing.assert_allclose(found, direction(gradient, matrix((0,), (1, 2))).transpose(2, 0, 1), rtol=1e-4, atol=1e-6)

    def test_muon_is_that_of_optax(self):
        """But for its Nesterov momentum, which has corrections of the bias that Jordan's has not."""
        found = directions(optimizer.Muon(nesterov=False), self.GRADIENTS)
        theirs = optax.contrib.scale_by_muon(nesterov=False)
        for group, form in FORMS.items():
            state = theirs.init(jnp.zeros(form))
            for gradients, ours in zip(self.GRADIENTS, found):
                update, state = theirs.update(jnp.asarray(gradients[group]['kernel']).reshape(form), state)
                np.testing.assert_allclose(ours[group]['kernel'].reshape(form), 0.2 * math.sqrt(max(form)) * update, atol=1e-5)

    @parameterized.parameters(
        dict(attention=Convolution()), dict(attention=Softmax(score=Bilinear())), dict(attention=Synthesizer(length=4)),
        dict(attention=MemoryCompressed()), dict(positions=TransformerXl()), dict(positions=Disentangled()))
    def test_roles_of_a_model_fit_every_part_of_attention(self, **part):
        model = build(Gpt, vocab=5, length=4, layers=1, heads=2, width=8, **part)
        tokens = np.zeros((1, 4), int)
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens)['params'])
        known = roles.of_model(model, {'inputs': tokens})
        for given in (optimizer.Muon(), optimizer.Adafactor()):
            direction = given.direction(known)
            state = jax.eval_shape(direction.init, params)
            self.assertNotEmpty(jax.tree.leaves(state))
            updates, _ = jax.eval_shape(direction.update, params, state, params)
            self.assertEqual(jax.tree.map(jnp.shape, updates), jax.tree.map(jnp.shape, params))

    @parameterized.parameters(
        (optimizer.SGD, dict(momentum=1.0)), (optimizer.SGD, dict(nesterov=True)), (optimizer.Lion, dict(b1=-0.1)),
        (optimizer.Adafactor, dict(decay_rate=0.0)), (optimizer.Muon, dict(iterations=0)),
        (optimizer.Muon, dict(b2=1.0)))
    def test_values_without_a_meaning_are_refused(self, kind, fields):
        with self.assertRaisesRegex(ValueError, f'({kind.__name__}|AdamW).*: expected'):
            kind(**fields)


class ConfigTest(parameterized.TestCase):
    def test_an_unknown_field_is_refused(self):
        config = ml_collections.ConfigDict(config_of().to_dict())
        config.b3 = 0.5
        with self.assertRaisesRegex(ValueError, "AdamW has no field 'b3'"):
            optimizer.make(config, 10, ROLES)


if __name__ == '__main__':
    absltest.main()
