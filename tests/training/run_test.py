import dataclasses
import gc
import itertools
import math
import pathlib
import tempfile
import types
import weakref
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec

from configs import base
from data.opened import Opened
from tests import models, storage_server
from tests.marks import slow_but
from training import mesh as meshes
from training import run as runs
from training import storage, workdir
from training.checkpoint import Checkpoints
from transformer.attention.masks.patterns import Causal, Window
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken

V, T = 32, 8


@dataclasses.dataclass(frozen=True)
class Rows:
    """Data drawn at random, with padding."""
    batch_size: int = 8
    reader: str = ''
    packing: str = 'none'

    def open(self, folder, source=None):
        return OpenRows(self)

    def batch(self, seed=0, rows=None):
        rng, rows = np.random.default_rng(seed), rows or self.batch_size
        lengths = rng.integers(1, T + 1, size=(rows, 1))
        inside = np.arange(T) < lengths
        tokens = lambda: rng.integers(V, size=(rows, T)).astype(np.int32)
        return {'inputs': tokens(), 'targets': tokens(), 'segments': inside.astype(np.int32),
                'positions': np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T)), 'weights': inside.astype(np.float32)}


@dataclasses.dataclass(frozen=True)
class OpenRows(Opened):
    """Such data, opened."""
    config: Rows
    unit = 'tokens'
    facts = types.MappingProxyType({'vocab': V})
    batches_per_epoch = 4.0

    @property
    def shapes(self):
        rows = self.config.batch_size
        integers = {name: ((rows, T), np.int32) for name in ('inputs', 'targets', 'segments', 'positions')}
        return integers | {'weights': ((rows, T), np.float32)}

    @property
    def buckets(self):
        half = {name: ((rows, length // 2), dtype) for name, ((rows, length), dtype) in self.shapes.items()}
        return [half, self.shapes] if self.config.packing == 'buckets' else [self.shapes]

    def save(self, folder):
        """Has learnt nothing."""

    def describe(self):
        return 'rows'

    def digest(self, split):
        return split

    def train(self, seed):
        return map(self.config.batch, itertools.count(seed))

    def score(self, paths, batch_size, **view):
        raise ValueError('There are no files of rows.')

    def evaluation(self, split, batch_size, **view):
        batches = [self.config.batch(i, batch_size) for i in range(3)]
        return Batches(batches, {'bytes': 100, 'tokens': 50, 'split': split, **view})


@dataclasses.dataclass(frozen=True)
class Marked(NextToken):
    def inputs(self, batch):
        return super().inputs(batch) | {'prefix': batch['segments']}


class Batches(list):
    def __init__(self, batches, facts):
        super().__init__(batches)
        self.facts = facts


def config_of(**mesh):
    c = base.config()
    c.data = base.data(f'{__name__}:Rows')
    c.model = base.part('transformer.models.gpt:Gpt', layers=1, heads=4, width=16, length=T)
    c.task = base.part('transformer.tasks.language_model:NextToken')
    # The gradient of a key's bias is zero but for rounding, which Adam with a small eps would blow up to whole steps.
    c.optimizer = base.optimizer(learning_rate=0.01, weight_decay=0.1, eps=1e-3,
                                 schedule=base.part('training.schedules:ConstantRate'))
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    c.train.steps = 3
    c.mesh.update(mesh)
    return c.lock()


def build(sizes=(1, 1, 1), config=None):
    return runs.build(config or config_of(), meshes.make(*sizes))


def drawn(shapes):
    """A state of these shapes and shardings from numpy, with nothing to compile."""
    rng = np.random.default_rng(0)
    draw = lambda s: jax.device_put((0.3 * rng.normal(size=s.shape)).astype(s.dtype), s.sharding)
    zeros = lambda s: jax.device_put(np.zeros(s.shape, s.dtype), s.sharding)
    return jax.tree.map(zeros, shapes).replace(params=jax.tree.map(draw, shapes.params))


def three_steps(run, state=None):
    state, step, reports = state or drawn(run.shapes), run.compile(), []
    for seed in range(3):
        state, report = step(state, jax.device_put(Rows().batch(seed), meshes.batch_sharding(run.mesh)))
        reports.append(report)
    return state, reports


class SplitTest(absltest.TestCase):
    def test_a_mesh_that_splits_nothing_is_refused_in_training_and_not_in_what_was_trained(self):
        config = config_of().unlock()
        config.model.update(width=12, heads=3)
        config.mesh.fsdp = 8
        with self.assertRaisesRegex(ValueError, 'fsdp=8 splits no parameter of this model; take mesh.fsdp=4 and mesh.data=2'):
            runs.build(config, meshes.make(1, 8))
        self.assertEqual(runs.build(config, meshes.make(1, 8), applied=True).mesh.shape['fsdp'], 8)


class CompiledTest(absltest.TestCase):
    def test_it_is_compiled_once_and_goes_with_the_run(self):
        run, traced = build(), []

        def total(run, x):
            traced.append(run.config.seed)
            return x.sum()
        for _ in range(2):
            self.assertEqual(float(run.compiled(total)(np.ones(3))), 3.0)
        self.assertEqual(traced, [run.config.seed])
        gone = weakref.ref(run)
        del run
        gc.collect()
        self.assertIsNone(gone())


@slow_but('test_steps_equal_those_of_one_device', 'all')
class MeshesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.state, cls.reports = jax.device_get(three_steps(build()))

    @parameterized.named_parameters(('data', 8, 1, 1), ('all', 2, 2, 2), ('fsdp', 1, 8, 1), ('tensor', 1, 1, 4))
    def test_steps_equal_those_of_one_device(self, *sizes):
        run = build(sizes)
        state, reports = three_steps(run)
        rounding = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        jax.tree.map(rounding, jax.device_get((state.params, reports)), (self.state.params, self.reports))
        # and everything still lies where it should
        same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s.sharding, x.ndim), state, run.shapes)
        self.assertTrue(all(jax.tree.leaves(same)))

    @parameterized.parameters(
        dict(path='training.optimizer:Muon', average_decay=0.5), dict(path='training.optimizer:Adafactor', factored_from=2),
        dict(path='training.optimizer:AdamW', rate_rules=((r'block_0/.*', 0.0), (r'.*', 2.0))))
    @pytest.mark.slow
    def test_other_optimizers_too(self, path, rate_rules=None, **fields):
        optimizer = base.optimizer(path, learning_rate=0.01, schedule=base.part('training.schedules:ConstantRate'), **fields)
        optimizer.rate_rules = rate_rules or optimizer.rate_rules
        config = config_of().unlock()
        config.optimizer, config.model.projection_bias = optimizer, False  # a key's has a gradient of nothing but rounding
        runs_of = [build(sizes, config) for sizes in ((1, 1, 1), (2, 2, 2))]
        (one, _), (many, _) = [three_steps(run, run.init()) for run in runs_of]
        rounding = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        jax.tree.map(rounding, jax.device_get((one.params, one.average)), jax.device_get((many.params, many.average)))
        moved = not np.array_equal(one.params['block_0']['attention']['query']['kernel'],
                                   runs_of[0].init().params['block_0']['attention']['query']['kernel'])
        self.assertEqual(moved, rate_rules is None)
        same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s.sharding, x.ndim), many, runs_of[1].shapes)
        self.assertTrue(all(jax.tree.leaves(same)))

    @parameterized.parameters(
        ((2, 2, 2), 'block_0/attention/query/kernel', (8, 2, 4)), ((2, 2, 2), 'block_0/attention/output/kernel', (2, 4, 8)),
        ((2, 2, 2), 'block_0/feed_forward/input/kernel', (8, 32)), ((2, 2, 2), 'block_0/feed_forward/output/kernel', (32, 8)),
        ((2, 2, 2), 'tokens/embedding', (16, 8)), ((2, 2, 2), 'norm/scale', (16,)),
        ((1, 8, 1), 'block_0/attention/query/kernel', (2, 4, 4)), ((1, 1, 4), 'block_0/attention/query/kernel', (16, 1, 4)))
    def test_parameters_and_their_moments_are_split(self, sizes, path, part):
        state = drawn(build(sizes).shapes)
        adam = next(s for s in state.opt_state if hasattr(s, 'mu'))
        mu, nu = (getattr(adam, name) for name in ('mu', 'nu'))
        for tree in (state.params, mu, nu):
            leaf = {meshes.path_of(k): leaf for k, leaf in jax.tree_util.tree_leaves_with_path(tree)}[path]
            self.assertEqual({s.data.shape for s in leaf.addressable_shards}, {part})

    def test_the_fresh_state_is_the_same_on_any_mesh(self):
        one, many = build().init(), build((2, 2, 2)).init()
        jax.tree.map(np.testing.assert_array_equal, *jax.device_get((one, many)))
        query = many.params['block_0']['attention']['query']['kernel']
        self.assertEqual({s.data.shape for s in query.addressable_shards}, {(8, 2, 4)})

    def test_large_batches_are_on_the_devices_before_the_step_begins(self):
        run = build((2, 1, 1))
        small, large = ({'x': np.ones((8, width), np.float32)} for width in (8, 8192))
        for batch, kind in ((small, np.ndarray), (large, jax.Array)):
            taken, units = run.batches(iter([batch]))
            self.assertIsInstance(taken['x'], kind)
            np.testing.assert_array_equal(taken['x'], batch['x'])
            self.assertEqual(units, 8)
        self.assertEqual({shard.data.shape for shard in taken['x'].addressable_shards}, {(4, 8192)})

    def test_several_processes_put_each_its_part_there(self):
        run, batch = build((2, 1, 1)), {'x': np.arange(16.0).reshape(8, 2)}
        with mock.patch.object(jax, 'process_count', lambda: 2):
            taken, _ = run.batches(iter([batch]))
        self.assertEqual([shard.data.tolist() for shard in taken['x'].addressable_shards],
                         [batch['x'][:4].tolist(), batch['x'][4:].tolist()])

    def test_several_steps_are_one_compilation(self):
        run, compiled = build((4, 1, 1)), []
        state = drawn(run.shapes)
        batches = [jax.device_put(Rows().batch(seed), meshes.batch_sharding(run.mesh)) for seed in range(3)]
        listen = lambda event, seconds, **_: compiled.append(event) if event.endswith('backend_compile_duration') else None
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            step = run.compile()
            self.assertLen(compiled, 1)  # able to fail: this one is seen
            for batch in batches:
                state, report = step(state, batch)
            jax.block_until_ready(report)
            self.assertLen(compiled, 1)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        self.assertEqual(int(state.step), 3)


class BuildTest(parameterized.TestCase):
    def test_the_parts_are_those_of_the_config(self):
        config = config_of().unlock()
        config.model.mask, config.dtype = 'Causal() & Window(4)', 'bfloat16'
        run = runs.build(config, meshes.make(1))
        self.assertEqual(run.model, models.build(Gpt, vocab=V, layers=1, heads=4, width=16, length=T,
                                                 mask=Causal() & Window(4), dtype='bfloat16'))
        self.assertEqual(run.parameters(), sum(math.prod(s.shape) for s in jax.tree.leaves(run.shapes.params)))
        self.assertEqual(set(run.shapes.sums), {'loss', 'accuracy'})

    def test_evaluation_takes_as_many_rows_as_a_microbatch(self):
        config = config_of().unlock()
        config.train.microbatches = 4
        self.assertEqual(runs.build(config, meshes.make(1)).eval_rows, 2)

    @parameterized.parameters(12, 4)
    def test_a_batch_that_the_mesh_does_not_divide_is_refused(self, rows):
        config = config_of()
        config.data.batch_size = rows
        with self.assertRaisesRegex(ValueError, f'data.batch_size={rows} cannot be divided .* for 8 parts'):
            runs.build(config, meshes.make())

    def test_several_steps_at_once_need_batches_of_one_shape(self):
        config = config_of().unlock()
        config.data = base.data(f'{__name__}:Rows', packing='buckets')
        for dispatch in (1, 2):
            config.train.dispatch, config.log.every_steps, config.train.steps = dispatch, 2, 4
            config.checkpoint.every_steps = config.evals.valid.every_steps = 4
            if dispatch == 1:
                self.assertLen(build(config=config).data.buckets, 2)
            else:
                with self.assertRaisesRegex(ValueError, "train.dispatch=2 does steps with batches of one shape, but"):
                    build(config=config)

    def test_blocks_of_logits_for_a_model_that_has_none_are_refused(self):
        config = config_of().unlock()
        config.task.block = 4
        self.assertEqual(runs.build(config, meshes.make(1)).task.block, 4)
        config.model = base.part('transformer.models.recurrent_lm:RecurrentLm')
        with self.assertRaisesRegex(ValueError, 'task.block is 4, but transformer.models.recurrent_lm:.* has no block; leave'):
            runs.build(config, meshes.make(1))

    def test_what_a_task_asks_for_and_neither_model_nor_batch_has(self):
        config = config_of().unlock()
        config.model.head = 'NoHead()'
        with self.assertRaisesRegex(ValueError, "NextToken asks for 'logits', which neither .*.gpt:Gpt gives nor "
                                                '.*:Rows, whose batches have inputs, targets'):
            runs.build(config, meshes.make(1))

    def test_inputs_that_the_model_does_not_take_are_refused(self):
        config = config_of().unlock()
        config.task = base.part(f'{__name__}:Marked')
        self.assertIsInstance(runs.build(config, meshes.make(1)).task, Marked)
        config.model = base.part('transformer.models.recurrent_lm:RecurrentLm')
        with self.assertRaisesRegex(ValueError, '.*:Marked gives the model prefix, which .*:RecurrentLm does not take; cho'):
            runs.build(config, meshes.make(1))
        config.task = base.part('vit.tasks.reconstruction:Reconstruction')
        config.model = base.part('vit.models.vit:Vit', layers=1, heads=2, width=8)
        config.data = base.data('data.images.labelled:Images', source='digits', train='train[:64]', valid='train[64:74]',
                                batch_size=8)
        with self.assertRaisesRegex(ValueError, 'Reconstruction gives the model seed, which vit.models.vit:Vit does not take'):
            runs.build(config, meshes.make(1))

    @parameterized.parameters(3, 16)
    def test_microbatches_that_do_not_divide_the_batch_are_refused(self, microbatches):
        config = config_of()
        config.train.microbatches = microbatches
        with self.assertRaisesRegex(ValueError, f'train.microbatches={microbatches}'):
            runs.build(config, meshes.make(1))

    @parameterized.parameters(
        ('train', 'steps', 0), ('train', 'microbatches', 0), ('data', 'batch_size', 0), ('data', 'batch_size', -8),
        ('log', 'every_steps', 0), ('checkpoint', 'keep', 1))
    def test_numbers_without_a_meaning_are_refused(self, group, field, value):
        config = config_of()
        config[group][field] = value
        with self.assertRaisesRegex(ValueError, f'{group}.{field}'):
            runs.build(config, meshes.make(1))

    @parameterized.parameters(
        ('mesh.rules', ((r'blok.*', ()),)), ('optimizer.decay_rules', ((r'blok.*', 0.0),)),
        ('optimizer.rate_rules', ((r'blok.*', 0.0), (r'.*', 1.0))))
    def test_a_rule_that_matches_no_parameter_is_refused(self, name, rules):
        config = config_of()
        group, field = name.split('.')
        config[group][field] = rules
        with self.assertRaisesRegex(ValueError, rf"The rule \('blok\.\*', .*\) of {name} matches no parameter"):
            runs.build(config, meshes.make(1))

    def test_a_rule_comes_before_what_a_role_says(self):
        config = config_of(rules=((r'.*/query/kernel', (None, None, 'tensor')),))
        params = runs.build(config, meshes.make(1, 1, 2)).shapes.params['block_0']['attention']
        self.assertEqual([params[name]['kernel'].sharding.spec for name in ('query', 'key')],
                         [PartitionSpec(None, None, 'tensor'), PartitionSpec('fsdp', 'tensor', None)])


class RowTest(absltest.TestCase):
    def test_a_training_row_has_averages_norms_and_the_epoch(self):
        run = build()
        numbers = {'sums': {'loss': np.array([6.0, 4.0]), 'accuracy': np.array([1.0, 4.0])}, 'learning_rate': 0.1,
                   'grad_norm': 1.0, 'update_norm': 2.0, 'param_norm': 3.0, 'skipped': 0, 'finite': True, 'grad_norms': {}}
        self.assertEqual(run.training_row(numbers, 2), {
            'loss': 1.5, 'accuracy': 0.25, 'learning_rate': 0.1, 'grad_norm': 1.0, 'update_norm': 2.0, 'param_norm': 3.0,
            'epoch': 0.5})

    def test_a_training_row_has_the_gradient_of_every_layer_if_asked(self):
        config = config_of().unlock()
        config.log.gradients = True
        numbers = {'sums': {'loss': np.array([6.0, 4.0])}, 'learning_rate': 0.1, 'grad_norm': 5.0, 'update_norm': 2.0,
                   'param_norm': 3.0, 'skipped': 0, 'finite': True, 'grad_norms': {'block_0': np.float32(3), 'norm': 4.0}}
        row = build(config=config).training_row(numbers, 2)
        self.assertEqual({name: row[name] for name in row if '/' in name}, {'grad_norm/block_0': 3.0, 'grad_norm/norm': 4.0})


@storage_server.needed
@pytest.mark.slow
class BucketTest(absltest.TestCase):
    def test_an_error_leaves_a_bucket_as_it_was(self):
        def half(data, folder):
            (folder / 'tokenizer.model').write_text('half')
            raise ValueError('not all')

        bucket, run = storage.path(storage_server.bucket()), build()
        tree, last = drawn(run.shapes).tree(), mock.Mock(side_effect=ValueError('not all'))
        for folder in bucket, bucket / 'run':
            for owner, name, broken in (OpenRows, 'save', half), (workdir, 'save_environment', last):
                with mock.patch.object(owner, name, broken), self.assertRaisesRegex(ValueError, 'not all'):
                    runs.write(folder, run, tree)
                self.assertEqual([*bucket.iterdir()], [])
        runs.write(folder, run, tree)
        self.assertEqual(runs.load(folder).step, 0)


class LoadTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def saved(self):
        run = build()
        state = drawn(run.shapes)
        workdir.save_config(self.folder, run.config)
        checkpoints = Checkpoints(self.folder)
        checkpoints.save(5, state.tree(), None)
        checkpoints.close()
        return state

    @pytest.mark.slow
    def test_a_saved_run_is_found_again_and_can_start_another(self):
        state = self.saved()
        snapshot = runs.load(self.folder)
        self.assertEqual(snapshot.step, 5)
        jax.tree.map(np.testing.assert_array_equal, snapshot.params, state.params)
        config = config_of()
        config.init_rules = ((r'tokens/.*', 'fresh'), (r'.*', 'keep'))
        other, made = runs.build(config, meshes.make(1)).init_from(self.folder)
        self.assertEqual(made, ['tokens/embedding'])
        np.testing.assert_array_equal(other.params['norm']['scale'], state.params['norm']['scale'])
        self.assertFalse(np.array_equal(other.params['tokens']['embedding'], state.params['tokens']['embedding']))
        self.assertEqual(int(other.step), 0)
        config.init_rules = ((r'block_0/attention/key/(.*)', r'keep:block_0/attention/query/\1'), (r'.*', 'keep'))
        other, _ = runs.build(config, meshes.make(1)).init_from(self.folder)
        block, there = other.params['block_0']['attention'], state.params['block_0']['attention']
        np.testing.assert_array_equal(block['key']['kernel'], there['query']['kernel'])
        np.testing.assert_array_equal(block['query']['kernel'], there['query']['kernel'])
        self.assertNotEqual(*(block[name]['kernel'].unsafe_buffer_pointer() for name in ('key', 'query')))  # may be donated
        config.model.length, config.init_rules = 2 * config.model.length, ((r'.*', 'offered'),)  # the positions do not fit
        other, made = runs.build(config, meshes.make(1)).init_from(self.folder)
        self.assertEqual(made, ['positions/embedding'])
        np.testing.assert_array_equal(other.params['tokens']['embedding'], state.params['tokens']['embedding'])
        config.model.length //= 2
        renamed = {r'keep:norm/\1': r"gives 'keep:norm/.*1' for .*, where invalid group reference",
                   r'keep:old/\g<0>': r'has nothing for old/(.*), but the model needs \(.*\) for \1; change',
                   'keep:norm/scale': r'has \(16,\) for norm/scale, but the model needs \((?!16,\)).*\) for',
                   'fresh:norm/scale': "gives 'fresh:norm/scale' for"}
        renamed |= {'drop': "'drop' for .*expected 'keep', 'fresh' or", '': 'No rule of init_rules'}
        for rule, message in renamed.items():
            config.init_rules = ((r'.*', rule),) if rule else ()
            with self.assertRaisesRegex(ValueError, message):
                runs.build(config, meshes.make(1)).init_from(self.folder)

    def test_a_fresh_rule_that_matches_nothing_is_refused(self):
        self.saved()
        config = config_of()
        for rule in (('token/.*', 'fresh'), ['token/.*', 'fresh']):
            config.init_rules = ((r'.*_head/.*', 'offered'), rule, (r'.*', 'keep'))
            with self.assertRaisesRegex(ValueError, r"The rule .'token/\.\*', 'fresh'. of init_rules matches no parameter"):
                runs.build(config, meshes.make(1)).init_from(self.folder)

    def test_what_another_starts_with_is_read_onto_its_own_devices(self):
        self.saved()
        mesh, read = meshes.make(4, 2), []
        run = runs.build(config_of(), mesh)
        with (mock.patch.object(Checkpoints, 'restore', lambda _, target, step: read.append(target)),
              self.assertRaisesRegex(ValueError, 'has no checkpoint yet')):
            run.init_from(self.folder)
        self.assertEqual({s.sharding.mesh for s in jax.tree.leaves(read)}, {mesh})
        self.assertEqual([s.sharding for s in jax.tree.leaves(read)], [s.sharding for s in jax.tree.leaves(run.shapes.params)])

    def test_a_folder_without_checkpoint_is_refused(self):
        workdir.save_config(self.folder, config_of())
        with self.assertRaisesRegex(ValueError, 'has no checkpoint yet'):
            runs.load(self.folder)

    def test_steps_by_name(self):
        checkpoints = types.SimpleNamespace(best_step=lambda: 3)
        self.assertIsNone(runs.checkpoint_step(checkpoints, 'last', None))
        self.assertEqual(runs.checkpoint_step(checkpoints, 'best', None), 3)
        self.assertEqual(runs.checkpoint_step(checkpoints, '12', None), 12)
        with self.assertRaisesRegex(ValueError, "The step is 'newest'; expected last, best or a number"):
            runs.checkpoint_step(checkpoints, 'newest', None)
        with self.assertRaisesRegex(ValueError, 'no best step'):
            runs.checkpoint_step(types.SimpleNamespace(best_step=lambda: None), 'best', None)


if __name__ == '__main__':
    absltest.main()
