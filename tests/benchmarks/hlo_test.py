"""benchmarks/hlo.py: traffic and collectives of programs whose numbers are known, compiled here or written down."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks import hlo

# As the compiler for TPUs writes them: tiles, arrays beside the processor (S(1)), asynchronous copies, loops and fusions.
TPU = '''HloModule jit_step, is_scheduled=true

%slices (param_0.1: f32[4,256,128], param_1.1: s32[]) -> f32[256,128] {
  %param_0.1 = f32[4,256,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.1 = s32[]{:T(128)} parameter(1)
  %constant.9 = s32[]{:T(128)} constant(0)
  %slice.1 = f32[1,256,128]{2,1,0:T(8,128)} dynamic-slice(%param_0.1, %param_1.1, %constant.9, %constant.9), dynamic_slice_sizes={1,256,128}
  ROOT %bitcast.1 = f32[256,128]{1,0:T(8,128)} bitcast(%slice.1)
}

%updates (param_0.2: f32[4,256,128], param_1.2: f32[256,128], param_2.2: s32[]) -> f32[4,256,128] {
  %param_0.2 = f32[4,256,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.2 = f32[256,128]{1,0:T(8,128)} parameter(1)
  %param_2.2 = s32[]{:T(128)} parameter(2)
  %constant.8 = s32[]{:T(128)} constant(0)
  %bitcast.2 = f32[1,256,128]{2,1,0:T(8,128)} bitcast(%param_1.2)
  ROOT %update.1 = f32[4,256,128]{2,1,0:T(8,128)} dynamic-update-slice(%param_0.2, %bitcast.2, %param_2.2, %constant.8, %constant.8)
}

%body (arg.1: (s32[], f32[4,256,128], f32[4,256,128])) -> (s32[], f32[4,256,128], f32[4,256,128]) {
  %arg.1 = (s32[]{:T(128)}, f32[4,256,128]{2,1,0:T(8,128)}, /*index=2*/f32[4,256,128]{2,1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)S(6)} get-tuple-element(%arg.1), index=0
  %stack.1 = f32[4,256,128]{2,1,0:T(8,128)} get-tuple-element(%arg.1), index=1
  %out.1 = f32[4,256,128]{2,1,0:T(8,128)} get-tuple-element(%arg.1), index=2
  %layer.1 = f32[256,128]{1,0:T(8,128)S(1)} fusion(%stack.1, %i.1), kind=kLoop, calls=%slices, metadata={op_name="jit(step)/layer"}
  %summed.1 = f32[256,128]{1,0:T(8,128)S(1)} all-reduce(%layer.1), channel_id=1, replica_groups=GROUPS, to_apply=%add
  %new.1 = f32[4,256,128]{2,1,0:T(8,128)} fusion(%out.1, %summed.1, %i.1), kind=kLoop, calls=%updates, metadata={op_name="jit(step)/keep"}
  ROOT %tuple.1 = (s32[]{:T(128)}, f32[4,256,128]{2,1,0:T(8,128)}, f32[4,256,128]{2,1,0:T(8,128)}) tuple(%i.1, %stack.1, %new.1)
}

%condition (arg.2: (s32[], f32[4,256,128], f32[4,256,128])) -> pred[] {
  %arg.2 = (s32[]{:T(128)}, f32[4,256,128]{2,1,0:T(8,128)}, f32[4,256,128]{2,1,0:T(8,128)}) parameter(0)
  %constant.2 = s32[]{:T(128)S(6)} constant(4)
  %i.2 = s32[]{:T(128)S(6)} get-tuple-element(%arg.2), index=0
  ROOT %lt.1 = pred[]{:T(512)S(6)} compare(%i.2, %constant.2), direction=LT
}

ENTRY %main (given: f32[4,256,128], small: bf16[6,100]) -> f32[4,256,128] {
  %given = f32[4,256,128]{2,1,0:T(8,128)} parameter(0)
  %small = bf16[6,100]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)S(6)} constant(0)
  %buffer = f32[4,256,128]{2,1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %start.1 = (bf16[6,100]{1,0:T(8,128)(2,1)S(1)}, bf16[6,100]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%small)
  %done.1 = bf16[6,100]{1,0:T(8,128)(2,1)S(1)} copy-done(%start.1)
  %start.2 = ((f32[4,256,128]{2,1,0:T(8,128)}), f32[2,256,128]{2,1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%given), slice={[0:2], [0:256], [0:128]}
  %done.2 = f32[2,256,128]{2,1,0:T(8,128)S(1)} slice-done(%start.2)
  %begin = (s32[]{:T(128)}, f32[4,256,128]{2,1,0:T(8,128)}, f32[4,256,128]{2,1,0:T(8,128)}) tuple(%zero, %given, %buffer)
  %loop = (s32[]{:T(128)}, f32[4,256,128]{2,1,0:T(8,128)}, f32[4,256,128]{2,1,0:T(8,128)}) while(%begin), condition=%condition, body=%body
  ROOT %result = f32[4,256,128]{2,1,0:T(8,128)} get-tuple-element(%loop), index=2
}
'''  # noqa: E501
MESH = {'data': 2, 'fsdp': 2, 'tensor': 2}


def program(groups="{{0,1},{2,3}}"):
    return hlo.Program(TPU.replace('GROUPS', groups))


class ArrayTest(parameterized.TestCase):

    @parameterized.parameters(
        ('f32[256,128]{1,0:T(8,128)}', 4 * 256 * 128), ('f32[6,100]{1,0:T(8,128)}', 4 * 8 * 128),
        ('bf16[6,100]{1,0:T(8,128)(2,1)}', 2 * 8 * 128), ('f32[6,100]{0,1:T(8,128)}', 4 * 104 * 128),
        ('f32[100]{0:T(128)}', 4 * 128), ('f32[3,5,64]{2,1,0:T(8,128)}', 4 * 3 * 8 * 128), ('f32[2,3]{1,0}', 24),
        ('f32[12,64,768]{2,0,1:T(8,128)}', 4 * 16 * 64 * 768), ('pred[]', 1), ('s4[8]{0}', 4), ('f32[]{:T(128)}', 4))
    def test_bytes_with_the_padding_of_tiles(self, shape, size):
        [array] = hlo._arrays(shape)
        self.assertEqual(array.bytes, size)

    def test_the_space_and_the_payload(self):
        [array] = hlo._arrays('bf16[6,100]{1,0:T(8,128)(2,1)S(1)}')
        self.assertEqual((array.space, array.payload), (1, 1200))


class WrittenTest(parameterized.TestCase):

    def test_traffic(self):
        layer = 4 * 256 * 128
        copied, sliced = 2 * 8 * 128, 2 * layer  # read from the main memory, and written beside the processor
        a_turn = layer + layer  # a layer of the stack is read, and one of the result written in place
        self.assertEqual(program().traffic(), copied + sliced + 4 * a_turn)

    def test_operations(self):
        self.assertEqual(program().operations(), {'fusion': 4 * 2, 'all-reduce': 4, 'copy': 1, 'slice': 1})

    def test_largest(self):
        self.assertEqual(program().largest(2)[0], (4 * 4 * 256 * 128, 'jit(step)/keep'))

    @parameterized.parameters(
        ('{{0,1},{2,3},{4,5},{6,7}}', ('tensor',)), ('[4,2]<=[8]', ('tensor',)), ('[2,4]<=[8]', ('fsdp', 'tensor')),
        ('[4,2]<=[2,4]T(1,0)', ('data',)), ('[4,2]<=[2,2,2]T(0,2,1)', ('fsdp',)),
        ("mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_0','axis_2'}", ('data', 'tensor')),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", ('data', 'fsdp')),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([2,2,2]T(2,0,1)) {'axis_0'}", ('tensor',)),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=(0,2,4,6,1,3,5,7) {'axis_1'}", ('data', 'fsdp')))
    def test_groups(self, groups, axes):
        [one] = program(groups).collectives()
        self.assertEqual((one.kind, one.times, one.payload, one.axes(MESH)), ('all-reduce', 4, 4 * 256 * 128, axes))
        others = len(one.group) - 1
        self.assertEqual(one.sent, 4 * 2 * others * 4 * 256 * 128 // len(one.group))

    def test_an_asynchronous_one_that_several_fusions_repeat_counts_once(self):
        line = next(line for line in TPU.splitlines() if 'all-reduce(' in line)
        for middle, hidden in ((), False), ((3,), True):  # a start and an end, and what goes on meanwhile
            again = [line.replace('%summed.1 =', f'%summed.{number} =') for number in (*middle, 2)]
            [one] = hlo.Program(TPU.replace(line, '\n'.join([line, *again])).replace('GROUPS', '{{0,1}}')).collectives()
            self.assertEqual((one.times, one.hidden), (4, hidden))
        self.assertFalse(program().collectives()[0].hidden)

    @parameterized.parameters(
        ('', False), ('%other = f32[256,128]{1,0:T(8,128)} negate(%x)', True),
        ('%other = f32[128,256]{1,0:T(8,128)} bitcast(%x)', False), ('%other = s32[]{:T(128)} constant(0)', False),
        ('%other = f32[256,128]{1,0:T(8,128)} copy-start(%x)', False))
    def test_what_is_done_between_a_start_and_its_end_hides_it(self, work, hidden):
        [one] = hlo.Program(f"""HloModule jit_step, num_partitions=2

ENTRY %main (x: f32[256,128]) -> f32[256,128] {{
  %x = f32[256,128]{{1,0:T(8,128)}} parameter(0)
  %start = f32[256,128]{{1,0:T(8,128)}} all-reduce-start(%x), channel_id=1, replica_groups={{{{0,1}}}}, to_apply=%add
  {work}
  ROOT %end = f32[256,128]{{1,0:T(8,128)}} all-reduce-done(%start)
}}
""").collectives()
        self.assertEqual(one.hidden, hidden)
        [row] = hlo.summed([one], {'data': 2})
        self.assertEqual((row['sent'], row['hidden']), (4 * 256 * 128, hidden * 4 * 256 * 128))

    def test_slices_within_nested_fusions_and_behind_other_views(self):
        nested = TPU.replace('%body (', """%outer (param_0.3: f32[4,256,128], param_1.3: s32[]) -> f32[256,128] {
  %param_0.3 = f32[4,256,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.3 = s32[]{:T(128)} parameter(1)
  %view.3 = f32[4,256,128]{2,1,0:T(8,128)} bitcast(%param_0.3)
  ROOT %inner.3 = f32[256,128]{1,0:T(8,128)} fusion(%view.3, %param_1.3), kind=kLoop, calls=%slices
}

%outer_updates (param_0.4: f32[4,256,128], param_1.4: f32[256,128], param_2.4: s32[]) -> f32[4,256,128] {
  %param_0.4 = f32[4,256,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.4 = f32[256,128]{1,0:T(8,128)} parameter(1)
  %param_2.4 = s32[]{:T(128)} parameter(2)
  ROOT %inner.4 = f32[4,256,128]{2,1,0:T(8,128)} fusion(%param_0.4, %param_1.4, %param_2.4), kind=kLoop, calls=%updates
}

%body (""").replace('%i.1), kind=kLoop, calls=%slices', '%i.1), kind=kLoop, calls=%outer').replace(
            '%i.1), kind=kLoop, calls=%updates', '%i.1), kind=kLoop, calls=%outer_updates')
        self.assertIn('calls=%outer,', nested)
        self.assertIn('calls=%outer_updates,', nested)
        self.assertEqual(hlo.Program(nested.replace('GROUPS', '{{0,1}}')).traffic(), program().traffic())

    def test_what_is_updated_in_place_and_read_besides(self):
        line = '  %constant.8 = s32[]{:T(128)} constant(0)\n'
        more = line + ('  %old.1 = f32[1,256,128]{2,1,0:T(8,128)} '
                       'dynamic-slice(%param_0.2, %param_2.2, %constant.8, %constant.8)\n')
        text = TPU.replace('GROUPS', '{{0,1}}')
        self.assertEqual(hlo.Program(text.replace(line, more)).traffic(), program().traffic() + 4 * 4 * 256 * 128)
        whole = more.replace('dynamic-slice(%param_0.2, %param_2.2, %constant.8, %constant.8)', 'negate(%param_0.2)')
        self.assertEqual(hlo.Program(text.replace(line, whole)).traffic(), program().traffic() + 4 * 4 * 4 * 256 * 128)

    @parameterized.parameters(
        # (instruction, bytes read and written, bytes of the largest array that it makes)
        ('f32[256,128]{1,0:T(8,128)} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%add', 2, 1),
        ('(f32[256,128]{1,0:T(8,128)}, f32[512,128]{1,0:T(8,128)}) all-gather-start(%x), replica_groups={{0,1}}', 3, 2),
        ('((f32[256,128]{1,0:T(8,128)}, f32[256,128]{1,0:T(8,128)}), (f32[512,128]{1,0:T(8,128)}, f32[512,128]{1,0:T(8,128)}))'
         ' all-gather-start(%x, %y), replica_groups={{0,1}}, dimensions={0}', 6, 2),
        ('(f32[256,128]{1,0:T(8,128)}, f32[256,128]{1,0:T(8,128)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), '
         'source_target_pairs={{0,1},{1,0}}', 2, 1),
        ('((f32[256,128]{1,0:T(8,128)}), f32[256,128]{1,0:T(8,128)}, u32[]{:S(2)}) async-start(%x), calls=%wrapped', 2, 1),
        ('f32[256,128]{1,0:T(8,128)} async-update(%x), calls=%wrapped', 0, 0))
    def test_what_starts_and_ends_later(self, instruction, moved, largest):
        unit = 4 * 256 * 128
        found = hlo.Program(f"""HloModule jit_step, num_partitions=2

%wrapped (param_0: f32[256,128]) -> f32[256,128] {{
  %param_0 = f32[256,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %inner = f32[256,128]{{1,0:T(8,128)}} negate(%param_0)
}}

ENTRY %main (x: f32[256,128], y: f32[256,128]) -> f32[256,128] {{
  %x = f32[256,128]{{1,0:T(8,128)}} parameter(0)
  %y = f32[256,128]{{1,0:T(8,128)}} parameter(1)
  ROOT %start = {instruction}
}}
""")
        self.assertEqual(found.traffic(), moved * unit)
        self.assertEqual(found.largest(5), [(largest * unit, 'start')] if largest else [])

    @parameterized.parameters(
        ('all-reduce(%x), replica_groups={}, to_apply=%add', (0, 1, 2, 3)),
        ('collective-permute(%x), source_target_pairs={{0,0},{1,3},{3,1}}', (1, 3)),
        ('collective-permute(%x), source_target_pairs={{0,0},{1,1}}', (0,)))
    def test_other_groups(self, instruction, group):
        [one] = self.exchange(instruction).collectives()
        self.assertEqual(one.group, group)

    def test_groups_in_a_form_that_is_not_known(self):
        with self.assertRaisesRegex(ValueError, 'start does not say, in a form that is known, which chips exchange'):
            self.exchange('all-reduce(%x), replica_groups=all').collectives()

    @staticmethod
    def exchange(instruction):
        return hlo.Program(f"""HloModule jit_step, replica_count=1, num_partitions=4

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %start = f32[8]{{0}} {instruction}
}}
""")

    def test_one_in_a_fusion_within_another(self):
        [one] = hlo.Program("""HloModule jit_step, replica_count=1, num_partitions=4

%inner (param_0: f32[8]) -> f32[2] {
  %param_0 = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %summed = f32[8]{0} all-reduce(%param_0), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = f32[2]{0} dynamic-slice(%summed, %zero), dynamic_slice_sizes={2}
}

%outer (param_0.1: f32[8]) -> f32[2] {
  %param_0.1 = f32[8]{0} parameter(0)
  ROOT %fused = f32[2]{0} fusion(%param_0.1), kind=kLoop, calls=%inner
}

ENTRY %main (x: f32[8]) -> f32[2] {
  %x = f32[8]{0} parameter(0)
  ROOT %start = f32[2]{0} fusion(%x), kind=kLoop, calls=%outer
}
""").collectives()
        self.assertEqual((one.kind, one.payload, one.group), ('reduce-scatter', 32, (0, 1, 2, 3)))

    def test_a_loop_of_unknown_length_counts_once_and_is_named(self):
        self.assertEmpty(program().endless())
        text = TPU.replace('GROUPS', '{{0,1}}').replace('compare(%i.2, %constant.2)', 'compare(%i.2, %i.2)')
        found = hlo.Program(text)
        self.assertEqual([one.name for one in found.endless()], ['loop'])
        self.assertEqual(found.collectives()[0].times, 1)

    def test_a_text_without_a_program(self):
        with self.assertRaisesRegex(ValueError, 'no compiled program'):
            hlo.Program('nothing')


class CompiledTest(parameterized.TestCase):
    """Programs of this machine's compiler."""

    def setUp(self):
        super().setUp()
        self.mesh = jax.make_mesh((4, 2), ('data', 'tensor'), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])

    def read(self, function, *args):
        return hlo.Program(jax.jit(function).lower(*args).compile().as_text())

    def test_a_loop_counts_as_often_as_it_runs(self):
        x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        once = self.read(lambda x, w: x @ w, x, x).traffic()
        self.assertEqual(once, 3 * 4 * 64 * 64)
        stacks = [jax.ShapeDtypeStruct((count, 64, 64), jnp.float32) for count in (5, 10, 15)]
        few, more, most = (self.read(lambda x, w: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0], x, w) for w in stacks)
        [trips] = [more.trips(one) for part in more.computations.values() for one in part.values() if one.operation == 'while']
        self.assertEqual(trips, 10)
        self.assertEqual(most.traffic() - more.traffic(), more.traffic() - few.traffic())
        self.assertGreaterEqual(more.traffic() - few.traffic(), 5 * once)

    @parameterized.parameters(
        ('all-reduce', ('data',), lambda x: jax.lax.psum(x, 'data'), 1),
        ('all-reduce', ('data', 'tensor'), lambda x: jax.lax.psum(x, ('data', 'tensor')), 1),
        ('all-gather', ('tensor',), lambda x: jax.lax.all_gather(x, 'tensor'), 2),
        ('reduce-scatter', ('data',), lambda x: jax.lax.psum_scatter(x, 'data', tiled=True), 1),
        ('all-to-all', ('data',), lambda x: jax.lax.all_to_all(x, 'data', 0, 0, tiled=True), 1),
        ('collective-permute', ('data',), lambda x: jax.lax.ppermute(x, 'data', [(i, (i + 1) % 4) for i in range(4)]), 1))
    def test_collectives(self, kind, axes, exchange, whole):
        several = jax.shard_map(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y + exchange(x + y.sum()).sum(), jnp.zeros(())),
                                mesh=self.mesh, in_specs=PartitionSpec('data', 'tensor'), out_specs=PartitionSpec(),
                                check_vma=False)
        x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(self.mesh, PartitionSpec('data', 'tensor')))
        [row] = hlo.summed(self.read(several, x).collectives(), dict(self.mesh.shape))
        self.assertEqual((row['kind'], row['axes'], row['count']), (kind, ' '.join(axes), 3))
        local = 4 * 16 * 4
        self.assertEqual(row['payload'], 3 * whole * local)
        size = np.prod([self.mesh.shape[axis] for axis in axes])
        share = {'all-reduce': 2 * (size - 1) / size, 'collective-permute': 1}.get(kind, (size - 1) / size)
        self.assertEqual(row['sent'], 3 * round(whole * local * share))

    def test_the_branch_that_moves_more_counts(self):
        x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        choice = jax.ShapeDtypeStruct((), bool)
        both = self.read(lambda p, x: jax.lax.cond(p, lambda x: x, lambda x: x @ x @ x @ x, x), choice, x)
        self.assertGreater(both.traffic(), self.read(lambda x: x @ x @ x, x).traffic())


if __name__ == '__main__':
    absltest.main()
