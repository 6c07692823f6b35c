"""Attention between channels against loops in float64; its order of tokens and its cost."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import mechanisms
from training.report.flops import count
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.mechanism import AlternateAttention, Given, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.layers.numerics import Numerics


def drawn(tokens=5, heads=2, width=3):
    return [np.random.default_rng(i).normal(size=(2, tokens, heads, width)) for i in range(3)]


def by_loops(version, query, key, value):
    batch, tokens, heads, width = query.shape
    out = np.zeros_like(query)
    for b, n in np.ndindex(batch, heads):
        q, k, v = (x[b, :, n] for x in (query, key, value))
        for i in range(width):
            if version == 1:
                scores = np.array([sum(k[t, i] * v[t, j] for t in range(tokens)) for j in range(width)]) / np.sqrt(width)
            else:
                scores = np.array([sum(q[t, i] * k[t, j] for t in range(tokens)) for j in range(width)]) / np.sqrt(tokens)
            weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            out[b, :, n, i] = sum(weights[j] * (q if version == 1 else v)[:, j] for j in range(width))
    return out


class ChannelGroupsTest(parameterized.TestCase):
    @parameterized.parameters(1, 2)
    def test_equals_loops(self, version):
        with jax.enable_x64(True):
            found = ChannelGroups(version)({}, *drawn(), Given(numerics=Numerics('float64')))
        np.testing.assert_allclose(found, by_loops(version, *drawn()), rtol=0, atol=1e-12)

    @parameterized.parameters(1, 2)
    def test_does_not_depend_on_the_order_of_tokens(self, version):
        arrays, order = [x.astype(np.float32) for x in drawn()], np.random.default_rng(5).permutation(5)
        apply = lambda arrays: np.asarray(mechanisms.output(ChannelGroups(version), {}, *arrays, Full()))
        np.testing.assert_allclose(apply([x[:, order] for x in arrays]), apply(arrays)[:, order], atol=1e-6)

    def test_cost_is_linear_in_the_tokens(self):
        work = [count(lambda q, k, v: ChannelGroups()({}, q, k, v), *drawn(tokens=n)) for n in (8, 16)]
        self.assertEqual(work[1], 2 * work[0])
        self.assertEqual(work[0], 2 * 2 * 2 * 8 * 2 * 3 * 3)  # two products, of which an operation is two, in two examples

    def test_its_gains_are_those_of_the_values(self):
        """Of version 2, in which a token's output has nothing but its own values."""
        arrays = [x.astype(np.float32) for x in drawn()]
        gains = mechanisms.weights(ChannelGroups(2), {}, *arrays, Full())
        self.assertEqual(gains.shape, (2, 1, 5, 5))
        np.testing.assert_array_equal(gains * (1 - np.eye(5)), 0)

    @parameterized.parameters(
        (dict(mask=Causal()), 'mixes all positions, but the mask is Causal'), (dict(cross=True), 'cannot look at another'),
        (dict(cached=True), 'no cached decoding'), (dict(biased=True), 'no scores that a position encoding could add to'),
        (dict(placed=True), 'no scores between positions'), (dict(shared=True), 'cannot share heads of keys'))
    def test_refused(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            ChannelGroups().check(**{'mask': Full()} | given)

    def test_other_versions_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'version is 3; expected 1 or 2'):
            ChannelGroups(3)


class AlternateTest(absltest.TestCase):
    def test_every_other_layer(self):
        parts = AlternateAttention(Softmax(), AlternateAttention(ChannelGroups(1), ChannelGroups(2)))
        self.assertEqual(parts.period, 4)
        self.assertEqual([parts.of_layer(i) for i in range(4)], [Softmax(), ChannelGroups(1), Softmax(), ChannelGroups(2)])
        self.assertTrue(parts.free_length)
        with self.assertRaisesRegex(TypeError, 'of_layer'):
            parts({}, *drawn())


if __name__ == '__main__':
    absltest.main()
