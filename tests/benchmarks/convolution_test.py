"""benchmarks/convolution.py: the two programs of a case compute the same, and each has a line."""

import contextlib
import functools
import io
import json
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from benchmarks import attention, convolution


class ConvolutionTest(parameterized.TestCase):
    @parameterized.parameters('dense_16', 'depthwise')
    def test_both_programs_compute_the_same(self, case):
        """Exactly, as all numbers are small and whole."""
        outs = []
        for maker in convolution.cases()[case]:
            small = (2, 5, 4, 3)
            first = [type(one)(3) if hasattr(one, 'numerics') else one for one in maker.args if not isinstance(one, int)]
            function, arrays = maker.func(*first, *small)
            outs.append(function(*jax.tree.map(lambda x: jnp.round(3 * x), arrays)))
        self.assertGreater(np.ptp(outs[0]), 0)
        np.testing.assert_array_equal(*outs)

    @pytest.mark.slow
    def test_a_line_for_each_case(self):
        shape = 2, 4, 4, 3
        small = {'depthwise': (functools.partial(convolution.layer, convolution.Depthwise(), *shape),
                               functools.partial(convolution.grouped, *shape))}
        given, out = types.SimpleNamespace(FLAGS=types.SimpleNamespace(case=['depth'], rounds=1)), io.StringIO()
        with (mock.patch.object(convolution, 'cases', lambda: small), mock.patch.object(attention, 'flags', given),
              contextlib.redirect_stdout(out)):
            convolution.main()
        row, = map(json.loads, out.getvalue().splitlines())
        self.assertEqual(row['case'], 'depthwise')
        self.assertLen(row['ms'], 2)


if __name__ == '__main__':
    absltest.main()
