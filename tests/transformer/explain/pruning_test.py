"""A model without some of its heads gives what the whole one does under a head mask."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import base
from tests import models
from tests.marks import slow_but
from tests.models import apply, build, changed
from training import roles
from training.config import resolve
from transformer.attention.mechanism import Softmax
from transformer.attention.mechanisms.alternatives import Convolution
from transformer.attention.mechanisms.projected import MemoryCompressed
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import Alibi, Disentangled, Shaw, SwinBias, T5Bias, TransformerXl, Tupe
from transformer.attention.scores import Additive, Location
from transformer.explain import importance, pruning
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken
from vit.models.vit import Vit

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(11, size=(3, 6))
TEXT, IMAGE = {'inputs': TOKENS}, {'image': RNG.normal(size=(2, 4, 4, 1)).astype(np.float32)}
PAIRS = {'inputs': RNG.integers(11, size=(3, 6)), 'decoder_inputs': TOKENS}
SMALL = build(Gpt, vocab=11, length=6, layers=2, heads=4, width=8)
PAIR = build(EncoderDecoder, vocab=11, source_vocab=0, source_length=6, length=6, layers=2, heads=4, width=8)
KEPT, EMPTY, ALL = ((0, 2), (3,)), ((), (1, 2)), ((0, 1, 2, 3),)  # of two layers, and of one


@functools.cache
def of_seed(model, kind):
    return models.drawn(model, **{'text': TEXT, 'image': IMAGE, 'pair': PAIRS}[kind], scale=0.5)


def drawn(model, inputs):
    return of_seed(model, 'image' if 'image' in inputs else 'pair' if 'decoder_inputs' in inputs else 'text')


def smaller(model, kept):
    """The model with these heads alone, of all layers of all its attentions."""
    for name, rows in pruning.fields(model, kept).items():
        front, _, _ = name.rpartition('/')
        model = changed(model, **{f'{front or "stack"}.{model.attentions[name].field}': rows})
    return model


def pruned(model, params, kept, inputs):
    """(the model with these heads alone, its parameters)."""
    small = smaller(model, kept)
    shapes = jax.eval_shape(lambda: small.init(models.KEY, **inputs)['params'])
    return small, pruning.pruned(model, params, kept, shapes, roles.of_model(small, inputs))


def factors(model, kept):
    """The head mask that switches all others off."""
    masks = {name: np.zeros((stack.layers, stack.heads), np.float32) for name, (stack, *_) in model.attentions.items()}
    for layer, row in zip(importance.layers_of(model), kept):
        masks[layer.attention][layer.number][list(row)] = 1.0
    return masks


class GroupsTest(parameterized.TestCase):
    @parameterized.parameters(
        ('transformer.models.gpt:Gpt', ['']), ('transformer.models.electra:Electra', ['generator', 'discriminator']),
        ('transformer.models.encoder_decoder:EncoderDecoder', ['encoder', 'decoder', 'decoder']),
        ('vit.models.mae:Mae', ['encoder', 'decoder']), ('vit.models.hierarchical:Hierarchical', ['stages.stage_0']))
    def test_heads_name_the_group_of_their_field_in_a_config(self, name, groups):
        config = base.part(name)
        model = resolve.construct(config, extra={'vocab': 7, 'source_vocab': 0, 'classes': 3, 'dtype': 'float32'})
        self.assertEqual([heads.group for heads in model.attentions.values()], groups)
        for heads in model.attentions.values():
            group = functools.reduce(lambda group, part: group[part], filter(None, heads.group.split('.')), config)
            self.assertEqual((group.width, group[heads.field]), (heads.stack.width, getattr(heads.stack, heads.field)))


@slow_but('test_as_many_heads_as_there_were_of_keys', 'compressed')
class PrunedTest(parameterized.TestCase):
    def assert_equal(self, model, kept, inputs):
        """The smaller model gives what the whole one does under a mask; returns its parameters."""
        params = drawn(model, inputs)
        small, given = pruned(model, params, kept, inputs)
        wanted = apply(model, params, **inputs, head_mask=factors(model, kept))['logits']
        np.testing.assert_allclose(apply(small, given, **inputs)['logits'], wanted, rtol=1e-4, atol=1e-5)
        self.assertGreater(np.abs(apply(model, params, **inputs)['logits'] - wanted).max(), 1e-3)
        return given

    @parameterized.parameters(
        (KEPT, None, 0), (KEPT, None, 2), (EMPTY, None, 2), (KEPT, T5Bias(buckets=4, distance=4), 2),
        (KEPT, Shaw(2), 2), (EMPTY, Shaw(2), 0), (KEPT, TransformerXl(), 2), (EMPTY, TransformerXl(), 0),
        (KEPT, Disentangled(2), 0), (KEPT, Tupe(), 0))
    @pytest.mark.slow
    def test_of_text(self, kept, positions, key_heads):
        model = changed(SMALL, key_heads=key_heads, **({} if positions is None else dict(positions=positions)))
        self.assert_equal(model, kept, TEXT)

    def test_of_text_whose_heads_differ_without_parameters(self):
        self.assert_equal(changed(SMALL, positions=Alibi(), layers=1), ((1, 3),), TEXT)

    def test_of_images(self):
        self.assert_equal(build(Vit, classes=3, patch=2, layers=2, heads=4, width=8, positions=SwinBias()), KEPT, IMAGE)

    @parameterized.named_parameters(('location', Softmax(score=Location(6))), ('additive', Softmax(score=Additive(3))),
                                    ('compressed', MemoryCompressed(2)))
    def test_as_many_heads_as_there_were_of_keys(self, mechanism):
        self.assert_equal(changed(SMALL, attention=mechanism, key_heads=2, positions=NoPositions()), ((0, 1), (1, 3)), TEXT)

    @parameterized.named_parameters(
        ('the encoder', KEPT + ALL * 4), ('the decoder to itself', ALL * 2 + EMPTY + ALL * 2),
        ('the decoder to the source', ALL * 4 + KEPT), ('all', EMPTY + KEPT + ((1,), (0, 2, 3))),
        ('none to the source', KEPT + KEPT + ((), ())), ('none at all', ((),) * 6))
    @pytest.mark.slow
    def test_of_an_encoder_decoder(self, kept):
        for fields in ({}, {'key_heads': 2}, {'encoder.key_heads': 1, 'positions': T5Bias(buckets=4, distance=4)}):
            given = self.assert_equal(changed(PAIR, **fields), kept, PAIRS)
            for i, row in enumerate(kept):
                stack, branch = [('encoder', 'attention'), ('decoder', 'attention'), ('decoder', 'cross_attention')][i // 2]
                own = given[stack][f'block_{i % 2}'][branch]
                heads = {name: x['kernel'].shape[1 if name != 'output' else 0] for name, x in own.items() if 'kernel' in x}
                self.assertEqual(heads, dict.fromkeys(('query', 'key', 'value', 'output') if row else (), len(row)))

    @pytest.mark.slow
    def test_stacks_of_different_sizes(self):
        model = changed(PAIR, share=False, **{'encoder.layers': 1, 'encoder.heads': 3, 'encoder.width': 12})
        self.assertEqual([layer.name for layer in importance.layers_of(model)], [
            'encoder/block_0', 'decoder/block_0', 'decoder/block_1', 'decoder/block_0/cross_attention',
            'decoder/block_1/cross_attention'])
        self.assert_equal(model, ((0, 2), (3,), (), (1,), (0, 1, 2)), PAIRS)

    def test_again(self):
        once, twice = ((0, 2), (1, 2, 3)), ((2,), (1, 3))
        first, params = pruned(changed(SMALL, key_heads=2), drawn(changed(SMALL, key_heads=2), TEXT), once, TEXT)
        second, params = pruned(first, params, twice, TEXT)
        model = changed(SMALL, key_heads=2)
        wanted = apply(model, drawn(model, TEXT), **TEXT, head_mask=factors(model, twice))['logits']
        np.testing.assert_allclose(apply(second, params, **TEXT)['logits'], wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_an_encoder_decoder_again(self):
        once, twice = ((0, 1, 2), (1, 2, 3)) + KEPT + ((0, 1, 2), (3,)), ((0,), (1, 3), (2,), (3,), (0, 2), ())
        first, params = pruned(PAIR, drawn(PAIR, PAIRS), once, PAIRS)
        second, params = pruned(first, params, twice, PAIRS)
        wanted = apply(PAIR, drawn(PAIR, PAIRS), **PAIRS, head_mask=factors(PAIR, twice))['logits']
        np.testing.assert_allclose(apply(second, params, **PAIRS)['logits'], wanted, rtol=1e-4, atol=1e-5)

    def test_a_mechanism_that_mixes_heads_is_refused(self):
        model = changed(SMALL, attention=Convolution())
        with self.assertRaisesRegex(ValueError, r'as Convolution\(.*\) or Learned\(.*\) mixes heads; leave --keep'):
            pruned(model, drawn(model, TEXT), KEPT, TEXT)
        model = changed(PAIR, **{'encoder.attention': Convolution()})
        with self.assertRaisesRegex(ValueError, r'as Convolution\(.*\) or .* or Softmax\(.*\) mixes heads; leave --keep'):
            pruned(model, drawn(model, PAIRS), KEPT + EMPTY + KEPT, PAIRS)


class WithoutTest(parameterized.TestCase):
    @parameterized.parameters((SMALL, KEPT, TEXT), (PAIR, EMPTY + KEPT + ((1,), (0, 2, 3)), PAIRS))
    def test_zero_rows_in_the_output_projection_are_a_mask_of_zero(self, model, kept, inputs):
        params = jax.tree.map(jnp.asarray, drawn(model, inputs))
        gone = [(layer, head) for layer, head in importance.all_heads(model) if head not in kept[layer]]
        wanted = apply(model, params, **inputs, head_mask=factors(model, kept))['logits']
        np.testing.assert_allclose(apply(model, pruning.without(model, params, gone), **inputs)['logits'], wanted, atol=1e-6)
        self.assertGreater(np.abs(wanted - apply(model, params, **inputs)['logits']).max(), 1e-2)

    def test_curve_prunes_from_the_least_important_on(self):
        model = changed(SMALL, heads=2)
        snapshot = types.SimpleNamespace(model=model, params=jax.tree.map(jnp.asarray, drawn(model, TEXT)))
        heads = [(1, 1), (0, 1), (0, 0), (1, 0)]

        def gone(params):
            return {(layer, head) for layer in range(2) for head in range(2)
                    if not np.any(params[f'block_{layer}']['attention']['output']['kernel'][head])}
        curve = pruning.curve(snapshot, gone, heads, [4, 2, 0])
        self.assertEqual(curve, [(4, set()), (2, {(1, 1), (0, 1)}), (0, set(heads))])
        self.assertEqual(gone(snapshot.params), set())  # which stay as they are


class SameTest(parameterized.TestCase):
    def test_a_smaller_model_that_differs_is_refused(self):
        there = np.ones((3, 6), np.int32)
        batch = {'inputs': TOKENS, 'segments': there, 'positions': np.broadcast_to(np.arange(6), (3, 6))}
        params = jax.tree.map(jnp.asarray, drawn(SMALL, TEXT))
        snapshot = types.SimpleNamespace(model=SMALL, params=params, variables={'params': params},
                                         run=types.SimpleNamespace(task=NextToken()))
        small, given = pruned(SMALL, params, KEPT, TEXT)
        pruning.require_same(snapshot, small, given, KEPT, batch)
        given['block_0']['attention']['query']['kernel'] += 0.1
        with self.assertRaisesRegex(ValueError, 'A smaller model cannot give .* mixes heads'):
            pruning.require_same(snapshot, small, given, KEPT, batch)


if __name__ == '__main__':
    absltest.main()
