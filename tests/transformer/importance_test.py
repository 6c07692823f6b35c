import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer import importance
from transformer.attention.alternatives import Convolution
from transformer.attention.mechanism import Softmax
from transformer.gpt import Gpt
from transformer.tasks import NextToken

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
MODEL = Gpt(vocab=11, length=6, layers=2, heads=3, width=6)


@functools.cache
def drawn(model=MODEL):
    shapes = jax.eval_shape(lambda: model.init(KEY, jnp.zeros((1, 2), jnp.int32))['params'])
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda s: jnp.asarray(0.5 * rng.normal(size=s.shape), jnp.float32), shapes)


def batch(rows, padding=0):
    """Rows of one document, the last `padding` of which count nothing."""
    there = np.broadcast_to(np.arange(rows)[:, None] < rows - padding, (rows, 6))
    inputs, targets = RNG.integers(11, size=(2, rows, 6))
    return {'inputs': inputs, 'targets': targets, 'weights': there.astype(np.float32),
            'segments': there.astype(np.int32), 'positions': np.broadcast_to(np.arange(6), (rows, 6))}


@dataclasses.dataclass(frozen=True)
class Snapshot:
    model: Gpt
    params: dict
    task: NextToken = NextToken()

    @property
    def run(self):
        return types.SimpleNamespace(task=self.task)


SNAPSHOT = Snapshot(MODEL, drawn())


class ImportanceTest(parameterized.TestCase):
    @parameterized.parameters(NextToken(), NextToken(label_smoothing=0.4, z_loss=0.1))
    def test_is_the_mean_over_rows_of_the_slope_of_their_loss(self, task):
        one, two = batch(3), batch(2, padding=1)
        scores = importance.importance(dataclasses.replace(SNAPSHOT, task=task), [one, two])
        wanted, step = np.zeros((2, 3)), 1e-2
        rows = [{name: x[i:i + 1] for name, x in b.items()} for b, n in ((one, 3), (two, 1)) for i in range(n)]

        @jax.jit
        def loss(mask, row):
            terms = task.terms(MODEL.apply({'params': drawn()}, head_mask=mask, **task.inputs(row)), row)
            return sum(c * terms[t][0] for t, c in task.coefficients.items())
        for row in rows:
            for place in np.ndindex(2, 3):
                moved = np.zeros((2, 3))
                moved[place] = step
                wanted[place] += abs(float(loss(1 + moved, row)) - float(loss(1 - moved, row))) / (2 * step)
        np.testing.assert_allclose(scores, wanted / (4 * 6), rtol=2e-2, atol=1e-3)

    def test_batches_do_not_matter(self):
        whole = batch(4)
        halves = [{name: x[i:i + 2] for name, x in whole.items()} for i in (0, 2)]
        np.testing.assert_allclose(importance.importance(SNAPSHOT, [whole]), importance.importance(SNAPSHOT, halves), rtol=1e-4)

    def test_scaled_by_layer_and_ordered(self):
        scores = np.array([[3.0, 4.0, np.nan], [0.0, 0.0, 0.0], [1e-3, 5e-3, 0.0]])
        scaled = importance.by_layer(scores)
        np.testing.assert_allclose(scaled[0], [0.6, 0.8, np.nan])
        np.testing.assert_allclose(np.square(scaled[2]).sum(), 1.0)
        self.assertEqual(importance.order(scaled)[-4:], [(2, 0), (0, 0), (0, 1), (2, 1)])
        self.assertLen(importance.order(scaled), 8)

    def test_heads_that_are_gone_have_none(self):
        model = MODEL.clone(kept=((0, 2), (1,)))
        scores = importance.importance(Snapshot(model, drawn(model)), [batch(2)])
        np.testing.assert_array_equal(np.isnan(scores), [[False, True, False], [True, False, True]])
        self.assertEqual(importance.all_heads(model), [(0, 0), (0, 2), (1, 1)])

    def test_curve_prunes_from_the_least_important_on(self):
        heads = [(1, 2), (0, 1), (0, 0), (1, 0), (1, 1), (0, 2)]

        def gone(params):
            return {(layer, head) for layer in range(2) for head in range(3)
                    if not np.any(params[f'block_{layer}']['attention']['output']['kernel'][head])}
        curve = importance.curve(SNAPSHOT, gone, heads, [6, 4, 0])
        self.assertEqual(curve, [(6, set()), (4, {(1, 2), (0, 1)}), (0, set(heads))])
        self.assertEqual(gone(SNAPSHOT.params), set())  # which stay as they are

    def test_gradients_that_are_not_finite_are_refused(self):
        broken = jax.tree.map(lambda x: x * jnp.nan, drawn())
        with self.assertRaisesRegex(ValueError, 'gradients of the heads are not finite'):
            importance.importance(Snapshot(MODEL, broken), [batch(1)])

    def test_models_without_heads_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'This Gpt has no head left'):
            importance.require_heads(MODEL.clone(kept=((), ())))
        importance.require_heads(MODEL)
        with self.assertRaisesRegex(ValueError, 'Softmax has no heads that could be switched off'):
            importance.require_heads(Softmax())

    def test_a_smaller_model_that_differs_is_refused(self):
        kept = ((0, 2), (1,))
        small = MODEL.clone(kept=kept)
        shapes = jax.eval_shape(lambda: small.init(KEY, batch(1)['inputs'])['params'])
        params = importance.pruned(MODEL, drawn(), kept, shapes)
        importance.require_same(SNAPSHOT, small, params, kept, batch(2))
        params['block_0']['attention']['query']['kernel'] += 0.1
        with self.assertRaisesRegex(ValueError, 'A smaller model cannot give .* mixes heads'):
            importance.require_same(SNAPSHOT, small, params, kept, batch(2))

    def test_a_mechanism_that_mixes_heads_is_refused(self):
        model = MODEL.clone(attention=Convolution())
        shapes = jax.eval_shape(lambda: model.clone(kept=((0, 2), (1,))).init(KEY, batch(1)['inputs'])['params'])
        with self.assertRaisesRegex(ValueError, r'as Convolution\(.*\) or Learned\(.*\) mixes heads; leave --keep'):
            importance.pruned(model, drawn(model), ((0, 2), (1,)), shapes)


if __name__ == '__main__':
    absltest.main()
