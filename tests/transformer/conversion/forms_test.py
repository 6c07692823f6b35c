"""The forms in which models are written for Hugging Face transformers: the outputs stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from configs import base
from tests.marks import slow_but
from tests.recorded import convert
from training import mesh
from training.config import resolve
from transformer.conversion.tables import Weight

SIZES = dict(layers=2, heads=4, width=16)
FEW = SIZES | {'layers': 1}
LENGTHS = dict(length=9, source_length=11)
GPT, BERT, PAIRS, VIT = (f'{module}:{name}' for module, name in (
    ('transformer.models.gpt', 'Gpt'), ('transformer.models.bert', 'Bert'),
    ('transformer.models.encoder_decoder', 'EncoderDecoder'), ('vit.models.vit', 'Vit')))
T5 = dict(feed_forward='Mlp(inner=20, activation=Relu(), bias=False)', projection_bias=False, output_bias=False,
          norm='RMSNorm()', positions='T5Bias()', residual='PreNorm()', attention='Softmax(score=Dot())', dropout=0.1)

CASES = {  # {name: (model, fields, architecture, what is said)}
    'no_biases': (GPT, FEW | base.NO_BIASES, 'GPT2LMHeadModel', 'with zeros for biases'),
    'own_output': (GPT, FEW | base.NO_BIASES | dict(head='NextWords(tied=False)'), 'GPT2LMHeadModel', 'with zeros for biases'),
    'sinusoids': (GPT, FEW | dict(positions='Sinusoidal(scale=0.5)'), 'GPT2LMHeadModel', 'with positions as a table'),
    'no_positions': (GPT, FEW | dict(positions='NoPositions()'), 'GPT2LMHeadModel', 'with positions as a table'),
    'offset': (GPT, FEW | dict(positions='Learned(offset=3)'), 'GPT2LMHeadModel', 'with positions as a table'),
    'shared_keys': (GPT, FEW | dict(key_heads=2, projection_bias=False, head_width=4), 'GPT2LMHeadModel',
                    'with keys and values for every head, zeros for biases'),
    'pruned': (GPT, SIZES | dict(kept=((0, 2), ()), key_heads=2), 'GPT2LMHeadModel', 'with keys and values for every head'),
    'pruned_without_biases': (GPT, SIZES | base.NO_BIASES | dict(kept=((1,), ())), 'GPT2LMHeadModel',
                              'with keys and values for every head, zeros for biases'),
    'no_types': (BERT, FEW | base.NO_BIASES | dict(types=0, positions='Sinusoidal()'), 'BertForMaskedLM',
                 'with zeros for biases, positions as a table, zeros for token types'),
    'roberta': (BERT, FEW | base.NO_BIASES | dict(positions='Learned(offset=2)'), 'RobertaForMaskedLM',
                'with zeros for biases'),
    'distilled': (BERT, FEW | dict(types=0, positions='Sinusoidal()', output_bias=False),
                  'DistilBertForMaskedLM', 'with zeros for biases, positions as a table'),
    'narrow': (BERT, FEW | dict(embedding_width=6, types=0, positions='Sinusoidal()'), 'ElectraForMaskedLM',
               'with positions as a table, zeros for token types'),
    'groups': (BERT, SIZES | dict(embedding_width=16, depth='Groups()', key_heads=2, head='Pretraining()'),
               'AlbertForPreTraining', 'with keys and values for every head'),
    'dropout_twice': (BERT, FEW | dict(head='Classes(classes=2, twice=True)', feed_forward='Mlp(dropout=0.1)'),
                      'BertForSequenceClassification',
                      'dropout in training there: model.feed_forward.dropout=0.0, model.head.twice=False'),
    't5': (PAIRS, LENGTHS | dict(scale_embedding=False, cross_attention='Softmax(score=Dot())', head='NextWords(scaled=True)',
                                 encoder=SIZES | T5 | dict(key_heads=2), decoder=SIZES | T5 | dict(
                                     kept=((0,), (1, 3)), cross_kept=((), (0, 3)))),
           'T5ForConditionalGeneration', 'with keys and values for every head'),
    'bart': (PAIRS, LENGTHS | base.both(**FEW, embedding_norm=True, positions='Learned(scale=0.1)'),
             'BartForConditionalGeneration', 'with positions as a table, an output bias'),
    'translator': (PAIRS, LENGTHS | base.both(**FEW), 'MarianMTModel', 'with an output bias'),
    'two_vocabularies': (PAIRS, LENGTHS | base.both(**FEW, projection_bias=False, output_bias=False) | dict(
        source_vocab=29, share=False, head='NextWords(tied=False, bias=True)'), 'MarianMTModel',
        'with zeros for biases, an output bias'),
    'two_vocabularies_tied': (PAIRS, LENGTHS | base.both(**FEW) | dict(source_vocab=29, share=False), 'MarianMTModel',
                              'with an output bias'),
    'one_table_and_an_output': (PAIRS, LENGTHS | base.both(**FEW) | dict(head='NextWords(tied=False)'), 'MarianMTModel',
                                'with an embedding for sources and one for targets, an output bias'),
    'vit': (VIT, FEW | base.NO_BIASES | dict(patch_bias=False), 'ViTForImageClassification', 'with zeros for biases'),
    'vit_layer_scale': (VIT, FEW | base.NO_BIASES | dict(
        patch_bias=False, pool='both', registers=2, residual='LayerScale()', positions='Learned(antialias=True)'),
        'Dinov2WithRegistersForImageClassification', 'with zeros for biases'),
    'vit_sinusoids': (VIT, FEW | dict(positions='Sinusoidal2d()'), 'ViTForImageClassification', 'with positions as a table'),
    'vit_mean': (VIT, SIZES | dict(pool='mean', positions='Learned(scale=0.5)', dropout=0.1, kept=((1,), (0, 1, 3))),
                 'IJepaForImageClassification', 'with keys and values for every head'),
    'vit_mean_without_positions': (VIT, FEW | dict(pool='mean', positions='NoPositions()'), 'IJepaForImageClassification',
                                   'with positions as a table')}


def made(path, fields):
    """(model, inputs) in float64, with drawn ids or images."""
    draw = np.random.default_rng(0)
    if path == VIT:
        more, inputs = dict(classes=5, patch=2), {'image': draw.normal(size=(2, 8, 6, 1))}
    else:
        ids = lambda length: draw.integers(4, 29, (3, length), np.int32)
        more, inputs = dict(vocab=31, length=9), {'inputs': ids(9)}
    if path == PAIRS:
        more |= {'source_vocab': 0}
        inputs |= {'decoder_inputs': ids(7)}
    model = resolve.construct(base.part(path, **more | fields), extra={'dtype': 'float64', 'parameter_dtype': 'float64'})
    return model, {name: jnp.asarray(x) for name, x in inputs.items()}


def nearest(model, path):
    """(family, model in its forms)."""
    every = [(family, family.formed(model, convert.FREE)) for family in convert.FAMILIES if family.model == path]
    return min(every, key=lambda one: one[1].distance)


@slow_but('test_writes_a_model_with_the_same_outputs', 'shared_keys', 'pruned', 'no_types', 'narrow', 'groups', 't5', 'bart',
          'two_vocabularies', 'vit_layer_scale', 'vit_sinusoids', 'vit_mean')
class FormsTest(parameterized.TestCase):

    @parameterized.named_parameters((name, *case) for name, case in CASES.items())
    def test_writes_a_model_with_the_same_outputs(self, path, fields, architecture, said):
        with jax.enable_x64(True):
            model, inputs = made(path, fields)
            shapes = jax.eval_shape(model.init, jax.random.key(0), **inputs)['params']
            draw = np.random.default_rng(1)
            params = jax.tree.map(lambda x: 0.4 * draw.normal(size=x.shape), shapes)
            family, formed = nearest(model, path)
            self.assertEqual((family.architecture, formed.misfits), (architecture, []))
            self.assertIn(said, formed.said)
            flat = lambda tree: {mesh.path_of(keys): x for keys, x in jax.tree_util.tree_leaves_with_path(tree)}
            other = formed.params(flat(params), (8, 6, 1) if path == VIT else ())
            shapes = jax.eval_shape(formed.model.init, jax.random.key(0), **inputs)['params']
            self.assertEqual({name: x.shape for name, x in other.items()}, {name: x.shape for name, x in flat(shapes).items()})
            written = family.write(dict(other), formed.model)
            weights = {name: Weight(x.shape, 'F64', lambda x=x: x) for name, x in written.items()}
            read = dict(family.read(weights, {name: x.shape for name, x in other.items()}, 'here', formed.model, 'float64'))
            jax.tree.map(np.testing.assert_array_equal, read, other)
            tree = jax.tree_util.tree_map_with_path(lambda keys, _: read[mesh.path_of(keys)], shapes)
            outputs = lambda model, params: jax.jit(model.apply)({'params': params}, **inputs)['logits']
            np.testing.assert_allclose(outputs(formed.model, tree), outputs(model, params), rtol=0, atol=1e-12)

    @parameterized.parameters(
        (GPT, FEW | dict(positions='Rotary()', mask='Causal() & Window(4)', norm='RMSNorm()'), 'GPT2LMHeadModel',
         "--config.model.mask='Causal()' --config.model.positions='Learned()' --config.model.norm='LayerNorm(epsilon=1e-06)', "
         'or write the run as it is with --to_safetensors=FILE.'),
        (GPT, FEW | dict(head_width=3, feed_forward='Gated(inner=8)'), 'GPT2LMHeadModel',
         "--config.model.head_width=0 --config.model.feed_forward='Mlp(inner=8)', or"),
        (PAIRS, LENGTHS | base.both(**FEW, residual='PreNorm()'), 'MarianMTModel',
         "--config.model.encoder.residual='PostNorm()' --config.model.decoder.residual='PostNorm()', or"),
        (PAIRS, LENGTHS | dict(encoder=FEW, decoder=FEW | dict(width=24)) | dict(share=False), 'MarianMTModel',
         '--config.model.decoder.width=16, or'),
        (BERT, FEW | dict(embedding_width=16), 'BertForMaskedLM', '--config.model.embedding_width=0, or'),
        (BERT, SIZES | dict(depth='Groups()'), 'BertForMaskedLM', "--config.model.depth='Own()', or"),
        (VIT, FEW | dict(norm='RMSNorm()'), 'ViTForImageClassification', "--config.model.norm='LayerNorm(epsilon=1e-06)', or"))
    def test_names_all_that_has_no_form_with_the_flags(self, path, fields, architecture, message):
        fields = dict(fields)
        model, _ = made(path, fields)
        family, formed = nearest(model, path)
        self.assertEqual(family.architecture, architecture)
        sentence = formed.refusal(architecture)
        self.assertIn(message, sentence)
        self.assertIn(f' cannot be written as {architecture}; train with ', sentence)
        for flag in sentence.split('train with ')[1].split(', or ')[0].split(' --'):
            (*groups, name), value = flag.partition('=')[0].split('.')[2:], flag.partition('=')[2]
            inside = fields
            for group in groups:
                inside[group] = inside = dict(inside[group])
            inside[name] = value.strip("'") if value.startswith("'") else int(value)
        self.assertEqual(nearest(made(path, fields)[0], path)[1].misfits, [])


if __name__ == '__main__':
    absltest.main()
