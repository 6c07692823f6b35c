import functools
import types

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build
from training import roles
from transformer.evaluators.activations import CAPTURED, Activations, Gradients
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken

MODEL = build(Gpt, vocab=11, width=8, heads=2, layers=2, length=8)
TOKENS = np.arange(12).reshape(2, 6) % 11
BATCH = {'inputs': TOKENS, 'segments': np.ones_like(TOKENS), 'positions': np.tile(np.arange(6), (2, 1))}
NAMES = {'block_0/hidden', 'block_1/hidden', 'block_0/attention/scores', 'block_1/attention/scores', 'hidden', 'logits'}


class ActivationsTest(parameterized.TestCase):
    def test_the_means_are_those_of_the_outputs(self):
        params = models.drawn(MODEL, TOKENS)
        captured = lambda *names, **inputs: {
            name: x for name, x in MODEL.apply({'params': params}, **inputs, capture=names).items() if name.endswith(names)}
        run = types.SimpleNamespace(task=NextToken(), model=MODEL, shapes=types.SimpleNamespace(
            variables=jax.eval_shape(lambda: {'params': params})))
        found = Activations()(types.SimpleNamespace(captured=captured, run=run), [BATCH])
        self.assertEqual({*found}, NAMES)
        self.assertEqual({*Activations().check(run, [BATCH])}, NAMES)
        outputs = MODEL.apply({'params': params}, **BATCH, capture=CAPTURED)
        self.assertAlmostEqual(found['logits'], np.abs(np.float64(outputs['logits'])).mean(), places=6)
        # the end of the last block is what the last norm takes
        x = np.float64(outputs['block_1/hidden'])
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        normed = normed * params['norm']['scale'] + params['norm']['bias']
        np.testing.assert_allclose(outputs['hidden'], normed, rtol=1e-4, atol=1e-5)
        self.assertAlmostEqual(found['block_1/hidden'], np.abs(x).mean(), places=6)

    @parameterized.parameters({'scan': True}, {'remat': 'full'})
    def test_blocks_are_captured_alike_however_they_run(self, **fields):
        params = models.drawn(MODEL, TOKENS)
        plain, other = (model.apply({'params': params}, **BATCH, capture=('hidden',))
                        for model in (MODEL, models.changed(MODEL, **fields)))
        self.assertEqual({*plain}, {*other})
        for name in plain:
            np.testing.assert_allclose(plain[name], other[name], rtol=1e-5, atol=1e-6)


class GradientsTest(absltest.TestCase):
    def test_the_norms_are_those_of_the_gradient_of_the_loss(self):
        rng = np.random.default_rng(0)
        batch = BATCH | {'targets': rng.integers(11, size=TOKENS.shape), 'weights': np.ones(TOKENS.shape, np.float32)}
        params = models.drawn(MODEL, TOKENS)
        run = types.SimpleNamespace(
            task=NextToken(), model=MODEL, roles=roles.of_model(MODEL, {'inputs': TOKENS}), forward=lambda apply, frozen: apply,
            companions=types.SimpleNamespace(variables={}))
        run.compiled = lambda function: functools.partial(function, run)
        found = Gradients()(types.SimpleNamespace(run=run, params=params, variables={'params': params}), [batch])
        self.assertEqual(tuple(found), Gradients().check(run, [batch]))
        self.assertEqual({*found}, {f'block_{i}/{name}' for i in (0, 1) for name in (
            'attention/query', 'attention/key', 'attention/value', 'attention/output', 'feed_forward/input',
            'feed_forward/output')})
        for size in Gradients()(types.SimpleNamespace(run=run, params=params, variables={'params': params}),
                                [batch | {'weights': np.zeros(TOKENS.shape, np.float32)}]).values():
            self.assertEqual(size, 0.0)  # as in training
        gradient = models.losses(MODEL, params, batch)[1]  # of the sum
        for i, part in ((0, 'query'), (1, 'value')):
            wanted = np.linalg.norm(np.float64(gradient[f'block_{i}']['attention'][part]['kernel'])) / TOKENS.size
            self.assertAlmostEqual(found[f'block_{i}/attention/{part}'] / wanted, 1.0, places=4)


if __name__ == '__main__':
    absltest.main()
