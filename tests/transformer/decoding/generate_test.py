import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import decoders
from tests.marks import slow_but
from tests.models import build
from transformer.decoding.constraints import Without
from transformer.decoding.generate import generate, require_room
from transformer.decoding.strategies import Beam, DiverseBeam, Greedy, Sample
from transformer.layers.heads import NextWords
from transformer.models.gpt import Gpt

KEY = jax.random.key(0)
MODEL = build(Gpt, vocab=11, length=12, layers=1, heads=2, width=8)
RNG = np.random.default_rng(0)
PARAMS = jax.tree.map(lambda s: RNG.normal(size=s.shape).astype(np.float32),
                      jax.eval_shape(lambda: MODEL.init(KEY, jnp.zeros((1, 2), jnp.int32))['params']))
DEEP = build(Gpt, vocab=11, length=12, layers=2, heads=2, width=8)
DEEP_PARAMS = jax.tree.map(lambda s: RNG.normal(size=s.shape).astype(np.float32),
                           jax.eval_shape(lambda: DEEP.init(KEY, jnp.zeros((1, 2), jnp.int32))['params']))
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6]]
NEVER = -1  # an `end` that no token equals


@dataclasses.dataclass(frozen=True)
class OneByOne(NextWords):
    """Never has the logits of several positions of a row."""

    def __call__(self, x, body, *, block=0, **given):
        if x.shape[1] > 1 and not block:
            raise AssertionError(f'logits of {x.shape[1]} positions')
        return super().__call__(x, body, block=block, **given)


class AllAtOnce(NextWords):
    blocked = False


@jax.jit
def log_probabilities(params, rows):
    return jax.nn.log_softmax(MODEL.apply({'params': params}, rows)['logits'])


@jax.jit
def prefixed_log_probabilities(params, rows, prefix):
    return jax.nn.log_softmax(DEEP.apply({'params': params}, rows, prefix=prefix)['logits'])


def prefixed_forward(tokens, prefix):
    """As `full_forward`, of a model whose first tokens see each other."""
    row = np.zeros((1, DEEP.length), np.int32)
    row[0, :len(tokens)] = tokens
    marks = np.arange(DEEP.length)[None] < prefix
    return np.float64(prefixed_log_probabilities(DEEP_PARAMS, row, marks)[0, len(tokens) - 1]), None


def full_forward(tokens):
    """As `decoders.Fake.next`, by a full forward pass."""
    row = np.zeros((1, MODEL.length), np.int32)
    row[0, :len(tokens)] = tokens
    return np.float64(log_probabilities(PARAMS, row)[0, len(tokens) - 1]), None


def by_full_forward(prompts, steps):
    return [decoders.beam(full_forward, prompt, steps, NEVER, 1)[0][0] for prompt in prompts]


def greedy(prompts, steps, end=NEVER, vocab=MODEL.vocab):
    found = generate(MODEL, PARAMS, prompts, steps=steps, strategy=Greedy(), key=KEY, end=end, vocab=vocab)
    return [best.tokens.tolist() for best, in found]


class GptTest(parameterized.TestCase):
    def test_greedy_equals_argmax_of_the_full_forward_for_prompts_of_several_lengths(self):
        wanted = by_full_forward(PROMPTS, 6)
        self.assertEqual(greedy(PROMPTS, 6), wanted)
        self.assertEqual(greedy(PROMPTS[1:2], 6), wanted[1:2])  # whatever else is in the batch

    @parameterized.parameters(Beam(3, 1.0, count=3), DiverseBeam(4, count=4))
    def test_beam_search_equals_one_by_full_forwards(self, strategy):
        found = generate(MODEL, PARAMS, PROMPTS, steps=6, strategy=strategy, key=KEY, end=7, vocab=11)
        for row, prompt in zip(found, PROMPTS):
            wanted = decoders.beam(full_forward, prompt, 6, 7, strategy.size, strategy.length_penalty, 0.0, strategy.groups,
                                   strategy.diversity)[:strategy.count]
            self.assertEqual([(one.tokens.tolist(), one.finished) for one in row], [(new, ended) for new, _, ended in wanted])
            np.testing.assert_allclose([one.score for one in row], [score for _, score, _ in wanted], atol=1e-4)

    @parameterized.parameters(Greedy(), Beam(3, 1.0, count=3))
    def test_prefixes_equal_full_forwards(self, strategy):
        given = dict(steps=6, strategy=strategy, key=KEY, end=NEVER, vocab=11)
        found = generate(DEEP, DEEP_PARAMS, PROMPTS, **given, prefixes=[4, 1, 0])
        for row, prompt, prefix in zip(found, PROMPTS, [4, 1, 0]):
            forward = functools.partial(prefixed_forward, prefix=prefix)
            wanted = decoders.beam(forward, prompt, 6, NEVER, strategy.size, 1.0 if strategy.size > 1 else 0.0)[:strategy.count]
            self.assertEqual([one.tokens.tolist() for one in row], [new for new, *_ in wanted])
            np.testing.assert_allclose([one.score for one in row], [score for _, score, _ in wanted], atol=1e-4)
        causal = generate(DEEP, DEEP_PARAMS, PROMPTS, **given)
        self.assertNotAlmostEqual(causal[0][0].score, found[0][0].score, places=3)

    def test_of_a_prompt_only_the_last_token_has_logits(self):
        for fields in ({}, {'tied': False, 'bias': True}, {'scaled': True, 'added': True}):
            one, all_ = (dataclasses.replace(MODEL, head=head(**fields), parent=None) for head in (OneByOne, AllAtOnce))
            params = jax.tree.map(lambda s: RNG.normal(size=s.shape).astype(np.float32), jax.eval_shape(
                lambda model=all_: model.init(KEY, jnp.zeros((1, 2), jnp.int32))['params']))
            got, wanted = ([best.tokens.tolist() for best, in generate(
                model, params, PROMPTS, steps=6, strategy=Greedy(), key=KEY, end=NEVER, vocab=11)] for model in (one, all_))
            self.assertEqual(got, wanted)

    def test_only_tokens_of_the_vocabulary_are_chosen(self):
        limit = max(token for row in by_full_forward(PROMPTS, 6) for token in row)
        cut = greedy(PROMPTS, 6, vocab=limit)  # a model with one more row than the tokenizer has pieces
        self.assertLess(max(token for row in cut for token in row), limit)

    def test_stops_at_the_end_token_without_it(self):
        free = by_full_forward(PROMPTS, 6)
        end = free[0][2]
        cut = [tokens[:tokens.index(end)] if end in tokens else tokens for tokens in free]
        self.assertEqual(greedy(PROMPTS, 6, end), cut)
        self.assertLess(len(cut[0]), 6)

    def test_stops_at_the_longest_row_of_the_model(self):
        new = greedy(PROMPTS, 50)
        # The last token is never read, so that it may be one more than the model takes.
        self.assertEqual(new, [by_full_forward([prompt], 13 - len(prompt))[0] for prompt in PROMPTS])
        self.assertEqual([len(tokens) for tokens in greedy([[1] * 11], 5)], [2])

    @parameterized.parameters(12, 13)
    def test_a_prompt_that_leaves_no_room_for_a_new_token_is_refused(self, length):
        message = f'prompt has {length} tokens, but the context of this model is 12 .*; shorten it to 11'
        with self.assertRaisesRegex(ValueError, message):
            greedy([[1], [1] * length], 5)

    def test_tokens_of_its_own_are_no_part_of_what_is_to_be_shortened(self):
        for own, length, message in ((1, 12, 'has 11 tokens, .* is 12 and must hold 1 special token and a new one .* to 10'),
                                     (2, 13, 'has 11 tokens, .* must hold 2 special tokens and a new one .* to 9')):
            with self.assertRaisesRegex(ValueError, message):
                require_room(MODEL, [1] * length, own=own)
            require_room(MODEL, [1] * 11, own=own)

    def test_an_empty_prompt_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'empty'):
            greedy([[1], []], 5)

    @parameterized.parameters(Greedy(), Sample(count=2), Beam(2))
    def test_a_model_that_has_diverged_is_refused(self, strategy):
        params = jax.tree.map(lambda x: np.full_like(x, np.nan), PARAMS)
        with self.assertRaisesRegex(ValueError, 'not finite: this run has diverged; give an earlier checkpoint'):
            generate(MODEL, params, PROMPTS, steps=2, strategy=strategy, key=KEY, end=7, vocab=11)


STRATEGIES = Greedy(), Sample(count=2), Beam(3, 0.6, 0.3, count=2)
FAKE = decoders.Fake()
FAKE_PROMPTS = [[1], [2, 6, 3], [1, 1], [5, 0, 4, 4, 2], [6]]
SOURCES = [[1, 2, 3, 4, 5], [6], [2, 2], [5, 1, 0], [3]]


def outputs(strategy, rows=slice(None), steps=6, **given):
    numbers = range(5)[rows]
    found = generate(FAKE, FAKE.params, FAKE_PROMPTS[rows], steps=steps, strategy=strategy, key=KEY, end=0, vocab=7,
                     source=SOURCES[rows], numbers=numbers, **given)
    return [[(one.tokens.tolist(), round(one.score, 4), one.finished) for one in row] for row in found]


@slow_but('test_a_row_does_not_depend_on_the_others_nor_on_padding', 'Greedy', 'Beam')
class RowsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((type(strategy).__name__, strategy) for strategy in STRATEGIES))
    def test_a_row_does_not_depend_on_the_others_nor_on_padding(self, strategy):
        steps = [0, 1, 6, 3, 6]
        together = outputs(strategy, steps=steps)
        for part in (slice(2, 3), slice(4, None, -2)):
            self.assertEqual(outputs(strategy, part, steps=steps[part]), together[part])
        self.assertEqual(together[0], [([], 0.0, False)])
        for row, limit in zip(together, steps):
            self.assertTrue(all(len(new) < limit if finished else len(new) == limit for new, _, finished in row))

    def test_hypotheses_do_not_see_each_other_in_the_model(self):
        # The model gives NaN unless the cache holds all positions before a token, and its source is its own.
        for row, prompt, source in zip(outputs(Beam(3, count=3)), FAKE_PROMPTS, SOURCES):
            wanted = decoders.beam(lambda tokens, source=source: FAKE.next(tokens, source), prompt, 6, 0, 3)
            self.assertEqual([new for new, _, _ in row], [new for new, _, _ in wanted])

    def test_programs_are_compiled_once_for_shapes_that_are_alike(self):
        model = decoders.Fake()
        run = lambda prompts, steps, source=None, end=0: generate(
            model, model.params, prompts, steps=steps, strategy=Greedy(), key=KEY, end=end, vocab=7, source=source)
        run([[1, 2, 3]] * 3, 5)
        once = model.traces
        for prompts, steps in (([[1, 2, 3, 4]] * 4, 4), ([[4], [3, 3, 3], [1]], [2, 4, 5]), ([[1, 2, 3]] * 3, 3)):
            run(prompts, steps)
            self.assertEqual(model.traces, once)
        run([[1, 2, 3, 4]] * 4, 6)  # a longer cache
        self.assertGreater(model.traces, once)
        run([[1], [1]], 6, [[1, 2, 3], [4]])
        once = model.traces
        run([[1], [2]], 7, [[5], [1, 1, 1, 1]])
        self.assertEqual(model.traces, once)

    def test_stops_as_soon_as_all_rows_are_done(self):
        model = decoders.Fake()
        model.params['logits'][:, 0] = -50.0
        model.params['logits'][(3 * (1 + 1) + 5 + 1) % decoders.STATES, 0] = 50.0  # after 1, 5
        generate(model, model.params, [[1, 5], [1, 5]], steps=20, strategy=Greedy(), key=KEY, end=0, vocab=7)
        jax.effects_barrier()
        self.assertEqual(model.calls, 1)  # that of the prompt
        generate(model, model.params, [[1, 5], [1, 4]], steps=20, strategy=Greedy(constraint=Without((0,))), key=KEY, end=0,
                 vocab=7)
        jax.effects_barrier()
        self.assertEqual(model.calls, 1 + 20)

    def test_a_cache_is_only_as_long_as_needed(self):
        lengths = []
        model = decoders.Fake()
        init = model.init_cache
        model.init_cache = lambda batch, length: lengths.append(length) or init(batch, length)
        for prompt, steps in (([1], 1), ([1] * 5, 2), ([1] * 5, 9), ([1], 1000)):
            generate(model, model.params, [prompt], steps=steps, strategy=Greedy(), key=KEY, end=0, vocab=7)
        self.assertEqual(lengths, [1, 8, 16, 32])
        model.length = 200
        for steps in (33, 64, 130, 1000):
            generate(model, model.params, [[1]], steps=steps, strategy=Greedy(), key=KEY, end=0, vocab=7)
        self.assertEqual(lengths[4:], [40, 64, 160, 200])

    def test_no_prompts(self):
        self.assertEqual(generate(FAKE, FAKE.params, [], steps=3, strategy=Greedy(), key=KEY, end=0, vocab=7), [])


if __name__ == '__main__':
    absltest.main()
