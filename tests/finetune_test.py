"""Models of Hugging Face transformers go in, are measured, trained and used, and come out again."""

import json

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file

from configs import classify
from tests import experiments, recorded
from tests.recorded import REFERENCE, convert, end_of
from training import run as runs
from training.config import cli
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Greedy


class FinetuneTest(recorded.TestCase):

    @pytest.mark.slow
    def test_a_run_of_it_predicts_is_measured_and_goes_on(self):
        workdir, mine, out = self.folder / 'run', self.folder / 'mine', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face()}', f'--workdir={workdir}')
        said = experiments.call('predict', f'--workdir={workdir}', '--tokens=3', '--strategy=Greedy()', stdin=b'5 6 7\n')
        model, params = convert.from_hf(REFERENCE / 'gpt2')
        end = end_of('gpt2')  # with which a document begins
        (best, *_), = generate(model, params, [[end, 5, 6, 7]], steps=3, strategy=Greedy(), end=end, vocab=67,
                               key=jax.random.key(0))
        self.assertEqual(said.out, '5 6 7' + ''.join(f' {i}' for i in best.tokens) + '\n')
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

    @pytest.mark.slow
    def test_a_translator_goes_on(self):
        workdir, mine, out = self.folder / 'run', self.folder / 'mine', self.folder / 'out'
        self.convert(f'--from_hf={self.hugging_face("t5")}', f'--workdir={workdir}')
        model, params = convert.from_hf(REFERENCE / 't5')
        said = experiments.call('predict', f'--workdir={workdir}', '--tokens=4', '--strategy=Greedy()', stdin=b'5 8 9\n')
        end = end_of('t5')  # with which a source ends, as in training
        (best, *_), = generate(model, params, [[0]], source=[[5, 8, 9, end]], steps=4, strategy=Greedy(), end=end, vocab=67,
                               key=jax.random.key(0))
        self.assertEqual(said.out.split(), [str(i) for i in best.tokens])
        self.text.write_text(''.join(f'{i % 50 + 2} 7 {i % 50 + 3}\t{i % 50 + 3} {i % 50 + 2}\n' for i in range(50)))
        done = experiments.call(
            'train', f'--config=configs/finetune.py:{workdir}', f'--config.data.path={self.text}', '--config.train.steps=3',
            '--config.optimizer.learning_rate=0.01', '--config.optimizer.schedule.warmup_steps=0', '--config.data.length=16',
            '--config.data.source_length=16', f'--workdir={mine}')
        self.assertEqual(done.code, 0, done.err)
        self.assertIn('translations: ', done.out)
        losses = [json.loads(experiments.call('eval', f'--workdir={run}', f'--path={self.text}').out.splitlines()[-1])['loss']
                  for run in (workdir, mine)]
        self.assertLess(losses[1], losses[0])
        self.convert(f'--workdir={mine}', f'--to_hf={out}')
        self.assertEqual(convert.from_hf(out)[0], convert.from_hf(REFERENCE / 't5')[0])

    def further(self, config, path, *fields, code=0):
        """Trains a run in self.folder / 'run' for three steps into 'mine'."""
        done = experiments.call(
            'train', f'--config=configs/{config}.py:{self.folder / "run"}', f'--config.data.path={path}',
            '--config.train.steps=3', '--config.optimizer.learning_rate=0.01', '--config.optimizer.schedule.warmup_steps=0',
            '--config.data.length=16', f'--workdir={self.folder / "mine"}', *(f'--config.{field}' for field in fields))
        self.assertEqual(done.code, code, done.err)
        return done.err if code else done.out

    def out_again(self, architecture, name, *, made=(), prefix=''):
        """What comes out is of this architecture: the weights of the recorded `name`, whose names there lack a prefix, and
        which training has changed a little, and those that were `made`."""
        out = self.folder / 'out'
        self.convert(f'--workdir={self.folder / "mine"}', f'--to_hf={out}')
        config = json.loads((out / 'config.json').read_text())
        self.assertEqual(config['architectures'], [architecture])
        changed = load_file(out / 'model.safetensors')
        first = {prefix + key: x for key, x in load_file(REFERENCE / name / 'model.safetensors').items()}
        near = {key for key, x in changed.items() if key in first and x.shape == first[key].shape
                and 0 < np.abs(x - first[key]).max() < 0.1}
        self.assertEqual(changed.keys() - near, set(made))
        self.assertEqual(convert.from_hf(out)[0], convert.runs.load(self.folder / 'mine').model)
        return config

    @pytest.mark.slow
    def test_a_pretrained_model_learns_several_tasks_as_text(self):
        pretrained, mine = self.folder / 'pretrained', self.folder / 'mine'
        self.text.write_text(experiments.lines(200))
        small = [f'--config.model.{stack}.{field}={value}' for stack in ('encoder', 'decoder')
                 for field, value in (('layers', 1), ('heads', 2), ('width', 8))]
        done = experiments.call(
            'train', '--config=configs/t5_small.py', f'--config.data.path={self.text}', f'--workdir={pretrained}', *small,
            '--config.data.documents=line', '--config.data.tokenizer=SentencePiece(vocab=300, sentinels=9)',
            '--config.train.steps=2', '--config.data.batch_size=8', '--config.mesh.data=1')
        self.assertEqual(done.code, 0, done.err)
        # another head reads the text again, and begins with the token that ends one
        self.assertEqual(cli.load_config(f'configs/classify.py:{pretrained}')[0].task.start, 1)
        for name, cells in (('sst2', 'sentence\tlabel\n'), ('rte', 'sentence1\tsentence2\tlabel\n')):
            rows = (f'key row {i}\t' + f'head {i}\t' * (name == 'rte') + f'{i % 2}\n' for i in range(40))
            (self.folder / f'{name}.tsv').write_text(cells + ''.join(rows))
        paths = [f'--config.data.parts.{name}.{field}={value}' for name in ('sst2', 'rte') for field, value in (
            ('path', self.folder / f'{name}.tsv'), ('train', 'all[:30]'), ('valid', 'all[30:]'))]
        config = [f'--config=configs/text_to_text.py:{pretrained}', *paths, f'--workdir={mine}', '--config.train.steps=2',
                  '--config.mesh.data=1', '--config.data.batch_size=8']
        done = experiments.call('train', *config)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn(f'parameters from {pretrained}', done.out)
        self.assertRegex(done.out, '2 tasks as text: rte 50.0% of 30, sst2 50.0% of 30 examples')
        row, = experiments.rows(mine, 'answers')
        names = {f'{task}_{name}' for task in ('rte', 'sst2') for name in ('exact_match', 'other', 'pairs')}
        self.assertEqual({*row} - {'step', 'split'}, names)
        done = experiments.call('eval', f'--workdir={mine}', '--split=sst2.valid', '--evaluator=answers')
        said = json.loads(done.out.splitlines()[-1])
        self.assertEqual((said['split'], said['sst2_other']), ('sst2.valid', row['sst2_other']))
        config, _ = cli.load_config(f'configs/text_to_text.py:{pretrained}')
        self.assertEqual((said['sst2_pairs'], config.evals.answers.limit), (10, 0))  # of all examples
        done = experiments.call('eval', f'--workdir={mine}', '--evaluator=answers', f'--against={mine}')
        said = json.loads(done.out.splitlines()[-1])
        self.assertEqual(said['examples'], 20)
        self.assertEqual({name: test['first'] for name, test in said['tests'].items()},
                         {name: row[name] for name in names if not name.endswith('pairs')})
        done = experiments.call('predict', f'--workdir={mine}', stdin=b'sst2 sentence: key row\n')
        self.assertEqual((done.code, len(done.out.splitlines())), (0, 1))
        done = experiments.call('train', f'--config=configs/text_to_text.py:{self.trained()}')
        self.assertIn('Gpt, which writes no texts for others', done.err)

    def test_masked_words(self):
        self.convert(f'--from_hf={self.hugging_face("roberta")}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} 7 {i % 50 + 4} 9\n' for i in range(50)))
        self.assertIn("'Ids(vocab=67, begin=0, end=2, pad=1)' states no mask of its own",
                      self.further('finetune', self.text, 'data.documents=line', code=1))
        said = self.further('finetune', self.text, 'data.documents=line',
                            'data.tokenizer=Ids(vocab=67, begin=0, end=2, pad=1, mask=66)')
        self.assertIn('  valid: loss ', said)
        self.out_again('RobertaForMaskedLM', 'roberta')

    @parameterized.parameters(('albert', 'AlbertForPreTraining'), ('electra_masked', 'ElectraForMaskedLM'))
    @pytest.mark.slow
    def test_pretraining_goes_on(self, name, architecture):
        folder = self.hugging_face(name, bos_token_id='absent', eos_token_id='absent', cls_token_id=1, sep_token_id=2,
                                   mask_token_id=66)
        self.convert(f'--from_hf={folder}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} 7 {i % 50 + 4} 9\n' for i in range(50)))
        said = self.further('finetune', self.text, 'data.documents=line')
        self.assertIn('pairs_accuracy' if name == 'albert' else '  valid: loss ', said)
        self.out_again(architecture, name)
        done = experiments.call('predict', f'--workdir={self.folder / "mine"}', stdin=b'9 66 8\n')
        self.assertRegex(done.out, r'^9 \d+ 8\n$')

    @pytest.mark.slow
    def test_a_run_trained_here_classifies(self):
        workdir, pairs = self.trained(), self.folder / 'classes.tsv'
        pairs.write_text(''.join(f'{"key" if i % 3 else "row"} mask\t{"no" if i % 3 else "yes"}\n' for i in range(30)))
        config = experiments.changed(classify.get_config(str(workdir)), **{
            'data.path': str(pairs), 'data.batch_size': 4, 'train.steps': 1, 'log.every_steps': 1, 'mesh.data': 1})
        code, said = experiments.train(config, self.folder / 'classes')
        self.assertEqual(code, 0, said)
        self.assertIn('fresh ones in classes/kernel', said)
        done = experiments.call('predict', f'--workdir={self.folder / "classes"}', stdin=b'key mask\n')
        self.assertRegex(done.out, r'^(no|yes)\t0\.\d{4}\n$')

    def electra(self):
        """Trains a small ELECTRA in self.folder / 'run'."""
        self.text.write_text(experiments.lines(80))
        small = [f'--config.model.{part}.{field}' for part in ('generator', 'discriminator')
                 for field in ('layers=1', 'width=8', 'heads=2')]
        done = experiments.call(
            'train', '--config=configs/electra.py', f'--config.data.path={self.text}', '--config.train.steps=2', *small,
            '--config.data.tokenizer=WordPiece(vocab=60)', '--config.data.length=16', '--config.model.length=16',
            '--config.model.embedding_width=4', '--config.data.batch_size=8', f'--workdir={self.folder / "run"}')
        self.assertEqual(done.code, 0, done.err)
        return self.params('run')['discriminator']

    def params(self, name):
        return jax.device_get(convert.runs.load(self.folder / name).params)

    @pytest.mark.slow
    def test_an_electra_shows_replaced_words_and_its_discriminator_classifies(self):
        there = self.electra()
        said = experiments.call('predict', f'--workdir={self.folder / "run"}', '--json', stdin=b'key mask\n\n')
        first, blank = map(json.loads, said.out.splitlines())
        self.assertEqual((''.join(one['token'] for one in first['tokens']).replace('#', ''), blank['text']), ('keymask', ''))
        self.assertBetween(first['tokens'][0]['probability'], 0, 1)
        self.text.write_text(''.join(f'{"key" if i % 3 else "row"} mask\t{"no" if i % 3 else "yes"}\n' for i in range(30)))
        said = self.further('classify', self.text, 'optimizer.rate_rules=(("(pooler|classes)/.*", 1.0), (".*", 0.0))')
        self.assertRegex(said, 'fresh ones in classes/bias, classes/kernel, pooler/bias, pooler/kernel\n')
        mine = self.params('mine')
        self.assertEqual(mine.keys() - there.keys(), {'pooler', 'classes'})
        self.assertEqual(there.keys() - mine.keys(), {'discriminator', 'replaced'})  # its head
        for name in mine.keys() & there.keys():
            jax.tree.map(np.testing.assert_array_equal, mine[name], there[name])
        out = self.folder / 'out'
        self.convert(f'--workdir={self.folder / "mine"}', f'--to_hf={out}')
        self.assertEqual(json.loads((out / 'config.json').read_text())['architectures'], ['ElectraForSequenceClassification'])

    @parameterized.parameters('tag', 'finetune')
    @pytest.mark.slow
    def test_an_electra_goes_on(self, config):
        there = self.electra()
        if config == 'tag':
            self.text.write_text(''.join(f'key {"B-x" if i % 2 else "O"}\nmask O\n\n' for i in range(30)))
        self.further(config, self.text)
        mine = self.params('mine')
        self.assertEqual('generator' in mine, config == 'finetune')
        table = (mine if config == 'tag' else mine['discriminator'])['tokens']['embedding']
        self.assertEqual(table.shape, there['tokens']['embedding'].shape)
        self.assertLess(np.abs(table - there['tokens']['embedding']).max(), 0.05)  # of which three steps have moved it

    @parameterized.parameters('classify', 'tag')
    @pytest.mark.slow
    def test_a_translator_trained_here_reads_texts(self, config):
        workdir, examples = self.translator(), self.folder / 'examples'
        examples.write_text(''.join(f'{"key" if i % 3 else "row"}\t{"O" if i % 3 else "B-it"}\n\n' if config == 'tag' else
                                    f'{"key" if i % 3 else "row"} mask\t{"no" if i % 3 else "yes"}\n' for i in range(60)))
        done = experiments.call(
            'train', f'--config=configs/{config}.py:{workdir}', f'--config.data.path={examples}', '--config.train.steps=40',
            '--config.optimizer.learning_rate=0.01', f'--workdir={self.folder / "mine"}')
        self.assertEqual(done.code, 0, done.err)
        start = json.loads((self.folder / 'mine' / 'config.json').read_text())['task']['start']
        self.assertEqual(start, runs.load(workdir).data.start)
        self.assertEqual(experiments.rows(self.folder / 'mine', 'valid')[-1]['accuracy'], 1.0)

    @pytest.mark.slow
    def test_a_language_model_classifies(self):
        self.convert(f'--from_hf={self.hugging_face("gpt2")}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} 7\t{"no" if i % 3 else "yes"}\n' for i in range(50)))
        said = self.further('classify', self.text)
        self.assertIn('fresh ones in classes/kernel\n', said)
        self.assertIn('  valid: loss ', said)
        config = self.out_again('GPT2ForSequenceClassification', 'gpt2', made=['score.weight'])
        self.assertEqual(config['id2label'], {'0': 'no', '1': 'yes'})
        self.assertEqual(config['pad_token_id'], end_of('gpt2'))  # or transformers takes no more than one text

    @parameterized.parameters(
        ('bart', 'BartForSequenceClassification', 'classification_head.dense classification_head.out_proj', ''),
        ('t5_gated', 'T5ForSequenceClassification', 'classification_head.dense classification_head.out_proj', 'transformer.'),
        ('roberta', 'RobertaForSequenceClassification', 'classifier.dense classifier.out_proj', ''))
    @pytest.mark.slow
    def test_classes_of_other_families(self, name, architecture, layers, prefix):
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} 7\t{"no" if i % 3 else "yes"}\n' for i in range(50)))
        self.further('classify', self.text)
        made = [f'{layer}.{part}' for layer in layers.split() for part in ('weight', 'bias')]
        config = self.out_again(architecture, name, made=made, prefix=prefix)
        there = json.loads((REFERENCE / name / 'config.json').read_text())
        self.assertEqual(config.get('decoder_start_token_id'), there.get('decoder_start_token_id'))

    @parameterized.parameters(('label', 'DistilBert'), ('rate', 'Albert'))
    @pytest.mark.slow
    def test_labels_and_numbers(self, config, family):
        cells, said, problem, names = {
            'label': (('5,6', '', '6'), 'labels: f1 [0-9.]+%  precision', 'multi_label_classification', ['5', '6']),
            'rate': (('0.5', '2', '-1'), 'correlation: pearson [-0-9.]+  spearman', 'regression', ['LABEL_0'])}[config]
        layers = {'Electra': ('classifier.dense', 'classifier.out_proj'), 'DistilBert': ('pre_classifier', 'classifier')}
        self.convert(f'--from_hf={self.hugging_face(f"{family.lower()}_model")}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} 7\t{cells[i % 3]}\n' for i in range(60)))
        self.assertRegex(self.further(config, self.text), said)
        told = self.out_again(f'{family}ForSequenceClassification', f'{family.lower()}_model', prefix=f'{family.lower()}.',
                              made=[f'{layer}.{part}' for layer in layers.get(family, ('classifier',))
                                    for part in ('weight', 'bias')])
        self.assertEqual((told['problem_type'], [*told['id2label'].values()]), (problem, names))
        lines = [json.loads(line) for line in experiments.call(
            'predict', f'--workdir={self.folder / "mine"}', '--json', stdin=b'3 7\n9\n').out.splitlines()]
        answers = [line['labels'] if config == 'label' else [line['number']] for line in lines]
        self.assertEqual([len(answers), *map(type, answers)], [2, list, list])
        snapshot = convert.runs.load(self.folder / 'mine')
        ids, kinds = snapshot.data.read_text('3 7')
        kinds = {'types': kinds[None]} if snapshot.model.types else {}
        logits = snapshot.apply(inputs=ids[None], **kinds)['logits'][0]
        wanted = [name for name, x in zip(names, logits) if x > 0] if config == 'label' else [float(logits[0])]
        if config == 'label':
            self.assertEqual(answers[0], wanted)
        else:
            self.assertAlmostEqual(answers[0][0], wanted[0], places=5)

    @pytest.mark.slow
    def test_preferences(self):
        """The text with a 9 is the better one, which ten steps teach; a reward goes out as a regression."""
        self.convert(f'--from_hf={self.hugging_face("bert_model")}', f'--workdir={self.folder / "run"}')
        pairs = ''.join(f'{{"prompt": "{i % 50 + 3} 7", "chosen": "9 {i % 40 + 10}", "rejected": "8 {i % 40 + 10}"}}\n'
                        for i in range(60))
        path = self.folder / 'choices.jsonl'
        path.write_text(pairs)
        said = self.further('prefer', path, 'train.steps=10')
        self.assertRegex(said, r"prompt from 'prompt', chosen from 'chosen', rejected from 'rejected'; 54 pairs to train on")
        scored = experiments.call('eval', f'--workdir={self.folder / "mine"}', f'--path={path}')
        self.assertEqual(json.loads(scored.out.splitlines()[-1])['accuracy'], 1, scored)
        heads = experiments.call('eval', f'--workdir={self.folder / "mine"}', f'--heads={self.folder / "heads.png"}')
        self.assertEqual(heads.code, 0, heads.err)
        told = self.out_again('BertForSequenceClassification', 'bert_model', prefix='bert.',
                              made=['classifier.weight', 'classifier.bias'])
        self.assertEqual((told['problem_type'], [*told['id2label'].values()]), ('regression', ['LABEL_0']))
        rated = experiments.call('predict', f'--workdir={self.folder / "mine"}', '--json', stdin=b'3 7\t9 11\n3 7\t8 11\n')
        better, worse = (json.loads(line)['number'] for line in rated.out.splitlines())
        self.assertGreater(better, worse)

    @pytest.mark.slow
    def test_a_classifier_goes_on_with_its_classes(self):
        """In its order, and with those that the new texts lack."""
        said = self.convert(f'--from_hf={self.hugging_face("bert_classes")}', f'--workdir={self.folder / "run"}')
        self.assertIn('configs/finetune.py', said)
        self.text.write_text(''.join(f'{i % 50 + 3} 7\t9\t{"no" if i % 3 else "both"}\n' for i in range(50)))
        self.further('finetune', self.text)
        config = self.out_again('BertForSequenceClassification', 'bert_classes')
        self.assertEqual(config['id2label'], {'0': 'no', '1': 'yes', '2': 'both'})

    @parameterized.parameters(
        ('bert', 'TokenClasses()'), ('roberta', 'TokenClasses()'), ('albert', 'TokenClasses(dropout=0.1)'),
        ('electra', 'TokenClasses()'), ('distilbert', 'TokenClasses()', 'Span(dropout=0.1)'),
        ('t5_encoder', 'TokenClasses(dropout=0.0)'))
    def test_heads_for_tags_and_answers_have_the_dropout_of_their_family(self, name, tags, span='Span()'):
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={self.folder / "run"}')
        for config, head in (('tag', tags), ('answer', span)):
            self.assertEqual(cli.load_config(f'configs/{config}.py:{self.folder / "run"}')[0].model.head, head)

    @parameterized.parameters('Albert', 'Electra')
    @pytest.mark.slow
    def test_a_model_without_a_head_tags(self, family):
        name = f'{family.lower()}_model'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={self.folder / "run"}')
        self.assertIn('is a model that has nothing to learn by itself', self.further('finetune', self.text, code=1))
        self.text.write_text(''.join(f'{i % 50 + 3} O\n7 B-x\n{"8 I-x" if i % 2 else "9 O"}\n\n' for i in range(50)))
        rate = ['model.head=TokenClasses(dropout=0.0)'] * (family == 'Albert')  # it states the rate always
        said = self.further('tag', self.text, *rate)
        self.assertRegex(said, 'entities: f1 [0-9.]+%  precision')
        config = self.out_again(f'{family}ForTokenClassification', name, prefix=f'{family.lower()}.',
                                made=['classifier.weight', 'classifier.bias'])
        self.assertEqual(config['id2label'], {'0': 'O', '1': 'B-x', '2': 'I-x'})

    @pytest.mark.slow
    def test_parts_of_speech(self):
        self.convert(f'--from_hf={self.hugging_face("bert")}', f'--workdir={self.folder / "run"}')
        self.text.write_text(''.join(f'{i % 50 + 3} NOUN\n7 VERB\n\n' for i in range(50)))
        said = self.further('tag', self.text)
        self.assertNotIn('entities', said)  # they name no spans
        config = self.out_again('BertForTokenClassification', 'bert', made=['classifier.weight', 'classifier.bias'])
        self.assertEqual(config['id2label'], {'0': 'NOUN', '1': 'VERB'})

    @parameterized.parameters('Bart', 'Albert')
    @pytest.mark.slow
    def test_answers(self, family):
        self.convert(f'--from_hf={self.hugging_face(family.lower())}', f'--workdir={self.folder / "run"}')
        asked = lambda i: {'id': str(i), 'question': f'{i % 20 + 5}', 'answers': [{'text': '9', 'answer_start': 2}]}
        passage = {'context': '8 9 10 11', 'qas': [asked(i) for i in range(20)]}
        self.text.write_text(json.dumps({'data': [{'title': '', 'paragraphs': [passage]}]}))
        said = self.further('answer', self.text, 'data.stride=4', 'data.question_length=4')
        self.assertRegex(said, 'answers: exact_match [0-9.]+%  f1')
        self.out_again(f'{family}ForQuestionAnswering', family.lower(), made=['qa_outputs.weight', 'qa_outputs.bias'])

    @pytest.mark.slow
    def test_images(self):
        from PIL import Image

        said = self.convert(f'--from_hf={self.hugging_face("vit")}', f'--workdir={self.folder / "run"}')
        self.assertIn('configs/classify.py', said)
        self.assertIn('is a run on images, and your images have other classes', self.further('finetune', 'images', code=1))
        for number in range(40):
            path = self.folder / 'images' / 'abc'[number % 3] / f'{number}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new('RGB', (12, 12), (number, 255 * (number % 3 == 1), 7)).save(path)
        done = experiments.call(
            'train', f'--config=configs/classify.py:{self.folder / "run"}', f'--config.data.path={self.folder / "images"}',
            '--config.train.steps=3', '--config.optimizer.learning_rate=0.01', '--config.optimizer.schedule.warmup_steps=0',
            '--config.data.batch_size=8', f'--workdir={self.folder / "mine"}')
        self.assertEqual(done.code, 0, done.err)
        config = self.out_again('ViTForImageClassification', 'vit', made=['classifier.weight', 'classifier.bias'])
        self.assertEqual((config['id2label'], config['image_size']), ({'0': 'a', '1': 'b', '2': 'c'}, 12))
        prepared = json.loads((self.folder / 'out' / 'preprocessor_config.json').read_text())
        self.assertEqual((prepared['size'], prepared['image_mean']), ({'height': 12, 'width': 12}, [0.5] * 3))
        for damaged in '{"classes": ["a"', '[]', '{"classes": []}':
            (self.folder / 'mine' / 'classes.json').write_text(damaged)
            with self.assertRaisesRegex(ValueError, 'classes.json does not describe classes of images; restore it, or'):
                classify.channels_of(self.folder / 'mine')

    @pytest.mark.slow
    def test_what_cannot_be_given_a_head(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        code, out = experiments.train(experiments.tiny_stories(self.folder, **{'train.steps': 1}), self.folder / 'run')
        self.assertEqual(code, 0, out)
        self.assertIn('is a run of transformer.models.memory_network:MemoryNetwork, for which configs/tag.py has no head; it '
                      'has one for transformer.models.bert:Bert, transformer.models.gpt:Gpt',
                      self.further('tag', self.text, code=1))


if __name__ == '__main__':
    absltest.main()
