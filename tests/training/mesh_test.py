import contextlib
import dataclasses
import itertools
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, PartitionSpec

from training import mesh as meshes

RULES = ((r'.*/kernel', ('fsdp', 'tensor')),)


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, np.float32)


@dataclasses.dataclass(frozen=True)
class Chip:
    id: int
    coords: tuple
    device_kind: str
    platform: str = 'tpu'
    core_on_chip: int = 0
    process_index: int = 0
    slice_index: int = 0


class OptionsTest(absltest.TestCase):
    def test_tpus_that_split_parameters_alone_gather_them_first(self):
        chips = [Chip(i, (i % 2, i // 2, 0), 'TPU v5 lite') for i in range(4)]
        told = lambda *sizes, devices=chips: [*meshes.compiler_options(meshes.make(*sizes, devices))]
        self.assertEqual(told(2, 2, 1), ['xla_jf_spmd_threshold_for_windowed_einsum_mib'])
        for other in (told(4, 1, 1), told(1, 2, 2), told(2, 2, 1, devices=jax.devices()[:4])):
            self.assertEmpty(other)


class MakeTest(parameterized.TestCase):
    def test_a_path_of_several_trees_is_refused(self):
        self.assertEqual(meshes.flat({'a': {'b': 1}}, {'a': {'c': 2}}), {'a/b': 1, 'a/c': 2})
        with self.assertRaisesRegex(ValueError, 'a/b is the name of a parameter and of a statistic'):
            meshes.flat({'a': {'b': 1}}, {'a': {'b': 2}})

    @parameterized.parameters(
        ((), (8, 1, 1)), ((1,), (1, 1, 1)), ((2, 2, 2), (2, 2, 2)), ((-1, 2, 1), (4, 2, 1)), ((1, -1, 2), (1, 4, 2)),
        ((1, 1, -1), (1, 1, 8)), ((3, 1, 1), (3, 1, 1)), ((-1, 8, 1), (1, 8, 1)))
    def test_sizes(self, given, wanted):
        mesh = meshes.make(*given)
        self.assertEqual(mesh.devices.shape, wanted)
        self.assertEqual(mesh.axis_names, ('data', 'fsdp', 'tensor'))
        self.assertEqual(set(mesh.axis_types), {AxisType.Auto})

    @parameterized.parameters(
        ((16, 1, 1), 'needs 16 devices, but there are 8'), ((2, 2, 4), 'needs 16 devices'),
        ((-1, 3, 4), 'needs 12 devices'), ((-1, 3, 1), '8 devices, but 3 does not divide 8'), ((-1, -1, 1), 'at most one -1'),
        ((0, 1, 1), 'expected positive sizes'), ((-2, 1, 1), 'expected positive sizes'))
    def test_impossible_sizes_are_refused(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            meshes.make(*given)

    @parameterized.parameters('TPU v4', 'TPU v5 lite', 'TPU v5', 'TPU v6 lite')
    def test_the_chips_of_a_slice(self, kind):
        chips = [Chip(4 * y + x, (x, y, 0), kind) for y, x in itertools.product(range(4), range(4))]
        for sizes in (16, 1, 1), (8, 2, 1), (1, 8, 2), (2, 2, 4), (2, 1, 2):  # 4 x 4 chips are split along both axes
            self.assertEqual(meshes.make(*sizes, chips).devices.shape, sizes)
        with self.assertRaisesRegex(ValueError, f'^The mesh data=3, fsdp=2, tensor=1 cannot be laid on the first 6 of 16 x '
                                                f'{kind}, which fill no box of whole chips; choose sizes whose product is 16'):
            meshes.make(3, 2, 1, chips)
        with self.assertRaisesRegex(ValueError, '^The devices are in 2 slices of TPUs, but a mesh is of one; start the run on'):
            meshes.make(32, 1, 1, chips + [dataclasses.replace(chip, id=16 + chip.id, slice_index=1) for chip in chips])


class BatchTest(parameterized.TestCase):
    def test_rows_are_split_over_data_and_fsdp_in_order(self):
        mesh = meshes.make(2, 2, 2)
        self.assertEqual(meshes.rows(mesh), 4)
        batch = jax.device_put(np.arange(24).reshape(8, 3), meshes.batch_sharding(mesh))
        self.assertEqual({s.data.shape for s in batch.addressable_shards}, {(2, 3)})
        self.assertLen({s.index[0].start for s in batch.addressable_shards}, 4)
        np.testing.assert_array_equal(batch, np.arange(24).reshape(8, 3))

    @parameterized.parameters(1, 2)
    def test_each_of_several_processes_puts_the_rows_of_its_devices(self, processes):
        mesh = meshes.make(2, 2, 2)
        for stacked, shape in ((False, (8, 3)), (True, (2, 8, 3))):
            batch = {'x': np.arange(np.prod(shape)).reshape(shape), 'label': np.arange(np.prod(shape[:-1])).reshape(shape[:-1])}
            with mock.patch.object(jax, 'process_count', lambda: processes):
                placed = meshes.put(batch, mesh, stacked)
            for name, x in batch.items():
                np.testing.assert_array_equal(placed[name], x)
                rows = [np.asarray(shard.data)[(0,) * stacked] for shard in placed[name].addressable_shards]
                self.assertEqual({len(part) for part in rows}, {2})
                self.assertLen({part.tobytes() for part in rows}, 4)  # each on two devices

    def test_replicated_is_whole_everywhere(self):
        x = jax.device_put(np.arange(3), meshes.replicated(meshes.make(2, 2, 2)))
        self.assertEqual([s.data.shape for s in x.addressable_shards], [(3,)] * 8)


class ShardingsTest(parameterized.TestCase):
    def specs(self, shapes, rules=RULES, sizes=(2, 2, 2), **axes_of):
        found = {f'{group}/{name}': () for group, part in shapes.items() for name in part}
        axes_of = found | {name.replace('_', '/'): axes for name, axes in axes_of.items()}
        return jax.tree.map(lambda s: s.spec, meshes.shardings(shapes, axes_of, rules, meshes.make(*sizes)))

    def test_the_first_rule_that_matches_the_whole_path_counts_and_else_what_is_told(self):
        shapes = {'a': {'kernel': shape(4, 6), 'kernels': shape(4, 6), 'bias': shape(6)}}
        rules = (*RULES, (r'.*/.*l', ('tensor',)))
        found = self.specs(shapes, rules, a_kernel=('data', None), a_kernels=(None, 'fsdp'), a_bias=('tensor',))
        self.assertEqual(found, {'a': {'kernel': PartitionSpec('fsdp', 'tensor'), 'kernels': PartitionSpec(None, 'fsdp'),
                                       'bias': PartitionSpec('tensor')}})
        self.assertEqual(self.specs(shapes, (), a_kernel=('tensor', 'fsdp')), {'a': {
            'kernel': PartitionSpec('tensor', 'fsdp'), 'kernels': PartitionSpec(), 'bias': PartitionSpec()}})

    def test_an_axis_that_does_not_divide_leaves_its_dimension_whole(self):
        shapes = {'a': {'kernel': shape(4, 5)}, 'b': {'kernel': shape(3, 6)}}
        self.assertEqual(self.specs(shapes), {'a': {'kernel': PartitionSpec('fsdp', None)},
                                              'b': {'kernel': PartitionSpec(None, 'tensor')}})

    def test_further_dimensions_are_whole(self):
        self.assertEqual(self.specs({'a': {'kernel': shape(4, 6, 5)}}),
                         {'a': {'kernel': PartitionSpec('fsdp', 'tensor')}})

    @parameterized.parameters(
        (((r'c/.*', ()),), r"'c/\.\*', \(\)\) of mesh.rules matches no parameter.* such as a/kernel"),
        (((r'.*', ('fsdp', None, None)),), r'more dimensions than a/kernel \(4, 6\)'),
        (((r'.*', ('fdsp',)),), "no axis 'fdsp' .*did you mean 'fsdp'"))
    def test_rules_that_do_not_fit_are_refused(self, rules, message):
        with self.assertRaisesRegex(ValueError, message):
            self.specs({'a': {'kernel': shape(4, 6)}, 'b': {'kernel': shape(4, 6)}}, rules)


class SplitTest(parameterized.TestCase):
    @parameterized.parameters(
        ((1, 8, 1), r'mesh.fsdp=8 splits no parameter of this model; take mesh.fsdp=4 and mesh.data=2\.'),
        ((2, 1, 4), r'mesh.tensor=4 splits no parameter of this model; take mesh.tensor=1\.'),
        ((2, 4, 1), ''), ((8, 1, 1), ''))
    def test_an_axis_that_splits_no_parameter(self, sizes, message):
        mesh, shapes = meshes.make(*sizes), {'a': shape(12, 8), 'b': shape(20, 8)}
        axes_of = {'a': ('fsdp', None), 'b': ('fsdp', None)}
        places = meshes.shardings(shapes, axes_of, (), mesh)
        with self.assertRaisesRegex(ValueError, message) if message else contextlib.nullcontext():
            meshes.require_split(places, shapes, axes_of, mesh)

    @parameterized.parameters((256, 32), (16, 16), (3, 3), (5, 1))
    def test_the_most_is_split_where_most_parameters_lie(self, count, most):
        shapes = {'wide': shape(10, 768), 'narrow': shape(1000, 96)}  # 256 divides the wide one alone
        self.assertEqual(meshes.most_split(shapes, {'wide': (None, 'fsdp'), 'narrow': (None, 'fsdp')}, 'fsdp', count), most)


class FollowTest(parameterized.TestCase):
    def test_what_has_the_path_and_the_shape_of_a_parameter_lies_where_it_does(self):
        mesh, shapes = meshes.make(2, 2, 2), {'a': {'kernel': shape(4, 6)}, 'b': {'kernel': shape(6, 4)}}
        places = meshes.shardings(shapes, {'a/kernel': ('fsdp', 'tensor'), 'b/kernel': ('tensor', None)}, (), mesh)
        rows = {'a': {'kernel': shape(4)}, 'b': {'kernel': shape(1)}}  # as of moments that are factored
        tree = {'mu': shapes, 'rows': rows, 'count': shape()}
        found = jax.tree.map(lambda s: s.spec, meshes.follow(tree, shapes, places, mesh))
        self.assertEqual(found['mu'], {'a': {'kernel': PartitionSpec('fsdp', 'tensor')},
                                       'b': {'kernel': PartitionSpec('tensor', None)}})
        self.assertEqual({*jax.tree.leaves((found['rows'], found['count']))}, {PartitionSpec()})


class PathTest(parameterized.TestCase):
    def test_names_of_dicts_sequences_and_fields(self):
        tree = {'block_0': {'kernel': 1}, 'list': [2, {'x': 3}]}
        names = [meshes.path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
        self.assertEqual(names, ['block_0/kernel', 'list/0', 'list/1/x'])


if __name__ == '__main__':
    absltest.main()
