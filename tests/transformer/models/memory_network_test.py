import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.marks import slow_but
from transformer.explain import maps
from transformer.models.memory_network import MemoryNetwork

B, M, J, V, D = 3, 5, 4, 9, 6
RNG = np.random.default_rng(0)
STORY = RNG.integers(1, V, (B, M, J)).astype(np.int32)
STORY[0, 2:] = 0  # a story of two sentences
STORY[0, 1, 2:] = 0  # of two words
STORY[1, 0, 1] = 0  # a word that is not known
STORY[2] = 0  # nothing told
QUESTION = RNG.integers(1, V, (B, J)).astype(np.int32)
QUESTION[1, 3:] = 0


def model(**fields):
    return MemoryNetwork(**dict(vocab=V, memory=M, hops=2, width=D, scale=0.7) | fields)


def initialised(net):
    return jax.jit(net.init)(jax.random.key(1), STORY, QUESTION)['params']


def naive(net, params, story, question, linear=False):
    """(logits, weights of each hop) of one example, word by word, as sections 2 and 4.1 of the paper write it."""
    params = jax.tree.map(np.float64, params)
    table = lambda name: params[name]['embedding']
    layers = range(net.hops)
    if net.tying == 'adjacent':
        keys, values = ([f'_{k + shift}' for k in layers] for shift in (0, 1))
        asked, answers = table('words_0'), table(f'words_{net.hops}')
    else:
        keys, values = ['_0'] * net.hops, ['_1'] * net.hops
        asked, answers = table('question_0'), None if net.inner else table('answer_0')

    def encoded(ids, words):
        length = max([j for j, word in enumerate(ids, 1) if word], default=0)
        total = np.zeros(D)
        for j in range(1, length + 1):
            if ids[j - 1]:
                for k in range(1, D + 1):
                    l_kj = (1 - j / length) - (k / D) * (1 - 2 * j / length) if net.encoding == 'position' else 1.0
                    total[k - 1] += l_kj * words[ids[j - 1], k - 1]
        return total

    u, looked = encoded(question, asked), []
    for k in layers:
        told = [i for i in range(M) if any(story[i])]
        time = lambda name, i: table('times' + name)[i] if net.temporal else 0.0
        m = {i: encoded(story[i], table('words' + keys[k])) + time(keys[k], i) for i in told}
        c = {i: encoded(story[i], table('words' + values[k])) + time(values[k], i) for i in told}
        p = {i: u @ m[i] for i in told}
        if not linear:
            total = sum(np.exp(score) for score in p.values())
            p = {i: np.exp(score) / total for i, score in p.items()}
        o = sum((p[i] * c[i] for i in told), np.zeros(D))
        before = u if net.tying == 'adjacent' or not net.skip else u @ params['between']['kernel']
        u = o + before if net.skip else o
        for d in range(round(net.rectified * D)):
            u[d] = max(u[d], 0.0)
        looked.append([p.get(i, 0.0) for i in range(M)])
    if net.inner:
        inner, output = params['inner'], params['output']
        return np.maximum(u @ inner['kernel'] + inner['bias'], 0) @ output['kernel'] + output['bias'], looked
    return answers @ u, looked


CASES = {
    'adjacent': dict(), 'bag': dict(encoding='bag'), 'no_time': dict(temporal=False), 'layerwise': dict(tying='layerwise'),
    'one_hop': dict(hops=1), 'rectified': dict(tying='layerwise', encoding='bag', hops=3, rectified=0.5),
    'linear': dict(linear=True, scale=0.3), 'no_skip': dict(skip=False),
    'no_skip_layerwise': dict(skip=False, tying='layerwise'), 'inner': dict(inner=7, scale=0.3),
    'no_skip_inner': dict(skip=False, inner=7, tying='layerwise', scale=0.3)}


@slow_but('test_equals_the_papers_equations_in_float64', 'adjacent', 'no_time', 'rectified', 'linear', 'no_skip_inner')
class MemoryNetworkTest(parameterized.TestCase):
    @parameterized.named_parameters(dict(fields, testcase_name=name) for name, fields in CASES.items())
    def test_equals_the_papers_equations_in_float64(self, linear=False, **fields):
        net = model(**fields)
        params = initialised(net)
        outputs = jax.jit(lambda params: net.apply({'params': params}, STORY, QUESTION, linear=linear,
                                                   capture=('attention',)))(params)
        for i in range(B):
            logits, looked = naive(net, params, STORY[i], QUESTION[i], linear)
            np.testing.assert_allclose(outputs['logits'][i], logits, atol=2e-5)
            for hop, weights in enumerate(looked, 1):
                np.testing.assert_allclose(outputs[f'hop_{hop}/attention'][i, 0, 0], weights, atol=2e-5)
        if net.inner:
            return
        answers = params['words_2' if net.hops == 2 else 'words_1'] if net.tying == 'adjacent' else params['answer_0']
        np.testing.assert_allclose(outputs['logits'], outputs['hidden'] @ answers['embedding'].T, atol=1e-4)

    @parameterized.parameters((dict(), {'words_0', 'words_1', 'words_2', 'times_0', 'times_1', 'times_2'}),
                              (dict(tying='layerwise', hops=5),
                               {'words_0', 'words_1', 'times_0', 'times_1', 'question_0', 'answer_0', 'between'}),
                              (dict(temporal=False, hops=1), {'words_0', 'words_1'}))
    def test_tables(self, fields, names):
        self.assertEqual(set(initialised(model(**fields))), names)

    def test_the_scale_of_the_parameters(self):
        table = initialised(model(vocab=400, scale=0.1))['words_0']['embedding']
        self.assertAlmostEqual(float(table.std()), 0.1, delta=0.01)

    def test_stories_with_many_memories_equal_the_same_with_few(self):
        """Few sentences and many take another way through the program."""
        net = model(memory=16)
        params = jax.jit(net.init)(jax.random.key(1), np.zeros((2, 16, J), np.int32), QUESTION[:2])['params']
        full = RNG.integers(1, V, (2, 16, J)).astype(np.int32)
        short = np.where(np.arange(16)[:, None] < 3, full, 0)
        apply = jax.jit(lambda story: net.apply({'params': params}, story, QUESTION[:2])['logits'])
        both = apply(np.stack([full[0], short[1]]))
        np.testing.assert_allclose(apply(short)[1], both[1], atol=1e-5)
        np.testing.assert_allclose(apply(full)[0], both[0], atol=1e-5)

    @parameterized.parameters((False, 'adjacent'), (True, 'layerwise'))
    def test_gradients_are_finite_and_reach_every_parameter(self, linear, tying):
        net = model(tying=tying, rectified=0.5, scale=0.1)
        loss = lambda params: jnp.square(net.apply({'params': params}, STORY, QUESTION, linear=linear,
                                                   key=jax.random.key(0))['logits']).sum()
        for gradient in jax.tree.leaves(jax.jit(jax.grad(loss))(initialised(net))):
            self.assertTrue(np.isfinite(gradient).all())
            self.assertGreater(np.abs(gradient).max(), 0)

    def test_linear_may_be_known_at_run_time_only(self):
        net = model(scale=0.2)
        params = initialised(net)
        apply = lambda linear: net.apply({'params': params}, STORY, QUESTION, linear=linear)['logits']
        traced = jax.jit(apply)
        for linear in (False, True):
            np.testing.assert_allclose(traced(jnp.asarray(linear)), apply(linear), atol=1e-5)
        self.assertGreater(np.abs(traced(True) - traced(False)).max(), 1e-3)

    def test_noise_makes_sentences_older_in_training_alone(self):
        net = model(noise=0.3, encoding='bag', hops=1)
        # Of the keys only the age differs, and u·m = |q|·(1 + age): the weights tell it.
        params = jax.tree.map(jnp.zeros_like, initialised(net))
        params['words_0']['embedding'] = params['words_0']['embedding'].at[:, 0].set(1.0)
        params['times_0']['embedding'] = params['times_0']['embedding'].at[:, 0].set(jnp.arange(M))
        story, question = np.tile(np.eye(J, dtype=np.int32)[0], (2000, M, 1)), np.tile(QUESTION[0], (2000, 1))

        @jax.jit
        def weights(key):
            outputs = net.apply({'params': params}, story, question, key=key, capture=('attention',))
            return outputs['hop_1/attention'][:, 0, 0]

        between = lambda key: np.diff(np.log(np.asarray(weights(key), np.float64))) / J
        np.testing.assert_allclose(between(None), 1, atol=1e-4)
        gaps = np.rint(between(jax.random.key(0)))  # 2 where there is an empty memory, 0 at the end of the memory
        self.assertEqual([set(gaps[:, 0]), set(gaps.ravel())], [{1, 2}, {0, 1, 2}])
        self.assertAlmostEqual(gaps[:, 0].mean(), 1.3, delta=0.04)
        still = net.clone(noise=0.0)
        outputs = [still.apply({'params': params}, STORY, QUESTION, key=key)['hidden'] for key in (None, jax.random.key(0))]
        np.testing.assert_array_equal(*outputs)

    def test_empty_memories_have_no_weight_and_change_nothing(self):
        net = model()
        params = initialised(net)
        other = jax.tree.map(lambda x: x, params)
        for i in range(3):
            other[f'times_{i}'] = {'embedding': params[f'times_{i}']['embedding'].at[2:].set(50.0)}
            other[f'words_{i}'] = {'embedding': params[f'words_{i}']['embedding'].at[0].set(50.0)}
        hidden = jax.jit(lambda params: net.apply({'params': params}, STORY, QUESTION)['hidden'][jnp.array([0, 2])])
        np.testing.assert_array_equal(hidden(params), hidden(other))

    def test_the_weights_of_the_hops_can_be_read(self):
        net = model(hops=3)
        outputs = net.apply({'params': initialised(net)}, STORY[:1], QUESTION[:1], capture=('attention',))
        layers, found = maps.read(net, {name: x for name, x in outputs.items() if name.endswith('attention')})
        self.assertEqual(list(layers), ['hop_1', 'hop_2', 'hop_3'])
        for one in layers.values():
            self.assertEqual(one.shape, (1, 1, M))
            np.testing.assert_allclose(one.sum(), 1.0, rtol=1e-5)
            np.testing.assert_array_equal(one[0, 0, 2:], 0)
        self.assertLen(found, 3)

    @parameterized.parameters(
        (dict(tying='none'), "model.tying is 'none'; expected one of adjacent, layerwise"),
        (dict(encoding='lstm'), "model.encoding is 'lstm'; expected one of position, bag"),
        (dict(hops=0), 'model.hops is 0'), (dict(width=0), 'model.width 0'), (dict(noise=1.0), 'model.noise 1.0; expected'),
        (dict(rectified=1.5), 'model.rectified 1.5'), (dict(memory=3), 'A story has 5 sentences, but the memory holds 3'))
    def test_fields_without_a_meaning_are_refused(self, fields, pattern):
        with self.assertRaisesRegex(ValueError, pattern):
            jax.eval_shape(model(**fields).init, jax.random.key(0), STORY, QUESTION)


CHANGES = {'vocab': 10, 'memory': 6, 'hops': 3, 'width': 8, 'tying': 'layerwise', 'encoding': 'bag', 'temporal': False,
           'rectified': 0.5, 'noise': 0.0, 'skip': False, 'inner': 3, 'scale': 0.5,
           'dtype': 'bfloat16', 'parameter_dtype': 'bfloat16'}


class FieldsTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, name, value) for name, value in CHANGES.items()))
    def test_field_has_an_effect(self, field, value):
        program = lambda net: models.Program(net, np.resize(STORY, (B, net.memory, J)), QUESTION)
        self.assertTrue(program(model(**{field: value})) != program(model()))

    def test_every_field_is_tried(self):
        self.assertEqual({f.name for f in dataclasses.fields(MemoryNetwork)} - {'parent', 'name'}, set(CHANGES))


if __name__ == '__main__':
    absltest.main()
