import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.decoding import Greedy, Sample, generate
from transformer.gpt import Gpt

KEY = jax.random.key(0)
MODEL = Gpt(vocab=11, length=12, layers=1, heads=2, width=8)
RNG = np.random.default_rng(0)
PARAMS = jax.tree.map(lambda s: RNG.normal(size=s.shape).astype(np.float32),
                      jax.eval_shape(lambda: MODEL.init(KEY, jnp.zeros((1, 2), jnp.int32))['params']))
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6]]
NEVER = -1  # an `end` that no token equals


@jax.jit
def next_tokens(params, rows, lengths):
    logits = MODEL.apply({'params': params}, rows)['logits']
    return logits[jnp.arange(len(rows)), lengths - 1].argmax(-1)


def by_full_forward(prompts, steps):
    rows, lengths = np.zeros((len(prompts), MODEL.length), np.int32), np.array([len(p) for p in prompts])
    for row, prompt in zip(rows, prompts):
        row[:len(prompt)] = prompt
    for t in range(steps):
        rows[np.arange(len(prompts)), lengths + t] = next_tokens(PARAMS, rows, lengths + t)
    return [row[n:n + steps].tolist() for row, n in zip(rows, lengths)]


def greedy(prompts, steps, end=NEVER, vocab=MODEL.vocab):
    new = generate(MODEL, PARAMS, prompts, steps=steps, strategy=Greedy(), key=KEY, end=end, vocab=vocab)
    return [tokens.tolist() for tokens in new]


class GenerateTest(parameterized.TestCase):
    def test_greedy_equals_argmax_of_the_full_forward_for_prompts_of_several_lengths(self):
        wanted = by_full_forward(PROMPTS, 6)
        self.assertEqual(greedy(PROMPTS, 6), wanted)
        self.assertEqual(greedy(PROMPTS[1:2], 6), wanted[1:2])  # whatever else is in the batch

    def test_only_tokens_of_the_vocabulary_are_chosen(self):
        wanted = by_full_forward(PROMPTS, 6)
        limit = max(token for row in wanted for token in row)  # a model with one more row than the tokenizer has pieces
        cut = greedy(PROMPTS, 6, vocab=limit)
        self.assertLess(max(token for row in cut for token in row), limit)

    def test_stops_at_the_end_token_without_it(self):
        free = by_full_forward(PROMPTS, 6)
        end = free[0][2]
        cut = [tokens[:tokens.index(end)] if end in tokens else tokens for tokens in free]
        self.assertEqual(greedy(PROMPTS, 6, end), cut)
        self.assertLess(len(cut[0]), 6)

    def test_stops_at_the_longest_row_of_the_model(self):
        new = greedy(PROMPTS, 50)
        self.assertEqual([len(tokens) for tokens in new], [7, 11, 10])
        self.assertEqual(new[0][:6], by_full_forward(PROMPTS, 6)[0])
        self.assertEqual([len(tokens) for tokens in greedy([[1] * 11], 5)], [1])

    def test_no_steps_give_nothing(self):
        self.assertEqual(greedy(PROMPTS, 0), [[], [], []])

    def test_sampling_repeats_with_its_key(self):
        sample = lambda key: np.concatenate(generate(MODEL, PARAMS, PROMPTS, steps=7, strategy=Sample(), key=key, end=NEVER,
                                                     vocab=MODEL.vocab))
        np.testing.assert_array_equal(sample(KEY), sample(KEY))
        self.assertFalse(np.array_equal(sample(KEY), sample(jax.random.key(1))))

    @parameterized.parameters(12, 13)
    def test_a_prompt_that_leaves_no_room_for_a_new_token_is_refused(self, length):
        message = f'prompt has {length} tokens, but the context of this model is 12 .*; shorten it to 11'
        with self.assertRaisesRegex(ValueError, message):
            greedy([[1], [1] * length], 5)

    def test_an_empty_prompt_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'empty'):
            greedy([[1], []], 5)


LOGITS = np.array([2.0, -1.0, 1.5, 0.0, 1.0, -3.0])


def distribution(temperature=1.0, top_k=0, top_p=1.0):
    """What `Sample` says, in numpy."""
    p = np.exp(LOGITS / temperature)
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    p[order[1 + np.searchsorted(np.cumsum(p[order]), top_p - 1e-9):]] = 0
    return p / p.sum()


class StrategiesTest(parameterized.TestCase):
    @parameterized.parameters(
        dict(), dict(temperature=0.5), dict(temperature=3.0), dict(top_k=1), dict(top_k=3), dict(top_k=100),
        dict(top_p=0.01), dict(top_p=0.7), dict(top_p=0.95), dict(temperature=2.0, top_k=4, top_p=0.8))
    def test_distribution(self, **fields):
        draws = jax.jit(Sample(**fields))(jnp.broadcast_to(jnp.float32(LOGITS), (20000, 6)), KEY)
        frequencies, wanted = np.bincount(draws, minlength=6) / 20000, distribution(**fields)
        np.testing.assert_array_equal(frequencies[wanted == 0], 0)
        np.testing.assert_allclose(frequencies, wanted, atol=0.015)

    def test_greedy_takes_the_most_probable(self):
        np.testing.assert_array_equal(Greedy()(jnp.float32([LOGITS, -LOGITS]), KEY), [0, 5])

    @parameterized.parameters(dict(temperature=0.0), dict(temperature=1e-50), dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.5))
    def test_values_without_a_meaning_are_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, 'expected temperature >= 0.001, top_k >= 0 and top_p in'):
            Sample(**fields)


if __name__ == '__main__':
    absltest.main()
