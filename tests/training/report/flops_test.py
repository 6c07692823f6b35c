import functools
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec

from training.report import flops

M, K, N = 6, 8, 10
PRODUCT = 2 * M * K * N


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


@jax.custom_vjp
def dense(x, kernel):
    return x @ kernel


dense.defvjp(
    lambda x, kernel: (x @ kernel, (x, kernel)), lambda saved, dy: (dy @ saved[1].T, jnp.swapaxes(saved[0], 0, 1) @ dy)
)


def convolve(x, kernel, **options):
    return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), **options)


class ProductsTest(parameterized.TestCase):
    def test_matrix_product(self):
        self.assertEqual(flops.count(jnp.matmul, shape(M, K), shape(K, N)), PRODUCT)

    def test_batch_and_several_contracted_dimensions(self):
        self.assertEqual(
            flops.count(functools.partial(jnp.einsum, 'BTNH,BSNH->BNTS'), shape(2, 5, 3, 4), shape(2, 7, 3, 4)),
            2 * 2 * 3 * 5 * 7 * 4,
        )
        self.assertEqual(
            flops.count(functools.partial(jnp.einsum, 'BTNH,NHD->BTD'), shape(2, 5, 3, 4), shape(3, 4, 9)),
            2 * 2 * 5 * 9 * 12,
        )

    def test_elementwise_work_is_free(self):
        self.assertEqual(flops.count(lambda x: jnp.tanh(x).sum() + jnp.exp(x)[0, 0], shape(M, K)), 0)

    def test_forward_and_backward_are_three_products(self):
        def loss(kernel, x):
            return jnp.tanh(x @ kernel).sum()

        both = functools.partial(jax.grad, argnums=(0, 1))
        self.assertEqual(flops.count(both(loss), shape(K, N), shape(M, K)), 3 * PRODUCT)
        self.assertEqual(flops.count(jax.jit(both(jax.jit(loss))), shape(K, N), shape(M, K)), 3 * PRODUCT)
        # the input of a first layer has no gradient
        self.assertEqual(flops.count(jax.grad(loss), shape(K, N), shape(M, K)), 2 * PRODUCT)

    def test_rematerialisation_is_counted(self):
        def loss(kernel, x):
            return jnp.tanh(x @ kernel).sum()

        gradient = jax.value_and_grad(jax.checkpoint(loss), argnums=(0, 1))
        self.assertEqual(flops.count(gradient, shape(K, N), shape(M, K)), 4 * PRODUCT)

    @parameterized.parameters(False, True)
    def test_custom_vjp(self, jit):
        def loss(kernel, x):
            return jnp.tanh(dense(x, kernel)).sum()

        wrap = jax.jit if jit else lambda f: f
        self.assertEqual(flops.count(dense, shape(M, K), shape(K, N)), PRODUCT)
        both = jax.grad(wrap(loss), argnums=(0, 1))
        self.assertEqual(flops.count(wrap(both), shape(K, N), shape(M, K)), 3 * PRODUCT)
        # the rule computes dx although nobody asks for it; the compiler drops it and so does the count
        self.assertEqual(flops.count(jax.grad(loss), shape(K, N), shape(M, K)), 2 * PRODUCT)

    def test_custom_jvp(self):
        square = jax.custom_jvp(lambda x: x @ x)
        square.defjvp(lambda primals, tangents: (primals[0] @ primals[0], tangents[0] @ primals[0]))
        self.assertEqual(flops.count(square, shape(K, K)), 2 * K**3)

    def test_unused_results_of_a_call_are_free(self):
        pair = jax.jit(lambda x, y: (x @ y, y @ x))
        self.assertEqual(flops.count(lambda x, y: pair(x, y), shape(M, K), shape(K, M)), 2 * (M * K * M + K * M * K))
        self.assertEqual(flops.count(lambda x, y: pair(x, y)[0], shape(M, K), shape(K, M)), 2 * M * K * M)


class ActivationsTest(absltest.TestCase):
    def test_products_with_two_batch_dimensions(self):
        def function(x, kernel):  # scores of 2 x 3 heads, then a dense layer
            scores = jnp.einsum('bnth,bnsh->bnts', x, x)
            return jax.lax.scan(lambda y, _: (dense(y, kernel), None), scores, None, length=4)[0]

        jaxpr = jax.make_jaxpr(function)(shape(2, 3, 5, 7), shape(5, 5))
        scores = 2 * 2 * 3 * 5 * 5 * 7
        self.assertEqual(flops.products_of_activations(jaxpr), scores)
        self.assertEqual(flops.count_jaxpr(jaxpr), scores + 4 * 2 * 2 * 3 * 5 * 5 * 5)


class ControlFlowTest(parameterized.TestCase):
    def test_scan_multiplies(self):
        def layers(x, kernels):
            return jax.lax.scan(lambda x, kernel: (jnp.tanh(dense(x, kernel)), None), x, kernels)[0]

        product = 2 * M * K * K
        self.assertEqual(flops.count(layers, shape(M, K), shape(7, K, K)), 7 * product)
        gradient = jax.grad(lambda x, kernels: layers(x, kernels).sum(), argnums=(0, 1))
        self.assertEqual(flops.count(gradient, shape(M, K), shape(7, K, K)), 3 * 7 * product)

    def test_cond_takes_the_most_expensive_branch(self):
        def function(case, x):
            return jax.lax.switch(case, [lambda x: x, lambda x: x @ x @ x, lambda x: x @ x], x)

        self.assertEqual(flops.count(function, jax.ShapeDtypeStruct((), jnp.int32), shape(K, K)), 2 * 2 * K**3)

    def test_while_counts_once(self):
        def function(x):
            return jax.lax.while_loop(lambda x: (x @ x).sum() < 9.0, lambda x: x @ x @ x, x)

        self.assertEqual(flops.count(function, shape(K, K)), 3 * 2 * K**3)

    def test_vmap_and_nesting(self):
        def turn(x, _):
            return jax.jit(jax.checkpoint(lambda x: x @ x))(x), None

        function = jax.vmap(lambda x: jax.lax.scan(turn, x, length=3)[0])
        self.assertEqual(flops.count(function, shape(5, K, K)), 5 * 3 * 2 * K**3)

    def test_shard_map_counts_all_devices(self):
        types = (jax.sharding.AxisType.Auto,) * 2
        mesh = jax.sharding.AbstractMesh((2, 4), ('data', 'tensor'), axis_types=types)
        rows, columns = PartitionSpec('data'), PartitionSpec(None, 'tensor')
        function = jax.shard_map(
            jnp.matmul, mesh=mesh, in_specs=(rows, columns), out_specs=PartitionSpec('data', 'tensor')
        )
        self.assertEqual(flops.count(function, shape(M, K), shape(K, 4 * N)), 2 * M * K * 4 * N)

    def test_pallas_kernel_times_grid(self):
        from jax.experimental import pallas

        def kernel(x, y, out):
            out[...] = x[...] @ y[...]

        function = pallas.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[pallas.BlockSpec((M, K), lambda i: (i, 0)), pallas.BlockSpec((K, N), lambda i: (0, 0))],
            out_specs=pallas.BlockSpec((M, N), lambda i: (i, 0)),
            out_shape=shape(4 * M, N),
        )
        self.assertEqual(flops.count(function, shape(4 * M, K), shape(K, N)), 4 * PRODUCT)

    @parameterized.parameters(('some_fwd_kernel', 3), ('some_dq_kernel', 2), ('other', 4))
    def test_a_scope_tells_what_kernels_compute_of_their_grid(self, name, blocks):
        from jax.experimental import pallas

        def kernel(x, y, out):
            out[...] = x[...] @ y[...]

        one = pallas.pallas_call(
            kernel, grid=(4,), name=name, out_shape=shape(4 * M, N), out_specs=pallas.BlockSpec((M, N), lambda i: (i, 0)),
            in_specs=[pallas.BlockSpec((M, K), lambda i: (i, 0)), pallas.BlockSpec((K, N), lambda i: (0, 0))])

        def function(x, y):
            with jax.named_scope('computes_fwd=0.75_dq=0.5'):
                return jax.checkpoint(jax.jit(one))(x, y)
        self.assertEqual(flops.count(function, shape(4 * M, K), shape(K, N)), blocks * PRODUCT)


class AttentionTest(parameterized.TestCase):
    """cuDNN's kernels, which are traced without cuDNN."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch('jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version', return_value=91200))

    @parameterized.parameters(({}, 6 * 10), ({'is_causal': True}, 6 * 7 // 2), (
        {'is_causal': True, 'local_window_size': (1, 0)}, 1 + 2 * 5))
    def test_what_a_mask_leaves(self, mask, pairs):
        batch, heads, width, queries = 2, 4, 8, 6
        keys = queries if mask else 10
        product = 2 * batch * heads * pairs * width
        arrays = [jax.ShapeDtypeStruct((batch, length, heads, width), jnp.bfloat16) for length in (queries, keys, keys)]
        attention = functools.partial(jax.nn.dot_product_attention, implementation='cudnn', **mask)
        self.assertEqual(flops.count(attention, *arrays), 2 * product)
        gradient = jax.grad(lambda *given: attention(*given).astype(jnp.float32).sum(), (0, 1, 2))
        self.assertEqual(flops.count(gradient, *arrays), (2 + 5) * product)
        self.assertEqual(flops.products_of_activations(jax.make_jaxpr(attention)(*arrays)), 2 * product)


class ConvolutionTest(parameterized.TestCase):
    def test_patches(self):
        function = functools.partial(convolve, window_strides=(4, 4), padding='VALID')
        self.assertEqual(flops.count(function, shape(2, 8, 8, 3), shape(4, 4, 3, 5)), 2 * (2 * 2 * 2 * 5) * (4 * 4 * 3))

    def test_groups(self):
        function = functools.partial(convolve, window_strides=(1, 1), padding='VALID', feature_group_count=6)
        self.assertEqual(flops.count(function, shape(1, 5, 5, 6), shape(3, 3, 1, 6)), 2 * (3 * 3 * 6) * 9)

    @parameterized.parameters(
        dict(window_strides=(1, 1), padding='VALID'),
        dict(window_strides=(1, 1), padding='SAME'),
        dict(window_strides=(4, 4), padding='VALID'),
        dict(window_strides=(2, 3), padding='SAME', rhs_dilation=(2, 1)),
        dict(window_strides=(1, 1), padding=((2, 1), (-1, 3)), lhs_dilation=(2, 2)),
        dict(window_strides=(2, 2), padding='SAME', feature_group_count=2),
    )
    def test_each_gradient_costs_a_forward(self, **options):
        function = functools.partial(convolve, **options)
        x, kernel = shape(2, 12, 13, 4), shape(4, 4, 4 // options.get('feature_group_count', 1), 6)
        forward = flops.count(function, x, kernel)
        gradient = jax.grad(lambda x, kernel: jnp.tanh(function(x, kernel)).sum(), argnums=(0, 1))
        self.assertEqual(flops.count(gradient, x, kernel), 3 * forward)

    @parameterized.parameters('SAME', 'VALID')
    def test_agrees_with_the_compiler(self, padding):
        function = functools.partial(convolve, window_strides=(2, 2), padding=padding)
        x, kernel = shape(2, 9, 9, 4), shape(3, 3, 4, 5)
        analysis = jax.jit(function).lower(x, kernel).cost_analysis()
        self.assertEqual(flops.count(function, x, kernel), analysis['flops'])


if __name__ == '__main__':
    absltest.main()
