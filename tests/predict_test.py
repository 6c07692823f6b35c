"""predict.py: one line out per line in, whatever the lines around it."""

import contextlib
import io
import json
import math
import pathlib
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from PIL import Image

import heed
from configs import base
from data.text import masked
from data.tokenizers import hugging_face
from data.tokenizers.specs import Json
from tests import experiments, recorded
from tests.data import tiny_tokenizers
from tests.transformer.explain import page_test
from transformer.explain import maps
from transformer.readers.masked import FilledMasks, _Asked
from vit.readers import images as reader
from vit.readers.images import is_image

BEGIN, END, MASK, FIRST = 2, 3, 4, 5  # in the vocabulary of tiny_tokenizers.word_piece, which the words follow
NUMBER = {word: FIRST + i for i, word in enumerate(experiments.WORDS)}


class PredictTest(recorded.TestCase):

    def predict(self, workdir, *arguments, stdin=b''):
        done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
        self.assertEqual((done.code, done.err), (0, ''))
        return done.out.splitlines()


class TextTest(PredictTest):

    def setUp(self):
        super().setUp()
        self.workdir = self.trained(**{'train.steps': 2})

    def test_a_context_that_is_shorter_than_what_is_asked_for(self):
        for arguments in ['--tokens=500'], []:  # by default 100
            done = experiments.call('predict', f'--workdir={self.workdir}', *arguments, '--strategy=Greedy()', stdin=b'key')
            self.assertRegex(
                done.err, r'\Apredict.py: answer 1: ends after \d+ new tokens: the context of this model is \d+\.\n\Z')

    def test_a_prompt_of_the_length_that_is_advised_fits(self):
        done = experiments.call('predict', f'--workdir={self.workdir}', stdin=b'k' * 15)
        self.assertEqual(done.err, 'predict.py: The prompt in line 1 has 15 tokens, but the context of this model is 16 and '
                         'must hold 1 special token and a new one too; shorten it to 14.\n')
        self.assertLen(self.predict(self.workdir, '--tokens=1', stdin=b'k' * 14), 1)

    def test_characters_that_the_vocabulary_lacks(self):
        done = experiments.call('predict', f'--workdir={self.workdir}', '--tokens=2', stdin='k\u4e2d\u6587'.encode())
        self.assertRegex(done.err, r'\Apredict.py: answer 1: 2 of the \d tokens of the prompt are unknown to the tokenizer\.')

    def test_one_line_per_line_and_the_same_every_time(self):
        prompts = b'key\nquery va\n\nmask'
        lines = self.predict(self.workdir, '--tokens=8', stdin=prompts)
        self.assertLen(lines, 4)
        for line, prompt in zip(lines, ('key', 'query va', '', 'mask')):
            self.assertStartsWith(line, prompt)
        self.assertEqual(self.predict(self.workdir, '--tokens=8', stdin=prompts), lines)
        self.assertEqual(self.predict(self.workdir, '--tokens=8', '--seed=0', stdin=prompts), lines)
        self.assertNotEqual(self.predict(self.workdir, '--tokens=8', '--seed=1', stdin=prompts), lines)
        file = self.folder / 'prompts.txt'
        file.write_bytes(prompts.replace(b'\n', b'\r\n') + b'\r\n')
        self.assertEqual(self.predict(self.workdir, '--tokens=8', f'--input={file}'), lines)

    @pytest.mark.slow
    def test_a_model_may_have_more_tokens_than_its_tokenizer(self):
        workdir = self.folder / 'wide'
        config = experiments.tiny(self.text, **{'train.steps': 1, 'model.vocab': 4096,
                                                'data.tokenizer': 'SentencePiece(vocab=300)'})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        self.assertLen(self.predict(workdir, '--tokens=8', '--strategy=Sample(temperature=5.0)', stdin=b'key\n'), 1)

    @pytest.mark.slow
    def test_a_line_does_not_depend_on_the_others(self):
        lines = self.predict(self.workdir, '--tokens=4', stdin=b'key\nquery\n')
        self.assertEqual(self.predict(self.workdir, '--tokens=4', stdin=b'mask\nquery\nhead\n')[1], lines[1])

    def test_greedy_is_the_argmax_and_needs_no_seed(self):
        import numpy as np

        from training import run as runs

        lines = self.predict(self.workdir, '--strategy=Greedy()', '--tokens=3', '--json', '--seed=5', stdin=b'key\n')
        snapshot = runs.load(self.workdir)
        ids = list(snapshot.data.prompt('key'))
        for _ in range(3):
            token = int(np.argmax(snapshot.apply(inputs=np.array([ids], np.int32))['logits'][0, -1]))
            if token == snapshot.data.end:
                break
            ids.append(token)
        new = ids[len(snapshot.data.prompt('key')):]
        row = json.loads(lines[0])
        self.assertEqual((row['prompt'], row['text'], row['tokens']), ('key', snapshot.data.decode(new), len(new)))
        logits = np.float64(snapshot.apply(inputs=np.array([ids], np.int32))['logits'][0])
        steps = np.arange(len(ids) - len(new), len(ids)) - 1
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.assertAlmostEqual(row['score'], float(chances[steps, new].sum()), places=4)

    def test_fills_the_context_and_stops(self):
        done = experiments.call('predict', f'--workdir={self.workdir}', '--json', '--strategy=Sample(constraint=MinLength(99))',
                                stdin=b'key\n' + b'q' * 14 + b'\n')
        self.assertRegex(done.err, r'\Apredict.py: answer 1: ends after 13 new tokens: the context of this model is 16 .*\n\Z')
        details = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual([(row['prompt'], row['tokens'], row['finished']) for row in details],
                         [('key', 13, False), ('q' * 14, 2, False)])  # of 16, `end` and the prompt have 4; the last is not read

    @pytest.mark.slow
    def test_step(self):
        prompts = b'key\nrow\nmask\nhead\nnorm\n'
        second = self.predict(self.workdir, '--tokens=8', stdin=prompts)
        self.assertEqual(experiments.train(experiments.tiny(self.text, **{'train.steps': 6}), self.workdir)[0], 0)
        self.assertEqual(self.predict(self.workdir, '--tokens=8', '--step=2', stdin=prompts), second)
        sixth = self.predict(self.workdir, '--tokens=8', '--step=6', stdin=prompts)
        self.assertNotEqual(sixth, second)
        self.assertEqual(self.predict(self.workdir, '--tokens=8', stdin=prompts), sixth)

    def test_no_input_no_output(self):
        self.assertEqual(self.predict(self.workdir), [])
        self.assertEqual(self.predict(self.workdir, '--input=/dev/null'), [])  # as of pipes, <(...)


class StreamTest(PredictTest):

    @pytest.mark.slow
    def test_line_breaks_are_shown_and_empty_prompts_refused(self):
        self.text.write_text('\n' * 400 + 'ab' + '\n' * 45)
        workdir = self.folder / 'run'
        experiments.train(experiments.tiny(self.text, **{
            'data.documents': 'stream', 'train.steps': 7, 'data.train': 'all[:90%]', 'data.valid': 'all[90%:]',
            'optimizer.learning_rate': 0.1}), workdir)
        self.assertEqual(self.predict(workdir, '--strategy=Greedy()', '--tokens=3', stdin=b'ab\n'), ['ab' + r'\n' * 3])
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'a\n\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: The prompt in line 2 is empty; give at least one character to continue; '
                         'none of the 2 lines was answered.\n')


class TranslationTest(PredictTest):

    def setUp(self):
        super().setUp()
        self.workdir = self.translator()

    @pytest.mark.slow
    def test_a_line_for_every_line(self):
        lines = self.predict(self.workdir, stdin=b'key value\n\nmask\n   \nhead  row\r\n')
        self.assertLen(lines, 5)
        self.assertEqual([bool(line) for line in lines], [True, False, True, False, True])
        self.assertEqual(self.predict(self.workdir, stdin=b'head row\n\nkey value\n')[::2], [lines[4], lines[0]])
        self.assertEqual(self.predict(self.workdir, stdin=b'\n\n'), ['', ''])
        self.assertEqual(self.predict(self.workdir), [])

    @pytest.mark.slow
    def test_n_best_with_scores(self):
        beam = '--strategy=Beam(size=3, count=3)'
        row, blank = (json.loads(line) for line in self.predict(self.workdir, beam, '--json', stdin=b'key value\n\n'))
        self.assertLen(row['outputs'], 3)
        scores = [one['score'] for one in row['outputs']]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertLen({one['text'] for one in row['outputs']}, 3)
        self.assertEqual((row['source'], row['text'], row['score']), ('key value', row['outputs'][0]['text'], scores[0]))
        self.assertEqual(blank, {'source': '', 'text': '', 'tokens': 0, 'ids': [], 'score': 0.0, 'finished': True,
                                 'outputs': []})
        self.assertEqual(self.predict(self.workdir, beam, stdin=b'key value\n'), [row['text']])

    @pytest.mark.slow
    def test_a_prefix_begins_every_output(self):
        rows = [json.loads(line) for line in self.predict(
            self.workdir, '--json', '--prefix=head row', '--strategy=Beam(size=2, count=2)', stdin=b'key value\n\nmask\n')]
        self.assertEqual([row['text'].split()[:2] for row in rows], [['head', 'row'], [], ['head', 'row']])
        self.assertTrue(all(one['text'].startswith('head row') for one in rows[0]['outputs']))
        done = experiments.call('predict', f'--workdir={self.workdir}', f'--prefix={"row " * 12}', stdin=b'key\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: --prefix has 12 tokens, but the context of this model is 12 and must hold 1 '
                         'special token and a new one too; shorten it to 10.\n')

    @pytest.mark.slow
    def test_a_byte_order_mark_is_not_part_of_the_first_line(self):
        self.assertEqual(self.predict(self.workdir, stdin=b'\xef\xbb\xbfkey value\n'),
                         self.predict(self.workdir, stdin=b'key value\n'))

    def test_tokens_bound_the_output(self):
        rows = [json.loads(line) for line in self.predict(
            self.workdir, '--json', '--tokens=2', '--strategy=Greedy()', stdin=b'key value mask head\nrow\n')]
        self.assertLessEqual(max(row['tokens'] for row in rows), 2)

    @pytest.mark.slow
    def test_long_sources_are_cut_only_when_asked(self):
        long = b' '.join([b'key'] * 12)
        done = experiments.call('predict', f'--workdir={self.workdir}', stdin=b'key\n' + long + b'\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: The source in line 2 has 13 tokens with its end, but this model takes 12; '
                         'shorten it, or give --truncate, in Python truncate=True; none of the 2 lines was answered.\n')
        file = self.folder / 'long.txt'
        file.write_bytes(b'\n\n' + long + b'\n')
        done = experiments.call('predict', f'--workdir={self.workdir}', f'--input={file}')
        self.assertStartsWith(done.err, f'predict.py: The source in line 3 of {file} has 13 tokens')
        lines = long + b'\n' + b' '.join([b'key'] * 11) + b'\n'
        done = experiments.call('predict', f'--workdir={self.workdir}', '--truncate', '--tokens=5', stdin=lines)
        self.assertEqual(done.err, 'predict.py: answer 1: the source is cut to 12 tokens; 1 at its end are not read.\n')
        cut, whole = done.out.splitlines()
        self.assertEqual(cut, whole)

    @pytest.mark.slow
    def test_sampling_depends_on_the_seed_and_the_line_alone(self):
        sample = '--strategy=Sample(temperature=3.0)'
        lines = self.predict(self.workdir, sample, stdin=b'key value\nmask head row\n')
        self.assertEqual(self.predict(self.workdir, sample, stdin=b'row\nmask head row\nstep\n')[1], lines[1])
        self.assertNotEqual(self.predict(self.workdir, sample, '--seed=1', stdin=b'key value\nmask head row\n'), lines)


class PrefixTest(PredictTest):

    def test_a_decoder_alone_translates(self):
        self.text.write_text(experiments.pairs(80))
        c = experiments.tiny_pairs(self.text)
        with c.unlocked():
            fields = {name: value for name, value in c.data.items() if name != 'pipeline'}
            c.data = base.data('data.seq2seq.prefixed:Prefixed', **fields)
            c.model = base.part('transformer.models.gpt:Gpt', layers=1, heads=2, width=16, length=20)
            c.task = base.part('transformer.tasks.language_model:PrefixNextToken')
            c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='valid', limit=3)
            c.train.steps = 2
        code, out = experiments.train(c.lock(), self.folder / 'run')
        self.assertEqual(code, 0, out)
        rows = list(map(json.loads, self.predict(self.folder / 'run', '--json', '--prefix=row', stdin=b'key value\n\nmask\n')))
        self.assertEqual([row['text'][:3] for row in rows], ['row', '', 'row'])
        picture = self.folder / 'a.png'
        done = experiments.call('eval', f'--workdir={self.folder / "run"}', f'--attention={picture}', '--input=key value')
        tokens = experiments.said(done)['tokens']
        self.assertEqual(tokens[:3], ['key', 'value', '<eos>'])
        self.refused(self.folder / 'run', ' '.join(['key'] * 9).encode(), 'The source in line 1 has 10 tokens')
        done = experiments.call('predict', f'--workdir={self.folder / "run"}', f'--prefix={"row " * 17}',
                                stdin=b'mask\nkey value\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertStartsWith(done.err, 'predict.py: The source in line 2 with --prefix has 19 tokens, but the context')

    def refused(self, workdir, given, message):
        done = experiments.call('predict', f'--workdir={workdir}', stdin=given)
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err, message)


class GapsTest(PredictTest):

    def trained_on(self, noise, tokenizer):
        c = experiments.tiny_pairs(self.text)
        with c.unlocked():
            c.data = base.data('data.seq2seq.corrupted:Corrupted', path=str(self.text), documents='line', noise=noise,
                               tokenizer=tokenizer, length=24, batch_size=8)
            c.model.source_length = c.model.length = 24
            c.train.steps = 2
        code, out = experiments.train(c.lock(), self.folder / 'run')
        self.assertEqual(code, 0, out)
        return self.folder / 'run'

    def test_sentinels_of_t5(self):
        workdir = self.trained_on('SpanCorruption()', 'SentencePiece(vocab=300, sentinels=9)')
        given = 'key <extra_id_0> row <extra_id_1>'
        row, empty = map(json.loads, self.predict(workdir, '--json', '--tokens=3', stdin=f'{given}\n\n'.encode()))
        self.assertRegex(row['text'], '^key .*row')
        self.assertNotIn('<extra_id', row['text'])
        self.assertEqual((row['source'], empty['text']), (given, ''))
        begun, = map(json.loads, self.predict(workdir, '--json', '--tokens=3', '--prefix=<extra_id_0> mean',
                                              '--strategy=Beam(size=2, count=2)', stdin=given.encode()))
        self.assertLen(begun['outputs'], 2)
        for output in begun['outputs']:
            self.assertRegex(output['text'], '^key mean.*row')
            self.assertNotIn('<extra_id', output['text'])
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'key <extra_id_0>\nkey\n')
        self.assertIn("predict.py: In line 2: 'key' has no <extra_id_0>; write it where words are missing", done.err)
        self.assertEqual(done.code, 1)

    def test_masks_of_bart(self):
        workdir = self.trained_on('PermuteSentences() >> Infill()', "SentencePiece(vocab=300, special=('mask',))")
        given = '--json', '--tokens=3', '--strategy=Greedy()'
        row, closed = map(json.loads, self.predict(workdir, *given, stdin=b'key <mask> row\nkey<mask> row'))
        self.assertEqual(row['ids'], closed['ids'])  # the mask stands for a word with the space before it
        from training import run as runs

        run = runs.load(workdir, data=1)
        ids = run.data.encode('key <mask> row')
        rows = lambda values: np.array([values], np.int32)
        for done, said in enumerate(row['ids']):
            decoder = [run.data.start, *row['ids'][:done]]
            found = run.apply(inputs=rows(ids), segments=rows([1] * len(ids)), positions=rows(range(len(ids))),
                              decoder_inputs=rows(decoder), decoder_segments=rows([1] * len(decoder)),
                              decoder_positions=rows(range(len(decoder))))
            self.assertEqual(np.asarray(found['logits'][0, -1]).argmax(), said)


class StoriesTest(PredictTest):

    @pytest.mark.slow
    def test_an_answer_for_every_question(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny_stories(self.folder), workdir)[0], 0)
        told = ''.join(map(experiments.story, range(3))).encode()
        answers = self.predict(workdir, stdin=told)
        self.assertLen(answers, 6)
        rows = [json.loads(line) for line in self.predict(workdir, '--json', stdin=told)]
        self.assertEqual([row['answer'] for row in rows], answers)
        self.assertEqual([row['line'] for row in rows], [3, 7, 10, 14, 17, 21])
        self.assertEqual(answers[1::2], ['apple,milk'] * 3)  # as often as any place
        self.assertTrue(all(0 < row['probability'] <= 1 for row in rows))
        for stdin, sentence in ((b'1 Mary flew.\n2 Where is Mary?\n', "'flew', a word that is not among"),
                                (b'1 Mary slept.\n3 Where is Mary?\n', 'has the number 3; expected 2')):
            done = experiments.call('predict', f'--workdir={workdir}', stdin=stdin)
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertIn(sentence, done.err)
        story, picture = self.folder / 'story.txt', self.folder / 'hops.png'
        story.write_bytes(told)
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', f'--input={story}')
        self.assertEqual((done.code, done.err), (0, ''))
        row = experiments.said(done)
        self.assertEqual(row['sentences'][0], 'Daniel slept.')  # the latest one
        self.assertEqual([one['layer'] for one in row['layers']], ['hop_1', 'hop_2'])
        (hops,), = row['weights'].values()
        self.assertEqual([len(hop) for hop in hops], [5, 5])
        self.assertAlmostEqual(sum(hops[0]), 1.0, delta=1e-3)
        page = picture.with_suffix('.html')
        self.assertEqual(experiments.call('eval', f'--workdir={workdir}', f'--attention={page}', f'--input={story}').code, 0)
        kind, = page_test.data_of(page.read_text())['kinds']
        self.assertEqual((kind['queries'], kind['keys'][0]), (['hop_1', 'hop_2'], 'Daniel␣slept.'))

    @pytest.mark.slow
    def test_a_transformer_over_sentences_takes_shorter_stories_than_those_of_training(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        workdir, picture = self.folder / 'run', self.folder / 'heads.png'
        config = experiments.tiny_stories(self.folder, **{'train.steps': 1, 'log.every_steps': 1})
        with config.unlocked():
            config.model = base.part('transformer.models.story_transformer:StoryTransformer', layers=1, heads=2, width=8)
            config.task = base.part('transformer.tasks.stories:Answers')
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        told = '1 Daniel slept.\n2 Mary slept.\n3 Mary slept?\n'
        self.assertLen(self.predict(workdir, stdin=told.encode()), 1)
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', f'--input={told}')
        self.assertEqual((done.code, done.err), (0, ''))
        row = experiments.said(done)
        self.assertEqual(row['sentences'], ['Mary slept.', 'Daniel slept.'])
        self.assertEqual(np.shape(row['weights']['block_0']), (2, 3, 3))
        # the numbers are of what is there, not of the empty memory behind it
        np.testing.assert_allclose(row['layers'][0]['entropy'], maps.entropy(row['weights']['block_0']), atol=1e-3)
        self.assertAlmostEqual(row['layers'][0]['highest_entropy'], math.log(3))


class ImagesTest(PredictTest):

    @pytest.mark.slow
    def test_classifies_files(self):
        workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny_images(), workdir)[0], 0)
        paths = experiments.save_digits(self.folder / 'images', range(64, 67))
        listed = '\n'.join(map(str, paths)).encode() + b'\n'
        lines = self.predict(workdir, stdin=listed)
        self.assertLen(lines, 3)
        details = [json.loads(line) for line in self.predict(workdir, '--json', stdin=listed)]
        for line, row, path in zip(lines, details, paths):
            first = sorted(row['probabilities'].items(), key=lambda one: -one[1])[:5]
            self.assertEqual(row['likeliest'], [{'class': name, 'probability': p} for name, p in first])
            self.assertEqual(row['likeliest'][0], {name: row[name] for name in ('class', 'probability')})
            self.assertEqual(line, ''.join(f'{name}\t{p:.4f}\t' for name, p in first) + str(path))
            self.assertEqual(list(row['probabilities']), list('0123456789'))
            self.assertAlmostEqual(sum(row['probabilities'].values()), 1.0, delta=1e-5)
            self.assertEqual(row['probability'], max(row['probabilities'].values()))
            self.assertEqual(self.predict(workdir, f'--input={path}'), [line])
        folder, pattern = self.folder / 'images', self.folder / 'images' / '*' / '*.png'
        for given in (folder, pattern, self.folder / 'i*s' / '**' / '*.png'):
            self.assertEqual(self.predict(workdir, f'--input={given}'), sorted(lines, key=lambda line: line.split('\t')[-1]))
            self.assertCountEqual(self.predict(workdir, stdin=f'{given}\n{paths[0]}\n'.encode()), [*lines, lines[0]])
        with mock.patch.object(reader, '_KEPT', 0), mock.patch.object(reader, 'AT_ONCE', 2):  # decoded again, in two batches
            self.assertEqual(self.predict(workdir, stdin=listed), lines)
        listed += str(self.folder / 'nowhere.png').encode()
        done = experiments.call('predict', f'--workdir={workdir}', stdin=listed)
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertRegex(done.err, "Image 4 of -: .*nowhere.png' does not exist")
        from PIL import Image

        wide = self.folder / 'wide.png'
        Image.open(paths[0]).resize((20, 10)).save(wide)
        done = experiments.call('predict', f'--workdir={workdir}', f'--input={wide}')
        self.assertEqual(done.err, f'predict.py: answer 1: {wide} is resized from 20x10 to 8x8, the size of all images of '
                                   'training.\n')
        self.assertEqual(self.predict(workdir, stdin=f'\n{paths[0]}\r\n \n\n{paths[1]}\n\n'.encode()), lines[:2])
        cut = self.folder / 'cut.png'
        cut.write_bytes(paths[0].read_bytes()[:60])
        pathlib.Path(f'{self.text}.heic').write_bytes(b'\0\0\0\x18ftypheic' + bytes(50))
        broken = self.folder / 'broken.png'
        broken.write_bytes(b'\x89' + bytes(50))
        for arguments, stdin, pattern in (
                ([], paths[0].read_bytes(), 'Stdin is an image.*--input=FILE'),
                ([f'--input={cut}'], b'', 'cut.png cannot be decoded as an image'),
                ([f'--input={broken}'], b'', 'broken.png cannot be decoded as an image: its bytes are those of no known kind'),
                ([f'--input={self.text}.heic'], b'', 'text.txt.heic cannot be decoded as an image: it is a file of HEIC'),
                ([f'--input={workdir / "checkpoints"}'], b'', r"The folder '.*checkpoints' holds no images \(.png, .apng"),
                (['--strategy=Greedy()'], listed, '--strategy is for models that generate text'),
                (['--tokens=100'], listed, '--tokens is for models that generate text'),
                (['--candidates=a'], listed, '--candidates is for models that fill masks'),
                (['--seed=0'], listed, '--seed is for models that generate text')):
            with self.subTest(arguments=arguments):
                done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
                self.assertEqual((done.code, done.out), (1, ''))
                self.assertRegex(done.err, rf'\Apredict.py: [^\n]*{pattern}[^\n]*\n\Z')


class ReadingTest(PredictTest):
    """Models that read texts whole, against the outputs of rows made by hand."""

    def refused(self, workdir, stdin, message, *arguments):
        done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertRegex(done.err, rf'\Apredict.py: [^\n]*{message}[^\n]*\n\Z')

    def both(self, workdir, stdin):
        """The lines, and what --json says of each."""
        rows = [json.loads(line) for line in self.predict(workdir, '--json', stdin=stdin)]
        return self.predict(workdir, stdin=stdin), rows

    def outputs(self, workdir, ids, types=None, **more):
        """Those of one row, without padding."""
        from training import run as runs

        rows = lambda values: np.array([values], np.int32)
        found = runs.load(workdir, data=1).apply(
            inputs=rows(ids), segments=rows([1] * len(ids)), positions=rows(range(len(ids))),
            **{} if types is None else {'types': rows(types)}, **{name: rows(x) for name, x in more.items()})
        return {name: np.asarray(x[0], np.float64) for name, x in found.items()}

    def row(self, *texts):
        """(ids, types) of one text or two."""
        parts = [[MASK if word == '[MASK]' else NUMBER[word] for word in text.split()] + [END] for text in texts]
        ids = [BEGIN, *np.concatenate(parts)]
        return ids, [0] * (1 + len(parts[0])) + [1] * (len(ids) - 1 - len(parts[0]))

    def chances(self, logits):
        p = np.exp(logits)
        return p / p.sum(-1, keepdims=True)

    @pytest.mark.slow
    def test_masked_words_and_texts_that_follow(self):
        workdir = self.reader('masked')
        many = 'key ' + '[MASK] ' * 10 + 'row'  # more than are asked for in one row of the model
        texts = ['key [MASK] row', '', '  [MASK] sum [MASK]', 'key row\tmask [MASK]', many, 'sum\tkey row mask']
        lines, rows = self.both(workdir, '\n'.join(texts).encode())
        self.assertEqual([lines[1], rows[1]], ['', {'text': ''}])
        for text, line, row in zip(texts, lines, rows):
            if not text or '\t' in text:
                continue
            ids, types = self.row(text)
            places = np.flatnonzero(np.array(ids) == MASK)
            p = self.chances(self.outputs(workdir, ids, types, masked=places)['logits'])
            words = iter(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *experiments.WORDS][i] for i in p.argmax(-1))
            self.assertEqual(line, ' '.join(next(words) if word == '[MASK]' else word for word in text.split()))
            self.assertEqual((row['text'], row['filled']), (text, line))
            self.assertLen(row['masks'], len(places))
            for found, wanted in zip(row['masks'], p):
                self.assertEqual(found[0]['id'], wanted.argmax())
                self.assertLen({one['id'] for one in found}, 5)
                np.testing.assert_allclose([one['probability'] for one in found], np.sort(wanted)[:-6:-1], atol=1e-5)
                self.assertEqual([one['token'] for one in found if one['id'] >= FIRST],
                                 [experiments.WORDS[one['id'] - FIRST] for one in found if one['id'] >= FIRST])
        for text, line, row in [(text, *more) for text, *more in zip(texts, lines, rows) if '\t' in text]:
            ids, types = self.row(*text.split('\t'))
            p = self.chances(self.outputs(workdir, ids, types, masked=[0])['next_logits'])
            follows = bool(p[0] > p[1])
            self.assertEqual(line, f'{"follows" if follows else "does not follow"}\t{p.max():.4f}')
            self.assertEqual((row['first'], row['second'], row['follows']), (*text.split('\t'), follows))
        self.refused(workdir, b'[MASK]\n\nkey row\n', r"In line 3: 'key row' has no \[MASK\]; write it where")
        self.refused(workdir, b'key\t \n', "In line 1: 'key' and '' has no tokens; give two texts")
        self.refused(workdir, b'[MASK] key' * 8, 'In line 1: .* has 18 tokens with the special ones, and a row of this run 16')
        for flag in ('--strategy=Greedy()', '--tokens=3', '--truncate', '--prefix=key', '--seed=1'):
            self.refused(workdir, b'[MASK]\n', f'{flag.partition("=")[0]} is for models that generate text; leave it out', flag)

    def test_chosen_words_at_masks(self):
        workdir, text = self.reader('masked'), 'key [MASK] row [MASK]'
        candidates = 'sum, key,ab,row,abcdefghij'  # one token, two, and more than are asked for in one row of the model
        row, blank = (json.loads(line) for line in self.predict(
            workdir, '--json', f'--candidates={candidates}', stdin=f'{text}\n\n'.encode()))
        line, _ = self.predict(workdir, f'--candidates={candidates}', stdin=f'{text}\n\n'.encode())
        self.assertEqual(blank, {'text': ''})
        self.assertLen(row['candidates'], 2)
        letters = lambda word: [FIRST + len(experiments.WORDS) + ord(word[0]) - ord('a'),
                                *(FIRST + len(experiments.WORDS) + len(tiny_tokenizers.LETTERS) + ord(letter) - ord('a')
                                  for letter in word[1:])]
        for mask, found in enumerate(row['candidates']):
            wanted = {}
            for word in ('sum', 'key', 'row', 'ab', 'abcdefghij'):
                ids = [NUMBER[word]] if word in NUMBER else letters(word)
                parts = text.split('[MASK]')
                given = '[MASK]'.join(parts[:mask + 1]) + '[MASK] ' * len(ids) + '[MASK]'.join(parts[mask + 1:])
                places = 2 + 2 * mask + np.arange(len(ids))
                p = self.chances(self.outputs(workdir, *self.row(given), masked=places)['logits'])
                wanted[word] = p[np.arange(len(ids)), ids]
            self.assertEqual([one['word'] for one in found], sorted(wanted, key=lambda word: -wanted[word].prod()))
            for one in found:
                each = wanted[one['word']]
                np.testing.assert_allclose([token['probability'] for token in one['tokens']], each, rtol=1e-4)
                np.testing.assert_allclose(one['probability'], each.prod(), rtol=1e-4)
                np.testing.assert_allclose(one['share'], each.prod() / sum(x.prod() for x in wanted.values()), rtol=1e-4)
        self.assertEqual([token['token'] for token in row['candidates'][0][-1]['tokens']],
                         ['a', *(f'##{x}' for x in 'bcdefghij')])
        self.assertEqual(line, '\t'.join(', '.join(f'{one["word"]} {one["probability"]:.4g}' for one in found)
                                         for found in row['candidates']))
        plain, = (json.loads(line) for line in self.predict(workdir, '--json', stdin=text.encode()))
        best = lambda found: [[one['token'] for one in words] for words in found['masks']]
        self.assertEqual((row['text'], row['filled'], best(row)), (plain['text'], plain['filled'], best(plain)))
        for found, wanted in zip(row['masks'], plain['masks']):  # in batches of another size
            np.testing.assert_allclose(*([one['probability'] for one in words] for words in (found, wanted)), rtol=1e-4)
        self.assertEqual(heed.load(workdir).predict(text, candidates=candidates.split(',')), row)
        for given, stdin, message in (
                ('key,,row', '[MASK]', "The candidates are 'key,,row', one of them empty; expected words"),
                ('key,é中', '[MASK]', r"In line 1: 'é中' has the token \[UNK\], which is no word"),
                ('[MASK]', '[MASK]', r"'\[MASK\]' has the token \[MASK\], which is no word"),
                ('y', 'ke[MASK]', r"In line 1: 'y' has no tokens of its own in place of \[MASK\]: it joins"),
                ('key', 'key\trow', "'key.trow' has a tab and asks whether a text follows; leave the candidates out"),
                ('abcdefghijklmnop', '[MASK]', "'abcdefghijklmnop' has 16 tokens, .* 18, more than a row of this run"),
                ('key', 'row', r"'row' has no \[MASK\]")):
            self.refused(workdir, stdin.encode(), message, f'--candidates={given}')

    @pytest.mark.slow
    def test_the_config_names_who_reads(self):
        workdir = self.reader('masked')
        ids, types = self.row('key row')
        config = (workdir / 'config.json').read_text()

        def read_by(name):
            settings = json.loads(config)
            settings['data']['reader'] = name
            (workdir / 'config.json').write_text(json.dumps(settings))
        read_by('transformer.readers.vectors:TextVector')
        row, = self.both(workdir, b'key row\n')[1]
        np.testing.assert_allclose(row['vector'], self.outputs(workdir, ids, types)['hidden'].mean(0), atol=1e-5)
        read_by('transformer.readers.tags:WordTags')
        self.refused(workdir, b'key row\n', 'WordTags needs tagged words, and Masked has none; name another class in')
        read_by('')
        self.refused(workdir, b'key row\n', 'is a run on data.text.masked:Masked, which has no data.reader, so predict.py')
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={self.folder / "out.png"}', '--input=key')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertIn('this one is on data.text.masked:Masked, which has no data.reader; leave it out', done.err)
        new, model = self.folder / 'hidden', self.hugging_face('bert_model')
        self.convert(f'--from_hf={model}', f'--workdir={new}')
        file = new / 'config.json'
        file.write_text(file.read_text().replace('vectors:TextVector', 'masked:FilledMasks'))
        self.refused(new, b'9 8\n', 'The model of this run gives hidden, pooled, and no logits of words; set data.reader to')

    @pytest.mark.slow
    def test_masked_ids_and_pairs_of_a_converted_model(self):
        ids = {'cls_token_id': 1, 'sep_token_id': 2, 'mask_token_id': 66}
        workdir, model = self.folder / 'run', self.hugging_face('bert_masked', **ids)
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        line, = self.predict(workdir, stdin=b'9 66\t7  5 66\n')  # a tab is a space
        p = self.outputs(workdir, [1, 9, 66, 7, 5, 66, 2], [0] * 7, masked=[2, 5])['logits']
        self.assertEqual(line, '9 {} 7 5 {}'.format(*p.argmax(-1)))
        workdir, model = self.folder / 'next', self.hugging_face('bert_next', **ids)
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        line, = self.predict(workdir, stdin=b'9 8 7\t6 5\n')
        p = self.chances(self.outputs(workdir, [1, 9, 8, 7, 2, 6, 5, 2], [0] * 5 + [1] * 3)['next_logits'])
        self.assertEqual(line, f'{("follows", "does not follow")[p.argmax()]}\t{p.max():.4f}')
        self.refused(workdir, b'9 66 8\n', "In line 1: '9 66 8' has no tab; expected two texts with a tab between them")

    def test_classes(self):
        workdir = self.reader('labelled')
        texts = ['key row mask', '', 'row key', 'sum']
        lines, rows = self.both(workdir, '\n'.join(texts).encode())
        self.assertEqual([line.split('\t')[0] for line in lines], ['yes', '', 'no', 'no'])  # as it has learnt
        for text, line, row in zip(texts, lines, rows):
            if text:
                p = self.chances(self.outputs(workdir, *self.row(text))['logits'])
                self.assertEqual((row['text'], row['class']), (text, ('no', 'yes')[p.argmax()]))
                self.assertEqual(line, f'{row["class"]}\t{row["probability"]:.4f}')
                np.testing.assert_allclose([row['probabilities']['no'], row['probabilities']['yes']], p, atol=1e-5)
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'row\nkey' + b' row' * 40 + b'\nkey' + b' row' * 14)
        self.assertEqual(done.out.splitlines()[1], self.predict(workdir, stdin=b'key' + b' row' * 13)[0])
        self.assertRegex(done.err, r'\Apredict.py: answer 2: cut to 16 tokens, as in training; 27 at its end are not read '
                                   r'\(and there are notes at 1 more; --json has them all\)\.\n\Z')
        table = self.folder / 'long.tsv'
        table.write_text('key' + ' row' * 40 + '\tyes\nrow\tno\n')
        done = experiments.call('eval', f'--workdir={workdir}', f'--path={table}')
        self.assertEqual((done.code, done.err), (0, 'eval.py: 1 of the texts is cut to 16 tokens, as in training.\n'))
        self.refused(workdir, b'key\nkey\trow\n', 'In line 2: .*is not what this run classifies; expected a text without tabs')

    @pytest.mark.slow
    def test_classes_of_pairs_and_of_a_model_that_reads_twice(self):
        workdir, model = self.folder / 'run', self.hugging_face('bart_classes')
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        row = json.loads(self.predict(workdir, '--json', stdin=b'9 8 7\n')[0])
        ids = [0, 9, 8, 7, 2]
        more = {'decoder_inputs': [2, *ids[:-1]], 'decoder_segments': [1] * 5, 'decoder_positions': range(5)}
        p = self.chances(self.outputs(workdir, ids, **more)['logits'])
        np.testing.assert_allclose([row['probabilities'][f'LABEL_{i}'] for i in range(3)], p, atol=1e-5)
        settings = json.loads((workdir / 'config.json').read_text())
        settings['data'] |= {'columns': [1, 2], 'label': '3'}
        (workdir / 'config.json').write_text(json.dumps(settings))
        row = json.loads(self.predict(workdir, '--json', stdin=b'9 8\t7\n')[0])
        ids = [0, 9, 8, 2, 2, 7, 2]
        more = {'decoder_inputs': [2, *ids[:-1]], 'decoder_segments': [1] * 7, 'decoder_positions': range(7)}
        p = self.chances(self.outputs(workdir, ids, **more)['logits'])
        np.testing.assert_allclose([row['probabilities'][f'LABEL_{i}'] for i in range(3)], p, atol=1e-5)

    @pytest.mark.slow
    def test_tags_of_words(self):
        workdir = self.reader('tagged')
        lines, rows = self.both(workdir, b'row  key value sum\n\nmask key ' + b' row key value' * 9 + b'\n')
        self.assertEqual(lines[:2], ['row/O key/B-part value/I-part sum/O', ''])
        self.assertEqual(lines[2], 'mask/O key/B-part' + ' row/O key/B-part value/I-part' * 9)  # in three rows of 14 tokens
        self.assertEqual(rows[0], {
            'words': ['row', 'key', 'value', 'sum'], 'tags': ['O', 'B-part', 'I-part', 'O'],
            'spans': [{'type': 'part', 'text': 'key value', 'start': 1, 'stop': 3}]})
        self.assertEqual([(one['start'], one['stop']) for one in rows[2]['spans']],
                         [(1, 2), *((3 + i, 5 + i) for i in range(0, 27, 3))])
        new, model = self.folder / 'others', self.hugging_face('bert_tags')
        self.convert(f'--from_hf={model}', f'--workdir={new}')
        row = json.loads(self.predict(new, '--json', stdin=b'9 8 7\n')[0])
        best = self.outputs(new, [9, 8, 7, 0], [0] * 4)['logits'][:3].argmax(-1)
        self.assertEqual(row, {'words': ['9', '8', '7'], 'tags': [('no', 'yes', 'both')[i] for i in best]})  # span nothing

    @pytest.mark.slow
    def test_answers(self):
        workdir = self.reader('questions')
        long = ' '.join(experiments.WORDS) + ' row'  # and a question of a word: 12 tokens are in a row, which moves on by 4
        asked = [('key', 'key row mask', [0]), ('key', long, [0, 4]), ('row', 'mask  row sum', [0])]
        lines, rows = self.both(workdir, '\n\t\n'.join(f'{one[0]}\t{one[1]}' for one in asked).encode())
        self.assertEqual(lines[1::2], [''] * 2)
        self.assertEqual(lines[0], 'row')  # as it has learnt
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'none\tsum key row\n')  # which is in letters
        self.assertEqual((done.out, done.err), ('\n', 'predict.py: answer 1: the question is cut as in training; the last 1 of '
                                                      'its tokens are not read.\n'))
        for (question, context, windows), line, row in zip(asked, lines[::2], rows[::2]):
            self.assertEqual((row['question'], row['answer'], row['outputs'][0]['answer']), (question, line, line))
            self.assertEqual([context[one['start']:one['stop']] for one in row['outputs']], [
                one['answer'] for one in row['outputs']])
            score, empty, words = {}, [], context.split()
            for window in windows:
                part = words[window:window + 12]
                ids = [BEGIN, NUMBER[question], END, *map(NUMBER.get, part), END]
                found = self.outputs(workdir, ids, [0] * 3 + [1] * (len(ids) - 3))
                starts, ends = found['start_logits'], found['end_logits']
                empty.append(starts[0] + ends[0])
                for i in range(len(part)):
                    for j in range(i, len(part)):
                        place = window + i, window + j + 1
                        score[place] = max(score.get(place, -np.inf), starts[3 + i] + ends[3 + j])
            best = sorted([*((value, ' '.join(words[i:j])) for (i, j), value in score.items()), (min(empty), '')])[:-6:-1]
            self.assertEqual([' '.join(one['answer'].split()) for one in row['outputs']], [text for _, text in best])
            np.testing.assert_allclose([one['score'] for one in row['outputs']], [value for value, _ in best], atol=1e-4)
        self.refused(workdir, b'row mask\n', "In line 1: 'row mask' has no tab; expected a question and a text with a tab")
        self.refused(workdir, b'row\tsum\nrow\t\n', 'In line 2: The question .* is empty; give a question and a text')

    def test_words_that_look_replaced(self):
        workdir, model = self.folder / 'run', self.hugging_face('electra', cls_token_id=1, sep_token_id=2)
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        ids = [9, 8, 7, 30, 12, 55, 41]
        lines, rows = self.both(workdir, f'{" ".join(map(str, ids))}\n\n'.encode())
        logits = np.float64(self.outputs(workdir, [1, *ids, 2], [0] * 9)['replaced_logits'])[1:-1]
        self.assertLen(set(logits > 0), 2)
        self.assertEqual(lines, [' '.join(f'[{i}]' if x > 0 else str(i) for i, x in zip(ids, logits)), ''])
        tokens, rows = rows[0]['tokens'], rows[1:]
        self.assertEqual([(one['token'], one['id']) for one in tokens], [(str(i), i) for i in ids])
        np.testing.assert_allclose([one['probability'] for one in tokens], 1 / (1 + np.exp(-logits)), atol=1e-5)
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={self.folder / "map.png"}', '--input=9 8 7')
        self.assertEqual((done.code, done.err), (0, ''))

    @parameterized.parameters('pooled', 'mean')
    @pytest.mark.slow
    def test_vectors_of_texts(self, of):
        without = lambda weights: {name: x for name, x in weights.items() if of == 'pooled' or 'pooler' not in name}
        workdir, model = self.folder / 'run', self.hugging_face('bert_model', without, cls_token_id=1, sep_token_id=2)
        self.convert(f'--from_hf={model}', f'--workdir={workdir}')
        lines, rows = self.both(workdir, b'9 8 7\n\n5\n')
        self.assertEqual([lines[1], rows[1]], ['', {'text': ''}])
        for line, row, ids in ((lines[0], rows[0], [1, 9, 8, 7, 2]), (lines[2], rows[2], [1, 5, 2])):
            found = self.outputs(workdir, ids, [0] * len(ids))
            self.assertEqual((json.loads(line), row['of']), (row['vector'], of))
            np.testing.assert_allclose(row['vector'], found['pooled'] if of == 'pooled' else found['hidden'].mean(0), atol=1e-5)
        done = experiments.call('eval', f'--workdir={workdir}')
        self.assertEqual((done.code, done.err), (1, 'eval.py: This run has no evaluators; use '
                                                 'predict.py to see its outputs.\n'))

    def test_vectors_of_images(self):
        workdir = self.folder / 'run'
        self.convert(f'--from_hf={self.hugging_face("vit_model")}', f'--workdir={workdir}')
        image = np.random.default_rng(0).integers(256, size=(12, 8)).astype(np.uint8)
        path = self.folder / 'image.png'
        Image.fromarray(image).save(path)
        row, = self.both(workdir, f'{path}\n'.encode())[1]
        from training import run as runs
        pixels = (image[None, ..., None] / 255 - 0.5) / 0.5  # as its preparation says
        wanted = runs.load(workdir).apply(image=np.float32(pixels))['pooled'][0]
        self.assertEqual((row['path'], row['of']), (str(path), 'pooled'))
        np.testing.assert_allclose(row['vector'], wanted, atol=1e-5)

    @parameterized.parameters(
        ('bert', 'Key  [MASK], row', ['value'], 'Key  value, row'),
        ('bert', 'key [MASK] [MASK]', ['row', '##s'], 'key rows'),
        ('bert', '[MASK] key', ['##s'], 's key'),
        ('roberta', 'The <mask>  day<mask>', ['\u0120the', 's'], 'The the  days'),
        ('roberta', ' <mask> <mask> day', ['\u0120the', 's'], 'thes day'))
    def test_how_a_filled_text_reads(self, kind, text, signs, wanted):
        made = tiny_tokenizers.word_piece(self.folder, 'key row value')
        if kind == 'roberta':
            hugging_face.read(recorded.REFERENCE / 'roberta_tokenizer', 'roberta', 400, ({}, {})).tokenizer.save(self.folder)
            made = Json(str(self.folder / 'tokenizer.json'))
        data = masked.Masked(tokenizer=made, path=str(self.text), documents='line').open(None)
        self.assertEqual(data.filled(text, [data.tokenizer.number(sign) for sign in signs]), wanted)

    def test_a_filled_line_break_leaves_one_line(self):
        hugging_face.read(recorded.REFERENCE / 'roberta_tokenizer', 'roberta', 400, ({}, {})).tokenizer.save(self.folder)
        made = Json(str(self.folder / 'tokenizer.json'))
        data = masked.Masked(tokenizer=made, path=str(self.text), documents='line').open(None)
        logits = np.eye(data.tokenizer.vocab)[[data.tokenizer.number('\u010a')]]
        line, details = FilledMasks().answer(data, 'The<mask>day', _Asked(1, [[]]), [{'logits': logits}])
        self.assertEqual((line, details['filled']), ('The\\nday', 'The\nday'))


class InputTest(parameterized.TestCase):

    @parameterized.parameters('PNG', 'JPEG', 'BMP', 'PPM')
    def test_an_image_is_told_from_text_whatever_its_bytes(self, form):
        file = io.BytesIO()
        Image.new('RGB', (300, 300), (65, 66, 67)).save(file, form)
        self.assertTrue(is_image(file.getvalue()))
        for text in (b'', b'a.png\n', b'P5/a.png\n', b'a\0b', 'caf\u00e9.png'.encode()):
            self.assertFalse(is_image(text), text)

    @parameterized.parameters((True, 'Reading from the terminal: one input per line, Ctrl-D ends.\n'), (False, ''))
    def test_a_terminal_is_told_what_is_waited_for(self, terminal, hint):
        stdin = io.TextIOWrapper(io.BytesIO(b'key\n'))
        predict, err = experiments.script('predict'), io.StringIO()
        with (mock.patch.object(stdin, 'isatty', lambda: terminal), mock.patch('sys.stdin', stdin),
              contextlib.redirect_stderr(err)):
            self.assertEqual(predict.read('-'), b'key\n')
        self.assertEqual(err.getvalue(), hint)


if __name__ == '__main__':
    absltest.main()
