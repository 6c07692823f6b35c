"""ELECTRA's objective, against a loop in float64; what its samples are and where its gradients go."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from absl.testing import absltest, parameterized

from tests import float64, models
from transformer.models.electra import BASE, Electra
from transformer.tasks.electra import ReplacedTokens, placed, rows_keys, sample

V, B, T, M = 7, 3, 6, 2
DRAW = np.random.default_rng(0)
ORIGINAL = DRAW.integers(1, V, size=(B, T)).astype(np.int32)
MASKED, WEIGHTS = np.array([[1, 4], [2, 0], [0, 0]], np.int32), np.float32([[1, 2], [1, 0], [0, 0]])
TARGETS = (np.take_along_axis(ORIGINAL, MASKED, 1) * (WEIGHTS > 0)).astype(np.int32)
SEGMENTS = np.int32([[1] * 6, [1] * 4 + [0] * 2, [0] * 6])
SEEN = ORIGINAL.copy()
for row, place in ((0, 1), (1, 2)):  # the third, (0, 4), keeps its token
    SEEN[row, place] = 0
BATCH = {'inputs': SEEN, 'segments': SEGMENTS, 'positions': np.tile(np.arange(T, dtype=np.int32), (B, 1)),
         'types': np.zeros((B, T), np.int32), 'masked': MASKED, 'targets': TARGETS, 'weights': WEIGHTS}
SMALL = dataclasses.replace(BASE, layers=1, heads=2, width=8)


def electra(**fields):
    fields = {'embedding_width': 4, 'generator': dataclasses.replace(SMALL, width=6), 'discriminator': SMALL} | fields
    return Electra(vocab=V, length=T, **fields)


def applied(model, params):
    return functools.partial(model.apply, {'params': params})


class Fixed:
    """A forward pass with these logits, which records what it is given."""

    def __init__(self, logits, replaced):
        self.logits, self.replaced, self.given = logits, replaced, []

    def __call__(self, **inputs):
        self.given.append(inputs)
        return {'logits': self.logits} if 'masked' in inputs else {'replaced_logits': self.replaced}


class ReplacedTokensTest(parameterized.TestCase):
    def terms(self, forward, batch=None, **given):
        return ReplacedTokens().loss(forward, batch or BATCH, **{'key': models.KEY, 'step': 0, 'train': True} | given)

    @parameterized.parameters(True, False)
    def test_equals_a_loop_in_float64(self, train):
        with jax.enable_x64(True):
            logits, replaced = DRAW.normal(size=(B, M, V)), DRAW.normal(size=(B, T))
            forward = Fixed(logits, replaced)
            found = {name: [float(x) for x in pair] for name, pair in self.terms(forward, train=train).items()}
        corrupted = np.asarray(forward.given[1]['inputs'])
        log_p = scipy.special.log_softmax(logits, -1)
        sums = dict.fromkeys(found, 0.0)
        for row in range(B):
            for m in range(M):
                sums['generator'] -= WEIGHTS[row, m] * log_p[row, m, TARGETS[row, m]]
                sums['generator_accuracy'] += WEIGHTS[row, m] * (logits[row, m].argmax() == TARGETS[row, m])
            for t in range(T):
                if SEGMENTS[row, t]:
                    other, said = corrupted[row, t] != ORIGINAL[row, t], replaced[row, t] > 0
                    p = 1 / (1 + np.exp(-replaced[row, t]))
                    sums['discriminator'] -= np.log(p if other else 1 - p)
                    for name, value in (('discriminator_accuracy', other == said), ('replaced', other), ('said_replaced', said),
                                        ('rightly_replaced', other and said)):
                        sums[name] += value
        for name, total in sums.items():
            weight = WEIGHTS.sum() if name.startswith('generator') else SEGMENTS.sum()
            np.testing.assert_allclose(found[name], [total, weight], rtol=1e-12, err_msg=name)
        places = np.zeros((B, T), bool)
        places[[0, 0, 1], [1, 4, 2]] = True
        np.testing.assert_array_equal(corrupted[~places], ORIGINAL[~places])

    def test_both_parts_have_dropout_in_training_alone(self):
        given = {}
        for train in (True, False):
            self.terms(forward := Fixed(np.zeros((B, M, V)), np.zeros((B, T))), train=train)
            given[train] = [inputs['key'] is not None for inputs in forward.given]
        self.assertEqual(given, {True: [True, True], False: [False, False]})

    def test_factors(self):
        self.assertEqual(ReplacedTokens().coefficients, {'generator': 1.0, 'discriminator': 50.0})
        self.assertEqual(ReplacedTokens(2.0, 3.0).coefficients, {'generator': 2.0, 'discriminator': 3.0})
        with self.assertRaisesRegex(ValueError, 'task.discriminator 0.0; expected factors'):
            ReplacedTokens(discriminator=0.0)

    def test_precision_and_recall(self):
        shares = {'rightly_replaced': 0.1, 'said_replaced': 0.2, 'replaced': 0.4}
        self.assertEqual(ReplacedTokens().derived(shares, {}), {'precision': 0.5, 'recall': 0.25})
        self.assertTrue(np.isnan(ReplacedTokens().derived(dict.fromkeys(shares, 0.0), {})['recall']))

    def test_a_uniform_generator_replaces_all_but_one_in_v(self):
        rows, share = 20_000, 1 - 1 / V
        tokens = np.asarray(sample(jnp.zeros((rows, 1, V)), jax.random.key(3)))
        self.assertLess(abs((tokens != 2).mean() - share), 4 * np.sqrt(share * (1 - share) / rows))
        batch = {name: np.repeat(x[:1], rows, 0) for name, x in BATCH.items()}
        forward = Fixed(jnp.zeros((rows, M, V)), jnp.zeros((rows, T)))
        total, weight = self.terms(forward, batch)['replaced']
        replaced = float(total) / (2 * rows)  # of two places in each row
        self.assertLess(abs(replaced - share), 4 * np.sqrt(share * (1 - share) / (2 * rows)))
        self.assertEqual(float(weight), T * rows)

    def test_the_likeliest_token_is_sampled_as_often_as_its_probability(self):
        chances, rows = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 0.01]), 20_000
        logits = jnp.broadcast_to(jnp.log(chances), (rows, 1, V))
        for keys in (jax.random.key(0), rows_keys(jnp.arange(rows * 3).reshape(rows, 3))):
            often = np.bincount(np.asarray(sample(logits, keys)).ravel(), minlength=V) / rows
            self.assertTrue((abs(often - chances) < 4 * np.sqrt(chances * (1 - chances) / rows)).all(), often)

    def test_samples_of_evaluation_depend_on_their_row_alone(self):
        logits, replaced = DRAW.normal(size=(B, M, V)), np.zeros((B, T))

        def corrupted(rows, key=None, train=False):
            forward = Fixed(logits[rows], replaced[rows])
            self.terms(forward, {name: x[rows] for name, x in BATCH.items()}, key=key, train=train)
            return np.asarray(forward.given[1]['inputs'])

        whole, order = corrupted([0, 1, 2]), [1, 0]
        np.testing.assert_array_equal(corrupted(order), whole[order])
        drawn = {corrupted([0, 1, 2], jax.random.key(i), True).tobytes() for i in range(8)}
        self.assertGreater(len(drawn), 4)  # those of training on the key of the step

    def test_places_of_no_weight_change_nothing(self):
        np.testing.assert_array_equal(placed(SEEN, MASKED, TARGETS, WEIGHTS), ORIGINAL)

    def test_tied_tables_learn_from_both_and_samples_pass_no_gradient(self):
        for tied in (True, False):
            model = electra(tied=tied)
            params = models.drawn(model, BATCH['inputs'])

            def total(params, term, model=model):
                terms = self.terms(applied(model, params))
                return terms[term][0]
            generator, discriminator = (jax.grad(total)(params, term) for term in ('generator', 'discriminator'))
            norm = lambda tree: sum(float(jnp.abs(x).sum()) for x in jax.tree.leaves(tree))
            self.assertEqual(norm(discriminator['generator']), 0)  # nothing through the samples
            self.assertGreater(norm(generator['generator']), 0)
            tables = 'tokens', 'types', 'positions', 'embedding_norm'
            shared = {name: norm(generator['discriminator'][name]) > 0 for name in tables}
            self.assertEqual(shared, dict.fromkeys(tables, tied))
            self.assertEqual(norm(generator['discriminator']['block_0']), 0)
            self.assertEqual([name in params['generator'] for name in tables], [not tied] * 4)
            self.assertEqual(params['discriminator']['tokens']['embedding'].shape, (V, 4))
            if not tied:
                self.assertEqual(params['generator']['tokens']['embedding'].shape, (V, 6))
                self.assertNotIn('embedding_projection', params['generator'])

    def test_gradients_in_float64(self):
        with jax.enable_x64(True):
            model, task = electra(dtype='float64'), ReplacedTokens()

            def loss(params, batch):
                terms = task.loss(applied(model, params), batch, key=None, step=None, train=False)
                return sum(c * terms[name][0] / terms[name][1] for name, c in task.coefficients.items())

            params = float64.drawn(jax.eval_shape(lambda: model.init(models.KEY, **task.inputs(BATCH))['params']))
            float64.require_exact(self, loss, params, BATCH, step=1e-4)  # a step so small that no sample changes

    def test_a_model_without_a_generator_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'but the model gives replaced_logits alone; use transformer.models.electra'):
            self.terms(lambda **inputs: {'replaced_logits': np.zeros((B, T))})


if __name__ == '__main__':
    absltest.main()
