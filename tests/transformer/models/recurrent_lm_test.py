import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models, recurrent_reference
from tests.models import apply, init, losses, packed_and_apart
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Greedy
from transformer.layers.initial import Scaled
from transformer.models.recurrent import Gru, Lstm, Rnn
from transformer.models.recurrent_lm import RecurrentLm

SMALL = RecurrentLm(vocab=11, length=8, layers=2, width=8)
TOKENS = np.random.default_rng(0).integers(11, size=(2, 8))
KEY = jax.random.key(0)
drawn = lambda model: models.drawn(model, TOKENS, scale=0.7)
program = functools.cache(lambda model: models.Program(model, TOKENS))


class ModelTest(parameterized.TestCase):
    @parameterized.parameters(Rnn(), Gru(), Lstm())
    def test_logits_are_those_of_a_loop_over_the_tokens(self, cell):
        model = SMALL.clone(cell=cell, tied=False)
        params = drawn(model)
        hidden = params['tokens']['embedding'][TOKENS].astype(np.float64)
        for i in range(2):
            hidden, _ = recurrent_reference.layer(cell, params[f'layer_{i}'], hidden)
        outputs = apply(model, params, TOKENS)
        np.testing.assert_allclose(outputs['hidden'], hidden, atol=2e-6)
        np.testing.assert_allclose(outputs['logits'], hidden @ params['output']['kernel'] + params['output']['bias'], atol=1e-5)

    def test_names_and_shapes(self):
        shapes = {jax.tree_util.keystr(keys, simple=True, separator='/'): leaf.shape
                  for keys, leaf in jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: init(SMALL)))}
        wanted = {'tokens/embedding': (11, 8)}
        for i in range(2):
            wanted |= {f'layer_{i}/input/kernel': (8, 32), f'layer_{i}/input/bias': (32,), f'layer_{i}/state/kernel': (8, 32)}
        self.assertEqual(shapes, wanted)

    def test_hidden_states_project_onto_the_tied_embedding(self):
        params = drawn(SMALL)
        outputs = apply(SMALL, params, TOKENS)
        wanted = np.asarray(outputs['hidden']) @ params['tokens']['embedding'].T
        np.testing.assert_allclose(outputs['logits'], wanted, atol=1e-5)

    def test_each_gate_begins_as_a_matrix_of_its_own(self):
        # Xavier's range is that of [width, width], not of the four side by side.
        kernel = init(SMALL.clone(width=64))['layer_0']['state']['kernel']
        for gate in np.split(np.asarray(kernel), 4, 1):
            self.assertAlmostEqual(np.abs(gate).max(), (6 / 128) ** 0.5, delta=1e-3)

    def test_packed_rows_equal_unpacked_rows(self):
        params, (packed, rows) = drawn(SMALL), packed_and_apart(vocab=11, seed=1)
        together, apart = losses(SMALL, params, packed), losses(SMALL, params, rows)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), together, apart)
        # either tells where the second one begins; with neither it goes on with the state of the first
        for only in ({'segments': packed['segments']}, {'positions': packed['positions']}, {}):
            logits = apply(SMALL, params, packed['inputs'], **only)['logits'][0, 3:7]
            away = np.abs(logits - apply(SMALL, params, rows['inputs'])['logits'][1, :4]).max()
            (self.assertLess if only else self.assertGreater)(away, 1e-5 if only else 1e-2)

    def test_a_changed_token_moves_only_what_comes_after(self):
        params = drawn(SMALL)
        tokens = np.broadcast_to(TOKENS[:1], (9, 8)).copy()
        tokens[range(8), range(8)] = (tokens[range(8), range(8)] + 1) % 11  # row s differs from row 8 at token s
        logits = np.asarray(apply(SMALL, params, tokens)['logits'])
        s, t = np.indices((8, 8))
        np.testing.assert_array_equal(np.abs(logits[:8] - logits[8]).max(-1) > 1e-6, t >= s)

    def test_dropout_masks_have_keys_of_their_own(self):
        keys = models.dropout_keys(SMALL.clone(dropout=0.1), TOKENS)
        self.assertLen(keys, 3)  # of the embedding, between the layers, above them
        self.assertLen(set(keys), 3)

    def test_bfloat16_keeps_parameters_and_states_in_float32(self):
        model, params = SMALL.clone(dtype='bfloat16'), drawn(SMALL)
        outputs = apply(model, params, TOKENS, cache=model.init_cache(2))
        self.assertEqual(outputs['logits'].dtype, jnp.bfloat16)
        found = outputs['cache'], jax.eval_shape(lambda: init(model))
        self.assertEqual({x.dtype for x in jax.tree.leaves(found)}, {jnp.dtype('float32')})
        exact = apply(SMALL, params, TOKENS)['logits']
        # It errs by 0.006 of the largest.
        np.testing.assert_allclose(outputs['logits'].astype(np.float32), exact, atol=0.02 * np.abs(exact).max())


class CacheTest(parameterized.TestCase):
    @parameterized.parameters(Gru(), Lstm())
    def test_cached_steps_equal_the_full_forward_for_prompts_of_different_lengths(self, cell):
        model, lengths = SMALL.clone(cell=cell), np.array([5, 2])
        params = drawn(model)
        whole = np.asarray(apply(model, params, TOKENS)['logits'])
        there = np.arange(5) < lengths[:, None]
        positions = np.broadcast_to(np.arange(5), (2, 5))
        used = jax.tree.map(lambda x: x + 3.0, model.init_cache(2))  # position 0 begins anew, whatever was there
        out = apply(model, params, np.where(there, TOKENS[:, :5], 7), segments=there.astype(int), positions=positions,
                    cache=used)
        for row, n in enumerate(lengths):
            np.testing.assert_allclose(out['logits'][row, :n], whole[row, :n], atol=5e-6)
        for t in range(3):
            at = (lengths + t)[:, None]
            out = apply(model, params, np.take_along_axis(TOKENS, at, 1), positions=at, cache=out['cache'])
            np.testing.assert_allclose(out['logits'][:, 0], np.take_along_axis(whole, at[..., None], 1)[:, 0], atol=5e-6)

    def test_generation_picks_what_the_full_forward_finds_best(self):
        params, prompts = drawn(SMALL), [[1, 2, 3], [4]]
        found = generate(SMALL, params, prompts, steps=4, strategy=Greedy(), key=KEY, end=-1, vocab=11)
        for prompt, (best,) in zip(prompts, found):
            tokens = list(prompt)
            for _ in range(4):
                row = np.array([tokens + [0] * (8 - len(tokens))] * 2)
                tokens.append(int(apply(SMALL, params, row)['logits'][0, len(tokens) - 1].argmax()))
            self.assertEqual(best.tokens.tolist(), tokens[len(prompt):])


CHANGES = {'vocab': 12, 'layers': 3, 'width': 16, 'cell': Gru(), 'dropout': 0.1, 'tied': False, 'initial': Scaled(0.1),
           'dense_gradient': False, 'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16'}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, name, value) for name, value in CHANGES.items()))
    def test_field_has_an_effect(self, field, value):
        self.assertTrue(program(SMALL.clone(**{field: value})) != program(SMALL))

    def test_the_same_model_is_the_same_program(self):
        self.assertTrue(program.__wrapped__(SMALL) == program(SMALL))

    def test_every_field_is_tried(self):
        fields = {f.name for f in dataclasses.fields(RecurrentLm)} - {'parent', 'name'}
        self.assertEqual(fields - {'length'}, set(CHANGES))  # a state has no length; `generate` asks for that


if __name__ == '__main__':
    absltest.main()
