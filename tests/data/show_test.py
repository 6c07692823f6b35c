"""A row of every kind of batch, as it is printed."""

import json

import numpy as np
from absl.testing import absltest, parameterized

from data import show
from data.images.labelled import Images
from data.noise.masking import Spans, Tokens, WithReplacement
from data.points import Curve
from data.seq2seq.corrupted import Corrupted
from data.seq2seq.parallel import Parallel
from data.text.babi import Babi
from data.text.choices import Choices
from data.text.documents import Text
from data.text.labelled import Labelled
from data.text.masked import Masked
from data.text.preferences import Preferences
from data.text.questions import Questions
from data.text.shift import Shift
from data.text.tagged import Tagged
from data.text.targets import Labels, Number
from data.tokenizers.specs import Char, Word, WordPiece
from tests import experiments
from tests.data import tiny_tokenizers

TEXT = 'the cat sat . the dog ran . the mat lay .\nthe sun rose . the day went . the end came .\n'
WORDS = ' '.join(sorted(set(TEXT.split())))
MARKED = '\u2039{}\u2192{}\u203a'


class ShowTest(experiments.TestCase):
    def lines(self, data, split='all', row=0):
        opened = data.open(None)
        return list(show.lines(opened, show.row_of(opened, split, row)[0]))

    def written(self, name, text=TEXT):
        path = self.folder / name
        path.write_text(text)
        return dict(path=str(path), train='all', valid='', test='', batch_size=2)

    def pieces(self):
        return tiny_tokenizers.word_piece(self.folder, WORDS)

    def masked(self, **fields):
        given = dict(documents='line', packing='none', length=20, tokenizer=self.pieces())
        return Masked(**self.written('text.txt') | given | fields)

    def test_masked_words(self):
        found = self.lines(self.masked(noise=Tokens(share=1.0, mask=1.0, random=0.0)))
        said = ' '.join(MARKED.format(word, '[MASK]') for word in TEXT.split('\n')[0].split())
        self.assertEqual(' '.join(found[1].split()), f'[CLS] {said} [SEP]')
        self.assertIn('14 tokens, 6 places of padding', found[-14])
        self.assertEqual(found[-13:-10], [
            '12 words to predict, by their places:', '     1 the: seen as [MASK]', '     2 cat: seen as [MASK]'])

    def test_kept_and_repeated_words_and_spans(self):
        kept = self.lines(self.masked(noise=Tokens(share=1.0, mask=0.0, random=0.0)))
        self.assertIn('\u2039cat\u203a', kept[1])
        self.assertIn('     2 cat: stays', kept)
        again = '\n'.join(self.lines(self.masked(noise=WithReplacement(share=1.0))))
        self.assertIn(', weight 2', again)
        spans = '\n'.join(self.lines(self.masked(noise=Spans(share=0.4, p=0.01, longest=6), boundary_targets=20), row=1))
        self.assertRegex(spans, r'; word 2 of the span between \d+ and \d+')

    @parameterized.parameters(('order', 'the two texts are in order', 'the two texts have changed places'),
                              ('next', 'the second text follows the first', 'the second text is from another document'))
    def test_pairs(self, pairs, *meanings):
        data = self.masked(pairs=pairs, noise=Tokens(share=0.01))
        seen = set()
        for row in range(12):
            found = self.lines(data, 'train', row)
            self.assertLen([line for line in found if ', type 1:' in line], 1)
            seen.add(found[-1])
        self.assertEqual(seen, {f'label: {label}, {meaning}' for label, meaning in enumerate(meanings)})

    def test_language_modelling(self):
        data = Text(**self.written('text.txt'), documents='line', tokenizer=Char(), length=90)
        found = self.lines(data)
        _, second = TEXT.splitlines()
        self.assertEqual(found[0], 'inputs, segment 1:')
        self.assertIn(f'  {second}<end>', '\n'.join(found))  # a target
        self.assertIn('targets, segment 2:', found)
        self.assertIn('  87 tokens, 3 places of padding', found)
        odd = Text(**self.written('odd.txt', 'a\x1b[31mb\na b'), documents='file', tokenizer=Char(), length=8)
        self.assertIn('a\\x1b[31mb', self.lines(odd)[1])
        stream = self.lines(Text(**self.written('text.txt'), documents='stream', tokenizer=Word(), length=8))
        self.assertEqual(stream[0], 'inputs:')
        self.assertRegex(stream[1], r'^  (\S+ ){7}\S+$')

    def test_two_sides(self):
        given = self.written('pairs.txt', 'the cat sat\tle chat\nthe dog ran\tle chien\n')
        found = self.lines(Parallel(source='table', tokenizer=Word(), source_length=6, length=6, **given))
        self.assertEqual(found[0], 'inputs:')
        self.assertIn('the cat sat', found[1])
        at = found.index('decoder inputs:')
        self.assertIn('le chat', found[at + 1])
        self.assertRegex(found[found.index('targets:') + 1], 'le chat <eos>')
        shifted = self.lines(Shift(**self.written('text.txt'), tokenizer=Word(), length=10))
        self.assertEndsWith(shifted[shifted.index('targets:') + 1], '_')  # the last word cannot be known

    def test_targets_that_are_not_predicted_keep_the_words_apart(self):
        data = Corrupted(**self.written('text.txt', 'the <unk> sat on the <unk> by the old mill\n' * 20), documents='line',
                         tokenizer=WordPiece(vocab=36, sentinels=4), framing='bert', length=32)
        for row in range(8):
            found = self.lines(data, 'train', row)
            first, second = (found[found.index(f'{side}:') + 1].split() for side in ('decoder inputs', 'targets'))
            self.assertEqual([word for word in second[:-1] if word != '_'],
                             [word for word in first[1:] if word != '[UNK]'])

    def test_labels(self):
        given = self.written('a.tsv', 'text\tlabel\nthe cat\tgood\nthe dog\tbad\n') | dict(length=8, tokenizer=self.pieces())
        self.assertEqual(self.lines(Labelled(**given))[-1], 'label: good')
        given = self.written('b.tsv', 'text\tlabels\nthe cat\tx,y\nthe dog\t\n') | dict(length=8, tokenizer=self.pieces())
        self.assertEqual([self.lines(Labelled(target=Labels(), **given), row=row)[-1] for row in (0, 1)],
                         ['label: x, y', 'label: none'])
        given = self.written('c.tsv', 'text\ttext2\tscore\nthe cat\tcat\t2.5\nthe dog\tsun\t1\n')
        given |= dict(length=8, tokenizer=self.pieces(), target=Number(), columns='text,text2', label='score')
        found = self.lines(Labelled(**given))
        self.assertEqual((found[-1], found[2]), ('label: 2.5', 'inputs, type 1:'))
        found = self.lines(Labelled(both=True, **given))
        self.assertEqual([line for line in found if line.endswith(':')], [
            f'inputs, order {order}, type {kind}:' for order in (1, 2) for kind in (0, 1)])
        self.assertEqual(found[-1], 'label: 2.5')

    def test_tags(self):
        given = self.written('names.conll', 'the O\ncat B-X\nsat I-X\n\nthe O\n\n')
        found = self.lines(Tagged(length=8, tokenizer=self.pieces(), **given))
        self.assertEqual(found[1], '  [CLS] the/O cat/B-X sat/I-X [SEP]')

    def test_questions(self):
        questions = [{'id': '0', 'question': 'the cat', 'answers': [{'text': 'dog ran', 'answer_start': 4}]},
                     {'id': '1', 'question': 'the sun', 'answers': []}]
        given = self.written('a.json', json.dumps({'data': [{'paragraphs': [
            {'context': 'the dog ran .', 'qas': questions}]}]}))
        data = Questions(length=16, stride=4, question_length=4, tokenizer=self.pieces(), **given)
        self.assertEqual([self.lines(data, row=row)[-1] for row in (0, 1)],
                         ['answer: dog ran (places 5 to 6)', 'answer: none in this window'])

    def test_preferences(self):
        given = self.written('a.tsv', 'prompt\tchosen\trejected\nthe cat\tsat\tran\nthe dog\tran\tsat\n')
        found = self.lines(Preferences(length=10, tokenizer=self.pieces(), **given))
        self.assertEqual([found[i] for i in (0, 1, 2, 3, 5, 8)], [
            'chosen, type 0:', '  [CLS] the cat [SEP]', 'chosen, type 1:', '  sat [SEP]', 'rejected, type 0:', '  ran [SEP]'])

    def test_choices(self):
        given = self.written('a.tsv', 'context\tchoice1\tchoice2\tlabel\nthe cat\tsat\tran\tB\nthe dog\tran\tsat\tB\n')
        found = self.lines(Choices(length=10, tokenizer=self.pieces(), **given))
        self.assertEqual([found[i] for i in (0, 1, 2, 3, 5, 8)], [
            'answer 1, type 0:', '  [CLS] the cat [SEP]', 'answer 1, type 1:', '  sat [SEP]',
            'answer 2, the right one, type 0:', '  ran [SEP]'])
        self.assertLen(found, 10)

    def test_stories(self):
        experiments.write_babi(self.folder / 'en-10k', 20)
        found = self.lines(Babi(path=str(self.folder), tasks=(1, 2), train='train[:10]', valid='train[10:]'), 'valid')
        self.assertStartsWith(found[0], 'story, the latest sentence first')
        self.assertRegex(found[-2], r'^label: (garden|kitchen|office)$')
        self.assertRegex('\n'.join(found), r'question: where is \w+')
        self.assertRegex(found[-1], '^task: [12]$')

    def test_images_and_points(self):
        found = self.lines(Images(source='digits', train='train[:64]', valid='train[64:74]'), 'valid')
        self.assertRegex(found[0], r'^label: \d$')
        self.assertRegex(found[1], r'^image: float32 \[8, 8, 1\], from 0 to 1: 0 ')
        found = self.lines(Curve(), 'valid')
        self.assertRegex(found[0], r'^query: float32 \[1\], from ')

    def test_rows_of_batches(self):
        opened = self.masked().open(None)
        batches = opened.train(3)
        for number in range(3):
            batch = next(batches)
            for place in (0, 1):
                row, index, where = show.row_of(opened, 'train', 2 * number + place, 3)
                self.assertEqual((index, where), (number, place))
                np.testing.assert_array_equal(row['inputs'], batch['inputs'][place])
        for number, message in ((-1, 'expected the number of a row, from 0'), (2, "the split 'all' has 2 rows")):
            with self.assertRaisesRegex(ValueError, message):
                show.row_of(opened, 'all', number)

    def test_the_command(self):
        given = '--config=configs/bert_mini.py:words', f'--config.data.path={self.text}', (
            '--config.data.tokenizer=WordPiece(vocab=60)'), '--config.data.length=20'
        done = experiments.call('data/show', *given, '--split=valid', '--row=1')
        self.assertEqual(done.code, 0, done.err)
        read, shown = done.out.splitlines()[:2]
        self.assertRegex(read, f'^data: .*{self.text}, .* to train on; WordPiece vocabulary of 60; ')
        self.assertEqual(shown, 'configs/bert_mini.py:words, data.text.masked:Masked, valid: batch 0, row 1 of 32')
        self.assertIn('words to predict', done.out)
        for more, message in (('--row=100000', "the split 'valid' has"), ('--split=val', "'val'"), ('--row=-1', 'from 0')):
            done = experiments.call('data/show', *given, *([] if 'split' in more else ['--split=valid']), more)
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertRegex(done.err, f'^show.py: .*{message}.*\n$')


if __name__ == '__main__':
    absltest.main()
