"""eval.py: the numbers are those of a computation by hand, whatever the batches, and the workdir stays as it is."""

import contextlib
import io
import json
import math
import shutil
import types

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import base
from tests import experiments, recorded
from tests.transformer.explain import page_test


class TextTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.workdir = self.trained()

    def evaluate(self, *arguments, workdir=None):
        done = experiments.call('eval', f'--workdir={workdir or self.workdir}', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return json.loads(done.out.splitlines()[-1])

    def test_changed_data_is_said(self):
        self.text.write_text(self.text.read_text() + 'one more\n')
        done = experiments.call('eval', f'--workdir={self.workdir}')
        self.assertEqual(done.code, 0)
        self.assertEqual(done.err, 'eval.py: the data of valid has changed since the run began, or is read differently by '
                         'this version; the current data was measured.\n')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['split'], 'valid')
        self.evaluate('--split=test')  # was never measured, so nothing is known of it

    def test_what_is_measured_is_said_though_nothing_is_known_of_the_data(self):
        (self.workdir / 'environment.json').unlink()
        done = experiments.call('eval', f'--workdir={self.workdir}')
        self.assertEqual(done.code, 0)
        self.assertEqual(done.err, f'eval.py: whether the data changed since the run began cannot be told: {self.workdir}/'
                         'environment.json is not the environment of a run.\n')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['split'], 'valid')

    def test_what_is_known_of_the_data_is_said_though_nothing_is_of_the_companions(self):
        (self.workdir / 'environment.json').write_text('{"data": {"valid": "another"}}')
        companions = types.SimpleNamespace(digests=lambda: {'teacher': 'one'}, were_read=True)
        companions.present = companions
        snapshot = types.SimpleNamespace(run=types.SimpleNamespace(companions=companions),
                                         data=types.SimpleNamespace(digest=lambda part: 'one'))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            experiments.script('eval').say_changes(self.workdir, snapshot, 'valid')
        first, second = said.getvalue().splitlines()
        self.assertRegex(first, 'the data of valid has changed since')
        self.assertRegex(second, 'whether the companions changed since the run began cannot be told: ')

    def with_config(self, name, **changes):
        """A copy of the workdir with another config.json."""
        copy = self.folder / name
        shutil.copytree(self.workdir, copy)
        config = json.loads((copy / 'config.json').read_text())
        for field, value in changes.items():
            *parents, last = field.split('.')
            node = config
            for parent in parents:
                node = node[parent]
            node[last] = value
        (copy / 'config.json').write_text(json.dumps(config))
        return copy

    def by_hand(self, documents, context, stride):
        """(sum of -log p, tokens) over the windows of every document, one at a time and unpacked."""
        from training import run as runs

        snapshot = runs.load(self.workdir)
        total, count = 0.0, 0
        for text in documents:
            ids = np.array([snapshot.data.end, *snapshot.data.encode(text), snapshot.data.end])
            scored = 0
            for start in range(0, len(ids) - 1, stride):
                inputs, targets = ids[start:start + context][:len(ids) - 1 - start], ids[start + 1:start + context + 1]
                padded = np.zeros(context, np.int32)
                padded[:len(inputs)] = inputs
                logits = np.asarray(snapshot.apply(inputs=padded[None])['logits'][0], np.float64)
                losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(context), np.resize(targets, context)]
                total += losses[scored - start:len(inputs)].sum()
                count += len(inputs) - (scored - start)
                scored = start + len(inputs)
                if scored == len(ids) - 1:
                    break
        return total, count

    def documents(self):
        return self.text.read_text().splitlines()[72:76]  # 90 % to 95 % of 80 lines

    def test_perplexity_counts_every_token_once(self):
        row = self.evaluate()
        total, count = self.by_hand(self.documents(), 16, 16)
        self.assertEqual(row['weight'], count)
        self.assertEqual(count, sum(len(line) + 1 for line in self.documents()))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)
        self.assertAlmostEqual(row['perplexity'], math.exp(total / count), delta=1e-3)
        self.assertAlmostEqual(row['bits_per_byte'], total / math.log(2) / len('\n'.join(self.documents()) + '\n'), delta=1e-4)
        self.assertEqual((row['split'], row['step'], row['context'], row['stride']), ('valid', 7, 16, 16))
        self.assertEqual(row['loss'], experiments.rows(self.workdir, 'valid')[-1]['loss'])

    def test_stride_gives_more_context_to_the_same_tokens(self):
        row = self.evaluate(workdir=self.with_config('strided', **{'evals.valid.stride': 4, 'evals.valid.context': 12}))
        total, count = self.by_hand(self.documents(), 12, 4)
        self.assertEqual((row['context'], row['stride'], row['weight']), (12, 4, count))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)

    def test_path_scores_files(self):
        files = [self.folder / 'a.txt', self.folder / 'b.txt']
        files[0].write_text('key query\nvalue mask head block norm token\n')
        files[1].write_text('row batch')
        row = self.evaluate(*(f'--path={file}' for file in files))
        total, count = self.by_hand('key query\nvalue mask head block norm token\nrow batch'.splitlines(), 16, 16)
        self.assertEqual((row['split'], row['weight']), (' '.join(map(str, files)), count))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)

    def test_splits_and_steps(self):
        documents = self.text.read_text().splitlines()
        for split, part in (('test', documents[76:]), ('train[:5%]', documents[:3]), ('valid[1:]', documents[73:76]),
                            ('all[:5%]', documents[:4]), ('all', documents)):
            row = self.evaluate(f'--split={split}')
            self.assertEqual((row['split'], row['weight']), (split, sum(len(line) + 1 for line in part)))
        steps = [self.evaluate(f'--step={step}') for step in ('3', '6', 'last')]
        self.assertEqual([row['step'] for row in steps], [3, 6, 7])
        self.assertLen({row['loss'] for row in steps}, 3)

    def test_writes_nothing_and_needs_no_training_text(self):
        def state():
            return {path: path.stat().st_mtime_ns for path in self.workdir.rglob('*')}
        before = state()
        self.evaluate()
        self.assertEqual(state(), before)
        (self.folder / 'new.txt').write_text('key query\n')
        self.text.unlink()
        self.evaluate(f'--path={self.folder / "new.txt"}')
        self.assertEqual(state(), before)

    def test_errors_in_files_advise_no_fields_of_the_config(self):
        """They have no flags in eval.py."""
        like = 'give --path files like those that this run was trained on.'
        fields = {'train': 'all', 'path': '', 'columns': '', 'label': '', 'encoding': 'utf-8', 'languages': 'fr,en'}
        for said, wanted in (
                ("a.csv:2 has the class 'BAD'; correct it if it is mistyped, take the line out, or widen data.train.",
                 "a.csv:2 has the class 'BAD'; correct it if it is mistyped, take the line out."),
                ('a.txt:1 has 1 column; correct the line, or name the columns with data.columns and data.label.',
                 'a.txt:1 has 1 column; correct the line.'),
                ('a.txt is not UTF-8: byte 2; set data.encoding to what it is, such as utf-16 or cp1252, or convert it.',
                 'a.txt is not UTF-8: byte 2; convert it.'),
                ('a.txt looks like UTF-16-LE; set data.encoding=utf-16-le.', f'a.txt looks like UTF-16-LE; {like}'),
                ("data.languages='fr,en' name no columns of a.tsv; set data.columns.",
                 f"data.languages='fr,en' name no columns of a.tsv; {like}"),
                ("'a' does not exist; data.path must be a file.", "'a' does not exist; --path must be a file."),
                ('a is a PNG image; set data.path to files of text.', 'a is a PNG image; give --path files of text.'),
                ('data.label is in no column.', f'data.label is in no column; {like}'),
                ('data.csv:3 has 2 columns; correct it, or data.txt.', 'data.csv:3 has 2 columns; correct it, or data.txt.')):
            def score(*_, said=said):
                raise ValueError(said)

            snapshot = types.SimpleNamespace(data=types.SimpleNamespace(score=score), run=types.SimpleNamespace(
                eval_rows=1, config=types.SimpleNamespace(data=fields)))
            with self.assertRaises(ValueError) as raised:
                experiments.script('eval').scored(snapshot, ['a'], {})
            self.assertEqual(str(raised.exception), wanted)

    def test_what_is_to_be_scored_must_be_clear(self):
        samples = {'evaluator': 'transformer.evaluators.language_model:Continuations', 'split': 'valid', 'every_steps': 0,
                   'prompt': 'key',
                   'count': 1, 'tokens': 1, 'strategy': 'Greedy()'}
        workdir = self.with_config('sampled', **{'evals.samples': samples})
        for arguments, sentence in (
                (['--split=valid', f'--path={self.text}'], '--split and --path were both given; give --split for data of the '
                 'run, or --path for files.'),
                (['--split='], "--split is empty; give valid, test, train or an expression such as 'train[:1%]'."),
                (['--attention=/proc/x.png', '--input=key'], 'The folder /proc cannot be written to (No such file or '
                 'directory); give x.png another place.'),
                ([f'--path={experiments.ROOT}/docs/complexity.png'], f'{experiments.ROOT}/docs/complexity.png is a PNG image, '
                 'not text; give --path files of text (configs/vit_digits.py trains on images).'),
                (['--path='], '--path is empty; give it the path of a file to score, or leave it out.'),
                (['--split=samples'], "The evaluator 'samples' measures no loss; those of this run that measure one: valid.")):
            with self.subTest(arguments=arguments):
                done = experiments.call('eval', f'--workdir={workdir}', *arguments)
                self.assertEqual((done.code, done.out, done.err), (1, '', f'eval.py: {sentence}\n'))


class HeadsTest(experiments.TestCase):
    """--attention and --heads of a GPT of two layers of two heads."""

    def trained(self, **changes):
        return super().trained(**{'model.layers': 2, 'train.steps': 2} | changes)

    def call(self, workdir, *arguments):
        done = experiments.call('eval', f'--workdir={workdir}', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return experiments.said(done)

    def kinds(self, workdir, given):
        """[(title, queries, keys, number of layers)] of the kinds of attention of a page."""
        page = self.folder / 'page.html'
        self.call(workdir, f'--attention={page}', f'--input={given}')
        return [(one['title'], one['queries'], one['keys'], len(one['layers'])) for one in
                page_test.data_of(page.read_text())['kinds']]

    def test_attention_to_a_text(self):
        workdir, text = experiments.TestCase.trained(self), 'key row'
        before = {path: path.stat().st_mtime_ns for path in workdir.rglob('*')}
        out = self.folder / 'out.svg'
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={out}', f'--input={text}')
        self.assertEqual((done.code, done.err), (0, ''))
        self.assertEqual(done.out, f"{out}: 1 layer of 2 heads on 'key row', step 7\n")
        self.assertGreater(out.stat().st_size, 1000)
        row = json.loads((self.folder / 'out.json').read_text())
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in workdir.rglob('*')})
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ['out.json', 'out.svg', 'run', 'text.txt'])
        self.assertEqual(row['tokens'], ['<end>', *text])
        self.assertEqual([(one['layer'], one['heads']) for one in row['layers']], [('block_0', [0, 1])])
        wanted = sum(math.log(n) for n in range(1, 9)) / 8
        for one in row['layers']:
            self.assertAlmostEqual(one['highest_entropy'], wanted)
            self.assertTrue(all(0 < value <= wanted + 1e-6 for value in one['entropy']))
        self.assertAlmostEqual(sum(row['rollout']), 1.0)
        self.assertLen(row['rollout'], 8)
        self.assertGreater(min(row['rollout']), 0.0)  # the last token sees all, no other does
        plain = out.read_text().count('<image')
        self.assertEqual(self.call(workdir, f'--attention={out}', f'--input={text}', '--steps'), row)
        self.assertEqual(out.read_text().count('<image'), plain + 2 * 2 + 1)  # scores and mask of two heads, a colour bar
        for file in (out, out.with_suffix('.json')):
            file.unlink()
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={out.with_suffix(".html")}', f'--input={text}')
        self.assertEqual((done.code, done.out), (0, f"{self.folder}/out.html: 1 layer of 2 heads on 'key row', step 7\n"))
        self.assertEqual(json.loads((self.folder / 'out.json').read_text())['layers'], row['layers'])
        kind, = page_test.data_of(out.with_suffix('.html').read_text())['kinds']
        self.assertEqual(kind['queries'], ['<end>', *text.replace(' ', '␣')])
        self.assertEqual([layer['label'] for layer in kind['layers']], ['layer 0', 'rollout'])
        self.assertEqual(kind['layers'][0]['entropy'], row['layers'][0]['entropy'])
        for flags in ([f'--attention={workdir}/config.html', '--input=key'], [f'--heads={workdir}/environment.png']):
            done = experiments.call('eval', f'--workdir={workdir}', *flags)
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertRegex(done.err, r'has its numbers in (config|environment).json, which is there and holds something else')
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in workdir.rglob('*')})

    @pytest.mark.slow
    def test_attention_in_another_format(self):
        out = self.folder / 'out.pdf'
        self.call(self.trained(), f'--attention={out}', '--input=key row')
        self.assertStartsWith(out.read_bytes(), b'%PDF')

    @pytest.mark.slow
    def test_attention_between_a_source_and_what_is_made_of_it(self):
        workdir, picture = self.translator(), self.folder / 'pairs.png'
        row = self.call(workdir, f'--attention={picture}', '--input=key  mask head')
        self.assertEqual(row['source'], ['key', 'mask', 'head', '<eos>'])
        self.assertEqual(row['output'], [*row['text'].split(), '<eos>'])
        names = ['encoder/block_0', 'decoder/block_0', 'decoder/block_0/cross_attention']
        self.assertCountEqual([one['layer'] for one in row['layers']], names)
        cross, = (one for one in row['layers'] if one['layer'] == names[2])
        self.assertAlmostEqual(cross['highest_entropy'], math.log(4), places=5)
        np.testing.assert_allclose(np.sum(row['alignment'], 1), 1.0, atol=1e-4)
        self.assertEqual(np.shape(row['alignment']), (len(row['output']), 4))
        self.assertEqual(self.call(workdir, f'--attention={picture}', '--input=key  mask head', '--steps'), row)
        self.assertEqual(self.kinds(workdir, 'key  mask head'), [
            ('alignment of the output with the source', row['output'], row['source'], 1),
            ('self-attention of the source', row['source'], row['source'], 2),
            ('self-attention of the output so far', ['<eos>', *row['output'][:-1]], ['<eos>', *row['output'][:-1]], 2),
            ('cross attention: from the output so far to the source', ['<eos>', *row['output'][:-1]], row['source'], 1)])
        self.assertTrue(picture.read_bytes().startswith(b'\x89PNG'))
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', f'--input={self.text}')
        self.assertEqual(done.code, 1)
        self.assertIn('give the text itself', done.err)

    @pytest.mark.slow
    def test_attention_of_a_recurrent_model_whose_output_is_cut(self):
        workdir, picture = self.folder / 'run', self.folder / 'cut.png'
        self.text.write_text(experiments.pairs(80))
        model = base.part('transformer.models.bahdanau:RecurrentEncoderDecoder', source_length=6, length=4, layers=1, width=8)
        config = experiments.tiny_pairs(self.text, **{'train.steps': 1, 'log.every_steps': 1, 'data.source_length': 6,
                                                      'data.length': 4, 'data.long': 'truncate', 'data.packing': 'none',
                                                      'optimizer.learning_rate': 1e-6, 'seed': 1})
        with config.unlocked():
            config.model = model
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        row = self.call(workdir, f'--attention={picture}', '--input=key mask head')
        self.assertLen(row['output'], 4)  # the start and three of these are what the model reads at most
        self.assertNotIn('<eos>', row['output'])
        self.assertEqual(np.shape(row['alignment']), (4, 4))
        self.assertEqual([(keys, layers) for _, _, keys, layers in self.kinds(workdir, 'key mask head')],
                         [(['key', 'mask', 'head', '<eos>'], 1)] * 2)
        self.assertTrue(picture.read_bytes().startswith(b'\x89PNG'))
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', '--input=key mask head', '--steps')
        self.assertEqual(done.code, 1)
        self.assertEqual(done.err, 'eval.py: --steps draws the scores of which the weights are a softmax, but the attention of '
                         'this RecurrentEncoderDecoder has none; leave it out.\n')
        done = experiments.call('predict', f'--workdir={workdir}', '--strategy=Greedy()', '--json', stdin=b'key mask head\n')
        found = json.loads(done.out)
        self.assertEqual((len(found['ids']), found['finished'], found['text'].split()), (4, False, row['text'].split()))
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', '--input=key mask head key mask head')
        self.assertEqual((done.code, done.err), (1, 'eval.py: --input has 7 tokens with its end, but this model takes 6; '
                                                 'shorten it.\n'))

    @pytest.mark.slow
    def test_attention_of_the_shifting_task(self):
        workdir, picture = self.folder / 'run', self.folder / 'shift.png'
        config = experiments.tiny_pairs(self.text, **{'train.steps': 1, 'log.every_steps': 1})
        with config.unlocked():
            config.data = base.data('data.text.shift:Shift', path=str(self.text), tokenizer='Word()', length=8, batch_size=8)
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        row = self.call(workdir, f'--attention={picture}', '--input=key mask head')
        self.assertEqual((row['source'], row['output']), (['key', 'mask', 'head'], ['mask', 'head', '?']))
        self.assertEqual(np.shape(row['alignment']), (3, 3))
        self.assertTrue(picture.read_bytes().startswith(b'\x89PNG'))
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'key\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertIn('copies the words of a text, so predict.py has nothing to predict', done.err)

    @pytest.mark.slow
    def test_an_evaluator_of_the_run_measures_any_split(self):
        workdir = self.folder / 'run'
        self.text.write_text(experiments.pairs(80))
        scores = base.evaluation('transformer.evaluators.translations:Translations', split='valid', limit=3, shown=1)
        config = experiments.tiny_pairs(self.text, **{  # that of `valid` is another part
            'train.steps': 2, 'log.every_steps': 2, 'evals.scores': scores, 'evals.valid.split': 'train[:4]'})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        row = self.call(workdir, '--evaluator=scores')
        written = experiments.rows(workdir, 'scores')[-1]
        self.assertEqual((row['split'], row['pairs'], row['chrf']), ('valid', 3, written['chrf']))
        done = experiments.call('eval', f'--workdir={workdir}', '--evaluator=scores', '--split=train[:2]')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['pairs'], 2)
        self.assertIn('\nBLEU nrefs:1|', done.out)
        done = experiments.call('eval', f'--workdir={workdir}', '--evaluator=score')
        self.assertEqual((done.code, done.err), (1, "eval.py: This run has no evaluator 'score'; did you mean 'scores' (known: "
                                                 'scores, valid)?\n'))

    def test_how_alike_positions_are(self):
        workdir = experiments.TestCase.trained(self)
        row = self.call(workdir, f'--positions={self.folder / "alike.png"}')
        self.assertGreater((self.folder / 'alike.png').stat().st_size, 1000)
        alike = np.array(row['similarity'])
        self.assertEqual(alike.shape, (row['positions'],) * 2)
        np.testing.assert_allclose(np.diag(alike), 1.0)
        np.testing.assert_allclose(alike, alike.T)

    @pytest.mark.slow
    def test_which_heads_matter_and_a_run_without_the_others(self):
        workdir, new, out = self.trained(), self.folder / 'pruned', self.folder / 'heads.png'
        row = self.call(workdir, f'--heads={out}', '--keep=1', f'--pruned={new}')
        self.assertGreater(out.stat().st_size, 1000)
        self.assertCountEqual(row['order'], [[0, 0], [0, 1], [1, 0], [1, 1]])
        self.assertEqual([point['heads'] for point in row['curve']], [4, 3, 2, 1, 0])
        losses = {point['heads']: point['loss'] for point in row['curve']}
        self.assertAlmostEqual(losses[4], self.call(workdir)['loss'], delta=1e-6)
        layer, head = row['order'][-1]
        self.assertEqual(row['kept'], [[head] if i == layer else [] for i in range(2)])

        pruned = self.call(new)
        self.assertEqual(pruned['step'], 0)
        self.assertAlmostEqual(pruned['loss'], losses[1], delta=1e-6)
        self.assert_gives_the_same(workdir, new, row['kept'])
        self.assertIn('key', experiments.call('predict', f'--workdir={new}', '--tokens=2', stdin=b'key\n').out)
        self.assertEqual([one['heads'] for one in self.call(new, f'--attention={out}', '--input=key')['layers']], row['kept'])
        self.assertEqual([point['heads'] for point in self.call(new, f'--heads={out}')['curve']], [1, 0])

    def assert_gives_the_same(self, whole, pruned, kept):
        """The pruned run gives the outputs of the whole one under a head mask, from smaller matrices."""
        import jax

        from training import run as runs

        whole, pruned = runs.load(whole), runs.load(pruned)
        mask = np.array([[float(head in row) for head in range(2)] for row in kept], np.float32)
        tokens = np.random.default_rng(0).integers(whole.data.facts['vocab'], size=(3, 16))
        wanted = whole.apply(inputs=tokens, head_mask={'attention': mask})['logits']
        np.testing.assert_allclose(pruned.apply(inputs=tokens)['logits'], wanted, atol=1e-5)
        size = lambda snapshot: sum(x.size for x in jax.tree.leaves(snapshot.params))
        head = 3 * (8 * 4 + 4) + 4 * 8  # queries, keys and values with their biases, and the output
        self.assertEqual(size(whole) - size(pruned), 3 * head)

    @pytest.mark.slow
    def test_a_pruned_run_goes_on_and_begins_others(self):
        workdir, new = self.trained(), self.folder / 'pruned'
        row = self.call(workdir, f'--heads={self.folder / "heads.svg"}', '--keep=3', f'--pruned={new}')
        kept = tuple(map(tuple, row['kept']))
        changes = {'model.layers': 2, 'train.steps': 2, 'model.kept': kept}
        code, out = experiments.train(experiments.tiny(self.text, **changes), new)
        self.assertEqual(code, 0)
        self.assertIn('resumed from step 0', out)
        self.assertEqual(experiments.steps(new), [0, 2])
        code, out = experiments.train(experiments.tiny(self.text, **changes, init_from=str(new)), self.folder / 'other')
        self.assertEqual(code, 0)
        self.assertIn(f'parameters from {new}', out)

    @pytest.mark.slow
    def test_scanned_layers_of_different_numbers_of_heads_are_unrolled(self):
        workdir, new = self.trained(**{'model.scan': True}), self.folder / 'pruned'
        self.call(workdir, f'--heads={self.folder / "heads.png"}', '--keep=3', f'--pruned={new}')
        self.assertFalse(json.loads((new / 'config.json').read_text())['model']['scan'])
        self.call(new)


class ReadingTest(recorded.TestCase):
    """Models that read texts whole."""

    def call(self, workdir, *arguments):
        done = experiments.call('eval', f'--workdir={workdir}', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return experiments.said(done)

    @pytest.mark.slow
    def test_attention_heads_and_positions_of_a_bert(self):
        import jax

        from training import run as runs

        workdir, new, out = self.reader('masked'), self.folder / 'pruned', self.folder / 'out.png'
        row = self.call(workdir, f'--attention={out}', '--input=key [MASK]\trow')
        self.assertEqual(row['tokens'], ['[CLS]', 'key', '[MASK]', '[SEP]', 'row', '[SEP]'])
        self.assertTrue(out.read_bytes().startswith(b'\x89PNG'))
        found = runs.load(workdir, data=1).captured('attention', inputs=np.array([[2, 5, 4, 3, 13, 3]]),
                                                    types=np.array([[0, 0, 0, 0, 1, 1]]))
        weights = np.float64(jax.tree.leaves(found)[0][0])  # [N, T, T]
        np.testing.assert_allclose(row['layers'][0]['entropy'], -(weights * np.log(weights)).sum(-1).mean(-1), atol=1e-4)
        np.testing.assert_allclose(row['rollout'], (weights.mean(0)[0] + np.eye(6)[0]) / 2, atol=1e-4)  # to [CLS]
        for given, sentence in ((str(self.text), 'give the text itself'), ('key ' * 15, 'has 17 tokens with the special ones')):
            done = experiments.call('eval', f'--workdir={workdir}', f'--attention={out}', f'--input={given}')
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertIn(sentence, done.err)
        self.assertEqual(self.call(workdir, f'--positions={out}')['positions'], 16)
        losses = {point['heads']: point['loss'] for point in
                  self.call(workdir, f'--heads={out}', '--keep=1', f'--pruned={new}')['curve']}
        self.assertAlmostEqual(losses[2], self.call(workdir)['loss'], delta=1e-6)
        self.assertAlmostEqual(self.call(new)['loss'], losses[1], delta=1e-6)

    @parameterized.parameters(
        ('bert_span', '9 8\t7', {'tokens': '9807'}), ('gpt2_tags', '9 8 7', {'tokens': '987'}),
        ('bart_classes', '9 8', {'source': '98', 'output': '98'}))
    @pytest.mark.slow
    def test_attention_of_converted_models(self, name, given, wanted):
        workdir, out = self.folder / 'run', self.folder / 'out.svg'
        model = self.hugging_face(name, **{'cls_token_id': 2, 'sep_token_id': 0} if name == 'bert_span' else {})
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        row = self.call(workdir, f'--attention={out}', f'--input={given}')
        self.assertEqual({key: ''.join(row[key]).strip('02') for key in wanted}, wanted)  # 0 and 2 stand around a text
        if name == 'bart_classes':
            self.assertEqual(np.shape(row['alignment']), (4, 4))
        else:
            self.assertGreater(min(row['rollout']), 0)  # to a token that sees all
        if name == 'gpt2_tags':
            done = experiments.call('eval', f'--workdir={workdir}', f'--attention={out}', f'--input={"9 " * 40}')
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertRegex(done.err, 'takes 2 rows of this run, and a picture shows one; shorten it')


class ImagesTest(experiments.TestCase):

    @pytest.mark.slow
    def test_attention_over_an_image_and_a_run_without_some_heads(self):
        workdir, new, out = self.folder / 'run', self.folder / 'pruned', self.folder / 'out.png'
        self.assertEqual(experiments.train(experiments.tiny_images(), workdir)[0], 0)
        image, = experiments.save_digits(self.folder, [3])

        def call(workdir, *arguments):
            done = experiments.call('eval', f'--workdir={workdir}', *arguments)
            self.assertEqual((done.code, done.err), (0, ''))
            return experiments.said(done)
        row = call(workdir, f'--attention={out}', f'--input={image}')
        self.assertEqual(np.shape(row['rollout']), (2, 2))
        self.assertEqual(row['layers'][0]['highest_entropy'], math.log(5))  # the class token and four patches
        self.assertGreater(out.stat().st_size, 1000)
        self.assertEqual(call(workdir, f'--attention={out}', f'--input={image}', '--steps'), row)
        page = out.with_suffix('.html')
        self.assertEqual(call(workdir, f'--attention={page}', f'--input={image}')['rollout'], row['rollout'])
        shown = page_test.data_of(page.read_text())
        self.assertEqual((shown['image']['rows'], shown['image']['columns'], shown['image']['front']), (2, 2, ['class']))
        self.assertEqual(shown['kinds'][0]['keys'], ['class', '0,0', '0,1', '1,0', '1,1'])
        row = call(workdir, f'--filters={out}')
        self.assertEqual((row['filters'], row['shape'], row['step']), (8, [4, 4, 1], 2))
        self.assertAlmostEqual(sum(row['variance']), 1, delta=1e-5)
        losses = {point['heads']: point['loss'] for point in
                  call(workdir, f'--heads={out}', '--keep=1', f'--pruned={new}')['curve']}
        self.assertAlmostEqual(call(new)['loss'], losses[1], delta=1e-6)

    def test_positions_of_patches_are_drawn_where_these_lie(self):
        from transformer.explain import positions as position_pictures
        from vit.models.vit import Vit
        from vit.readers.images import ImageClass

        params, out = {'positions': {'embedding': np.random.default_rng(0).normal(size=(3, 4))}}, self.folder / 'alike.png'
        data = types.SimpleNamespace(shapes={'image': ((8, 4, 8, 1), np.float32)})
        with contextlib.redirect_stdout(io.StringIO()):
            experiments.script('eval').positions(
                types.SimpleNamespace(run=types.SimpleNamespace(reader=ImageClass()), model=Vit(classes=3, patch=4), data=data,
                                      params=params, step=7), out)
        table = position_pictures.learnt(Vit(classes=3, patch=4), params)
        position_pictures.similarity(table, (1, 2)).savefig(self.folder / 'wanted.png')
        self.assertEqual(out.read_bytes(), (self.folder / 'wanted.png').read_bytes())

    def test_split_and_files_agree(self):
        workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny_images(), workdir)[0], 0)
        experiments.save_digits(self.folder / 'images', range(64, 74))
        rows = [json.loads(experiments.call('eval', f'--workdir={workdir}', *argument).out.splitlines()[-1])
                for argument in ([], [f'--path={self.folder / "images"}'])]
        self.assertEqual([row['weight'] for row in rows], [10, 10])
        self.assertAlmostEqual(rows[0]['loss'], rows[1]['loss'], delta=1e-2)  # 17 levels of grey became 256


if __name__ == '__main__':
    absltest.main()
