import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from training import step as steps
from training.optimizer import Optimizer
from training.state import State, wide

RATE = lambda step: 0.1 / (1 + step)
RNG = np.random.default_rng(0)
PARAMS = {'linear': {'kernel': RNG.normal(size=(3, 2)).astype(np.float32)}, 'norm': {'scale': np.ones(2, np.float32)}}
BATCH = {'x': RNG.normal(size=(8, 5, 3)).astype(np.float32), 'y': RNG.normal(size=(8, 5, 2)).astype(np.float32),
         'weights': (np.arange(5) < np.array([5, 1, 2, 0, 5, 1, 4, 3])[:, None]).astype(np.float32)}


class Model:
    """A layer small enough to compile at once."""

    def apply(self, variables, x, key=None):
        params = variables['params']
        return jnp.tanh(x @ params['linear']['kernel']) * params['norm']['scale']


@dataclasses.dataclass(frozen=True)
class Squares:
    """Two terms in the loss, of different weights, and a metric besides."""
    coefficients = {'square': 1.0, 'last': 0.5}

    def loss(self, forward, batch, *, key, step, train):
        error = jnp.square(forward(x=batch['x']) - batch['y']).sum(-1)
        weights = batch['weights']
        last = weights[:, -1]
        return {'square': ((weights * error).sum(), weights.sum()), 'last': ((last * error[:, -1]).sum(), last.sum()),
                'tokens': (weights.sum(), jnp.float32(len(weights)))}


@dataclasses.dataclass(frozen=True)
class Noise(Squares):
    """A term that shows the key: the weights pick the rows that count."""
    coefficients = {'noise': 1.0}

    def loss(self, forward, batch, *, key, step, train):
        weights = batch['weights'][:, 0]
        return {'noise': ((weights * jax.random.uniform(key)).sum() + 0 * forward(x=batch['x']).sum(), weights.sum())}


class Centred(Model):
    """Subtracts the mean of the batch in training, and a running mean elsewhere."""

    def apply(self, variables, x, key=None, mutable=()):
        mean = variables['statistics']['mean']
        y = super().apply(variables, x - (mean if key is None else x.mean()))
        moved = mean if key is None else 0.9 * mean + 0.1 * x.mean()
        return (y, {'statistics': {'mean': moved}}) if mutable else y


@dataclasses.dataclass(frozen=True)
class Keyed(Squares):
    """Gives the model a key in training, `times` times."""
    times: int = 1

    def loss(self, forward, batch, *, key, step, train):
        def applied(**inputs):
            for _ in range(self.times):
                found = forward(**inputs, key=key if train else None)
            return found
        return super().loss(applied, batch, key=key, step=step, train=train)


def fresh(tx, terms=('square', 'last', 'tokens')):
    return State(jnp.int32(0), PARAMS, tx.init(PARAMS), {}, {t: jnp.zeros(2) for t in terms}, jnp.int32(0))


@functools.cache
def stepper(task=Squares(), **options):
    tx = optax.adam(RATE)
    return tx, jax.jit(steps.make(Model(), task, Optimizer(tx, RATE), seed=0, **options))


def run(batches, task=Squares(), **options):
    """(states, reports) of one step after the other."""
    tx, step = stepper(task, **options)
    states, reports = [fresh(tx, task.coefficients if isinstance(task, Noise) else ('square', 'last', 'tokens'))], []
    for batch in batches:
        state, report = step(states[-1], batch)
        states.append(state)
        reports.append(report)
    return states, reports


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


class AccumulationTest(parameterized.TestCase):
    @parameterized.parameters(2, 4, 8)
    def test_any_number_of_microbatches_gives_the_same_step(self, microbatches):
        whole, parts = run([BATCH]), run([BATCH], microbatches=microbatches)
        assert_close(whole[1], parts[1])
        assert_close(whole[0][-1].sums, parts[0][-1].sums)
        key = jax.random.key(0)
        one = jax.jit(functools.partial(steps.gradients, Model(), Squares(), key=key, step=0, microbatches=1))
        many = jax.jit(functools.partial(steps.gradients, Model(), Squares(), key=key, step=0, microbatches=microbatches))
        assert_close(one(PARAMS, BATCH), many(PARAMS, BATCH))

    def test_averages_of_parts_would_differ(self):
        # what makes the test above able to fail: rows of unequal weight
        gradient = jax.jit(functools.partial(steps.gradients, Model(), Squares(), key=None, step=0, microbatches=1))
        halves = [gradient(PARAMS, {name: x[i::2] for name, x in BATCH.items()})[0] for i in range(2)]
        naive = jax.tree.map(lambda a, b: (a + b) / 2, *halves)['linear']['kernel']
        self.assertGreater(float(jnp.abs(naive - gradient(PARAMS, BATCH)[0]['linear']['kernel']).max()), 1e-2)

    def test_padding_rows_change_nothing(self):
        padded = jax.tree.map(lambda x: np.concatenate([x, x]), BATCH)
        padded['weights'][8:] = 0
        (states, reports), (wanted, theirs) = run([padded]), run([BATCH])
        self.assertAlmostEqual(float(reports[0]['loss']), float(theirs[0]['loss']), places=5)
        assert_close(*(one[1].replace(sums={}) for one in (states, wanted)))  # of the rows that were there

    def test_a_batch_without_weight_is_no_division_by_zero(self):
        report = run([BATCH | {'weights': 0 * BATCH['weights']}])[1][0]
        self.assertEqual((float(report['loss']), float(report['grad_norm']), bool(report['finite'])), (0.0, 0.0, True))


class StoredTest(parameterized.TestCase):
    """Parameters in bfloat16, next to a step that begins with the same numbers in float32."""

    def stepped(self, dtype, microbatches=1):
        """(state, report) after a step with parameters that are stored in `dtype` and are numbers of bfloat16."""
        stored = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16).astype(dtype), PARAMS)
        tx, optimizer = optax.adam(RATE), Optimizer(optax.adam(RATE), RATE, average_decay=0.9)
        state = fresh(tx).replace(params=stored, opt_state=tx.init(wide(stored)), average=optimizer.first_average(wide(stored)))
        step = steps.make(Model(), Squares(), optimizer, seed=0, microbatches=microbatches)
        return jax.device_get(jax.jit(step)(state, BATCH))

    @parameterized.parameters(1, 4)
    def test_all_but_what_is_stored_is_float32(self, microbatches):
        (state, report), (exact, wanted) = (self.stepped(dtype, microbatches) for dtype in ('bfloat16', 'float32'))
        rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), exact.params)
        jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), state.params, rounded)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, strict=True), state.opt_state, exact.opt_state)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7, strict=True)
        norms = 'grad_norm', 'update_norm', 'grad_norms', 'loss'
        jax.tree.map(close, *({name: numbers[name] for name in norms} for numbers in (report, wanted)))
        before = jax.tree.map(lambda x: np.float32(jnp.asarray(x, jnp.bfloat16)), PARAMS)
        average = jax.tree.map(lambda a, p: a + 0.9 * (np.float32(p) - a), before, rounded)  # 1 - 1 / 10 at first
        jax.tree.map(close, state.average, average)
        np.testing.assert_allclose(report['param_norm'], optax.global_norm(jax.tree.map(np.float32, rounded)), rtol=1e-6)
        moved = jax.tree.map(lambda a, b: np.any(a != b), before, state.params)
        self.assertTrue(all(jax.tree.leaves(moved)))


class RandomnessTest(parameterized.TestCase):
    def noise(self, rows, steps_done=1, **options):
        weights = np.zeros((8, 5), np.float32)
        weights[rows] = 1
        return [float(r['loss']) for r in run([BATCH | {'weights': weights}] * steps_done, Noise(), **options)[1]]

    def test_steps_have_keys_of_their_own_which_repeat(self):
        values = self.noise([0], 3)
        self.assertLen(set(values), 3)
        self.assertEqual(self.noise([0], 3), values)

    def test_a_step_that_is_skipped_leaves_the_others_their_keys(self):
        bad = BATCH | {'x': np.full_like(BATCH['x'], np.nan)}
        some, whole = (run([BATCH, second, BATCH], Noise(), nonfinite='skip')[1] for second in (bad, BATCH))
        self.assertEqual([int(report['skipped']) for report in some], [0, 1, 1])
        self.assertEqual(float(some[2]['loss']), float(whole[2]['loss']))

    def test_microbatches_have_keys_of_their_own(self):
        values = [self.noise([row], microbatches=4)[0] for row in range(8)]
        self.assertLen(set(values), 4)
        self.assertEqual(values[:4], values[4:])  # row i·A + a belongs to microbatch a

    def test_streams_differ_by_seed_and_name(self):
        data = {tuple(np.asarray(jax.random.key_data(steps.stream(*of)))) for of in ((0, 'a'), (0, 'b'), (1, 'a'))}
        self.assertLen(data, 3)


class NonfiniteTest(parameterized.TestCase):
    BAD = BATCH | {'y': np.where(np.arange(8)[:, None, None] == 0, np.nan, BATCH['y']).astype(np.float32)}

    def test_skip_leaves_everything_but_the_counts_as_it_was(self):
        states, reports = run([BATCH, self.BAD, BATCH], nonfinite='skip', log_every=10)
        before, after = states[1], states[2]
        jax.tree.map(np.testing.assert_array_equal, (before.params, before.opt_state, before.sums),
                     (after.params, after.opt_state, after.sums))
        self.assertEqual([int(s.skipped) for s in states], [0, 0, 1, 1])
        self.assertEqual([int(s.step) for s in states], [0, 1, 2, 3])
        self.assertEqual([bool(r['finite']) for r in reports], [True, False, True])
        self.assertFalse(np.array_equal(states[3].params['linear']['kernel'], after.params['linear']['kernel']))
        self.assertTrue(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[3].params)))

    def test_the_average_takes_in_what_updates_give_and_nothing_else(self):
        """With d = (1 + n) / (10 + n) after n updates, those that were skipped not counted."""
        tx = optax.sgd(0.1)
        optimizer = Optimizer(tx, RATE, average_decay=0.999)
        state = fresh(tx).replace(average=optimizer.first_average(PARAMS))
        step = jax.jit(steps.make(Model(), Squares(), optimizer, seed=0, nonfinite='skip'))
        wanted, updates = PARAMS, 0
        for batch in (BATCH, self.BAD, self.BAD, BATCH, BATCH):
            before, state = state, step(state, batch)[0]
            if batch is self.BAD:
                jax.tree.map(np.testing.assert_array_equal, state.average, before.average)
                continue
            decay, updates = (1 + updates) / (10 + updates), updates + 1
            wanted = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, wanted, state.params)  # noqa: B023
            assert_close(state.average, wanted)
        self.assertEqual(updates, 3)

    def test_the_rate_reported_is_that_of_the_updates_done(self):
        reports = run([BATCH, self.BAD, BATCH], nonfinite='skip', log_every=10)[1]
        np.testing.assert_allclose([r['learning_rate'] for r in reports], [RATE(0), RATE(1), RATE(1)], rtol=1e-6)

    def test_skip_changes_nothing_in_a_finite_step(self):
        assert_close(run([BATCH], nonfinite='skip')[0][1], run([BATCH])[0][1])

    def test_stop_says_which_groups_are_not_finite(self):
        class Half(Model):
            def apply(self, variables, x, key=None):
                kernel, scale = variables['params']['linear']['kernel'], variables['params']['norm']['scale']
                return jnp.tanh(x @ jax.lax.stop_gradient(kernel)) * scale
        tx = optax.sgd(0.1)
        _, report = jax.jit(steps.make(Half(), Squares(), Optimizer(tx, RATE), seed=0))(fresh(tx), self.BAD)
        self.assertFalse(bool(report['finite']))
        self.assertTrue(np.isnan(report['loss']))
        self.assertEqual({group: bool(np.isfinite(n)) for group, n in report['grad_norms'].items()},
                         {'linear': True, 'norm': False})

    def test_an_infinite_gradient_of_a_finite_loss_is_noticed(self):
        class Root(Model):
            def apply(self, variables, x, key=None):
                return jnp.sqrt(jnp.square(variables['params']['norm']['scale'] - 1.0)) + 0 * super().apply(variables, x)
        tx = optax.sgd(0.1)
        _, report = jax.jit(steps.make(Root(), Squares(), Optimizer(tx, RATE), seed=0))(fresh(tx), BATCH)
        self.assertTrue(np.isfinite(report['loss']))
        self.assertFalse(bool(report['finite']))

    def test_an_infinite_update_of_a_finite_gradient_is_skipped(self):
        tx = optax.sgd(3e38)
        step = steps.make(Model(), Squares(), Optimizer(tx, RATE), seed=0, nonfinite='skip')
        state, report = jax.jit(step)(fresh(tx), jax.tree.map(lambda x: 100 * x, BATCH))
        self.assertTrue(np.isfinite([report['loss'], *report['grad_norms'].values()]).all())
        self.assertEqual((int(state.skipped), bool(report['finite'])), (1, False))
        jax.tree.map(np.testing.assert_array_equal, state.params, PARAMS)

    @parameterized.parameters(('stop', [True, False, True], 2), ('skip', [True, False, True], 3), ('stop', [True] * 3, 3))
    def test_of_several_steps_the_first_bad_one_is_reported(self, nonfinite, good, reported):
        tx = optax.sgd(0.1)
        step = steps.make(Model(), Squares(), Optimizer(tx, RATE), seed=0, nonfinite=nonfinite)
        batches = [BATCH if ok else self.BAD for ok in good]
        stacked = {name: np.stack([batch[name] for batch in batches]) for name in BATCH}
        state, report = jax.jit(steps.several(step, 3, nonfinite))(fresh(tx), stacked)
        self.assertEqual((int(report['step']), int(state.step)), (reported, 3))
        self.assertEqual(bool(report['finite']), reported == 3)

    def test_an_unknown_choice_is_refused(self):
        with self.assertRaisesRegex(ValueError, "train.nonfinite is 'ignore'; expected one of stop, skip"):
            steps.make(Model(), Squares(), Optimizer(optax.sgd(0.1), RATE), seed=0, nonfinite='ignore')


class ReportTest(parameterized.TestCase):
    def test_sums_start_anew_after_every_log_row(self):
        one = np.asarray(BATCH['weights'].sum())
        for log_every, counts in ((1, [1, 1, 1, 1, 1]), (2, [1, 2, 1, 2, 1]), (3, [1, 2, 3, 1, 2])):
            states, reports = run([BATCH] * 5, log_every=log_every)
            np.testing.assert_allclose([r['sums']['square'][1] for r in reports], one * np.array(counts), rtol=1e-6)
            np.testing.assert_allclose([r['sums']['tokens'][0] for r in reports], one * np.array(counts), rtol=1e-6)
            np.testing.assert_array_equal(states[-1].sums['square'], reports[-1]['sums']['square'])

    def test_loss_is_the_weighted_total_of_its_terms(self):
        report = run([BATCH])[1][0]
        square, last = (np.divide(*report['sums'][t]) for t in ('square', 'last'))
        self.assertAlmostEqual(float(report['loss']), square + 0.5 * last, places=5)

    def test_norms_and_rate_are_those_of_the_step(self):
        states, reports = run([BATCH, BATCH])
        leaves = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        for before, after, report, rate in zip(states, states[1:], reports, (0.1, 0.05)):
            self.assertAlmostEqual(float(report['learning_rate']), rate, places=6)
            self.assertAlmostEqual(float(report['param_norm']), np.linalg.norm(leaves(after.params)), places=4)
            moved = np.linalg.norm(leaves(after.params) - leaves(before.params))
            self.assertAlmostEqual(float(report['update_norm']), moved, places=5)
            groups = np.sqrt(sum(float(n) ** 2 for n in report['grad_norms'].values()))
            self.assertAlmostEqual(float(report['grad_norm']), groups, places=5)
        self.assertEqual(set(reports[0]['grad_norms']), {'linear', 'norm'})

    def test_norms_are_those_of_rows_of_the_log_and_of_the_last_step(self):
        for last, wanted in ((0, [False, True, False]), (3, [False, True, True])):
            reports = run([BATCH] * 3, log_every=2, last=last)[1]
            for name in ('update_norm', 'param_norm'):
                self.assertEqual([float(report[name]) > 0 for report in reports], wanted)

    def test_what_is_frozen_has_no_gradient(self):
        tx = optax.adam(RATE)
        frozen = Optimizer(tx, RATE, rate_rules=(('linear/.*', 0.0), ('.*', 1.0)))
        _, report = jax.jit(steps.make(Model(), Squares(), frozen, seed=0))(fresh(tx), BATCH)
        self.assertEqual(float(report['grad_norms']['linear']), 0.0)
        self.assertGreater(float(report['grad_norms']['norm']), 0.0)


class ProgramsTest(absltest.TestCase):
    def test_each_shape_of_batch_has_a_program_made_when_it_comes(self):
        made = []

        def make(shapes):
            made.append(shapes)
            return lambda state, batch, frozen: (state, shapes, frozen), 10 * len(made)

        longest = {'inputs': ((2, 8), np.dtype('int32')), 'weights': ((2, 8), np.dtype('float32'))}
        programs = steps.Programs(make, longest, {'teacher': 7})
        self.assertEqual((made, programs.flops), ([longest], 10))
        for shape in ((2, 8), (4, 4), (2, 8), (4, 4)):
            batch = {'weights': np.zeros(shape, np.float32), 'inputs': np.zeros(shape, np.int32)}
            _, shapes, frozen = programs(0, batch)
            self.assertEqual((shapes['inputs'][0], frozen), (shape, {'teacher': 7}))
            self.assertEqual(programs.flops_with(batch), 10 if shape == (2, 8) else 20)
        self.assertLen(made, 2)
        self.assertEqual(programs.flops, 10)



class StatisticsTest(parameterized.TestCase):
    """What a model gathers in training without a gradient."""

    def stepped(self, task=Keyed(), batch=BATCH, average=False, start=0.5, **options):
        tx = optax.sgd(0.1)
        optimizer = Optimizer(tx, lambda step: 0.1, average_decay=0.5 * average)
        statistics = {'mean': jnp.float32(start)}
        state = fresh(tx).replace(statistics=statistics, average=optimizer.first_average(PARAMS),
                                  average_statistics=optimizer.first_average(statistics))
        return jax.jit(steps.make(Centred(), task, optimizer, seed=0, **options))(state, batch)

    def test_each_application_in_training_moves_them(self):
        mean = BATCH['x'].mean()
        once, twice = (self.stepped(Keyed(times=n))[0].statistics['mean'] for n in (1, 2))
        self.assertAlmostEqual(float(once), 0.9 * 0.5 + 0.1 * mean, places=6)
        self.assertAlmostEqual(float(twice), 0.9 * float(once) + 0.1 * mean, places=6)
        tx, step = stepper()
        self.assertEqual(step(fresh(tx), BATCH)[0].statistics, {})  # of a model without any

    def test_one_microbatch_after_the_other_moves_them(self):
        state, _ = self.stepped(microbatches=2)
        wanted = 0.5
        for rows in (slice(0, None, 2), slice(1, None, 2)):
            wanted = 0.9 * wanted + 0.1 * BATCH['x'][rows].mean()
        self.assertAlmostEqual(float(state.statistics['mean']), wanted, places=6)

    def test_their_average_is_as_that_of_the_parameters(self):
        state, _ = self.stepped(average=True)
        decay = 0.1  # (1 + n) / (10 + n) before any update
        wanted = lambda old, new: old + (1 - decay) * (new - old)
        self.assertAlmostEqual(float(state.average_statistics['mean']), wanted(0.5, float(state.statistics['mean'])), places=6)
        close = lambda found, old, new: np.testing.assert_allclose(found, wanted(old, new), rtol=1e-5)
        jax.tree.map(close, state.average, PARAMS, state.params)

    def test_a_skipped_update_leaves_them(self):
        broken = BATCH | {'y': BATCH['y'] * np.float32(np.inf)}
        state, report = self.stepped(batch=broken, average=True, nonfinite='skip')
        self.assertFalse(report['finite'])
        self.assertEqual((float(state.statistics['mean']), float(state.average_statistics['mean'])), (0.5, 0.5))

    def test_they_must_be_finite_too(self):
        _, report = self.stepped(start=np.inf)
        self.assertTrue(np.isfinite(report['loss']))  # it does not depend on them in training
        self.assertFalse(report['finite'])


if __name__ == '__main__':
    absltest.main()
