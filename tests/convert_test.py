"""convert.py against recorded models of Hugging Face transformers (tests/reference)."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from PIL import Image
from safetensors.numpy import load_file, save_file

from configs import base
from tests import experiments, recorded
from tests.marks import slow_but
from tests.recorded import REFERENCE, case, convert, end_of
from training import mesh
from training import run as runs
from training.config import cli, resolve
from transformer.attention.positions.absolute import Sinusoidal
from transformer.attention.positions.relative import T5Bias
from transformer.conversion import arrays as named_arrays
from transformer.conversion.fields import at, fields_of
from transformer.conversion.forms import with_fields
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, Greedy
from transformer.layers.activations import Gelu, Relu
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.heads import NextWords, NoHead
from vit.models.resnet import Bottleneck

CASES = (
    'gpt2', 'gpt2_other', 'gpt2_choice', 'gpt2_classes', 'gpt2_tags', 'gpt2_span', 'bert', 'bert_masked', 'bert_model',
    'bert_next', 'bert_classes', 'bert_tags', 'bert_span', 'roberta', 'roberta_classes', 't5', 't5_gated', 't5_classes',
    't5_span', 't5_encoder', 't5_tags', 'bart', 'bart_classes', 'bart_span', 'marian', 'marian_two', 'vit', 'vit_model',
    'vit_mae', 'vit_mae_model', 'ijepa', 'albert', 'albert_masked', 'albert_model', 'albert_classes', 'albert_tags',
    'albert_span', 'electra', 'electra_masked', 'electra_model', 'electra_classes', 'electra_tags', 'electra_span',
    'distilbert', 'distilbert_model', 'distilbert_classes', 'distilbert_tags', 'distilbert_span', 'swin', 'swin_model',
    'swin_stages', 'deit', 'deit_classes', 'deit_model', 'dinov2', 'dinov2_model', 'timm_swin', 'timm_swin_padded',
    'timm_davit', 'timm_davit_florence', 'resnet', 'resnet_basic', 'resnet_model')

ALTERED = 'vit_mae', 'bert_masked', 'albert', 'electra', 'electra_masked', 'electra_classes', 'distilbert', 'distilbert_span'
# Each field of these configs is set to each of these values.
MISTAKEN = ('vit', 'swin', 'timm_davit', 'gpt2', 'deit', 'dinov2', 'vit_mae', 'resnet', 'timm_swin', 'bert', 'bart', 't5',
            'marian', 'roberta', 'albert', 'electra', 'distilbert')
WRONG = None, 'x', [], {}, 0, -1
# One of each family, and those with a part of their own.
IN_FLOAT32 = ('gpt2', 'gpt2_other', 'bert', 'roberta', 't5', 't5_gated', 't5_classes', 'bart', 'marian', 'vit', 'albert',
              'electra_masked', 'distilbert_classes', 'swin_model', 'resnet_basic', 'deit')
IN_BFLOAT16 = (*IN_FLOAT32, 'dinov2', 'ijepa', 'vit_mae', 't5_span', 'gpt2_choice', 'timm_davit', 'timm_swin_padded')


def inputs_of(name, model, arrays):
    """Recorded inputs under our names."""
    family, config, _ = convert.opened(REFERENCE / name)
    inputs = named_arrays.inputs_of(family, model, arrays, config.get('decoder_start_token_id', -1))
    return {key: jnp.asarray(x) for key, x in inputs.items()}


def outputs_of(name, outputs):
    """Our outputs under their names."""
    family, *_ = convert.opened(REFERENCE / name)
    return named_arrays.outputs_of(family, outputs, case(name)['input'])


def shaped(tree):
    return {mesh.path_of(keys): x for keys, x in jax.tree_util.tree_leaves_with_path(tree)}


def flat(tree):
    return {name: np.asarray(x) for name, x in shaped(tree).items()}


@slow_but('test_float32_is_as_near_as_that_of_the_original', 'gpt2_other', 't5_classes')
class ParityTest(parameterized.TestCase):
    """Against what is recorded in float64. In float32 a number may be off by a few times as much as transformers is there."""

    def assert_close(self, found, wanted, message, tolerance=1e-5, least=0.0):
        """The scale of the difference is that of tests/reference/exact.py."""
        scale = max(np.abs(wanted).max(), least)
        np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=tolerance, err_msg=message)

    def measured(self, name, dtype):
        """(what was recorded, {output: ours where it counts}, {weight: our gradient}), computed in a type."""
        recorded = case(name)
        model, variables = convert.variables_from_hf(REFERENCE / name, dtype=dtype)
        inputs = {key: x.astype(dtype) if x.dtype.kind == 'f' else x
                  for key, x in inputs_of(name, model, recorded['input']).items()}

        def score(params):
            found = outputs_of(name, model.apply(variables | {'params': params}, **inputs))
            return sum((found[key] * direction).sum() for key, direction in recorded['direction'].items()), found

        gradients, found = jax.jit(jax.grad(score, has_aux=True))(variables['params'])
        self.assertContainsSubset(recorded['output'], found)
        family, *_ = convert.opened(REFERENCE / name)
        still = flat(jax.tree.map(jnp.zeros_like, variables.get('statistics', {})))
        theirs = {key: x for key, x in family.write(flat(gradients) | still, model).items() if x.dtype.kind == 'f'}
        self.assertSameElements(theirs, recorded['gradient'])
        counted = {key: np.asarray(found[key]) * (recorded['direction'][key] != 0) for key in recorded['output']}  # no padding
        return recorded, counted, theirs

    @parameterized.named_parameters((name, name) for name in CASES)
    def test_outputs_and_gradients_in_float64(self, name):
        with jax.enable_x64(True):
            recorded, outputs, gradients = self.measured(name, 'float64')
        largest = max(np.abs(x).max() for x in recorded['gradient'].values())
        for key, found in outputs.items():
            self.assertEqual(found.dtype, np.float64)
            self.assert_close(found, recorded['output'][key] * (recorded['direction'][key] != 0), key, 1e-10)
        for key, found in gradients.items():
            self.assert_close(found, recorded['gradient'][key], key, 1e-10, least=0.01 * largest)  # that of biases of keys is 0

    @parameterized.named_parameters((name, name) for name in IN_FLOAT32)
    def test_float32_is_as_near_as_that_of_the_original(self, name):
        """Within 4 times the error that transformers itself has in float32, the largest one of a case."""
        recorded, outputs, gradients = self.measured(name, 'float32')
        largest = max(np.abs(x).max() for x in recorded['gradient'].values())
        bound = lambda kind: 4 * max(1e-7, *(float(error) for error in recorded[f'error/{kind}'].values()))
        for key, found in outputs.items():
            self.assert_close(found, recorded['output'][key] * (recorded['direction'][key] != 0), key, bound('output'))
        for key, found in gradients.items():
            self.assert_close(found, recorded['gradient'][key], key, bound('gradient'), least=0.01 * largest)

    @parameterized.named_parameters((name, name) for name in IN_BFLOAT16)
    @pytest.mark.slow
    def test_bfloat16_is_within_its_rounding(self, name):
        recorded = case(name)
        (key, half), = recorded['half'].items()
        model, variables = convert.variables_from_hf(REFERENCE / name, dtype='bfloat16')
        wanted = recorded['output'][key]
        counted = recorded['direction'][key] != 0
        error = lambda found: np.abs(np.float32(found) - wanted)[counted].mean()
        found = outputs_of(name, jax.jit(model.apply)(variables, **inputs_of(name, model, recorded['input'])))[key]
        # About that of the original; of few numbers, a share of their size.
        self.assertBetween(error(found), 1e-4, max(1.25 * error(half), 0.01 * np.abs(wanted).max()))

    @parameterized.parameters('vit', 'deit', 'dinov2_model')
    def test_images_of_another_size(self, name):
        recorded = case(name)['resized']
        model, params = convert.from_hf(REFERENCE / name)
        image = recorded.pop('pixel_values').transpose(0, 2, 3, 1)
        before = inputs_of(name, model, case(name)['input'])
        fitted = jax.tree_util.tree_map_with_path(lambda keys, x: model.fitted(mesh.path_of(keys), x, before, image), params)
        for given in (params, fitted):  # those of a run as they are, and those with which another begins
            found = outputs_of(name, model.apply({'params': given}, image))
            for key, wanted in recorded.items():
                self.assert_close(found[key], wanted, key)

    @parameterized.product(name=('gpt2', 't5', 't5_gated', 'bart'), key=('greedy', 'beam'))
    @pytest.mark.slow
    def test_what_is_generated(self, name, key):
        recorded = case(name)
        wanted, prompt = recorded[''][key].tolist(), recorded['prompt']
        strategy = {'greedy': Greedy(), 'beam': Beam(size=4, length_penalty=0.0)}[key]
        model, params = convert.from_hf(REFERENCE / name)
        end = end_of(name)
        rows = [row[there == 1] for row, there in zip(prompt['input_ids'], prompt['attention_mask'])]
        start = convert.opened(REFERENCE / name)[1].get('decoder_start_token_id')
        prompts, source = (rows, None) if name == 'gpt2' else ([[start]] * len(rows), rows)
        found = generate(model, params, prompts, source=source, steps=len(wanted[0]), strategy=strategy, end=end,
                         vocab=model.vocab, key=jax.random.key(0))
        found = [[*best.tokens, *[end] * best.finished] for best, *_ in found]
        self.assertEqual(found, [row[:row.index(end) + 1] if end in row else row for row in wanted])
        self.assertLen({end in row for row in found}, 2)  # some of them end


@slow_but('test_in_and_out_again', 'gpt2', 'gpt2_other', 'gpt2_choice', 'bert', 'bert_tags', 'roberta_classes', 't5',
          't5_encoder', 'bart', 'vit', 'vit_mae', 'albert', 'electra', 'distilbert_classes')
@slow_but('test_every_field_of_a_config_counts_or_is_refused', 'albert', 'electra_masked')
@slow_but('test_any_field_of_any_kind', 'vit', 'swin', 'timm_davit', 'gpt2')
class FolderTest(recorded.TestCase):
    """Folders in, runs, and folders out."""

    def assert_same_weights(self, found, wanted):
        """Two folders hold the same weights, byte for byte."""
        found, wanted = ({name: (x.dtype, x.shape, x.tobytes()) for name, x in load_file(folder / 'model.safetensors').items()}
                         for folder in (found, wanted))
        self.assertEqual(found, wanted)

    def assert_verified(self, name, workdir):
        """The outputs that --verify writes for a run are those recorded of a folder."""
        recorded = case(name)
        np.savez(self.folder / 'in.npz', **recorded['input'])
        self.convert(f'--workdir={workdir}', f'--verify={self.folder / "in.npz"}', f'--out={self.folder / "out.npz"}')
        with np.load(self.folder / 'out.npz') as found:
            self.assertContainsSubset(recorded['output'], found.files)
            for name, wanted in recorded['output'].items():
                counted = recorded['direction'][name] != 0
                np.testing.assert_allclose(found[name] * counted, wanted * counted, atol=1e-4)
            for name, wanted in recorded.get('masking', {}).items():
                np.testing.assert_array_equal(found[name], wanted)

    @parameterized.named_parameters((name, name) for name in CASES)
    def test_in_and_out_again(self, name):
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={workdir}')
        self.assertEqual(experiments.steps(workdir), [0])
        self.assertTrue(all("'params'" in key or "'statistics'" in key for key in experiments.bits(workdir)))  # nothing else
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        of_images = convert.opened(REFERENCE / name)[0] in convert.OF_IMAGES
        self.assertIn('the preparation of its images' if of_images else 'without a tokenizer', said)
        self.assertEqual((out / 'model.safetensors').read_bytes(), (REFERENCE / name / 'model.safetensors').read_bytes())
        (family, there, _), (_, here, _) = map(convert.opened, (REFERENCE / name, out))
        self.assertEqual(*(convert.fields_of(family, config) for config in (here, there)))
        same = ['architectures', 'model_type', 'vocab_size', 'image_size', 'num_channels']
        same += ['decoder_start_token_id'] if 'decoder_inputs' in family.inputs(there) else []
        same += ['id2label'] if family.use in ('classes', 'tags', 'images') else []
        same += ['bos_token_id', 'eos_token_id', 'pad_token_id'] * (not of_images)
        known = [key for key in same if key in there]
        self.assertEqual([here[key] for key in known], [there[key] for key in known])
        self.assertEqual((out / 'generation_config.json').is_file(), family.use in ('text', 'pairs'))

    @parameterized.parameters(
        ('bert', {'id2label': {'2': 'both', '0': 'no', '1': 'yes'}}, 'reading:TextClasses', ['no', 'yes', 'both']),
        ('bert', {'problem_type': 'multi_label_classification'}, 'reading:MultiLabel', ['no', 'yes', 'both']),
        ('bert', {'id2label': {'0': 'grade'}, 'problem_type': 'regression'}, 'reading:TextNumbers', ['grade']),
        ('bert', {'id2label': {'0': 'grade'}, 'problem_type': 'absent'}, 'reading:TextNumbers', ['grade']),
        ('albert', {'id2label': {'0': 'grade'}, 'problem_type': 'regression'}, 'reading:TextNumbers', ['grade']),
        ('electra', {'problem_type': 'multi_label_classification'}, 'reading:MultiLabel', ['no', 'yes', 'both']),
        ('distilbert', {'id2label': {'0': 'grade'}, 'problem_type': 'regression'}, 'reading:TextNumbers', ['grade']))
    def test_classes_labels_and_a_number(self, kind, changes, task, names):
        last = 'classifier.out_proj.' if kind == 'electra' else 'classifier.'
        short = lambda weights: {name: x[:len(names)] if name.startswith(last) else x for name, x in weights.items()}
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face(f"{kind}_classes", short, **changes)}', f'--workdir={workdir}')
        config = json.loads((workdir / 'config.json').read_text())
        self.assertEqual(config['task']['name'], f'transformer.tasks.{task}')
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        config = json.loads((out / 'config.json').read_text())
        self.assertEqual(config['id2label'], {str(i): name for i, name in enumerate(names)})
        usual = 'regression' if len(names) == 1 else 'absent'
        self.assertEqual(config.get('problem_type', 'absent'), {'absent': usual}.get(
            changes.get('problem_type', 'absent'), changes.get('problem_type')))
        self.assert_same_weights(out, self.folder / f'{kind}_classes_hf')

    @parameterized.parameters('gpt2', 'bert', 't5', 'bart_classes', 'deit', 'vit_mae', 'timm_davit')
    @pytest.mark.slow
    def test_verify(self, name):
        workdir = self.folder / 'run'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={workdir}')
        self.assert_verified(name, workdir)

    @parameterized.parameters(('gpt2', 'mixed'), ('vit', 'bfloat16'))
    def test_verify_computes_in_float32(self, name, dtype):
        workdir = self.folder / 'run'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={workdir}')
        config = json.loads((workdir / 'config.json').read_text())
        (workdir / 'config.json').write_text(json.dumps(config | {'dtype': dtype}))
        self.assert_verified(name, workdir)

    @parameterized.parameters(
        ({'feed_forward_proj': 'gated-silly'}, "feed_forward_proj='gated-silly', which is not supported"),
        ({'dense_act_fn': 'gelu'}, "dense_act_fn='gelu', but feed_forward_proj='relu'"),
        ({'is_gated_act': True}, "is_gated_act=True, but feed_forward_proj='relu'"))
    def test_feed_forwards_that_cannot_be(self, changes, message):
        self.assert_refused(message, f'--from_hf={self.hugging_face("t5", **changes)}', f'--workdir={self.folder / "run"}')

    def test_t5_of_older_versions(self):
        """Version 1.1 said tie_word_embeddings=false, and nothing of scales; the tables of the towers were copies."""
        unread = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
        copies = lambda w: w | {unread: np.ones((8, 3), np.float32)} | dict.fromkeys(
            ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'), w['shared.weight'])
        folder = self.hugging_face('t5_gated', copies, tie_word_embeddings=False, scale_decoder_outputs='absent',
                                   dense_act_fn='absent', is_gated_act='absent')
        found, wanted = convert.from_hf(folder), convert.from_hf(REFERENCE / 't5_gated')
        self.assertEqual(found[0], wanted[0])
        self.assertEqual((found[0].share, found[0].head, type(found[0].encoder.feed_forward)),
                         (True, NextWords(tied=False), Gated))
        jax.tree.map(np.testing.assert_array_equal, found[1], wanted[1])

    @pytest.mark.slow
    def test_t5_takes_sources_of_any_length(self):
        self.convert(f'--from_hf={self.hugging_face("t5")}', f'--workdir={self.folder / "run"}')
        line = ' '.join(str(1 + i % 60) for i in range(600)).encode()
        done = experiments.call('predict', f'--workdir={self.folder / "run"}', '--tokens=2', stdin=line)
        self.assertEqual((done.code, done.err), (0, ''))
        self.assertLen(done.out.split(), 2)

    def test_bert_of_older_versions(self):
        """Google's files have both heads whatever the config says, norms under other names, copies, and counted positions."""
        table, bias = 'bert.embeddings.word_embeddings.weight', 'cls.predictions.bias'
        older = lambda w: {
            name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'): x
            for name, x in w.items()} | {'bert.embeddings.position_ids': np.arange(24)[None],
                                         'cls.predictions.decoder.weight': w[table], 'cls.predictions.decoder.bias': w[bias]}
        folder = self.hugging_face('bert', older, architectures=['BertForMaskedLM'], position_embedding_type='absolute')
        found, wanted = convert.from_hf(folder), convert.from_hf(REFERENCE / 'bert')
        self.assertEqual(found[0], wanted[0])
        jax.tree.map(np.testing.assert_array_equal, found[1], wanted[1])

    def test_a_bert_model_without_its_pooler_or_with_a_prefix(self):
        for change in (lambda w: {name: x for name, x in w.items() if 'pooler' not in name},
                       lambda w: {f'bert.{name}': x for name, x in w.items()}):
            shutil.rmtree(self.folder / 'bert_model_hf', ignore_errors=True)
            model, params = convert.from_hf(self.hugging_face('bert_model', change))
            self.assertEqual(model.head.pooler, 'pooler' in params)
        self.assertIn('pooler', params)

    def test_bart_with_stacks_of_different_sizes(self):
        """In and out again: with as many numbers in the encoder's attention, but in four heads, and with other inner widths."""
        def narrow(name, x):
            if '.encoder.' not in name or '.fc' not in name or name.endswith('fc2.bias'):
                return x
            return np.ascontiguousarray(x[:, :20] if name.endswith('fc2.weight') else x[:20])
        folder = self.hugging_face('bart', lambda w: {name: narrow(name, x) for name, x in w.items()},
                                   encoder_attention_heads=4, encoder_ffn_dim=20)
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.convert(f'--from_hf={folder}', f'--workdir={workdir}')
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assert_same_weights(out, folder)
        here, there = (json.loads((one / 'config.json').read_text()) for one in (out, folder))
        for name in ('attention_heads', 'ffn_dim', 'layers'):
            for stack in ('encoder', 'decoder'):
                self.assertEqual(here[f'{stack}_{name}'], there[f'{stack}_{name}'])
        (model, params), (plain, own) = convert.from_hf(folder), convert.from_hf(REFERENCE / 'bart')
        self.assertEqual([(stack.heads, stack.feed_forward.inner) for stack in (model.encoder, model.decoder)],
                         [(4, 20), (plain.decoder.heads, plain.decoder.feed_forward.inner)])
        found, wanted = (p['encoder']['block_0'] for p in (params, own))
        for name in ('query', 'key', 'value'):  # heads one after the other
            np.testing.assert_array_equal(found['attention'][name]['kernel'].reshape(16, 16),
                                          wanted['attention'][name]['kernel'].reshape(16, 16))
        np.testing.assert_array_equal(found['attention']['output']['kernel'].reshape(16, 16),
                                      wanted['attention']['output']['kernel'].reshape(16, 16))
        np.testing.assert_array_equal(found['feed_forward']['output']['kernel'],
                                      wanted['feed_forward']['output']['kernel'][:20])

    @parameterized.parameters(
        ('gpt2', 'layer_norm_epsilon', 1e-5, 'norm.epsilon'), ('bert', 'layer_norm_eps', 1e-12, 'norm.epsilon'),
        ('roberta', 'layer_norm_eps', 1e-12, 'norm.epsilon'), ('vit', 'layer_norm_eps', 1e-12, 'norm.epsilon'),
        ('vit_mae', 'layer_norm_eps', 1e-12, 'encoder.norm.epsilon', 'decoder.norm.epsilon'),
        ('vit_mae', 'mask_ratio', 0.75, 'mask_ratio'),
        ('t5', 'layer_norm_epsilon', 1e-6, 'encoder.norm.epsilon', 'decoder.norm.epsilon'),
        ('gpt2', 'attn_pdrop', 0.1, 'attention_dropout'), ('bert', 'attention_probs_dropout_prob', 0.1, 'attention_dropout'),
        ('vit', 'hidden_dropout_prob', 0.0, 'dropout'),
        ('roberta', 'hidden_dropout_prob', 0.1, 'dropout'), ('albert', 'hidden_dropout_prob', 0.0, 'dropout'),
        ('albert_classes', 'classifier_dropout_prob', 0.1, 'head.dropout'), ('swin', 'hidden_dropout_prob', 0.0, 'dropout'),
        ('swin', 'drop_path_rate', 0.1, 'drop_path'), ('dinov2', 'drop_path_rate', 0.0, 'drop_path'),
        ('electra', 'layer_norm_eps', 1e-12, 'norm.epsilon'),
        ('distilbert', 'attention_dropout', 0.1, 'attention_dropout'), ('distilbert_span', 'qa_dropout', 0.1, 'head.dropout'),
        ('distilbert_classes', 'seq_classif_dropout', 0.2, 'head.dropout'),
        ('t5', 'dropout_rate', 0.1, 'encoder.dropout', 'decoder.dropout', 'decoder.feed_forward.dropout'),
        ('bart', 'dropout', 0.1, 'encoder.dropout', 'decoder.dropout'),
        ('bart', 'activation_dropout', 0.0, 'encoder.feed_forward.dropout', 'decoder.feed_forward.dropout'))
    def test_small_numbers(self, name, field, usual, *paths):
        """In and out again, also if the config does not say them."""
        for given in (0.03125, 'absent'):
            wanted, folder = usual if given == 'absent' else given, self.hugging_face(name, **{field: given})
            (family, *_), (model, _) = convert.opened(folder), convert.from_hf(folder)
            self.assertEqual([at(fields_of(model), path) for path in paths], [wanted] * len(paths))
            self.assertEqual(family.config(model)[field], wanted)
            shutil.rmtree(folder)

    @parameterized.parameters(('gpt2', 50257), ('bert', 30522), ('roberta', 50265), ('albert', 30000), ('electra', 30522),
                              ('distilbert', 30522), ('t5', 32128), ('bart', 50265), ('marian', 58101))
    def test_the_vocabulary_of_a_config_that_does_not_say_it(self, kind, vocab):
        family = next(family for family in convert.FAMILIES if family.kind == kind)
        config = family.prepared({}, {}) if family.prepared else {}
        self.assertEqual(convert.fields_of(family, config)['vocab'], vocab)

    @parameterized.parameters(
        ('gpt2', 'resid_pdrop', 'embd_pdrop', 'attn_pdrop'), ('bert', 'hidden_dropout_prob', 'attention_probs_dropout_prob'),
        ('bart', 'dropout', 'attention_dropout'), ('vit', 'hidden_dropout_prob', 'attention_probs_dropout_prob'),
        ('swin', 'hidden_dropout_prob', 'attention_probs_dropout_prob'))
    def test_one_rate_of_dropout_everywhere(self, name, *fields):
        folder = self.hugging_face(name, **dict.fromkeys(fields, 0.25))
        (family, *_), (model, _) = convert.opened(folder), convert.from_hf(folder)
        written = family.config(model)
        self.assertEqual([written[field] for field in fields], [0.25] * len(fields))

    @parameterized.parameters('absent', None, 64)
    def test_an_inner_width_that_follows_from_the_width(self, given):
        folder = self.hugging_face('gpt2', n_inner=given)
        (family, *_), (model, _) = convert.opened(folder), convert.from_hf(folder)
        self.assertEqual(model.stack.feed_forward.inner, 64 if given == 64 else 0)
        self.assertEqual(family.config(model)['n_inner'], 64 if given == 64 else None)

    def test_the_head_for_masked_words_of_a_roberta_has_an_activation_of_its_own(self):
        """RobertaLMHead calls gelu, whatever hidden_act is, as the generator of an ELECTRA does."""
        for name in ('roberta', 'electra_masked'):
            folder = self.hugging_face(name, hidden_act='relu')
            (family, *_), (model, _) = convert.opened(folder), convert.from_hf(folder)
            self.assertEqual((model.head.activation, model.stack.feed_forward.activation), (Gelu(), Relu()))
            self.assertEqual(family.config(model)['hidden_act'], 'relu')
            # BERT's has that of the feed-forwards, so it is not the nearest.
            formed = {one.architecture: one.formed(model, convert.FREE)
                      for one in convert.FAMILIES if one.model == family.model}
            self.assertIn('MaskedWords(activation=Relu())', str(formed['BertForMaskedLM'].misfits))
            nearest = min(formed, key=lambda one: formed[one].distance)
            self.assertEqual((nearest, formed[nearest].misfits), (family.architecture, []))
            shutil.rmtree(folder)

    def test_positions_of_a_roberta_pass_over_what_fills_up(self):
        """As create_position_ids_from_input_ids has them there, also in the middle of a text, where something may see it."""
        ids = np.array([[7, 1, 8, 9, 1, 1], [1, 1, 7, 8, 9, 9]])  # 1 fills up
        model, _ = convert.from_hf(REFERENCE / 'roberta')
        table = inputs_of('roberta', model, {'input_ids': ids})['positions'] + model.stack.positions.offset
        np.testing.assert_array_equal(table, [[2, 1, 3, 4, 1, 1], [1, 1, 2, 3, 4, 5]])

    @parameterized.parameters('vit', 'vit_model')
    @pytest.mark.slow
    def test_images_without_biases_of_queries_keys_and_values(self, name):
        is_bias = lambda key: key.endswith(('query.bias', 'key.bias', 'value.bias'))
        without = self.hugging_face(name, lambda w: {key: x for key, x in w.items() if not is_bias(key)}, qkv_bias=False)
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.convert(f'--from_hf={without}', f'--workdir={workdir}')
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assert_same_weights(out, without)
        self.assertIs(json.loads((out / 'config.json').read_text())['qkv_bias'], False)
        model, params = convert.from_hf(out)
        self.assertFalse(model.stack.projection_bias)
        shutil.rmtree(without)
        zeros = self.hugging_face(name, lambda w: {key: x * 0 if is_bias(key) else x for key, x in w.items()})
        whole, own = convert.from_hf(zeros)
        image = case(name)['input']['pixel_values'].transpose(0, 2, 3, 1)
        found, wanted = (np.asarray(m.apply({'params': p}, image)['hidden']) for m, p in ((model, params), (whole, own)))
        np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())
        self.assertGreater(np.abs(wanted - convert.from_hf(REFERENCE / name)[0].apply(
            {'params': convert.from_hf(REFERENCE / name)[1]}, image)['hidden']).max(), 1e-3)  # they count

    def test_bart_without_its_head(self):
        """As facebook/bart-base is: the biases of the output layer are 0 then."""
        copies = 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'
        bare = lambda w: {name.removeprefix('model.'): x for name, x in w.items() if name != 'final_logits_bias'} | {
            name: w['model.shared.weight'] for name in copies}
        found = convert.from_hf(self.hugging_face('bart', bare, architectures=['BartModel']))
        wanted = convert.from_hf(REFERENCE / 'bart')
        self.assertEqual(found[0], wanted[0])
        np.testing.assert_array_equal(found[1]['added']['bias'], np.zeros(67))
        jax.tree.map(np.testing.assert_array_equal, found[1]['decoder'], wanted[1]['decoder'])

    @parameterized.parameters(
        ('bert', {'is_decoder': True}, 'is_decoder=True, which is not supported'),
        ('bert', {'position_embedding_type': 'relative_key'}, "position_embedding_type='relative_key'"),
        ('bert_classes', {'id2label': {'1': 'one'}}, 'id2label=.*expected a name for each of 0, 1'),
        ('bert_classes', {'id2label': {'0': 'one'}}, r'classifier.bias \[1\] +\| classifier.bias \[3\]'),
        ('bert_classes', {'id2label': {'0': 'a', '1': 'b'}}, r'classifier.bias \[2\] +\| classifier.bias \[3\]'),
        ('bert_classes', {'problem_type': 'regression'}, "problem_type='regression', but names 3 labels; expected"),
        ('bert_classes', {'problem_type': 'ranking'}, "problem_type='ranking', which is not supported; expected one of"),
        ('vit', {'problem_type': 'multi_label_classification'}, 'an image has labels, which is not supported'),
        ('gpt2_choice', {'summary_activation': 'tanh'}, "summary_activation='tanh', which is not supported"),
        ('albert', {'inner_group_num': 2}, 'inner_group_num=2, which is not supported; expected 1'),
        ('albert', {'num_hidden_groups': 3}, '4 layers cannot be divided into the equal groups of depth=Groups.groups=3.'),
        ('albert', {'position_embedding_type': 'relative_key'}, "position_embedding_type='relative_key'"),
        ('albert', {'embedding_size': 16}, r'word_embeddings.weight .67, 16. +\| \S*word_embeddings.weight .67, 12'),
        ('electra', {'embedding_size': 16}, r'\n  - +\| electra.embeddings_project.bias'),
        ('electra', {'is_decoder': True}, 'is_decoder=True, which is not supported'),
        ('distilbert', {'type_vocab_size': 2}, 'type_vocab_size=2, which is not known for distilbert'),
        ('bart', {'normalize_before': True}, 'normalize_before=True'), ('bart', {'encoder_layerdrop': 0.1}, 'layerdrop=0.1'),
        ('bart', {'encoder_ffn_dim': 20}, r'encoder.layers.0.fc1.bias \[20\] +\| \S*encoder.layers.0.fc1.bias \[24\]'),
        ('vit', {'qkv_bias': False}, r'\n  - +\| vit.encoder.layer.0.attention.attention.key.bias \[16\]'),
        ('vit_model', {'pooler_act': 'gelu'}, "pooler_act='gelu'"),
        ('deit_classes', {'no_embed_class': True}, 'no_embed_class=True, which is not supported; expected False'),
        ('deit_classes', {'architectures': ['DeiTForMaskedImageModeling']},
         'names DeiTForMaskedImageModeling; of deit expected DeiTForImageClassification, DeiTFor.*WithTeacher, DeiTModel'),
        ('dinov2', {'use_swiglu_ffn': True}, 'use_swiglu_ffn=True, but the feed-forwards of the weights are not gated; mend'),
        ('dinov2', {'image_size': [4, 36]},
         r'Dinov2WithRegistersModel of transformers is made for square images, not for 4x36; give square images\.'),
        ('dinov2', {'hidden_act': 'mish'}, "hidden_act='mish', which is not supported; expected one of 'gelu_new'"),
        ('dinov2', {'num_register_tokens': 4}, r'register_tokens \[1, 4, 16\] +\| \S*register_tokens \[1, 3, 16\]'),
        ('deit_model', {'pooler_output_size': 8}, 'pooler_output_size=8, which is not supported; expected 16'),
        ('vit_mae', {'mask_ratio': 1.0}, r'mask_ratio is 1.0; expected a share in \[0, 1\)'),
        ('vit_mae', {'image_size': [4, 36]}, r'made for square images, not for 4x36; give square images\.'),
        ('vit_mae', {'mask_ratio': 0.9}, 'mask_ratio=0.9 keeps none of 9 patches'),
        ('resnet', {'layer_type': 'wide'}, "layer_type='wide' and downsample_in_bottleneck=True, which is not supported"),
        ('resnet', {'hidden_sizes': 16}, r'hidden_sizes=16, which is not supported; expected a list such as \[256'),
        ('resnet', {'depths': [2]}, r'widths is \(16, 24\) and model.depths \(2,\); expected a width and a number of blocks'),
        ('resnet', {'hidden_sizes': [16, 26]}, 'cannot reduce a width of 26; choose a reduction that divides'),
        ('resnet', {'embedding_size': 6}, r'embedder.normalization.bias \[6\] +\| \S*embedder.normalization.bias \[8\]'),
        ('vit', {'image_size': 16}, r'_embeddings \[1, 17, 16\] \| .*_embeddings \[1, 10, 16\]'),
        ('swin', {'window_size': 5}, 'stage 1 form a grid of 4x4, smaller than the windows of 5x5.*windows of at most 4'),
        ('swin', {'hidden_act': 'tangent'}, "hidden_act='tangent', which is not supported"),
        ('swin', {'num_heads': [2]}, r'depths=\[2, 2\] and num_heads=\[2\]; expected one for each stage'),
        ('timm_swin', {'architecture': 'swin_huge'}, "the architecture 'swin_huge' of timm; expected one of"),
        ('timm_swin', {'model_args': {'head_dim': 4}}, 'head_dim=4, which is not known for timm_swin'),
        ('timm_swin', {'model_args': {'img_size': [17, 16]}}, r'images of 17x16 end within one; give images of whole .*es\.'),
        ('timm_swin', {'model_args': {'window_size': [2, 3]}}, r'window_size=\[2, 3\]; expected one size'),
        ('timm_swin', {'model_args': {'embed_dim': [8, 16]}}, r'embed_dim=\[8, 16\]; expected the width of the first'),
        ('timm_swin', {'label_names': ['no']}, '1 label_names for num_classes=3'),
        ('timm_davit', {'model_args': {'attn_types': ['channel']}}, r"attn_types=\['channel'\], which is not supported"),
        ('timm_davit', {'model_args': {'embed_dims': [8]}}, r'and embed_dims=\[8\]; expected one for each stage'))
    def test_configs_of_other_families(self, name, changes, message):
        self.assert_refused(message, f'--from_hf={self.hugging_face(name, **changes)}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(
        ('swin', {'depths': None}, r"config.json has a field of a wrong kind \(object of type 'NoneType' .*\); fetch it again"),
        ('swin', {'patch_size': 0}, r'Patches\(size=0, norm=True\): size is 0; expected at least 1'),
        ('vit', {'num_channels': '3'}, 'config.json has a field of a wrong kind'),
        ('gpt2', {'architectures': 3}, 'config.json has a field of a wrong kind'),
        ('timm_davit', {'pretrained_cfg': 1}, 'config.json has a field of a wrong kind'))
    def test_fields_of_a_wrong_kind(self, name, changes, message):
        self.assert_refused(message, f'--from_hf={self.hugging_face(name, **changes)}', f'--workdir={self.folder / "run"}')

    def test_settings_of_generation_of_a_wrong_kind(self):
        folder = self.hugging_face()
        (folder / 'generation_config.json').write_text(json.dumps({'bad_words_ids': 1}))
        self.assert_refused(r'generation_config.json has a field of a wrong kind \(.*\); fetch it again',
                            f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    @parameterized.named_parameters((name, name) for name in MISTAKEN)
    def test_any_field_of_any_kind(self, name):
        """Is read, or refused in a sentence; without the weights."""
        config, folder = json.loads((REFERENCE / name / 'config.json').read_text()), self.hugging_face(name)
        changes = [{field: value} for field in config for value in WRONG]
        changes += [{part: config[part] | {field: value}} for part in ('model_args', 'pretrained_cfg')
                    for field in config.get(part, ()) for value in WRONG]
        for change in changes:
            (folder / 'config.json').write_text(json.dumps(config | change))
            with self.subTest(str(change)):
                try:
                    family, theirs, _ = convert.opened(folder)
                    convert.described(folder, family, theirs, self.folder)
                except ValueError as error:
                    self.assertTrue(cli.expected(error), error)

    @parameterized.parameters('bert_tags', 'bert_span', 'bert_masked', 'roberta', 'albert_masked', 'albert_tags', 'albert_span')
    def test_a_pooler_that_nothing_reads(self, name):
        kind = name.split('_')[0]
        pooler = f'{kind}.pooler' if kind == 'albert' else f'{kind}.pooler.dense'
        more = lambda w: w | {f'{pooler}.weight': np.ones((16, 16), np.float32), f'{pooler}.bias': np.ones(16, np.float32)}
        found, wanted = convert.from_hf(self.hugging_face(name, more)), convert.from_hf(REFERENCE / name)
        self.assertEqual(found[0], wanted[0])
        jax.tree.map(np.testing.assert_array_equal, found[1], wanted[1])

    def prepared(self, name, settings, **config):
        folder = self.hugging_face(name, **config)
        (folder / 'preprocessor_config.json').write_text(json.dumps(settings))
        return folder

    @parameterized.parameters(
        ('vit', {'size': {'shortest_edge': 12}}, 'preprocessor_config.json has size=.*shortest_edge'),
        ('vit_mae', {'size': 16}, 'a preprocessor_config.json for images of 16x16, and a model for images of'),
        ('timm_davit', {'size': 16, 'do_pad': True}, 'preprocessor_config.json has do_pad=True'))
    def test_images_that_cannot_be_prepared(self, name, settings, message):
        self.assert_refused(message, f'--from_hf={self.prepared(name, settings)}', f'--workdir={self.folder / "run"}')

    def test_how_images_are_prepared_goes_in_and_out(self):
        """And a run reads a file so."""
        settings = {'feature_extractor_type': 'DeiTFeatureExtractor', 'size': 15, 'crop_size': 12, 'do_center_crop': True,
                    'resample': 3, 'image_mean': [0.25, 0.5, 0.75], 'image_std': [0.5, 0.25, 0.5]}
        workdir, out = self.folder / 'run', self.folder / 'out'
        said = self.convert(f'--from_hf={self.prepared("vit", settings)}', f'--workdir={workdir}')
        self.assertIn("images of 12x12x3, prepared by Stretch(filter='bicubic', share=0.8)", said)
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        found = json.loads((out / 'preprocessor_config.json').read_text())
        self.assertEqual(found, {
            'image_processor_type': 'DeiTImageProcessor', 'do_convert_rgb': True, 'do_resize': True, 'resample': 3,
            'size': {'height': 15, 'width': 15}, 'do_center_crop': True, 'crop_size': {'height': 12, 'width': 12},
            'do_rescale': True, 'rescale_factor': 1 / 255, 'do_normalize': True,
            'image_mean': settings['image_mean'], 'image_std': settings['image_std']})
        pixels = np.random.default_rng(0).integers(0, 256, (30, 45, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(self.folder / 'image.png')
        wanted = np.asarray(Image.fromarray(pixels).resize((15, 15), Image.Resampling.BICUBIC), float)[1:13, 1:13] / 255
        read = runs.load(workdir, step='last', data=1).data.read(self.folder / 'image.png')
        np.testing.assert_allclose(read, (wanted - settings['image_mean']) / settings['image_std'], atol=4.1 / 255)

    @parameterized.parameters(
        ('swin_model', {'height': 24, 'width': 32}, False), ('dinov2_model', {'height': 20, 'width': 28}, True),
        ('resnet', {'height': 40, 'width': 34}, False))
    def test_images_of_another_size_than_in_config_json(self, name, size, resized):
        """A run has those of the preparation, of any two sides: a table of positions is resized as transformers does it."""
        folder = self.prepared(name, {'image_processor_type': 'ViTImageProcessor', 'size': size})
        said = self.convert(f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        self.assertRegex(said, r'; config.json has \d+x\d+' + ', whose table of positions is resized' * resized + '\n')
        snapshot = runs.load(self.folder / 'run', step='last', data=1)
        sides = size['height'], size['width']
        self.assertEqual(snapshot.data.shapes['image'][0][1:3], sides)
        model, variables = convert.variables_from_hf(folder)
        image = np.random.default_rng(0).normal(size=(1, *sides, snapshot.data.shapes['image'][0][-1])).astype(np.float32)
        found, wanted = snapshot.apply(image=image), model.apply(variables, image)
        np.testing.assert_allclose(found['hidden'], wanted['hidden'], atol=1e-5 * np.abs(wanted['hidden']).max())
        written = f'--workdir={self.folder / "run"}', f'--to_hf={self.folder / "out"}'
        if name == 'dinov2_model':  # transformers resizes its table from a square
            self.assert_refused('is made for square images, not for 20x28; give square images, or write', *written)
            return
        self.convert(*written)
        self.assertEqual(json.loads((self.folder / 'out' / 'config.json').read_text())['image_size'], [*sides])
        self.assertEqual(json.loads((self.folder / 'out' / 'preprocessor_config.json').read_text())['size'], size)

    @parameterized.named_parameters((name, name) for name in ALTERED)
    def test_every_field_of_a_config_counts_or_is_refused(self, name):
        """Another value changes the logits, or how the model is trained, or it is refused."""
        (family, config, _), (model, params) = convert.opened(REFERENCE / name), convert.from_hf(REFERENCE / name)
        inputs, output = inputs_of(name, model, case(name)['input']), next(iter(case(name)['output']))
        logits = lambda model, params: outputs_of(name, model.apply({'params': params}, **inputs))[output]
        wanted, other = logits(model, params), {'gelu': 'relu', 'relu': 'silu', 'gelu_new': 'relu', True: False, False: True}
        for field in sorted({field for one in family.fields for field in one.names[0]} & {*config}):
            value = config[field]
            given = value * 2 if type(value) is int else value + 0.25 if isinstance(value, float) else other[value]
            shutil.rmtree(self.folder / f'{name}_hf', ignore_errors=True)
            try:
                found, read = convert.from_hf(self.hugging_face(name, **{field: given}))
            except ValueError:
                continue
            if 'dropout' in field or field == 'norm_pix_loss':
                self.assertNotEqual(found, model, field)
            else:
                self.assertGreater(np.abs(logits(found, read) - wanted).max(), 1e-4, field)

    def test_named_blocks_of_timm(self):
        """As in the files of Florence-2."""
        kinds = {'0': 'spatial_block', '1': 'channel_block'}
        rename = lambda name: re.sub(r'(blocks\.\d+)\.(\d)\.', lambda one: f'{one[1]}.{kinds[one[2]]}.', name)
        _, params = convert.from_hf(REFERENCE / 'timm_davit')
        named = self.hugging_face('timm_davit', lambda weights: {rename(name): x for name, x in weights.items()})
        jax.tree.map(np.testing.assert_array_equal, convert.from_hf(named)[1], params)

    def test_a_swin_that_transformers_does_not_have(self):
        """It is refused with the flags of one that it has."""
        workdir = self.folder / 'run'
        self.convert(f'--from_hf={self.hugging_face("timm_swin_padded")}', f'--workdir={workdir}')
        done = experiments.call('convert', f'--workdir={workdir}', f'--to_hf={self.folder / "out"}', '--family=swin')
        self.assertEqual(done.code, 1)
        for stage in (0, 1):
            self.assertIn(f"--config.model.stages.stage_{stage}.partition='AlternatePartition(even=Windows(size=5), "
                          "odd=Windows(size=5, shift=2))'", done.err)
        self.assertNotIn('heads', done.err)

    @parameterized.parameters(
        ('t5', {'encoder.head_width': 4}, 'The widths of heads and feed-forwards in model.encoder and model.decoder differ'),
        ('t5', {'encoder.positions': T5Bias(4, 16)}, 'which T5 cannot have; expected T5Bias() of one kind in all stacks'),
        ('t5', {'head': NextWords(bias=True)}, 'which has no counterpart there; expected NextWords() without a bias'),
        ('albert', {'embedding_width': 0}, 'model.embedding_width is 0, so that tables are not projected'),
        ('electra', {'embedding_width': 16}, 'model.embedding_width is 16, that of the model'),
        ('marian', {'encoder.width': 15, 'decoder.width': 15}, 'model.encoder.width is 15; expected an even number'),
        ('marian_two', {'head': NextWords()}, 'which has no counterpart there; expected NextWords(), tied or not'),
        ('bert_classes', {'head': NoHead()}, 'model.head is NoHead(pooler=False), which has no counterpart there'),
        ('gpt2', {'positions': Sinusoidal()}, 'model.positions is Sinusoidal(at='),
        ('dinov2', {'feed_forward': Mlp(bias=False)}, 'model.feed_forward is Mlp('),
        ('resnet', {'block': Bottleneck(reduction=2)}, 'model.block is Bottleneck(reduction=2, early=False)'))
    def test_models_that_configs_of_theirs_cannot_name(self, name, changes, message):
        family, config, _ = convert.opened(REFERENCE / name)
        model = resolve.construct(base.part(family.model, **convert.fields_of(family, config)))
        with self.assertRaisesRegex(ValueError, re.escape(message)):
            family.config(with_fields(model, changes))

    def test_an_output_layer_that_was_lost(self):
        """Not made up, where the config says that it is one of its own."""
        lost = lambda weights: {name: x for name, x in weights.items() if name != 'lm_head.weight'}
        folder = self.hugging_face('t5_gated', lost, tie_word_embeddings=False)
        self.assert_refused(r'lm_head.weight \[67, 16\] \| -', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    def test_a_table_of_a_tower_that_is_no_copy(self):
        other = lambda weights: weights | {'encoder.embed_tokens.weight': 1 + weights['shared.weight']}
        self.assert_refused('encoder.embed_tokens.weight is not shared.weight, but they are one table',
                            f'--from_hf={self.hugging_face("t5", other)}', f'--workdir={self.folder / "run"}')

    def test_a_run_of_it_alone_cannot_be_gone_on_with(self):
        workdir = self.folder / 'run'
        self.convert(f'--from_hf={self.hugging_face()}', f'--workdir={workdir}')
        self.text.write_text('1 2 3\n' * 200)
        config = json.loads((workdir / 'config.json').read_text())
        config['data'] |= {'path': str(self.text), 'documents': 'line'}
        (workdir / 'config.json').write_text(json.dumps(config))
        with self.assertRaisesRegex(ValueError, f'holds parameters alone.*init_from={workdir}'):
            experiments.train(convert.workdir.load_config(workdir), workdir)

    def test_shards(self):
        folder = self.hugging_face()
        weights = load_file(folder / 'model.safetensors')
        parts = [dict(list(weights.items())[::2]), dict(list(weights.items())[1::2])]
        (folder / 'model.safetensors').unlink()
        for i, part in enumerate(parts):
            save_file(part, folder / f'model-{i}.safetensors')
        index = {name: f'model-{i}.safetensors' for i, part in enumerate(parts) for name in part}
        (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': index}))
        _, params = convert.from_hf(folder)
        jax.tree.map(np.testing.assert_array_equal, params, convert.from_hf(REFERENCE / 'gpt2')[1])
        (folder / 'model-1.safetensors').unlink()
        self.assert_refused('names model-1.safetensors, which is not there',
                            f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': {'x': '../other/model.safetensors'}}))
        self.assert_refused("names '../other/model.safetensors', which is no file of its folder",
                            f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(('float16', 'float32'), (jnp.bfloat16, 'bfloat16'), ('float32', 'float32'))
    def test_half_precision(self, dtype, wanted):
        folder = self.hugging_face(weights=lambda w: {name: x.astype(dtype) for name, x in w.items()})
        found, exact = flat(convert.from_hf(folder)[1]), flat(convert.from_hf(REFERENCE / 'gpt2')[1])
        for name, x in exact.items():
            np.testing.assert_array_equal(found[name], x.astype(dtype).astype(wanted), name, strict=True)

    def test_several_types_become_float32(self):
        half = lambda w: {name: x.astype(jnp.bfloat16 if name.endswith('bias') else x.dtype) for name, x in w.items()}
        _, params = convert.from_hf(self.hugging_face(weights=half))
        self.assertEqual({x.dtype.name for x in flat(params).values()}, {'float32'})

    def test_float64_is_of_the_parameters_too(self):
        with self.assertRaisesRegex(ValueError, 'Numbers in float64 need the 64-bit types of JAX'):
            convert.from_hf(REFERENCE / 'gpt2', dtype='float64')
        exact = flat(convert.from_hf(REFERENCE / 'gpt2')[1])
        with jax.enable_x64(True):
            model, params = convert.from_hf(REFERENCE / 'gpt2', dtype='float64')
            self.assertEqual(model.dtype, 'float64')
            for name, x in flat(params).items():
                np.testing.assert_array_equal(x, exact[name].astype('float64'), name, strict=True)

    def test_the_model_alone_and_buffers_of_older_versions(self):
        def without_head(weights):
            plain = {name.removeprefix('transformer.'): x for name, x in weights.items()}
            return plain | {'h.0.attn.bias': np.ones((1, 1, 24, 24), np.float32), 'lm_head.weight': plain['wte.weight'],
                            'h.1.attn.masked_bias': np.array(-1e4, np.float32)}
        _, params = convert.from_hf(self.hugging_face(weights=without_head, architectures=['GPT2Model']))
        jax.tree.map(np.testing.assert_array_equal, params, convert.from_hf(REFERENCE / 'gpt2')[1])

    def test_weights_that_do_not_fit(self):
        def changed(weights):
            del weights['transformer.wpe.weight']
            weights['transformer.h.0.ln_1.bias'] = np.zeros(5, np.float32)
            return weights | {'transformer.h.2.ln_1.bias': np.zeros(16, np.float32)}
        workdir = self.folder / 'run'
        done = experiments.call('convert', f'--from_hf={self.hugging_face(weights=changed)}', f'--workdir={workdir}')
        self.assertEqual(done.code, 1)
        table = [[cell.strip() for cell in line.split('|')] for line in done.err.splitlines()[1:]]
        self.assertEqual(table, [
            ['the model needs', 'the file has'],
            ['transformer.h.0.ln_1.bias [16]', 'transformer.h.0.ln_1.bias [5]'],
            ['-', 'transformer.h.2.ln_1.bias [16]'],
            ['transformer.wpe.weight [24, 16]', '-'],
            ['Mend the sizes in config.json, or fetch both again.']])
        self.assertFalse(workdir.exists())

    def test_an_output_layer_that_is_no_copy(self):
        other = lambda weights: weights | {'lm_head.weight': 1 + weights['transformer.wte.weight']}
        self.assert_refused('lm_head.weight is not transformer.wte.weight, but they are one table .* set tie_word_embeddings',
                            f'--from_hf={self.hugging_face(weights=other)}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(
        ({'scale_attn_by_inverse_layer_idx': True}, 'scale_attn_by_inverse_layer_idx=True, which is not supported'),
        ({'add_cross_attention': True}, 'add_cross_attention=True'), ({'n_ctx': 7, 'novel': 3}, "novel=3, which is not known"),
        ({'activation_function': 'silly'}, "activation_function='silly'.*expected one of 'gelu_new'"),
        ({'activation_function': ['relu']}, 'which is not supported'), ({'pruned_heads': {'0': [1]}}, 'pruned_heads='),
        ({'model_type': ['gpt2']}, 'names the model'),
        ({'architectures': 'GPT2ForMultipleChoice'}, 'names GPT2ForMultipleChoice; of gpt2 expected'),
        ({'embd_pdrop': 0.5}, 'resid_pdrop=0.0 and embd_pdrop=0.5, which are one field here, model.dropout'),
        ({'architectures': ['GPT2ForMultipleChoice']}, 'names GPT2ForMultipleChoice; of gpt2 expected GPT2LMHeadModel, '),
        ({'model_type': 'gtp2'}, "names the model 'gtp2'; did you mean 'gpt2'"),
        ({'model_type': 'absent'}, 'is not the config of a model'),
        ({'n_inner': 63}, 'does not fit its config.json'))
    def test_configs_that_mean_another_model(self, changes, message):
        self.assert_refused(message, f'--from_hf={self.hugging_face(**changes)}', f'--workdir={self.folder / "run"}')
        self.assertFalse((self.folder / 'run').exists())

    def test_pickles_are_refused(self):
        folder = self.hugging_face()
        (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
        self.assert_refused('pickle that can run any code.*save_pretrained',
                            f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    def test_damage(self):
        folder = self.hugging_face()
        whole = (folder / 'model.safetensors').read_bytes()
        (folder / 'model.safetensors').write_bytes(whole[:-40])
        self.assert_refused('is not a complete .safetensors file', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        (folder / 'config.json').write_text('{"model_type": ')
        self.assert_refused('config.json is no JSON object', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        for given, message in (
                ('org/name', 'There is no folder org/name; .* hub, download it .*"hf download org/name --local-dir name"'),
                (folder / 'config.json', 'config.json is a file; give --from_hf the folder'),
                (self.folder / 'nowhere', 'There is no .*nowhere/config.json; give --from_hf a folder')):
            self.assert_refused(message, f'--from_hf={given}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(
        ([], 'Give one of --from_hf'), (['--from_hf=a', '--to_hf=b', '--workdir=c'], 'Give one of --from_hf'),
        (['--to_hf=b'], 'Give --workdir=DIR'), (['--verify=a.npz', '--workdir=c'], 'go together'),
        (['--from_hf=a', '--workdir=c', '--step=3'], '--step is for a run'))
    def test_flags_that_do_not_go_together(self, arguments, message):
        self.assert_refused(message, *arguments)

    @pytest.mark.slow
    def test_inputs_that_cannot_be(self):
        workdir, given, out = self.folder / 'run', self.folder / 'in.npz', self.folder / 'out.npz'
        self.convert(f'--from_hf={self.hugging_face()}', f'--workdir={workdir}')
        ids = np.ones((1, 3), int)
        for arrays, message in (({'inputs_id': ids}, "array 'inputs_id', .*; did you mean 'input_ids'"),
                                ({'input_ids': 67 * ids}, 'input_ids .* goes from 67 to 67, but this model takes 0 to 66'),
                                ({'input_ids': ids, 'position_ids': 24 * ids}, 'position_ids .* but this model takes 0 to 23'),
                                ({}, 'has nothing, and no input_ids; add that'), ({'attention_mask': ids}, 'no input_ids'),
                                ({'input_ids': ids, 'decoder_input_ids': ids}, "'decoder_input_ids', which this model does"),
                                ({'input_ids': ids / 2}, r'has input_ids float64\[1, 3\]; expected integers'),
                                ({'input_ids': ids.astype(str)}, 'expected integers'),
                                ({'input_ids': ids, 'attention_mask': np.ones((1, 4), int)}, 'of one shape')):
            np.savez(given, **arrays)
            self.assert_refused(message, f'--workdir={workdir}', f'--verify={given}', f'--out={out}')
        given.write_bytes(b'no arrays')
        self.assert_refused('is no .npz file', f'--workdir={workdir}', f'--verify={given}', f'--out={out}')
        self.assertFalse(out.exists())

    def test_images_of_other_channels(self):
        workdir, given, out = self.folder / 'run', self.folder / 'in.npz', self.folder / 'out.npz'
        self.convert(f'--from_hf={self.hugging_face("vit")}', f'--workdir={workdir}')
        self.assert_refused('no file .*in.npz.*; give --verify an .npz file with pixel_values', f'--workdir={workdir}',
                            f'--verify={given}', f'--out={out}')
        np.savez(given, pixel_values=np.zeros((2, 4, 8, 8), np.float32))
        self.assert_refused(r'has pixel_values \[2, 4, 8, 8\], and this model takes 3 channels; give \[images, channels',
                            f'--workdir={workdir}', f'--verify={given}', f'--out={out}')

    @pytest.mark.slow
    @parameterized.parameters('quick_gelu', 'leaky_relu')
    def test_activations_have_their_names_there(self, name):
        folder, back = self.hugging_face('vit', hidden_act=name), self.folder / 'back'
        self.convert(f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        self.convert(f'--workdir={self.folder / "run"}', f'--to_hf={back}')
        self.assertEqual(json.loads((back / 'config.json').read_text())['hidden_act'], name)

    @parameterized.parameters('gpt2_classes', 'bart_classes')
    def test_the_last_token_cannot_be_told_from_padding(self, name):
        workdir, given, out = self.folder / 'run', self.folder / 'in.npz', self.folder / 'out.npz'
        self.convert(f'--from_hf={REFERENCE / name}', f'--workdir={workdir}')
        np.savez(given, input_ids=np.ones((1, 3), int))
        self.assert_refused('and no attention_mask, by which the last token of each row is found; add that',
                            f'--workdir={workdir}', f'--verify={given}', f'--out={out}')
        self.assert_refused('in.npz is the file of --verify; give it another name',
                            f'--workdir={workdir}', f'--verify={given}', f'--out={given}')


if __name__ == '__main__':
    absltest.main()
