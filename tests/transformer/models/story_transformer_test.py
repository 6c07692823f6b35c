import functools
import math

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build, changed
from transformer.attention.positions.base import NoPositions
from transformer.layers.activations import Relu
from transformer.layers.feed_forward import Mlp
from transformer.layers.universal import Own, Universal
from transformer.models.story_transformer import StoryTransformer

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
MODEL = build(StoryTransformer, vocab=9, layers=2, heads=2, width=8, feed_forward=Mlp(8, Relu()), depth=Universal())
STORY = RNG.integers(1, 9, (2, 4, 3)) * (np.arange(3) < RNG.integers(1, 4, (2, 4, 1)))
STORY[1, 2:] = 0  # the second story has two sentences
QUESTION = np.array([[3, 1, 0], [2, 0, 0]])
drawn = lambda model: models.drawn(model, STORY, QUESTION, scale=0.5)
program = functools.cache(lambda model: models.Program(model, STORY, QUESTION))


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, story, question):
    return model.apply({'params': params}, story, question)['logits']


class StoryTransformerTest(parameterized.TestCase):
    def test_sentences_are_sums_of_words_weighed_by_their_places(self):
        # Without blocks to speak of the answer reads the vector of the question: norm(x) W + b.
        model = changed(MODEL, layers=1, depth=Universal(), positions=NoPositions())
        params = drawn(model)
        for name in ('attention', 'feed_forward'):
            params['block_0'][name] = jax.tree.map(np.zeros_like, params['block_0'][name])
        x = np.zeros(8)
        for j, word in enumerate(QUESTION[0]):
            if word:
                x += params['places']['question'][j] * params['words']['embedding'][word] * math.sqrt(8)
        x += [f(1 / 10000 ** (2 * i / 8)) for i in range(4) for f in (math.sin, math.cos)]  # of the step
        x = (x - x.mean()) / math.sqrt(x.var() + 1e-5) * params['norm']['scale'] + params['norm']['bias']
        wanted = x @ params['answer']['kernel'] + params['answer']['bias']
        np.testing.assert_allclose(logits(model, params, STORY, QUESTION)[0], wanted, atol=1e-5)

    def test_what_is_not_there_changes_nothing(self):
        params = drawn(MODEL)
        longer = np.concatenate([STORY, np.zeros((2, 2, 3), int)], 1)
        np.testing.assert_allclose(logits(MODEL, params, longer, QUESTION), logits(MODEL, params, STORY, QUESTION), atol=2e-6)

    def test_a_longer_sentence_than_learnt_is_refused(self):
        longer = np.concatenate([STORY, STORY], 2)
        with self.assertRaisesRegex(ValueError, 'has 6 words, but this model has learnt the places of 3; shorten it'):
            logits(MODEL, drawn(MODEL), longer, QUESTION)

    def test_a_sentence_without_known_words_does_not_hide_an_older_one(self):
        params, story = drawn(MODEL), STORY.copy()
        story[0, 1] = 0
        oldest = story.copy()
        oldest[0, -1] = oldest[0, -1] % 8 + 1
        moved = np.abs(logits(MODEL, params, oldest, QUESTION) - logits(MODEL, params, story, QUESTION))[0].max()
        self.assertGreater(moved, 1e-4)

    @parameterized.parameters((0, 0), (0, 3), (1, 1))
    def test_every_sentence_counts_and_so_does_its_place(self, row, sentence):
        params, other = drawn(MODEL), STORY.copy()
        other[row, sentence, 0] = other[row, sentence, 0] % 8 + 1
        moved = np.abs(logits(MODEL, params, other, QUESTION) - logits(MODEL, params, STORY, QUESTION)).max(1)
        np.testing.assert_array_equal(moved > 1e-5, np.arange(2) == row)
        turned = STORY.copy()
        turned[0] = turned[0, ::-1]
        self.assertGreater(np.abs(logits(MODEL, params, turned, QUESTION) - logits(MODEL, params, STORY, QUESTION))[0].max(),
                           1e-3)

    def test_words_in_another_order_are_another_sentence_from_the_start(self):
        params = MODEL.init(KEY, STORY, QUESTION)['params']
        for place in params['places'].values():
            np.testing.assert_array_equal(np.abs(place), np.ones((3, 8)))
        swapped = QUESTION.copy()
        swapped[0] = swapped[0, [1, 0, 2]]
        moved = np.abs(logits(MODEL, params, STORY, swapped) - logits(MODEL, params, STORY, QUESTION))[0].max()
        self.assertGreater(moved, 1e-2)

    def test_halting_tells_its_steps(self):
        model = changed(MODEL, depth=Universal(halting=True))
        out = model.apply({'params': drawn(model)}, STORY, QUESTION)
        self.assertEqual(out['ponder'].shape, (2, 5))
        self.assertEqual(out['hidden'].shape, (2, 5, 8))


CHANGES = {'vocab': 10, 'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16', **models.OF_STACK}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*models.named(CHANGES))
    def test_field_has_an_effect(self, field, value):
        base = changed(MODEL, depth=Own(), dropout=0.2)
        self.assertTrue(program(changed(base, **{field: value})) != program(base))

    def test_every_field_is_tried(self):
        self.assertEqual(models.own_fields(StoryTransformer) | {*models.OF_STACK}, set(CHANGES))


if __name__ == '__main__':
    absltest.main()
