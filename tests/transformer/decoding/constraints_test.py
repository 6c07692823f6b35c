import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import decoders
from training.config import resolve
from transformer.decoding.constraints import (
    Anything,
    Choices,
    Constraint,
    First,
    MaxLength,
    MinLength,
    NoRepeat,
    Output,
    Repetition,
    Without,
    constrained,
)
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, Greedy, Sample, Strategy

END, VOCAB = 0, 6
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(3, 2, VOCAB)).astype(np.float32)
# Two hypotheses for each of three prompts, of 1, 2 and 3 tokens, the last of which begins with END, as those of translations
# do; what is behind the new ones means nothing.
TOKENS = np.array([[[1, 2, 1, 2, 5, 5, 5, 5], [1, 3, 3, 3, 5, 5, 5, 5]],
                   [[4, 2, 1, 4, 2, 5, 5, 5], [4, 2, 2, 4, 3, 5, 5, 5]],
                   [[0, 3, 3, 1, 1, 2, 5, 5], [0, 3, 3, 4, 4, 3, 5, 5]]])
BEGIN = np.array([1, 2, 3])


def applied(constraint, count=3, end=END, scores=SCORES):
    output = Output(jnp.asarray(TOKENS), jnp.asarray(BEGIN), jnp.asarray(count), end)
    return np.asarray(constrained(constraint, jnp.asarray(scores), output))


def allowed(constraint, count=3, end=END):
    """Tokens that may follow, of every hypothesis; the scores of these must be as they were."""
    new = applied(constraint, count, end)
    np.testing.assert_array_equal(new[new > -np.inf], SCORES[new > -np.inf])
    return [[set(np.flatnonzero(row > -np.inf).tolist()) for row in rows] for rows in new]


def everywhere(tokens):
    return [[set(tokens)] * 2] * 3


def by_hypothesis(function, count=3):
    """function(all tokens so far, the new ones) of every hypothesis."""
    return [[function(row[:begin + count].tolist(), row[begin:begin + count].tolist()) for row in rows]
            for rows, begin in zip(TOKENS, BEGIN)]


class ConstraintsTest(parameterized.TestCase):
    def test_anything(self):
        np.testing.assert_array_equal(applied(Anything()), SCORES)

    @parameterized.parameters(0, 1, 2, 3)
    def test_lengths(self, count):
        self.assertEqual(allowed(MinLength(2), count), everywhere(range(1 if count < 2 else 0, VOCAB)))
        self.assertEqual(allowed(MaxLength(2), count), everywhere(range(VOCAB) if count < 2 else [END]))

    def test_without(self):
        self.assertEqual(allowed(Without((2, 5))), everywhere([0, 1, 3, 4]))

    def test_repetition(self):
        for count in (0, 3):
            new = applied(Repetition(1.3), count)
            for found, scores, seen in zip(new, SCORES, by_hypothesis(lambda tokens, _: set(tokens), count)):
                for k in range(2):
                    wanted = [(x / 1.3 if x > 0 else x * 1.3) if token in seen[k] - {END} else x
                              for token, x in enumerate(scores[k])]
                    np.testing.assert_allclose(found[k], wanted, rtol=1e-6)

    def test_repetition_of_the_end(self):
        kept, changed = (applied(Repetition(2.0, end=end)) for end in (False, True))
        np.testing.assert_array_equal(changed[..., 1:], kept[..., 1:])
        np.testing.assert_array_equal(changed[:2], kept[:2])  # in which there is none
        x = SCORES[2, :, END]
        np.testing.assert_array_equal(changed[2, :, END], np.where(x > 0, x / 2, x * 2))

    @parameterized.parameters(0, 1)
    def test_first(self, count):
        new = applied(First(4), count)
        np.testing.assert_array_equal(new[1:], SCORES[1:])  # behind longer prompts
        wanted = np.where(np.arange(VOCAB) == 4, 0.0, -np.inf) if count == 0 else SCORES[0, 0]
        np.testing.assert_array_equal(new[0, 0], wanted)

    @parameterized.parameters(1, 2, 3, 4, 8, 9, 20)
    def test_no_repeat(self, size):
        def free(tokens, _):
            grams = {tuple(tokens[i:i + size]) for i in range(len(tokens) - size + 1)}
            last = tokens[len(tokens) - size + 1:] if size > 1 else []
            return {END} | {token for token in range(VOCAB) if (*last, token) not in grams or len(tokens) < size - 1}

        for count in (0, 2, 3):
            self.assertEqual(allowed(NoRepeat(size), count), by_hypothesis(free, count))

    @parameterized.parameters(0, 1, 2, 3)
    def test_one_of(self, count):
        outputs = ((2, 1, 2), (2, 1, 2, 4), (3, 3, 3), (1,), (1, 4, 2, 5), (), (2, 4, 3))

        def following(_, new):
            fit = [[*one, END] for one in outputs if list(one[:len(new)]) == new]
            return {one[len(new)] for one in fit} or {END}

        self.assertEqual(allowed(Choices(outputs), count), by_hypothesis(following, count))

    def test_combined(self):
        both = MinLength(5) & Without((1, 2)) & NoRepeat(1)
        self.assertEqual(allowed(both), by_hypothesis(lambda tokens, _: {3, 4, 5} - set(tokens)))
        penalised = applied(Repetition(2.0) & Without((1,)))
        np.testing.assert_array_equal(penalised, np.where(np.arange(VOCAB) == 1, -np.inf, applied(Repetition(2.0))))

    def test_where_nothing_is_left_an_output_may_end_and_without_end_everything_may_follow(self):
        impossible = MinLength(9) & MaxLength(2)
        self.assertEqual(allowed(impossible), everywhere([END]))
        for end in (-1, VOCAB):
            self.assertEqual(allowed(impossible, end=end), everywhere(range(VOCAB)))

    @parameterized.parameters(
        (lambda: MinLength(-1), r'MinLength\(tokens=-1\): tokens is -1; expected 0 or more'), (lambda: MaxLength(-2), 'tokens'),
        (lambda: Repetition(0.0), 'penalty is 0.0; expected a number above 0'), (lambda: Repetition(float('nan')), 'penalty'),
        (lambda: Repetition(float('inf')), 'penalty'), (lambda: NoRepeat(0), 'ngram is 0; expected 1 or more'),
        (lambda: Choices(()), 'expected a tuple of at least one output'),
        (lambda: Choices((1, 2)), 'each a tuple of token ids'), (lambda: Choices(((1, -2),)), 'each a tuple'),
        (lambda: Without((1, 'a')), 'expected a tuple of token ids'), (lambda: Without((-1,)), 'expected a tuple of token ids'),
        (lambda: First(-1), 'token is -1; expected the id of a token'))
    def test_values_without_a_meaning_are_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()

    @parameterized.parameters(
        (First(7), r'First\(token=7\): token is 7; expected ids from 0 to 6'),
        (Without((2, 7)), r'Without\(tokens=\(2, 7\)\): tokens is \(2, 7\); expected ids from 0 to 6'),
        (MinLength(1) & Choices(((), (1, 2), (7,))), 'outputs is .* expected ids from 0 to 6, as the vocabulary has 7'))
    def test_tokens_that_the_vocabulary_does_not_have_are_refused(self, constraint, message):
        model = decoders.Fake()
        with self.assertRaisesRegex(ValueError, message):
            generate(model, model.params, [[1]], steps=2, strategy=Greedy(constraint=constraint), end=END, vocab=7,
                     key=jax.random.key(0))

    @parameterized.parameters(
        'MinLength(tokens=2) & MaxLength(9)', 'Choices(((1, 2), (3,)))', '(Without((4,)) & Repetition(1)) & NoRepeat(2)')
    def test_a_config_can_hold_one(self, text):
        found = resolve.parse(text, Constraint, 'constraint')
        self.assertEqual(resolve.parse(repr(found), Constraint, 'constraint'), found)
        self.assertIn(repr(found), repr(resolve.parse(f'Beam(constraint={text})', Strategy, 'strategy')))


class OutputsTest(parameterized.TestCase):
    """Constraints at work, on outputs of a model that often repeats itself and ends early."""

    def outputs(self, constraint, strategy, steps=12):
        model = decoders.Fake(scale=3.0)
        prompts = [[a, b] for a in range(7) for b in range(7)]
        found = generate(model, model.params, prompts, steps=steps, strategy=strategy(constraint=constraint), end=END, vocab=7,
                         key=jax.random.key(0))
        return [([*prompt, *one.tokens.tolist()], one.tokens.tolist(), one.finished)
                for prompt, row in zip(prompts, found) for one in row]

    @parameterized.parameters(Greedy, Beam, Sample)
    def test_lengths_and_repetitions(self, strategy):
        for whole, new, finished in self.outputs(MinLength(4) & MaxLength(6) & NoRepeat(2), strategy):
            self.assertTrue(finished)
            self.assertBetween(len(new), 4, 6)
            self.assertLen(set(itertools.pairwise(whole)), len(whole) - 1)

    def test_one_of(self):
        labels = ((3, 3), (3, 4, 1), (6,))
        found = self.outputs(Choices(labels), Beam)
        self.assertTrue(all(tuple(new) in labels and finished for _, new, finished in found))
        self.assertGreater(len({tuple(new) for _, new, _ in found}), 1)


if __name__ == '__main__':
    absltest.main()
