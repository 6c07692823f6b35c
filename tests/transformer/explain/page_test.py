"""The data of a page are the weights, and nothing in it but the page's own script runs."""

import base64
import html.parser
import io
import json
import re
import zlib

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests.transformer.explain import maps_test
from transformer.explain import maps, page, pictures
from vit.explain import attention as image_attention

HOSTILE = ['</script><img src=x onerror="document.title=1">', '<!--<script>', ']]>&lt;', '$data', 'a\u202eb', 'c\x00\ud800',
           ' \n', '𝒳中']


def section(layers, queries, keys=None, **fields):
    """A kind of attention with weights {name: [N, T, S]} as `Seen.section` has it."""
    found = [{'layer': name, 'heads': list(range(len(weights))), 'highest_entropy': float(np.log(weights.shape[-1])),
              'entropy': maps.entropy(weights).tolist() if maps.are_distributions(weights) else None}
             for name, weights in layers.items()]
    sure = keys is None and all(one['entropy'] is not None for one in found)
    flow = maps.rollout(list(layers.values())) if sure else None
    return pictures.Maps(layers, found, queries, keys or queries, rollout=flow, **fields)


def large(noise):
    """12 layers of 12 heads over 256 tokens: softmax of scores, causal and sharper in some heads, or all noise."""
    sharp, near, mask = np.linspace(0.5, 4, 12)[:, None, None], np.abs(np.arange(256)[:, None] - np.arange(256)), np.tri(256)
    rng, layers = np.random.default_rng(0), {}
    for i in range(12):
        scores = rng.normal(size=(12, 256, 256)).astype(np.float32)
        weights = np.exp(scores) if noise else np.exp(scores * sharp - 0.1 * i / sharp * near) * mask
        layers[f'block_{i}'] = weights / weights.sum(-1, keepdims=True)
    return section(layers, [f' token{i}' for i in range(256)])


def data_of(text):
    """The JSON of a page."""
    return json.loads(re.search('<script type="application/json" id="data">(.*?)</script>', text)[1])


def weights_of(text):
    """[[weights [N, T, S] of each layer] of each kind of attention], as the page shows them."""
    shown = zlib.decompress(base64.b64decode(re.search('<script type="text/plain" id="weights">(.*?)</script>', text)[1]))
    kinds = []
    for kind in data_of(text)['kinds']:
        integers, begin, kinds = np.frombuffer(shown, np.int8 if kind['signed'] else np.uint8), kind['begin'], [*kinds, []]
        for layer in kind['layers']:
            shape = len(layer['heads']), len(kind['queries']), len(kind['keys'])
            some = integers[begin:begin + np.prod(shape)].astype(np.float64).reshape(shape)
            kinds[-1].append(np.sign(some) * kind['largest'] * (some / kind['steps']) ** 2)
            begin += np.prod(shape)
    return kinds


class Elements(html.parser.HTMLParser):
    """The tags of a page, and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


class PageTest(parameterized.TestCase):
    def assert_shown(self, kinds, sections):
        for shown, one in zip(kinds, sections):
            stack = page.stack_of(one)
            largest, steps, _ = page.scale(stack, 255)
            for found, wanted in zip(shown, stack):
                self.assertEqual(found.shape, wanted.shape)
                np.testing.assert_array_equal(np.sign(found) * np.sign(wanted) >= 0, True)
                roots = np.sqrt(np.abs(found)) - np.sqrt(np.abs(wanted))
                self.assertLessEqual(np.abs(roots).max(initial=0), np.sqrt(largest) / (2 * steps) + 1e-6)

    def test_weights_are_within_half_a_step_and_entropies_exact(self):
        own = section({'block_0': maps_test.drawn(2, 5, 5), 'block_1': np.zeros((0, 5, 5)),
                       'block_2': maps_test.drawn(3, 5, 5, causal=True)}, list('abcde'))
        cross = section({'decoder/block_0/cross_attention': maps_test.drawn(2, 3, 5)}, list('xyz'), list('abcde'))
        signed = section({'block_0': np.random.default_rng(1).normal(size=(1, 3, 3))}, list('xyz'))
        text = page.page([own, cross, signed], 'three kinds')
        self.assert_shown(weights_of(text), [own, cross, signed])
        kinds = data_of(text)['kinds']
        self.assertEqual([[layer['label'] for layer in kind['layers']] for kind in kinds],
                         [['layer 0', 'layer 1', 'layer 2', 'rollout'], ['layer 0'], ['layer 0']])
        self.assertEqual([kind['signed'] for kind in kinds], [False, False, True])
        for layer, weights in zip(kinds[0]['layers'], page.stack_of(own)):
            wanted = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(-1)
            np.testing.assert_allclose(layer['entropy'], wanted)
        self.assertIsNone(kinds[2]['layers'][0]['entropy'])
        np.testing.assert_allclose(weights_of(text)[0][-1][0], own.rollout, atol=0.01)

    def test_hostile_tokens_are_text(self):
        text = page.page([section({'block_0': maps_test.drawn(1, len(HOSTILE), len(HOSTILE))}, HOSTILE)], '</title><script>')
        text.encode()  # no half of a character
        found = Elements(text).found
        self.assertEqual([attributes.get('id') for tag, attributes in found if tag == 'script'], ['data', 'weights', None])
        self.assertEqual([attributes.get('id') for tag, attributes in found if tag == 'img'], ['original'])
        self.assertFalse([name for _, attributes in found for name in attributes if name.startswith('on')])
        kind, = data_of(text)['kinds']
        self.assertEqual(kind['queries'], [HOSTILE[0].replace(' ', '␣'),
                                           *HOSTILE[1:3], '$data', 'aU+202Eb', 'cU+0000U+D800', '␣↵', '𝒳中'])

    def test_needs_no_network(self):
        text = page.page([section({'block_0': maps_test.drawn(1, 2, 2)}, 'ab')], 'a page')
        self.assertNotRegex(text, r'(src|href)="(?!data:)|https?:|//[\w.]+/|\burl\(|@import')
        policy, = [attributes['content'] for tag, attributes in Elements(text).found if 'http-equiv' in attributes]
        self.assertStartsWith(policy, "default-src 'none'; script-src 'sha256-")

    @parameterized.parameters(1, 3)
    def test_an_image(self, channels):
        from PIL import Image

        image = np.random.default_rng(0).random((4, 6, channels))
        one = section({'block_0': maps_test.drawn(2, 7, 7)}, ['class', *'abcdef'])
        shown = data_of(image_attention.ImageView([one], image=image, patch=2, front=('class',)).page())['image']
        self.assertEqual((shown['rows'], shown['columns'], shown['front']), (2, 3, ['class']))
        with Image.open(io.BytesIO(base64.b64decode(shown['source'].partition(',')[2]))) as file:
            np.testing.assert_allclose(np.asarray(file).reshape(image.shape) / 255, image, atol=0.5 / 255 + 1e-9)

    def test_twelve_layers_of_twelve_heads_over_256_tokens(self):
        one = large(noise=False)
        text = page.page([one], 'large')
        self.assertLess(len(text.encode()), 5e6)
        self.assertEqual(data_of(text)['kinds'][0]['steps'], 255)
        found, wanted = weights_of(text)[0][3], one.layers['block_3']
        self.assertLessEqual(np.abs(np.sqrt(found) - np.sqrt(wanted)).max(), 0.5 / 255 + 1e-6)

    @pytest.mark.slow
    def test_noise_is_kept_in_fewer_steps(self):
        text = page.page([large(noise=True)], 'noise')
        self.assertLess(len(text.encode()), 5e6)
        self.assertBetween(data_of(text)['kinds'][0]['steps'], 15, 127)


if __name__ == '__main__':
    absltest.main()
