import io

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from display import figures
from transformer.explain import pictures


def drawn(layers, heads, length):
    """(weights, what is said of them)."""
    rng = np.random.default_rng(0)
    weights = {f'block_{i}': rng.dirichlet(np.ones(length), (heads, length)) for i in range(layers)}
    return weights, [{'layer': name, 'heads': list(range(heads)), 'entropy': [1.0] * heads, 'highest_entropy': 2.0}
                     for name in weights]


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def labels(ticks):
    return [tick.get_text() for tick in ticks]


class AttentionTest(parameterized.TestCase):
    def draw(self, figure):
        figure.savefig(io.BytesIO(), format='png')
        return figure

    @parameterized.parameters((1, 1, 3), (2, 3, 5), (12, 12, 2))
    @pytest.mark.slow
    def test_a_panel_for_every_head(self, layers, heads, length):
        weights, found = drawn(layers, heads, length)
        tokens = [f' {i}' for i in range(length)]
        figure = self.draw(pictures.attention(pictures.Maps(weights, found, tokens, tokens)))
        shown = panels(figure)[:layers * heads]
        self.assertLen(shown, layers * heads)
        np.testing.assert_array_equal(shown[-1].images[0].get_array(), weights[f'block_{layers - 1}'][-1])
        self.assertEqual(labels(shown[0].get_yticklabels()), [f'␣{i}' for i in range(length)])
        self.assertEqual(labels(shown[-1].get_xticklabels()), [f'␣{i}' for i in range(length)])
        self.assertEqual(shown[-1].get_title().split(), ['head', f'{heads - 1}', '1.00'])
        self.assertIn('at most 2.00 nats', shown[0].get_ylabel())

    def test_many_tokens_are_named_in_part(self):
        weights, found = drawn(1, 12, 100)
        figure = self.draw(pictures.attention(pictures.Maps(weights, found, *[list(map(str, range(100)))] * 2)))
        named = labels(panels(figure)[0].get_yticklabels())
        every = int(named[1])
        self.assertEqual(named, [str(i) for i in range(0, 100, every)])
        self.assertGreater(every, 1)
        self.assertIn(f'1 token in {every} is named', figures.caption_of(figure))

    def test_uniform_weights_look_light_and_are_explained(self):
        weights, found = drawn(1, 2, 16)
        weights['block_0'][0] = 1 / 16
        weights['block_0'][1] = np.tril(np.ones((16, 16))) / np.arange(1, 17)[:, None]
        for last, word in ((1, True), (0, False)):
            found[0] |= {'entropy': [found[0]['highest_entropy'] * last] * 2}
            figure = pictures.attention(pictures.Maps({'block_0': weights['block_0'][:1] * np.ones((2, 1, 1))}, found,
                                                      ['a'] * 16, ['a'] * 16))
            self.assertEqual("'uniform' marks one" in figures.caption_of(figure), word)
            image = next(axes.images[0] for axes in figure.axes if axes.images)
            self.assertLess(float(image.norm(1 / 16)), 0.5)

    def test_layers_with_fewer_heads(self):
        weights, found = drawn(3, 2, 4)
        weights['block_1'], weights['block_2'] = weights['block_1'][:0], weights['block_2'][1:]
        found[1] |= {'heads': [], 'entropy': []}
        found[2] |= {'heads': [1], 'entropy': [0.5]}
        figure = self.draw(pictures.attention(pictures.Maps(weights, found, "abcd", "abcd")))
        self.assertEqual([axes.get_title() for axes in figure.axes[:6]],
                         ['head 0  1.00', 'head 1  1.00', '', '', 'head 1  0.50', ''])
        self.assertEqual([bool(axes.get_xticks().size) for axes in figure.axes[:6]], [False, True, False, False, True, False])

    def test_scores_and_mask_above_the_weights(self):
        weights, found = drawn(2, 2, 3)
        scores, mask = np.random.default_rng(1).normal(size=(2, 3, 3)), np.tri(3, dtype=bool)[None].repeat(2, 0)
        figure = self.draw(pictures.attention(pictures.Maps(weights, found, "abc", "abc", steps={'block_1': (scores, mask)})))
        shown = figure.axes[:8]
        self.assertEqual([axes.get_ylabel().split('\n')[0] for axes in shown[::2]], ['layer 0', 'layer 1', 'mask', 'softmax'])
        for axes, panel in zip(shown[2:], (*scores, *mask, *weights['block_1'])):
            np.testing.assert_array_equal(axes.images[0].get_array(), panel)
        self.assertEqual(shown[2].get_title(), f'{scores[0].min():.2f} to {scores[0].max():.2f}')
        bars = [axes for axes in figure.axes if axes not in shown]
        self.assertEqual([bar.get_ylabel() for bar in bars], ['weight\n(square-root scale)', 'score (linear scale)', 'mask',
                                                              'weight\n(square-root scale)'])
        self.assertEqual(labels(bars[2].get_yticklabels()), ['hidden', 'visible'])
        self.assertEqual([bool(axes.get_xticks().size) for axes in shown], [False] * 6 + [True] * 2)

    def test_negative_weights(self):
        weights, found = drawn(1, 1, 3)
        weights['block_0'] -= 0.5
        found[0] |= {'entropy': None}
        figure = self.draw(pictures.attention(pictures.Maps(weights, found, "abc", "abc")))
        self.assertEqual(panels(figure)[0].get_title(), 'head 0')
        self.assertNotIn('entropy', figures.caption_of(figure))
        low, high = panels(figure)[0].images[0].get_clim()
        self.assertEqual(low, -high)

    def test_labels(self):
        given = ['the', ' cat', '\n', '\t', '', '\x00', '\ue000', 'é', '$x$', 'internationalization']
        self.assertEqual(pictures.printable(given),
                         ['the', '␣cat', '↵', '⇥', '', 'U+0000', 'U+E000', 'é', '$x$', 'international…'])
        weights, found = drawn(1, 1, len(given))
        self.draw(pictures.attention(pictures.Maps(weights, found, given, given)))  # no part of it is read as mathematics


class ImportanceTest(absltest.TestCase):
    def test_a_heat_map_and_a_curve(self):
        scores = np.array([[0.6, 0.8], [np.nan, 1.0]])
        figure = pictures.importance(scores, 3, [(3, 1.0), (2, 1.5), (0, 4.0)], metric='loss on valid', best=2,
                                     layers=['block_0', 'decoder/block_0/cross_attention'])
        figure.savefig(io.BytesIO(), format='png')
        left, right = figure.axes[:2]
        self.assertEqual(labels(left.texts), ['0.60', '0.80', '–', '1.00'])
        self.assertEqual(labels(left.get_yticklabels()), ['0', 'decoder/block_0/cross_attention'])
        np.testing.assert_array_equal(right.lines[0].get_xydata(), [(3, 1.0), (2, 1.5), (0, 4.0)])
        self.assertEqual(right.get_ylabel(), 'loss on valid')
        self.assertEqual(labels(right.get_legend().get_texts()), ['loss on valid', 'the pruned run keeps 2'])


if __name__ == '__main__':
    absltest.main()
