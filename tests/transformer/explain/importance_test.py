import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build, changed
from transformer.attention.positions.absolute import Learned
from transformer.explain import importance
from transformer.layers.residual import PreNorm
from transformer.layers.universal import Groups, Universal
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.memory_network import MemoryNetwork
from transformer.tasks.language_model import NextToken, SequenceToSequence

RNG = np.random.default_rng(0)
MODEL = build(Gpt, vocab=11, length=6, layers=2, heads=3, width=6)


@functools.cache
def drawn(model=MODEL):
    pair = isinstance(model, EncoderDecoder)
    tokens = np.zeros((1, 2), np.int32)
    return jax.tree.map(jnp.asarray, models.drawn(model, tokens, **({'decoder_inputs': tokens} if pair else {}), scale=0.5))


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
    def variables(self):
        return {'params': self.params}

    @property
    def run(self):
        return types.SimpleNamespace(task=self.task, companions=types.SimpleNamespace(variables={}),
                                     forward=lambda apply, frozen: apply)


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
            terms = task.terms(MODEL.apply({'params': drawn()}, head_mask={'attention': mask}, **task.inputs(row)), row)
            return sum(c * terms[t][0] for t, c in task.coefficients.items())
        for row in rows:
            for place in np.ndindex(2, 3):
                moved = np.zeros((2, 3))
                moved[place] = step
                wanted[place] += abs(float(loss(1 + moved, row)) - float(loss(1 - moved, row))) / (2 * step)
        np.testing.assert_allclose(scores, wanted / (4 * 6), rtol=2e-2, atol=1e-3)

    def test_of_an_encoder_decoder(self):
        model = changed(build(EncoderDecoder, vocab=11, source_vocab=0, source_length=6, length=6, layers=1, heads=2, width=8,
                              positions=Learned(scale=0.3), residual=PreNorm()), share=False, **{
                                  'encoder.heads': 3, 'encoder.width': 6, 'decoder.layers': 2})
        task, rows = SequenceToSequence(), batch(2)
        rows |= {f'decoder_{name}': rows[name] for name in ('inputs', 'segments', 'positions')}
        scores = importance.importance(Snapshot(model, drawn(model), task), [rows])
        self.assertEqual([(layer.name, layer.heads) for layer in importance.layers_of(model)], [
            ('encoder/block_0', 3), ('decoder/block_0', 2), ('decoder/block_1', 2), ('decoder/block_0/cross_attention', 2),
            ('decoder/block_1/cross_attention', 2)])
        np.testing.assert_array_equal(np.isnan(scores), [[False] * 3] + [[False, False, True]] * 4)
        wanted, step = np.zeros((5, 3)), 1e-2
        ones = {name: np.ones((stack.layers, stack.heads)) for name, (stack, *_) in model.attentions.items()}

        @jax.jit
        def loss(masks, row):
            return task.terms(model.apply({'params': drawn(model)}, head_mask=masks, **task.inputs(row)), row)['loss'][0]
        for i in range(2):
            row = {name: x[i:i + 1] for name, x in rows.items()}
            for number, layer in enumerate(importance.layers_of(model)):
                for head in range(layer.heads):
                    moved = np.zeros_like(ones[layer.attention])
                    moved[layer.number, head] = step
                    up, down = (float(loss(ones | {layer.attention: ones[layer.attention] + sign * moved}, row))
                                for sign in (1, -1))
                    wanted[number, head] += abs(up - down) / (2 * step)
        np.testing.assert_allclose(np.nan_to_num(scores), wanted / (2 * 6), rtol=2e-2, atol=1e-3)

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
        model = changed(MODEL, kept=((0, 2), (1,)))
        scores = importance.importance(Snapshot(model, drawn(model)), [batch(2)])
        np.testing.assert_array_equal(np.isnan(scores), [[False, True, False], [True, False, True]])
        self.assertEqual(importance.all_heads(model), [(0, 0), (0, 2), (1, 1)])

    def test_gradients_that_are_not_finite_are_refused(self):
        broken = jax.tree.map(lambda x: x * jnp.nan, drawn())
        with self.assertRaisesRegex(ValueError, 'gradients of the heads are not finite'):
            importance.importance(Snapshot(MODEL, broken), [batch(1)])

    def test_models_without_heads_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'This Gpt has no head left'):
            importance.require_heads(changed(MODEL, kept=((), ())))
        importance.require_heads(MODEL)
        with self.assertRaisesRegex(ValueError, 'MemoryNetwork has no heads that could be switched off'):
            importance.require_heads(MemoryNetwork(vocab=7, memory=3))
        for depth in (Groups(), Universal()):
            with self.assertRaisesRegex(ValueError, 'depth=.* has layers that share their heads, .*; --heads is for runs with'):
                importance.require_heads(changed(MODEL, depth=depth))


if __name__ == '__main__':
    absltest.main()
