import math
import re

import numpy as np
from absl.testing import absltest

from tests.models import build, changed
from transformer.attention.masks.patterns import Alternate, Causal, Window
from transformer.attention.mechanisms.alternatives import Convolution
from transformer.attention.partition import Whole
from transformer.explain import attention, maps
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.memory_network import MemoryNetwork
from vit.layers.windows import Windows

RNG = np.random.default_rng(0)


def drawn(*shape, causal=False):
    """Rows of a softmax."""
    weights = np.exp(RNG.normal(size=shape)) * (np.tri(shape[-1]) if causal else 1.0)
    return weights / weights.sum(-1, keepdims=True)


class NumbersTest(absltest.TestCase):
    def test_entropy(self):
        uniform, sure = np.full((3, 3), 1 / 3), np.eye(3)
        np.testing.assert_allclose(maps.entropy(np.stack([uniform, sure])), [math.log(3), 0.0], atol=1e-12)
        half = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])  # the last query sees nothing
        self.assertAlmostEqual(float(maps.entropy(half)), math.log(2) / 2)

    def test_the_highest_entropy_is_that_of_looking_evenly_at_all_that_is_visible(self):
        visible = np.tri(4, dtype=bool)
        self.assertAlmostEqual(maps.highest_entropy(visible), (math.log(1) + math.log(2) + math.log(3) + math.log(4)) / 4)
        self.assertAlmostEqual(maps.highest_entropy(visible), float(maps.entropy(visible / visible.sum(-1, keepdims=True))))
        for weights in drawn(20, 4, 4, causal=True):
            self.assertLess(float(maps.entropy(weights)), maps.highest_entropy(visible))

    def test_confidence(self):
        np.testing.assert_allclose(maps.confidence(np.array([[0.7, 0.3], [0.1, 0.9]])), 0.8)

    def test_alignment_is_the_mean_of_the_layers_that_have_heads(self):
        one, two = drawn(2, 3, 5), drawn(1, 3, 5)
        found = maps.alignment({'block_0': one, 'block_1': np.zeros((0, 5, 5)), 'block_2': two})
        np.testing.assert_allclose(found, (one.mean(0) + two[0]) / 2)

    def test_what_a_distribution_is(self):
        weights = drawn(2, 3, 3)
        self.assertTrue(maps.are_distributions(weights))
        self.assertTrue(maps.are_distributions(weights * np.array([1, 0, 1])[:, None]))  # a query that sees nothing
        self.assertFalse(maps.are_distributions(weights * 1.1))
        self.assertFalse(maps.are_distributions(weights - np.array([[0.5, 0, -0.5]])))
        self.assertFalse(maps.are_distributions(weights * 0.9))
        self.assertEqual([maps.are_distributions(weights * factor, padded=True) for factor in (0.9, 1.1, -1)],
                         [True, False, False])


class RolloutTest(absltest.TestCase):
    def test_of_one_layer(self):
        weights = drawn(2, 4, 4)
        np.testing.assert_allclose(maps.rollout([weights]), (weights.mean(0) + np.eye(4)) / 2, atol=1e-12)

    def test_of_several_is_the_product_with_the_last_in_front(self):
        first, second = drawn(2, 4, 4, causal=True), drawn(3, 4, 4, causal=True)
        wanted = (second.mean(0) + np.eye(4)) / 2 @ (first.mean(0) + np.eye(4)) / 2
        np.testing.assert_allclose(maps.rollout([first, second]), wanted, atol=1e-12)
        np.testing.assert_allclose(maps.rollout([first, second]).sum(-1), 1.0)

    def test_a_layer_without_heads_passes_everything_on(self):
        weights = drawn(2, 4, 4)
        np.testing.assert_allclose(maps.rollout([weights, np.zeros((0, 4, 4))]), maps.rollout([weights]))


class ReadTest(absltest.TestCase):
    def captured(self, *layers):
        return {f'block_{i}/attention': drawn(1, 2, 3, 3, causal=True) for i in layers}

    def test_layers_come_in_their_order(self):
        layers, found = maps.read(build(Gpt, vocab=2, layers=12, heads=2, width=4), self.captured(*range(11, -1, -1)))
        names = [f'block_{i}' for i in range(12)]
        self.assertEqual(list(layers), names)
        self.assertEqual([one['layer'] for one in found], names)
        self.assertEqual({one['highest_entropy'] for one in found}, {maps.highest_entropy(np.tri(3, dtype=bool))})
        self.assertEqual(found[3]['heads'], [0, 1])
        np.testing.assert_allclose(found[3]['entropy'], maps.entropy(layers['block_3']))

    def test_the_highest_entropy_is_of_the_queries_that_see_something(self):
        late = {'block_0/attention': drawn(1, 2, 3, 3, causal=True) * np.array([0, 1, 1])[:, None]}
        _, (one,) = maps.read(build(Gpt, vocab=2, layers=1, heads=2, width=4), late)
        self.assertAlmostEqual(one['highest_entropy'], (math.log(2) + math.log(3)) / 2)

    def test_the_highest_entropy_is_that_of_the_mask_of_the_layer(self):
        model = build(Gpt, vocab=2, layers=3, heads=2, width=4, mask=Alternate(Causal(), Causal() & Window(2)))
        highest = [one['highest_entropy'] for one in maps.read(model, self.captured(0, 1, 2))[1]]
        np.testing.assert_allclose(highest, [math.log(6) / 3, math.log(4) / 3, math.log(6) / 3])

    def test_the_highest_entropy_counts_a_prefix_that_all_tokens_see(self):
        model, captured = build(Gpt, vocab=2, layers=1, heads=2, width=4), {'block_0/attention': drawn(1, 2, 3, 3)}
        for prefix, visible in ((None, (1, 2, 3)), ([[1, 1, 0]], (2, 2, 3)), ([[0, 0, 0]], (1, 2, 3))):
            _, (found,) = maps.read(model, captured, prefix=prefix and np.array(prefix))
            self.assertAlmostEqual(found['highest_entropy'], np.log(visible).mean())

    def test_layers_that_keep_no_head_are_there(self):
        model = build(Gpt, vocab=2, layers=3, heads=4, width=4, kept=((1, 3), (), (0, 2)), mask=Causal())
        layers, found = maps.read(model, self.captured(0, 2))
        self.assertEqual([weights.shape for weights in layers.values()], [(2, 3, 3), (0, 3, 3), (2, 3, 3)])
        self.assertEqual([one['heads'] for one in found], [[1, 3], [], [0, 2]])
        self.assertEqual(found[1]['entropy'], [])

    def test_of_an_encoder_decoder(self):
        model = changed(build(EncoderDecoder, vocab=2, source_vocab=0, layers=1, heads=2, width=4), **{
            'encoder.layers': 2, 'encoder.kept': ((), (1,)), 'decoder.cross_kept': ((0,),)})
        layers, found = maps.read(model, {
            'decoder/block_0/cross_attention': drawn(1, 1, 2, 3), 'decoder/block_0/attention': drawn(1, 2, 2, 2, causal=True),
            'encoder/block_1/attention': drawn(1, 1, 3, 3)})
        self.assertEqual({one['layer']: one['heads'] for one in found}, {
            'encoder/block_0': [], 'encoder/block_1': [1], 'decoder/block_0': [0, 1], 'decoder/block_0/cross_attention': [0]})
        self.assertEqual([weights.shape for weights in layers.values()], [(2, 2, 2), (1, 2, 3), (0, 3, 3), (1, 3, 3)])
        highest = {one['layer']: one['highest_entropy'] for one in found}
        np.testing.assert_allclose(
            [highest[name] for name in ('encoder/block_1', 'decoder/block_0', 'decoder/block_0/cross_attention')],
            [math.log(3), math.log(2) / 2, math.log(3)])

    def test_layers_that_keep_no_head_have_the_length_of_those_of_their_kind(self):
        model = changed(build(EncoderDecoder, vocab=2, source_vocab=0, layers=2, heads=2, width=4), **{
            'encoder.kept': ((), (0,)), 'decoder.kept': ((), ()), 'decoder.cross_kept': ((1,), ())})
        layers, found = maps.read(model, {
            'encoder/block_1/attention': drawn(1, 1, 3, 3), 'decoder/block_0/cross_attention': drawn(1, 1, 6, 3)})
        shapes = {name: weights.shape for name, weights in layers.items()}
        self.assertEqual((shapes['encoder/block_0'], shapes['decoder/block_1/cross_attention']), ((0, 3, 3), (0, 6, 3)))
        highest = {one['layer']: one['highest_entropy'] for one in found}
        self.assertAlmostEqual(highest['encoder/block_0'], math.log(3))
        self.assertAlmostEqual(highest['decoder/block_1/cross_attention'], math.log(3))
        output = attention.Seen(layers, found, {}).section(
            range(6), range(6), chosen=lambda name: re.fullmatch(r'decoder/block_\d', name))
        self.assertEqual([weights.shape for weights in output.layers.values()], [(0, 6, 6)] * 2)  # of which none has heads
        np.testing.assert_array_equal(output.rollout, np.eye(6))

    def test_weights_of_other_mechanisms_have_no_entropy(self):
        captured = self.captured(0)
        np.negative(*[captured['block_0/attention']] * 2)
        _, found = maps.read(build(Gpt, vocab=2, layers=1, heads=2, width=4), captured)
        self.assertIsNone(found[0]['entropy'])

    def test_of_windows_the_padding_is_left_out(self):
        """Where the weights are a matrix: gains that sum to less than 1 stay none."""
        whole = self.captured(0)
        padded = {'block_0/attention': 0.7 * whole['block_0/attention']}
        model = build(Gpt, vocab=2, layers=1, heads=2, width=4, partition=Windows(2))
        (_, (found,)), (_, (wanted,)) = (maps.read(model, one) for one in (padded, whole))
        for name in ('entropy', 'confidence'):
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)
        for other in (changed(model, partition=Whole()), changed(model, attention=Convolution())):
            self.assertIsNone(maps.read(other, padded)[1][0]['entropy'])

    def test_weights_that_are_not_finite(self):
        captured = self.captured(0)
        captured['block_0/attention'][0, 1, 2, 0] = np.nan
        with self.assertRaisesRegex(ValueError, 'not finite: this run has diverged'):
            maps.read(build(Gpt, vocab=2, layers=1, heads=2, width=4), captured)

    def test_nothing_to_look_at(self):
        for model, what in ((build(Gpt, vocab=2, layers=1, heads=2, width=4, kept=((),)), 'This Gpt has no head left'),
                            (MemoryNetwork(vocab=2, memory=3), 'This MemoryNetwork has no attention heads')):
            with self.assertRaisesRegex(ValueError, what):
                maps.read(model, {})


if __name__ == '__main__':
    absltest.main()
