import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests.models import build, changed
from training import roles
from transformer.attention.mechanism import AlternateAttention, Softmax
from transformer.attention.mechanisms.alternatives import Convolution, Recurrence
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.mechanisms.projected import Linformer, MemoryCompressed
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.attention.pooling import Pooling
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.relative import Disentangled, Etc, Shaw, SwinBias, T5Bias, TransformerXl, Tupe
from transformer.attention.scores import Additive, Bilinear, Cosine, Location
from transformer.layers.feed_forward import Gated
from transformer.layers.heads import Classes, NextWords, Pretraining, ReplacedTokens, Span, TokenClasses
from transformer.layers.residual import Convolved, LayerScale, ReZero
from transformer.layers.roles import matrix, table, vector
from transformer.layers.stack import Blocks
from transformer.layers.universal import Universal
from transformer.models.bahdanau import RecurrentEncoderDecoder
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.memory_network import MemoryNetwork
from transformer.models.recurrent import Gru, Lstm, Rnn
from transformer.models.recurrent_attention import Bahdanau, Luong
from transformer.models.recurrent_lm import RecurrentLm
from transformer.models.story_transformer import StoryTransformer
from vit.layers.stages import Convolutions, Downsampling, Patches
from vit.layers.windows import Windows
from vit.models.hierarchical import Hierarchical
from vit.models.mae import Mae
from vit.models.resnet import Bottleneck, Resnet, ResnetStem
from vit.models.vit import Vit

IDS = np.ones((2, 6), np.int32)
TEXT, PAIR, STORY = {'inputs': IDS}, {'inputs': IDS, 'decoder_inputs': IDS}, {'story': np.ones((2, 5, 6), int), 'question': IDS}
IMAGE, POINTS = {'image': np.ones((2, 4, 6, 1), np.float32)}, {'query': np.ones((3, 1), np.float32)}
SMALL = dict(layers=2, heads=4, width=8)
GPT = build(Gpt, vocab=11, length=6, **SMALL)
BERT, VIT = build(Bert, vocab=11, length=6, **SMALL), build(Vit, classes=3, patch=2, **SMALL)
RECURRENT = RecurrentEncoderDecoder(vocab=11, source_vocab=0, layers=2, width=4)
MEMORY = MemoryNetwork(vocab=11, memory=5, width=4)
MODELS = {
    'gpt': (GPT, TEXT), 'gpt_shared_keys': (changed(GPT, key_heads=2), TEXT),
    'gpt_with_all_else': (changed(GPT, feed_forward=Gated(), residual=ReZero(), kept=((0, 2), ()),
                                  head=NextWords(tied=False, bias=True, added=True)), TEXT),
    'gpt_halting': (changed(GPT, depth=Universal(halting=True)), TEXT),
    'bert': (changed(BERT, head=Pretraining()), TEXT), 'bert_classes': (changed(BERT, head=Classes(3)), TEXT),
    'bert_tags': (changed(BERT, head=TokenClasses(3)), TEXT), 'bert_span': (changed(BERT, head=Span()), TEXT),
    'bert_narrow': (changed(BERT, embedding_width=5), TEXT),
    'bert_replaced': (changed(BERT, head=ReplacedTokens()), TEXT),
    'pair': (build(EncoderDecoder, vocab=11, source_vocab=9, share=False, **SMALL), PAIR),
    'stories': (build(StoryTransformer, vocab=11, **SMALL), STORY), 'vit': (VIT, IMAGE),
    'vit_front': (changed(VIT, distillation='logits', registers=2), IMAGE),
    'vit_pooled': (changed(VIT, pooler=True, pool='mean', positions=SwinBias()), IMAGE),
    'memories': (MEMORY, STORY), 'memories_layerwise': (MEMORY.clone(tying='layerwise', inner=6), STORY),
    'language': (RecurrentLm(vocab=11, width=4, cell=Lstm(), tied=False), TEXT),
    'bahdanau': (RECURRENT.clone(cell=Gru(), attention=Bahdanau(score=Additive(3), combined=True, past=True)), PAIR),
    'luong': (RECURRENT.clone(cell=Rnn(), attention=Luong(score=Bilinear(), window=2, predictive=True)), PAIR),
    'pooling': (Pooling(keys=((0.0,), (1.0,)), values=((1.0,), (2.0,)), learn='one'), POINTS)}
MODELS |= {f'gpt_{type(part).__name__}': (changed(GPT, positions=part), TEXT) for part in (
    Learned(), Shaw(2), T5Bias(), TransformerXl(), Disentangled(2), Tupe(), Etc(2, 2))}
MODELS |= {f'gpt_{type(part).__name__}': (changed(GPT, attention=Softmax(score=part)), TEXT) for part in (
    Bilinear(), Additive(3), Cosine(), Location(6))}
MODELS |= {f'gpt_{type(part).__name__}': (changed(GPT, attention=part), TEXT) for part in (
    MemoryCompressed(), Synthesizer(length=6), Convolution(), Recurrence())}
STAGE = dict(heads=4, width=8)
WINDOWS = Blocks(layers=2, positions=SwinBias(), partition=Windows(2), residual=LayerScale(), **STAGE)
CHANNELS = Blocks(layers=2, positions=Learned(), attention=AlternateAttention(Softmax(), ChannelGroups()),
                  residual=Convolved(), **STAGE)
MODELS |= {
    'resnet': (Resnet(classes=3, stem=ResnetStem(width=8, size=3, stride=1, pool=False), block=Bottleneck(), widths=(8, 16),
                      depths=(1, 1)), IMAGE),
    'swin': (Hierarchical(3, Patches(1), stages={'stage_0': WINDOWS, 'stage_1': WINDOWS}), IMAGE),
    'davit': (Hierarchical(3, Convolutions(size=3, strides=(1, 1)), stages={'stage_0': CHANNELS, 'stage_1': CHANNELS},
                           merging=Downsampling(), pool_first=True), IMAGE),
    'mae': (build(Mae, patch=2, **SMALL), IMAGE)}
MODELS['bert_Linformer'] = (changed(BERT, attention=Linformer(rank=3)), TEXT)
# Parameters that are neither matrices nor tables, by the end of their name: numbers that are added or multiplied with.
VECTORS = ('bias', 'scale', 'content', 'position', 'offset', 'extra', 'theta', 'log_sharpness', 'labels', 'class_token',
           'distillation_token', 'registers', 'mask_token', 'window_output', 'log_width', 'mechanism/output',
           'cross_attention/output', 'decoder/attention/output')


@functools.cache
def known(name):
    """({path: role}, {path: shape})."""
    model, inputs = MODELS[name]
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), **inputs))['params']
    return roles.of_model(model, inputs), {
        jax.tree_util.keystr(keys, simple=True, separator='/'): leaf.shape
        for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)}


class OfModelTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_every_parameter_has_a_role_that_fits_its_shape(self, name):
        found, shapes = known(name)
        self.assertEqual(set(found), set(shapes))
        for path, role in found.items():
            axes, shape = range(len(shapes[path])), shapes[path]
            named = [axis for axis in (role.heads, role.inner, role.rows) if axis is not None]
            self.assertContainsSubset([*role.inputs, *role.outputs, *named], axes, path)
            self.assertEmpty({*role.inputs} & {*role.outputs}, path)
            maps = role.kind == 'matrix'
            self.assertEqual(bool(role.inputs), maps, path)
            self.assertEqual(bool(role.outputs), maps and '_convolution/' not in path, path)  # each channel by itself
            self.assertEqual(role.rows is not None, role.kind == 'table', path)
            if role.inner is not None:
                self.assertEqual(shape[role.inner], 4 * 8, path)
            self.assertEqual('feed_forward/' in path and not path.endswith('output/bias'), role.inner is not None, path)

    @parameterized.parameters(*MODELS)
    def test_matrices_and_tables_decay_and_vectors_do_not(self, name):
        found, _ = known(name)
        for path, role in found.items():
            self.assertEqual(roles.decay(role), 0.0 if path.endswith(VECTORS) else 1.0, path)

    def test_what_no_rule_over_names_knew(self):
        for name, path in (('vit', 'class_token'), ('gpt_Etc', 'block_0/attention/positions/labels'),
                           ('luong', 'decoder/cross_attention/window_output'), ('mae', 'decoder/mask_token'),
                           ('resnet', 'stem/norm/scale'), ('swin', 'stage_1/block_0/feed_forward_scale/scale'),
                           ('swin', 'stage_1/block_0/attention/positions/bias')):
            self.assertEqual(roles.decay(known(name)[0][path]), 0.0, path)
        for name, path in (('stories', 'places/sentence'), ('gpt_Location', 'block_0/attention/mechanism/table'),
                           ('luong', 'decoder/cross_attention/window'), ('vit', 'patches/kernel'),
                           ('resnet', 'stem/convolution/kernel'), ('davit', 'stem_1/kernel'),
                           ('swin', 'stage_1/merging/kernel'),
                           ('davit', 'stage_0/block_0/attention_convolution/kernel')):
            self.assertEqual(roles.decay(known(name)[0][path]), 1.0, path)

    @parameterized.parameters('gpt', 'gpt_shared_keys', 'gpt_with_all_else', 'gpt_T5Bias', 'gpt_TransformerXl', 'vit_pooled',
                              'swin', 'mae')
    def test_the_axis_of_heads_is_where_heads_are(self, name):
        model, _ = MODELS[name]
        stack = WINDOWS if name == 'swin' else model.encoder if name == 'mae' else model.stack
        found, shapes = known(name)
        for path, role in found.items():
            if '/attention/' not in path or path.endswith('attention/output/bias'):
                continue
            kept = stack.kept and 'positions' not in path
            heads = 2 if kept else stack.key_heads if role.shared and stack.key_heads else 4
            self.assertEqual(shapes[path][role.heads], heads, path)
            self.assertEqual(role.shared, '/key/' in path or '/value/' in path, path)

    def test_layers_onto_words_classes_and_numbers_are_tables(self):
        for name, path in (('gpt_with_all_else', 'output/kernel'), ('vit', 'head/kernel'), ('bert_classes', 'classes/kernel'),
                           ('bert_tags', 'classes/kernel'), ('bert_span', 'span/kernel'), ('bert', 'next_sentence/kernel'),
                           ('stories', 'answer/kernel'), ('language', 'output/kernel'), ('luong', 'output/kernel'),
                           ('memories_layerwise', 'output/kernel'), ('gpt_halting', 'halting/kernel'),
                           ('resnet', 'head/kernel'), ('swin', 'head/kernel'), ('mae', 'decoder/pixels/kernel'),
                           ('vit_front', 'distillation_head/kernel')):
            self.assertEqual(known(name)[0][path], table(1), (name, path))

    def test_a_parameter_without_one_is_refused(self):
        class Unknown(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.Dense(3, name='some')(x)

        with self.assertRaisesRegex(ValueError, 'The parameter some/bias of Unknown has no role; make it with '
                                                'transformer.layers.roles.declare'):
            roles.of_model(Unknown(), {'x': jnp.ones((2, 4))})

    def test_nothing_is_computed(self):
        huge = build(Gpt, vocab=10 ** 6, width=2 ** 16, heads=2 ** 8, layers=1)
        self.assertEqual(roles.of_model(huge, TEXT)['tokens/embedding'], table())


class SidesTest(parameterized.TestCase):
    @parameterized.parameters(
        (matrix(), 2, ((0,), (1,))), (matrix((1,), (0,)), 2, ((1,), (0,))), (matrix((0,), (1, 2), heads=1), 3, ((0,), (1, 2))),
        (matrix((0, 1), (2,), heads=0), 3, ((0, 1), (2,))), (table(), 2, None), (vector(), 1, None), (vector(heads=0), 2, None),
        (matrix((1,), (2,), heads=0), 3, None), (matrix((0, 2), (3,), heads=1), 4, None),  # several, one for each head
        (matrix((0, 1, 2), (3,)), 4, ((0, 1, 2), (3,))), (matrix((0, 1), ()), 3, None))  # convolutions
    def test_of_one_whole_matrix(self, role, dimensions, wanted):
        self.assertEqual(roles.sides(role, dimensions), wanted)


class MeshTest(parameterized.TestCase):
    @parameterized.parameters(
        ('block_0/attention/query/kernel', ('fsdp', 'tensor', None)), ('block_1/attention/value/bias', ('tensor', None)),
        ('block_0/attention/output/kernel', ('tensor', None, 'fsdp')), ('block_0/attention/output/bias', (None,)),
        ('block_0/feed_forward/input/kernel', ('fsdp', 'tensor')), ('block_0/feed_forward/input/bias', ('tensor',)),
        ('block_0/feed_forward/output/kernel', ('tensor', 'fsdp')), ('block_0/feed_forward/output/bias', (None,)),
        ('tokens/embedding', ('tensor', 'fsdp')), ('positions/embedding', ('tensor', 'fsdp')),
        ('block_0/attention_norm/scale', (None,)), ('norm/bias', (None,)))
    def test_heads_inner_widths_and_rows_are_split_as_megatron_does(self, path, wanted):
        found, shapes = known('gpt')
        self.assertEqual(roles.mesh_axes(found[path], len(shapes[path])), wanted)

    @parameterized.parameters(
        ('gpt_with_all_else', 'output/kernel', ('fsdp', 'tensor')), ('bert', 'pooler/kernel', (None, None)),
        ('gpt_with_all_else', 'block_0/feed_forward/gate/kernel', ('fsdp', 'tensor')),
        ('gpt_with_all_else', 'block_0/attention_residual/scale', ()), ('gpt_T5Bias', 'positions/bias', (None, 'tensor')),
        ('gpt_Location', 'block_0/attention/mechanism/table', (None, 'tensor', 'fsdp')),
        ('gpt_Bilinear', 'block_0/attention/mechanism/kernel', ('tensor', None, 'fsdp')),
        ('pair', 'decoder/block_1/cross_attention/key/kernel', ('fsdp', 'tensor', None)),
        ('resnet', 'stage_1/block_0/layer_1/convolution/kernel', (None, None, None, 'fsdp')),
        ('resnet', 'stage_1/block_0/layer_1/norm/scale', (None,)), ('davit', 'stem_1/bias', (None,)),
        ('davit', 'stage_1/merging/kernel', (None, None, None, 'fsdp')), ('swin', 'stage_1/merging/kernel', (None, None)),
        ('davit', 'stage_0/block_0/attention_convolution/kernel', (None, None, None)),
        ('swin', 'stage_1/block_0/attention/query/kernel', ('fsdp', 'tensor', None)),
        ('swin', 'stage_1/block_0/attention/positions/bias', (None, None, 'tensor')),
        ('mae', 'decoder/block_0/feed_forward/input/kernel', ('fsdp', 'tensor')))
    def test_of_others(self, name, path, wanted):
        found, shapes = known(name)
        self.assertEqual(roles.mesh_axes(found[path], len(shapes[path])), wanted)

    @parameterized.parameters(*MODELS)
    def test_no_axis_of_the_mesh_is_used_twice(self, name):
        found, shapes = known(name)
        for path, role in found.items():
            axes = roles.mesh_axes(role, len(shapes[path]))
            self.assertLen(axes, len(shapes[path]))
            used = [axis for axis in axes if axis]
            self.assertLen(set(used), len(used), path)


if __name__ == '__main__':
    absltest.main()
