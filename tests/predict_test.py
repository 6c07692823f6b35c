"""predict.py: one line out per line in, whatever the lines around it."""

import contextlib
import io
import json
import math
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from configs import base
from tests import experiments
from transformer.attention import maps


class PredictTest(experiments.TestCase):

    def predict(self, workdir, *arguments, stdin=b''):
        done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
        self.assertEqual((done.code, done.err), (0, ''))
        return done.out.splitlines()


class TextTest(PredictTest):

    def setUp(self):
        super().setUp()
        self.workdir = self.trained(**{'train.steps': 2})

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

    def test_a_model_may_have_more_tokens_than_its_tokenizer(self):
        workdir = self.folder / 'wide'
        config = experiments.tiny(self.text, **{'train.steps': 1, 'model.vocab': 4096,
                                                'data.tokenizer': 'SentencePiece(vocab=300)'})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        self.assertLen(self.predict(workdir, '--tokens=8', '--strategy=Sample(temperature=5.0)', stdin=b'key\n'), 1)

    def test_a_line_does_not_depend_on_the_others(self):
        lines = self.predict(self.workdir, '--tokens=8', stdin=b'key\nquery value\n')
        self.assertEqual(self.predict(self.workdir, '--tokens=8', stdin=b'mask\nquery value\nhead\n')[1], lines[1])

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
        details = [json.loads(line) for line in self.predict(self.workdir, '--json', stdin=b'key\n' + b'q' * 14 + b'\n')]
        self.assertEqual([row['prompt'] for row in details], ['key', 'q' * 14])
        self.assertLessEqual(details[0]['tokens'], 13)  # of 16, `end` and the prompt have 4; the last one is not read
        self.assertLessEqual(details[1]['tokens'], 2)

    def test_step(self):
        prompts = b'key\nrow\nmask\nhead\nnorm\n'
        second = self.predict(self.workdir, stdin=prompts)
        self.assertEqual(experiments.train(experiments.tiny(self.text, **{'train.steps': 6}), self.workdir)[0], 0)
        self.assertEqual(self.predict(self.workdir, '--step=2', stdin=prompts), second)
        sixth = self.predict(self.workdir, '--step=6', stdin=prompts)
        self.assertNotEqual(sixth, second)
        self.assertEqual(self.predict(self.workdir, stdin=prompts), sixth)

    def test_no_input_no_output(self):
        self.assertEqual(self.predict(self.workdir), [])


class StreamTest(PredictTest):

    def test_line_breaks_are_shown_and_empty_prompts_refused(self):
        self.text.write_text('\n' * 400 + 'ab')
        workdir = self.folder / 'run'
        experiments.train(experiments.tiny(self.text, **{
            'data.documents': 'stream', 'train.steps': 7, 'data.train': 'all', 'data.valid': 'all',
            'optimizer.learning_rate': 0.1}), workdir)
        self.assertEqual(self.predict(workdir, '--strategy=Greedy()', '--tokens=3', stdin=b'ab\n'), ['ab' + r'\n' * 3])
        done = experiments.call('predict', f'--workdir={workdir}', stdin=b'a\n\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: The prompt in line 2 is empty; give at least one character to continue.\n')


class TranslationTest(PredictTest):

    def setUp(self):
        super().setUp()
        self.workdir = self.translator()

    def test_a_line_for_every_line(self):
        lines = self.predict(self.workdir, stdin=b'key value\n\nmask\n   \nhead  row\r\n')
        self.assertLen(lines, 5)
        self.assertEqual([bool(line) for line in lines], [True, False, True, False, True])
        self.assertEqual(self.predict(self.workdir, stdin=b'head row\n\nkey value\n')[::2], [lines[4], lines[0]])
        self.assertEqual(self.predict(self.workdir, stdin=b'\n\n'), ['', ''])
        self.assertEqual(self.predict(self.workdir), [])

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

    def test_a_prefix_begins_every_output(self):
        rows = [json.loads(line) for line in self.predict(
            self.workdir, '--json', '--prefix=head row', '--strategy=Beam(size=2, count=2)', stdin=b'key value\n\nmask\n')]
        self.assertEqual([row['text'].split()[:2] for row in rows], [['head', 'row'], [], ['head', 'row']])
        self.assertTrue(all(one['text'].startswith('head row') for one in rows[0]['outputs']))
        done = experiments.call('predict', f'--workdir={self.workdir}', f'--prefix={"row " * 12}', stdin=b'key\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: --prefix has 13 tokens, but the context of this model is 12 and must hold a '
                         'new one too; shorten it to 11.\n')

    def test_a_byte_order_mark_is_not_part_of_the_first_line(self):
        self.assertEqual(self.predict(self.workdir, stdin=b'\xef\xbb\xbfkey value\n'),
                         self.predict(self.workdir, stdin=b'key value\n'))

    def test_tokens_bound_the_output(self):
        rows = [json.loads(line) for line in self.predict(
            self.workdir, '--json', '--tokens=2', '--strategy=Greedy()', stdin=b'key value mask head\nrow\n')]
        self.assertLessEqual(max(row['tokens'] for row in rows), 2)

    def test_long_sources_are_cut_only_when_asked(self):
        long = b' '.join([b'key'] * 12)
        done = experiments.call('predict', f'--workdir={self.workdir}', stdin=b'key\n' + long + b'\n')
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertEqual(done.err, 'predict.py: The source in line 2 has 13 tokens with its end, but this model takes 12; '
                         'shorten it, or give --truncate.\n')
        file = self.folder / 'long.txt'
        file.write_bytes(b'\n\n' + long + b'\n')
        done = experiments.call('predict', f'--workdir={self.workdir}', f'--input={file}')
        self.assertStartsWith(done.err, f'predict.py: The source in line 3 of {file} has 13 tokens')
        cut, whole = self.predict(self.workdir, '--truncate', stdin=long + b'\n' + b' '.join([b'key'] * 11) + b'\n')
        self.assertEqual(cut, whole)

    def test_sampling_depends_on_the_seed_and_the_line_alone(self):
        sample = '--strategy=Sample(temperature=3.0)'
        lines = self.predict(self.workdir, sample, stdin=b'key value\nmask head row\n')
        self.assertEqual(self.predict(self.workdir, sample, stdin=b'row\nmask head row\nstep\n')[1], lines[1])
        self.assertNotEqual(self.predict(self.workdir, sample, '--seed=1', stdin=b'key value\nmask head row\n'), lines)


class StoriesTest(PredictTest):

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
        row = json.loads(done.out.splitlines()[-1])
        self.assertEqual(row['sentences'][0], 'Daniel slept.')  # the latest one
        self.assertEqual([one['layer'] for one in row['layers']], ['hop_1', 'hop_2'])
        (hops,), = row['weights'].values()
        self.assertEqual([len(hop) for hop in hops], [5, 5])
        self.assertAlmostEqual(sum(hops[0]), 1.0, delta=1e-3)
    def test_a_transformer_over_sentences_takes_shorter_stories_than_those_of_training(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        workdir, picture = self.folder / 'run', self.folder / 'heads.png'
        config = experiments.tiny_stories(self.folder, **{'train.steps': 1, 'log.every_steps': 1})
        with config.unlocked():
            config.model = base.part('transformer.story_transformer:StoryTransformer', layers=1, heads=2, width=8)
            config.task = base.part('transformer.question_tasks:Answers')
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        told = '1 Daniel slept.\n2 Mary slept.\n3 Mary slept?\n'
        self.assertLen(self.predict(workdir, stdin=told.encode()), 1)
        done = experiments.call('eval', f'--workdir={workdir}', f'--attention={picture}', f'--input={told}')
        self.assertEqual((done.code, done.err), (0, ''))
        row = json.loads(done.out.splitlines()[-1])
        self.assertEqual(row['sentences'], ['Mary slept.', 'Daniel slept.'])
        self.assertEqual(np.shape(row['weights']['block_0']), (2, 3, 3))
        # the numbers are of what is there, not of the empty memory behind it
        np.testing.assert_allclose(row['layers'][0]['entropy'], maps.entropy(row['weights']['block_0']), atol=1e-3)
        self.assertAlmostEqual(row['layers'][0]['highest_entropy'], math.log(3))


class ImagesTest(PredictTest):

    def test_classifies_files(self):
        workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny_images(), workdir)[0], 0)
        paths = experiments.save_digits(self.folder / 'images', range(64, 67))
        listed = '\n'.join(map(str, paths)).encode() + b'\n'
        lines = self.predict(workdir, stdin=listed)
        self.assertLen(lines, 3)
        details = [json.loads(line) for line in self.predict(workdir, '--json', stdin=listed)]
        for line, row, path in zip(lines, details, paths):
            self.assertEqual(line, f'{row["class"]}\t{row["probability"]:.4f}\t{path}')
            self.assertEqual(list(row['probabilities']), list('0123456789'))
            self.assertAlmostEqual(sum(row['probabilities'].values()), 1.0, delta=1e-5)
            self.assertEqual(row['probability'], max(row['probabilities'].values()))
            self.assertEqual(self.predict(workdir, f'--input={path}'), [line])
        listed += str(self.folder / 'nowhere.png').encode()
        done = experiments.call('predict', f'--workdir={workdir}', stdin=listed)
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertIn("nowhere.png' does not exist", done.err)
        self.assertEqual(self.predict(workdir, stdin=f'\n{paths[0]}\r\n \n\n{paths[1]}\n\n'.encode()), lines[:2])
        cut = self.folder / 'cut.png'
        cut.write_bytes(paths[0].read_bytes()[:60])
        broken = self.folder / 'broken.png'
        broken.write_bytes(b'\x89' + bytes(50))
        for arguments, stdin, pattern in (
                ([], paths[0].read_bytes(), 'Stdin is an image.*--input=FILE'),
                ([f'--input={cut}'], b'', 'cut.png cannot be decoded as an image'),
                ([f'--input={broken}'], b'', "broken.png' is not UTF-8 at byte 0; give an image, or the path of one per line"),
                (['--strategy=Greedy()'], listed, '--strategy is for models that write texts'),
                (['--tokens=100'], listed, '--tokens is for models that write texts'),
                (['--seed=0'], listed, '--seed is for models that write texts')):
            with self.subTest(arguments=arguments):
                done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
                self.assertEqual((done.code, done.out), (1, ''))
                self.assertRegex(done.err, rf'\Apredict.py: [^\n]*{pattern}[^\n]*\n\Z')


class InputTest(parameterized.TestCase):

    @parameterized.parameters('PNG', 'JPEG', 'BMP', 'PPM')
    def test_an_image_is_told_from_text_whatever_its_bytes(self, form):
        file = io.BytesIO()
        Image.new('RGB', (300, 300), (65, 66, 67)).save(file, form)
        predict = experiments.script('predict')
        self.assertTrue(predict.is_image(file.getvalue()))
        for text in (b'', b'a.png\n', b'P5/a.png\n', b'a\0b', 'caf\u00e9.png'.encode()):
            self.assertFalse(predict.is_image(text), text)

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
