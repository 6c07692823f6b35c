import math

import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from absl.testing import absltest, parameterized

from training import optimizer, resolve

RULES = ((r'.*/(bias|scale)', 0.0), (r'.*', 1.0))
SHAPES = {'block': {'kernel': (3, 2), 'bias': (2,)}, 'norm': {'scale': (2,)}}


def config_of(schedule='Constant', *, learning_rate=0.1, weight_decay=0.0, rules=RULES, clip=0.0, fields=None, **adam):
    config = resolve.describe('training.optimizer:AdamW', **adam)
    config.schedule = resolve.describe(f'training.optimizer:{schedule}', **(fields or {}))
    config.learning_rate, config.weight_decay, config.decay_rules, config.clip = learning_rate, weight_decay, rules, clip
    return config.lock()


def tree(function):
    return {group: {name: np.float32(function(shape)) for name, shape in part.items()} for group, part in SHAPES.items()}


def updated(config, params, gradients):
    """Parameters after one update for each of `gradients`."""
    tx = optimizer.make(config, 100)
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
        dict(weight_decay=0.3, clip=0.5, schedule='Linear', fields={'warmup_steps': 2}))
    def test_equals_float64(self, **given):
        config, rng = config_of(**given), np.random.default_rng(0)
        params = tree(lambda shape: rng.normal(size=shape))
        gradients = [tree(lambda shape: rng.normal(size=shape)) for _ in range(4)]
        rate = lambda step: float(optimizer.schedule(config, 100)(step))
        wanted = adamw(params, gradients, rate=rate, b1=config.b1, b2=config.b2, eps=config.eps,
                       decay=config.weight_decay, clip=config.clip)
        got = updated(config, params, gradients)
        for (group, name), value in wanted.items():
            np.testing.assert_allclose(got[group][name], value, rtol=1e-5, atol=1e-6)

    def test_decay_follows_the_rules(self):
        ones, zeros = tree(np.ones), tree(np.zeros)
        got = updated(config_of(weight_decay=0.5), ones, [zeros])
        np.testing.assert_allclose(got['block']['kernel'], 1 - 0.1 * 0.5)
        np.testing.assert_array_equal(got['block']['bias'], 1.0)
        np.testing.assert_array_equal(got['norm']['scale'], 1.0)
        half = updated(config_of(weight_decay=0.5, rules=((r'norm/.*', 0.5), (r'.*', 0.0))), ones, [zeros])
        np.testing.assert_allclose(half['norm']['scale'], 1 - 0.1 * 0.25)
        np.testing.assert_array_equal(half['block']['kernel'], 1.0)

    def test_a_parameter_that_no_rule_covers_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'No rule of optimizer.decay_rules covers the parameter norm/scale'):
            updated(config_of(weight_decay=0.5, rules=((r'block/.*', 1.0),)), tree(np.ones), [tree(np.ones)])

    def test_clipping_is_by_the_norm_of_all_gradients(self):
        config = config_of(clip=1.0, eps=1.0)  # with eps 1 Adam no longer hides the size of a gradient
        large, clipped = tree(lambda shape: np.full(shape, 7.0)), tree(lambda shape: np.full(shape, 1 / math.sqrt(10)))
        zeros = tree(np.zeros)
        first, second = updated(config, zeros, [large]), updated(config, zeros, [clipped])
        np.testing.assert_allclose(first['norm']['scale'], second['norm']['scale'], rtol=1e-5)
        free = updated(config_of(eps=1.0), zeros, [large])
        self.assertGreater(abs(free['norm']['scale'][0]), 2 * abs(first['norm']['scale'][0]))


class SchedulesTest(parameterized.TestCase):
    def rates(self, schedule, steps=20, **fields):
        rate = optimizer.schedule(config_of(schedule, learning_rate=2.0, fields=fields), steps)
        return np.array([float(rate(jnp.int32(step))) for step in range(steps + 5)])

    @parameterized.parameters('Constant', 'Cosine', 'Linear')
    def test_warm_up_rises_from_zero_to_the_peak_in_equal_steps(self, schedule):
        np.testing.assert_allclose(self.rates(schedule, warmup_steps=4)[:5], [0.5, 1.0, 1.5, 2.0, 2.0], rtol=1e-6)

    @parameterized.parameters('Constant', 'Cosine', 'Linear')
    def test_without_warm_up_the_first_step_is_the_peak(self, schedule):
        self.assertAlmostEqual(self.rates(schedule)[0], 2.0)

    @parameterized.parameters(0, 4)
    def test_shapes(self, warmup):
        fraction = np.clip((np.arange(25) - warmup) / (20 - warmup), 0, 1)[warmup:]
        for schedule, final, shape in (
                ('Constant', 0.0, np.ones_like(fraction)), ('Linear', 0.0, 1 - fraction),
                ('Linear', 0.1, 1 - 0.9 * fraction), ('Cosine', 0.0, (1 + np.cos(np.pi * fraction)) / 2),
                ('Cosine', 0.1, 0.1 + 0.9 * (1 + np.cos(np.pi * fraction)) / 2)):
            got = self.rates(schedule, warmup_steps=warmup, final=final)[warmup:]
            np.testing.assert_allclose(got, 2.0 * shape, atol=1e-6, err_msg=f'{schedule} {final}')

    def test_decay_may_end_before_training_does(self):
        rates = self.rates('Linear', decay_steps=10, final=0.2)
        np.testing.assert_allclose(rates[[0, 5, 10, 24]], [2.0, 1.2, 0.4, 0.4], rtol=1e-6)

    @parameterized.parameters(dict(warmup_steps=-1), dict(decay_steps=-1))
    def test_negative_durations_are_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, 'warmup_steps is'):
            self.rates('Cosine', **fields)

    def test_the_update_uses_the_rate_of_its_step(self):
        config = config_of('Linear', fields={'warmup_steps': 2}, b1=0.0, b2=0.0, eps=1e-12)
        ones = tree(np.ones)
        moved = [float(updated(config, ones, [ones] * n)['norm']['scale'][0]) for n in range(4)]
        np.testing.assert_allclose(-np.diff(moved), [0.05, 0.1, 0.1], rtol=1e-5)


class ConfigTest(parameterized.TestCase):
    def test_an_unknown_field_is_refused(self):
        config = ml_collections.ConfigDict(config_of().to_dict())
        config.b3 = 0.5
        with self.assertRaisesRegex(ValueError, "AdamW has no field 'b3'"):
            optimizer.make(config, 10)


if __name__ == '__main__':
    absltest.main()
