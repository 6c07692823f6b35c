"""convert.py against recorded models of Hugging Face transformers (tests/reference)."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file, save_file

from tests import experiments
from training import mesh
from transformer.decoding import generate
from transformer.strategies import Beam, Greedy

convert = experiments.script('convert')
REFERENCE = pathlib.Path(__file__).parent / 'reference'
CASES = ('gpt2', 'gpt2_other', 't5', 't5_gated')


def case(name):
    """{group: {name: array}} of what was recorded: input, output, direction, gradient, and '' for the rest."""
    found = {}
    with np.load(REFERENCE / name / 'case.npz') as file:
        for key, array in file.items():
            group, _, rest = key.rpartition('/')
            found.setdefault(group, {})[rest] = array
    return found


def named(inputs):
    """Inputs under our names."""
    return {convert.INPUTS[name]: jnp.asarray(x, jnp.int32) for name, x in inputs.items()}


def there(inputs, output):
    """[B, T, 1]: where an output means something."""
    return inputs.get('attention_mask' if output.startswith('encoder') else 'decoder_attention_mask',
                      inputs['attention_mask'])[..., None]


def flat(tree):
    return {mesh.path_of(keys): np.asarray(x) for keys, x in jax.tree_util.tree_leaves_with_path(tree)}


class ParityTest(parameterized.TestCase):

    def assert_close(self, found, wanted, message, tolerance=1e-5):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=tolerance, err_msg=message)

    @parameterized.parameters(*CASES)
    def test_outputs_and_gradients(self, name):
        recorded = case(name)
        model, params = convert.from_hf(REFERENCE / name)
        inputs = named(recorded['input'])

        def score(params):
            outputs = model.apply({'params': params}, **inputs)
            found = {theirs: outputs[ours] for ours, theirs in convert.OUTPUTS.items() if ours in outputs}
            return sum((found[key] * direction).sum() for key, direction in recorded['direction'].items()), found

        gradients, found = jax.jit(jax.grad(score, has_aux=True))(params)
        self.assertSameElements(found, recorded['output'])
        for key, wanted in recorded['output'].items():
            counted = there(recorded['input'], key)
            self.assert_close(np.asarray(found[key]) * counted, wanted * counted, key)
        family, *_ = convert.opened(REFERENCE / name)
        theirs = family.write(flat(gradients))
        self.assertSameElements(theirs, recorded['gradient'])
        for key, wanted in recorded['gradient'].items():
            self.assert_close(theirs[key], wanted, key)

    @parameterized.parameters(*CASES)
    def test_bfloat16_is_within_its_rounding(self, name):
        recorded = case(name)
        model, params = convert.from_hf(REFERENCE / name, dtype='bfloat16')
        counted = there(recorded['input'], 'logits')
        error = lambda logits: np.abs(np.float32(logits) - recorded['output']['logits'])[counted[..., 0] == 1].mean()
        found = error(model.apply({'params': params}, **named(recorded['input']))['logits'])
        self.assertBetween(found, 1e-4, 1.1 * error(recorded['half']['logits']))  # about that of the original

    @parameterized.product(name=('gpt2', 't5'), key=('greedy', 'beam'))
    def test_what_is_generated(self, name, key):
        recorded = case(name)
        wanted, inputs = recorded[''][key], recorded['input']
        strategy = {'greedy': Greedy(), 'beam': Beam(size=4, length_penalty=0.0)}[key]
        model, params = convert.from_hf(REFERENCE / name)
        present = lambda ids, mask: [row[there == 1] for row, there in zip(ids, mask)]
        if name == 'gpt2':  # theirs are padded in front, and their positions begin behind that
            end, prompts, source = 0, present(recorded['']['prompt'], recorded['']['prompt_mask']), None
        else:
            end, prompts, source = 1, [[0]] * 3, present(inputs['input_ids'], inputs['attention_mask'])
        found = generate(model, params, prompts, source=source, steps=wanted.shape[1], strategy=strategy, end=end,
                         vocab=model.vocab, key=jax.random.key(0))
        for (best, *_), row in zip(found, wanted.tolist()):
            ended = [end] if best.finished else []
            self.assertEqual([*best.tokens, *ended, *[0] * (len(row) - len(best.tokens) - len(ended))], row)


class FolderTest(experiments.TestCase):
    """Folders in, runs, and folders out."""

    def hugging_face(self, name='gpt2', weights=None, **config):
        """A copy of a recorded folder with another config, or other weights."""
        folder = self.folder / f'{name}_hf'
        shutil.copytree(REFERENCE / name, folder)
        (folder / 'case.npz').unlink()
        settings = json.loads((folder / 'config.json').read_text()) | config
        (folder / 'config.json').write_text(json.dumps({key: x for key, x in settings.items() if x != 'absent'}))
        if weights:
            save_file(weights(load_file(folder / 'model.safetensors')), folder / 'model.safetensors')
        return folder

    def convert(self, *arguments):
        done = experiments.call('convert', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return done.out

    def refused(self, message, *arguments):
        done = experiments.call('convert', *arguments)
        self.assertEqual((done.code, done.out), (1, ''), done.err)
        self.assertRegex(done.err, message)
        self.assertNotIn('Traceback', done.err)

    @parameterized.parameters(*CASES)
    def test_in_and_out_again(self, name):
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={workdir}')
        self.assertEqual(experiments.steps(workdir), [0])
        self.assertTrue(all("'params'" in key for key in experiments.bits(workdir)))  # and nothing else
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn('without a tokenizer', said)
        self.assertEqual((out / 'model.safetensors').read_bytes(), (REFERENCE / name / 'model.safetensors').read_bytes())
        (family, there, _), (_, here, _) = map(convert.opened, (REFERENCE / name, out))
        self.assertEqual(family.model_fields(here), family.model_fields(there))
        same = {'architectures', 'model_type', 'eos_token_id', 'decoder_start_token_id', 'pad_token_id', 'vocab_size'}
        self.assertEqual({key: here[key] for key in same & here.keys()}, {key: there[key] for key in same & here.keys()})

    @parameterized.parameters('gpt2', 't5')
    def test_verify(self, name):
        workdir, recorded = self.folder / 'run', case(name)
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={workdir}')
        np.savez(self.folder / 'in.npz', **recorded['input'])
        self.convert(f'--workdir={workdir}', f'--verify={self.folder / "in.npz"}', f'--out={self.folder / "out.npz"}')
        with np.load(self.folder / 'out.npz') as found:
            self.assertSameElements(found.files, recorded['output'])
            for name, wanted in recorded['output'].items():
                counted = there(recorded['input'], name)
                np.testing.assert_allclose(found[name] * counted, wanted * counted, atol=1e-4)

    def test_a_run_of_it_predicts_is_measured_and_goes_on(self):
        workdir, mine, out = self.folder / 'run', self.folder / 'mine', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face()}', f'--workdir={workdir}')
        said = experiments.call('predict', f'--workdir={workdir}', '--tokens=3', '--strategy=Greedy()', stdin=b'5 6 7\n')
        self.assertRegex(said.out, r'^5 6 7 \d+ \d+ \d+\n$')
        self.text.write_text(''.join(f'{i % 60 + 1} {i % 7 + 1} {i % 60 + 2}\n' for i in range(200)))
        row = experiments.call('eval', f'--workdir={workdir}', f'--path={self.text}')
        before = json.loads(row.out.splitlines()[-1])['loss']
        config = [f'--config=configs/finetune.py:{workdir}', f'--config.data.path={self.text}', '--config.train.steps=20',
                  '--config.data.documents=line', '--config.optimizer.learning_rate=0.01', f'--workdir={mine}',
                  '--config.optimizer.schedule.warmup_steps=0']
        done = experiments.call('train', *config)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn(f'parameters from {workdir}', done.out)
        row = experiments.call('eval', f'--workdir={mine}', f'--path={self.text}')
        self.assertLess(json.loads(row.out.splitlines()[-1])['loss'], before - 1)
        self.convert(f'--workdir={mine}', f'--to_hf={out}')
        changed, first = load_file(out / 'model.safetensors'), load_file(REFERENCE / 'gpt2' / 'model.safetensors')
        self.assertSameElements(changed, first)
        self.assertFalse(any(np.array_equal(changed[name], first[name]) for name in first))
        self.assertEqual(convert.from_hf(out)[0], convert.from_hf(REFERENCE / 'gpt2')[0])

    def test_a_translator_goes_on(self):
        workdir, mine, out = self.folder / 'run', self.folder / 'mine', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face("t5")}', f'--workdir={workdir}')
        recorded = case('t5')
        line = ' '.join(map(str, recorded['input']['input_ids'][0, :-1]))  # as it is trained, a source ends with </s>
        said = experiments.call('predict', f'--workdir={workdir}', '--tokens=4', '--strategy=Greedy()',
                                stdin=f'{line}\n'.encode())
        self.assertRegex(said.out, r'^( ?\d+){4}\n$')
        self.text.write_text(''.join(f'{i % 50 + 2} 7 {i % 50 + 3}\t{i % 50 + 3} {i % 50 + 2}\n' for i in range(50)))
        done = experiments.call(
            'train', f'--config=configs/finetune.py:{workdir}', f'--config.data.path={self.text}', '--config.train.steps=3',
            '--config.data.length=16', '--config.data.source_length=16', f'--workdir={mine}')
        self.assertEqual(done.code, 0, done.err)
        self.assertIn('translations: ', done.out)
        self.convert(f'--workdir={mine}', f'--to_hf={out}')
        self.assertEqual(convert.from_hf(out)[0], convert.from_hf(REFERENCE / 't5')[0])

    @parameterized.parameters(
        ({'feed_forward_proj': 'gated-silly'}, "feed_forward_proj='gated-silly', which is not supported"),
        ({'dense_act_fn': 'gelu'}, "dense_act_fn='gelu', but feed_forward_proj='relu'"),
        ({'is_gated_act': True}, "is_gated_act=True, but feed_forward_proj='relu'"))
    def test_feed_forwards_that_cannot_be(self, changes, message):
        self.refused(message, f'--from_hf={self.hugging_face("t5", **changes)}', f'--workdir={self.folder / "run"}')

    def test_t5_of_older_versions(self):
        """Version 1.1 said tie_word_embeddings=false, and nothing of scales; the tables of the towers were copies."""
        copies = lambda w: w | dict.fromkeys(('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'), w['shared.weight'])
        folder = self.hugging_face('t5_gated', copies, tie_word_embeddings=False, scale_decoder_outputs='absent',
                                   dense_act_fn='absent', is_gated_act='absent')
        found, wanted = convert.from_hf(folder), convert.from_hf(REFERENCE / 't5_gated')
        self.assertEqual(found[0], wanted[0])
        self.assertEqual((found[0].share, found[0].scale_output, found[0].gated), ('inputs', False, True))
        jax.tree.map(np.testing.assert_array_equal, found[1], wanted[1])

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
        self.refused('names model-1.safetensors, which is not there', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters('float16', jnp.bfloat16)
    def test_half_precision(self, dtype):
        folder = self.hugging_face(weights=lambda w: {name: x.astype(dtype) for name, x in w.items()})
        found, exact = flat(convert.from_hf(folder)[1]), flat(convert.from_hf(REFERENCE / 'gpt2')[1])
        for name, x in exact.items():
            self.assertEqual(found[name].dtype, np.float32)
            np.testing.assert_array_equal(found[name], x.astype(dtype).astype(np.float32), name)

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
            ['transformer.wpe.weight [24, 16]', '-']])
        self.assertFalse(workdir.exists())

    def test_an_output_layer_that_is_no_copy(self):
        other = lambda weights: weights | {'lm_head.weight': 1 + weights['transformer.wte.weight']}
        self.refused('lm_head.weight is not transformer.wte.weight, but config.json says that it is',
                     f'--from_hf={self.hugging_face(weights=other)}', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(
        ({'scale_attn_by_inverse_layer_idx': True}, 'scale_attn_by_inverse_layer_idx=True, which is not supported'),
        ({'add_cross_attention': True}, 'add_cross_attention=True'), ({'n_ctx': 7, 'novel': 3}, "novel=3, which is not known"),
        ({'activation_function': 'silly'}, "activation_function='silly'.*expected one of 'gelu_new'"),
        ({'attn_pdrop': 0.5}, 'resid_pdrop=0.0 and attn_pdrop=0.5, which are one field here, model.dropout'),
        ({'architectures': ['GPT2ForSequenceClassification']}, 'names GPT2ForSequenceClassification'),
        ({'model_type': 'gtp2'}, "names the model 'gtp2'; did you mean 'gpt2'"),
        ({'model_type': 'absent'}, 'is not the config of a model'),
        ({'n_inner': 63}, 'does not fit its config.json'))
    def test_configs_that_mean_another_model(self, changes, message):
        self.refused(message, f'--from_hf={self.hugging_face(**changes)}', f'--workdir={self.folder / "run"}')
        self.assertFalse((self.folder / 'run').exists())

    def test_pickles_are_refused(self):
        folder = self.hugging_face()
        (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
        self.refused('pickle that can run any code.*save_pretrained', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')

    def test_damage(self):
        folder = self.hugging_face()
        whole = (folder / 'model.safetensors').read_bytes()
        (folder / 'model.safetensors').write_bytes(whole[:-40])
        self.refused('is no whole .safetensors file', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        (folder / 'config.json').write_text('{"model_type": ')
        self.refused('is not the config of a model', f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        self.refused('There is no .*nowhere/config.json', '--from_hf=nowhere', f'--workdir={self.folder / "run"}')

    @parameterized.parameters(
        ([], 'Give one of --from_hf'), (['--from_hf=a', '--to_hf=b', '--workdir=c'], 'Give one of --from_hf'),
        (['--to_hf=b'], 'Give --workdir=DIR'), (['--verify=a.npz', '--workdir=c'], 'go together'),
        (['--from_hf=a', '--workdir=c', '--step=3'], '--step is for a run'))
    def test_flags_that_do_not_go_together(self, arguments, message):
        self.refused(message, *arguments)

    def test_inputs_that_cannot_be(self):
        workdir, given, out = self.folder / 'run', self.folder / 'in.npz', self.folder / 'out.npz'
        self.convert(f'--from_hf={self.hugging_face()}', f'--workdir={workdir}')
        ids = np.ones((1, 3), int)
        for arrays, message in (({'inputs_id': ids}, "array 'inputs_id'; did you mean 'input_ids'"),
                                ({'input_ids': 67 * ids}, 'goes from 67 to 67'),
                                ({'attention_mask': ids}, 'expected input_ids'),
                                ({'input_ids': ids, 'decoder_input_ids': ids}, 'has no decoder of its own'),
                                ({'input_ids': ids, 'attention_mask': np.ones((1, 4))}, 'of the same shape')):
            np.savez(given, **arrays)
            self.refused(message, f'--workdir={workdir}', f'--verify={given}', f'--out={out}')
        given.write_bytes(b'no arrays')
        self.refused('is no .npz file', f'--workdir={workdir}', f'--verify={given}', f'--out={out}')
        self.assertFalse(out.exists())

    @parameterized.parameters(({'model.positions': 'Rotary()'}, 'model.positions is Rotary.*GPT2LMHeadModel cannot be'),
                              ({'model.key_heads': 1}, 'model.key_heads is 1'))
    def test_runs_that_have_no_form_there(self, changes, message):
        workdir, out = self.trained(**{'train.steps': 1, **changes}), self.folder / 'out'
        self.refused(message, f'--workdir={workdir}', f'--to_hf={out}')
        self.assertFalse(out.exists())

    def test_a_run_trained_here(self):
        workdir, out = self.trained(**{'train.steps': 1}), self.folder / 'out'
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        model, params = convert.from_hf(out)
        snapshot = convert.runs.load(workdir)
        self.assertEqual(model, snapshot.model)
        jax.tree.map(np.testing.assert_array_equal, params, snapshot.params)


if __name__ == '__main__':
    absltest.main()
