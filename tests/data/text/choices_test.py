"""Multiple choice: which column is what, which answer is right, and a row for each answer."""

import json

from absl.testing import absltest, parameterized

from data.sources import files as sources
from data.sources.tables import Table
from data.text.choices import Choices
from tests.data import tiny_tokenizers
from tests.data.text.labelled_test import LabelledCase, equal, everything
from transformer.readers.classes import TextChoice

# (context, question, answers, the number of the right one)
ROWS = [('the cat sat', '', ('a dog', 'no'), 0), ('he said', '', ('good', 'bad film'), 1),
        ('a film', '', ('no good', 'the dog'), 0)]
ASKED = [('the cat', 'he said', ('no', 'a dog'), 1), ('a film', 'the', ('good', 'bad'), 0)]


def jsonl(rows):
    return ''.join(json.dumps(row) + '\n' for row in rows)


def tsv(header, rows):
    return ''.join('\t'.join(map(str, row)) + '\n' for row in ([header] if header else []) + [*rows])


def objects(answers):
    return {'text': [*answers], 'label': [*'ABCD'[:len(answers)]]}


class ChoicesTest(LabelledCase):
    def opened(self, name, text, **fields):
        self.write(name, text)
        return Choices(**self.fields(train='train', **fields)).open(None)

    def read(self, opened, split='train'):
        """[([row of each answer, ..], right), ..] as they are spelt, each row with its special tokens."""
        found = everything(opened.evaluation(split, 2))
        return [([self.spelt(opened, ids) for ids in rows if ids.any()], int(label))
                for rows, label in zip(found['inputs'], found['label'])]

    def wanted(self, rows, between=' [SEP] ', behind=' '):
        return [([f'[CLS] {" [SEP] ".join(filter(None, (context, f"{question}{behind}{answer}".strip())))} [SEP]'
                  for answer in answers], right) for context, question, answers, right in rows]

    @parameterized.parameters(
        ('a.tsv', tsv(('context', 'ending0', 'ending1', 'label'), ((c, *a, n) for c, _, a, n in ROWS))),
        ('a.tsv', tsv(('premise', 'choice1', 'choice2', 'label'), ((c, *a, n) for c, _, a, n in ROWS))),
        ('a.csv', 'id,label,Option B,Option A,context\n' + ''.join(f'{i},{"AB"[n]},{a[1]},{a[0]},{c}\n'
                                                               for i, (c, _, a, n) in enumerate(ROWS))),
        ('a.tsv', tsv((), ((c, *a, n + 1) for c, _, a, n in ROWS)), {'header': 'false'}),
        ('a.tsv', tsv((), ((n, *a, c) for c, _, a, n in ROWS)),
         {'header': 'false', 'context': (4,), 'answers': (2, 3), 'label': '1'}),
        ('a.tsv', tsv(('one', 'two', 'three', 'four'), ((c, *a, n) for c, _, a, n in ROWS)),
         {'header': 'true', 'context': ('one',), 'answers': ('two', 'three'), 'label': 'four'}),
        ('a.jsonl', jsonl({'goal': c, 'sol1': a[0], 'sol2': a[1], 'label': n} for c, _, a, n in ROWS)),
        ('a.jsonl', jsonl({'ctx': c, 'ctx_a': 'no', 'endings': a, 'label': str(n)} for c, _, a, n in ROWS)),
        ('a.jsonl', jsonl({'question': c, 'choices': objects(a), 'answerKey': 'AB'[n]} for c, _, a, n in ROWS)),
        ('a.jsonl', jsonl({'question': c, 'choices': [{'label': f'{i + 1}', 'text': one} for i, one in enumerate(a)],
                           'answerKey': f'{n + 1}'} for c, _, a, n in ROWS)),
        ('a.jsonl', jsonl({'question': c, 'choices': a, 'answer': a[n]} for c, _, a, n in ROWS)),
        ('a.csv', 'question,A,B,answer\n' + ''.join(f'{c},{",".join(a)},{"ab"[n]}\n' for c, _, a, n in ROWS)),
        ('a.csv', 'question,options,answer\n' + ''.join(f'{c},"[""{a[0]}"", ""{a[1]}""]",{n}.0\n' for c, _, a, n in ROWS)),
    )
    def test_a_context_and_answers(self, name, text, fields=()):
        opened = self.opened(name, text, **dict(fields))
        self.assertEqual(self.read(opened), self.wanted(ROWS))
        rows = everything(opened.evaluation('train', 2))
        self.assertEqual(rows['types'][0].tolist(), [[0] * 5 + [1] * 3 + [0] * 4, [0] * 5 + [1] * 2 + [0] * 5])
        self.assertEqual({name: x.shape for name, x in rows.items() if name != 'example_weights'}, {
            'label': (3,), **{name: (3, 2, 12) for name in ('inputs', 'segments', 'positions', 'types')}})

    @parameterized.parameters(
        ('a.csv', 'video,sent1,sent2,ending0,ending1,label\n' + ''.join(
            f'{i},{c},{q},{",".join(a)},{n}\n' for i, (c, q, a, n) in enumerate(ASKED))),
        ('a.jsonl', jsonl({'article': c, 'question': q, 'options': a, 'answer': 'AB'[n]} for c, q, a, n in ASKED)),
        ('a.jsonl', jsonl({'x': c, 'y': q, 'options': a, 'answer': 'AB'[n]} for c, q, a, n in ASKED),
         {'context': ('x',), 'question': 'y'}))
    def test_a_question_stands_before_the_answer_or_behind_the_context(self, name, text, fields=()):
        self.assertEqual(self.read(self.opened(name, text, **dict(fields))), self.wanted(ASKED))
        opened = self.opened(name, text, question_with='context', **dict(fields))
        self.assertEqual(self.read(opened)[0][0], ['[CLS] the cat he said [SEP] no [SEP]',
                                                   '[CLS] the cat he said [SEP] a dog [SEP]'])
        self.assertEqual(opened.read_choices('the cat\the said\tno\ta dog')[0], ('no', 'a dog'))

    @parameterized.parameters(
        ('video-id fold-ind startphrase sent1 sent2 gold-source ending0 ending1 ending2 ending3 label',
         'sent1', 'sent2', 'ending0 ending1 ending2 ending3', 'label'),
        ('ind activity_label ctx_a ctx_b ctx endings source_id split split_type label', 'ctx', '', 'endings', 'label'),
        ('example_id article answer question options', 'article', 'question', 'options', 'answer'),
        ('id question choices answerKey', '', 'question', 'choices', 'answerKey'),
        ('id question question_concept choices answerKey', '', 'question', 'choices', 'answerKey'),
        ('premise choice1 choice2 question idx label', 'premise', 'question', 'choice1 choice2', 'label'),
        ('goal sol1 sol2 label', 'goal', '', 'sol1 sol2', 'label'),
        ('context question answerA answerB answerC label', 'context', 'question', 'answerA answerB answerC', 'label'),
        ('context question A B C D E F G H I J answer', 'context', 'question', 'A B C D E F G H I J', 'answer'),
        ('sentence option1 option2 answer', 'sentence', '', 'option1 option2', 'answer'),
        ('question subject choices answer', '', 'question', 'choices', 'answer'))
    def test_columns_with_usual_names(self, header, *wanted):
        table = Table(sources.files(self.write('a.jsonl', jsonl([dict.fromkeys(header.split(), '1')])))[0])
        layout = Choices(path='a').layout(table)
        found = (layout.context, layout.question, layout.answers, layout.label)
        self.assertEqual([' '.join(table.names[column] for column in columns) for columns in found], [*wanted])

    def test_a_story_is_several_columns(self):
        header = ('InputStoryid', 'InputSentence1', 'InputSentence2', 'RandomFifthSentenceQuiz1', 'RandomFifthSentenceQuiz2',
                  'AnswerRightEnding')
        rows = [(7, 'the cat', 'sat', 'no', 'bad', 2), (8, 'a dog', 'ran', 'bad', 'no', 1)]
        self.assertEqual(self.read(self.opened('a.tsv', tsv(header, rows), header='true')), self.wanted(
            [('the cat sat', '', ('no', 'bad'), 1), ('a dog ran', '', ('bad', 'no'), 0)]))

    def test_rows_may_have_different_numbers_of_answers(self):
        opened = self.opened('a.tsv', tsv(('context', 'ending1', 'ending2', 'ending3', 'label'), [
            ('he', 'no', 'bad', '', 2), ('he', 'a', 'no', 'bad', 3)]))
        rows = everything(opened.evaluation('train', 2))
        self.assertEqual(rows['segments'].any(-1).tolist(), [[True, True, False], [True] * 3])
        self.assertEqual(rows['label'].tolist(), [1, 2])
        self.assertFalse(rows['inputs'][0, 2].any())
        self.assertIn('2 examples of 2 to 3 answers', opened.describe())
        self.write('test.jsonl', jsonl([{'context': 'he', 'choices': ['a', 'no', 'bad', 'he'], 'label': 'D'}]))
        rows = everything(opened.score([str(self.folder / 'texts' / 'test.jsonl')], 2))
        self.assertEqual((rows['inputs'].shape, rows['label'].tolist()), ((1, 4, 12), [3]))

    def test_numbers_count_from_what_the_files_tell(self):
        header = ('context', 'ending0', 'ending1', 'ending2', 'label')
        for others, first, right in (([0], 'auto', 1), ([3], 'auto', 0), ([1], '0', 1), ([1], '1', 0)):
            self.write('train.tsv', tsv(header, [('he', 'a', 'no', 'bad', n) for n in others]))
            self.write('dev.tsv', tsv(header, [('he', 'a', 'no', 'bad', 1)]))
            config = Choices(**self.fields(train='train', first=first) | {'valid': 'valid'})
            self.assertEqual(config.part('valid').examples[0].number, right)
        self.write('train.tsv', tsv(header, [('he', 'a', 'no', 'bad', 1)]))
        with self.assertRaisesRegex(ValueError, 'dev.tsv has numbers of right answers that are neither .*set data.first=0'):
            Choices(**self.fields(train='train') | {'valid': 'valid'}).part('valid').examples  # noqa: B018

    def test_what_is_too_long_is_cut_and_counted(self):
        row = {'context': 'the cat sat a dog', 'question': 'he said', 'choices': ['no', 'bad film']}
        text = jsonl(row | {'label': n} for n in (0, 1))
        opened = self.opened('a.jsonl', text, length=9)
        self.assertEqual(self.read(opened)[0][0], ['[CLS] the cat sat [SEP] he said no [SEP]',
                                                   '[CLS] the cat [SEP] he said bad film [SEP]'])
        self.assertIn('2 examples of 2 answers to train on, 2 answers of them cut to 9 tokens', opened.describe())
        self.assertEqual(opened.read_choices('the cat sat a dog\the said\tno\tbad film')[2], 3)
        opened = self.opened('a.jsonl', text, length=9, question_with='context')
        self.assertEqual(self.read(opened)[0][0], ['[CLS] the cat sat he said [SEP] no [SEP]',
                                                   '[CLS] the cat he said [SEP] bad film [SEP]'])

    @parameterized.parameters(
        (10, 'the cat [SEP] he said a dog no', 'the [SEP] he said a dog bad film'),
        (8, 'the [SEP] he said a no', 'the [SEP] he said bad film'),
        (6, 'the [SEP] he no', 'the [SEP] bad film'),
        (5, 'the [SEP] no', 'the [SEP] bad'))
    def test_a_long_question_is_cut_before_its_answer(self, length, *wanted):
        row = {'context': 'the cat', 'question': 'he said a dog', 'choices': ['no', 'bad film']}
        opened = self.opened('a.jsonl', jsonl(row | {'label': n} for n in (0, 1)), length=length)
        rows = [f'[CLS] {row} [SEP]' for row in wanted]
        self.assertEqual(self.read(opened)[0][0], rows)
        _, framed, cut = opened.read_choices('the cat\the said a dog\tno\tbad film')
        self.assertEqual(([self.spelt(opened, ids) for ids, _ in framed], cut), (rows, 11 - length))

    def test_training_visits_every_example_and_goes_on_where_it_stopped(self):
        opened = self.opened('a.jsonl', jsonl({'context': 'x' * (i + 1), 'choices': ['good', 'bad'], 'label': i % 2}
                                              for i in range(8)))
        batches = opened.train(seed=1)
        first = [next(batches) for _ in range(2)]
        self.assertEqual({name: (x.shape, x.dtype) for name, x in first[0].items()}, dict(opened.shapes))
        self.assertLen({rows.tobytes() for batch in first for rows in batch['inputs']}, 8)
        state, later = batches.get_state(), next(batches)
        again = opened.train(seed=1)
        again.set_state(state)
        self.assertTrue(equal(next(again), later))

    def test_a_saved_run_reads_a_line_without_its_texts(self):
        header = 'context', 'ending0', 'ending1', 'ending2', 'label'
        self.opened('a.tsv', tsv(header, [('he', 'a', 'no', 'bad', 0)])).save(self.folder)
        opened = Choices(**self.fields(path=str(self.folder / 'nowhere'))).open(self.folder)
        answers, rows, cut = opened.read_choices('the cat\tno\ta dog')
        self.assertEqual((answers, cut), (('no', 'a dog'), 0))
        self.assertEqual([(self.spelt(opened, ids), types.tolist()) for ids, types in rows], [
            ('[CLS] the cat [SEP] no [SEP]', [0] * 4 + [1] * 2), ('[CLS] the cat [SEP] a dog [SEP]', [0] * 4 + [1] * 3)])
        self.assertEqual((opened.classes, opened.facts['classes'], opened.answers, opened.shapes['inputs'][0]),
                         (('LABEL_0',), 1, 3, (4, 3, 12)))
        for line in ('the cat', 'the cat\t', '\tno\ta', ''):
            with self.assertRaisesRegex(ValueError, 'is not what this run answers; expected a context or a question and two'):
                opened.read_choices(line)

    @parameterized.parameters(
        (('context\tending0\tending1', 'he\tno\ta dog', 'the cat\tbad\tgood'), '-'),
        (('label\tending1\tending0\tcontext', '0\ta dog\tno\the', '1\tgood\tbad\tthe cat'), 'test.tsv'),
        (('{"context": "he", "choices": ["no", "a dog"]}', '{"context": "the cat", "choices": ["bad", "good"]}'), '-'),
        (('context,ending0,ending1', 'he,no,a dog', 'the cat,bad,"good"'), 'test.csv'))
    def test_rows_of_a_table_without_labels(self, lines, name):
        opened = self.opened('a.tsv', tsv(('context', 'ending0', 'ending1', 'label'), [('he', 'a', 'no', 0)]))
        self.assertEqual(opened.unanswered(lines, name), ['he\tno\ta dog', 'the cat\tbad\tgood'])
        self.assertIsNone(opened.unanswered(['the cat\tno\ta dog', 'he\tno\tbad'], name if name.endswith('tsv') else '-'))

    def test_a_table_without_the_label_that_training_named(self):
        opened = self.opened('a.tsv', tsv(('context', 'ending0', 'ending1', 'gold_x'), ((c, *a, n) for c, _, a, n in ROWS)),
                             label='gold_x')
        self.assertEqual(opened.unanswered(['context\tending0\tending1', 'he\tno\ta dog'], 'x.tsv'), ['he\tno\ta dog'])

    @parameterized.parameters(('answer', 'the cat\the said no\the said a dog'), ('context', 'the cat he said\tno\ta dog'))
    def test_a_run_that_knows_no_questions_apart_reads_a_table_with_them(self, place, line):
        """Its rows are those of evaluation."""
        table = tsv(('context', 'question', 'ending0', 'ending1', 'label'), [('the cat', 'he said', 'no', 'a dog', 1)])
        opened = self.opened('a.tsv', tsv(('context', 'ending0', 'ending1', 'label'), ((c, *a, n) for c, _, a, n in ROWS)),
                             question_with=place)
        self.assertEqual(opened.unanswered(table.splitlines(), 'x.tsv'), [line])
        path = self.write('other.tsv', table)
        wanted = [self.spelt(opened, ids) for ids in next(iter(opened.score([str(path)], 1)))['inputs'][0]]
        self.assertEqual([self.spelt(opened, ids) for ids, _ in opened.read_choices(line)[1]], wanted)

    def test_white_space_in_a_row_of_a_table_stays(self):
        """But for tabs, which part a line."""
        rows = jsonl([{'context': 'the day.\nthe  cat', 'choices': ['a  b', 'a\nb'], 'label': 0}])
        opened = self.opened('a.jsonl', rows, tokenizer=tiny_tokenizers.byte_level(self.folder), length=40)
        line, = opened.unanswered(rows.splitlines(), 'a.jsonl')
        wanted = next(iter(opened.evaluation('train', 1)))['inputs'][0]
        for (ids, _), row in zip(opened.read_choices(line)[1], wanted, strict=True):
            self.assertEqual(self.spelt(opened, ids), self.spelt(opened, row[:len(ids)]))
        self.assertEqual(opened.unanswered(jsonl([{'context': 'the\tcat', 'choices': ['a', 'b']}]).splitlines(), 'a.jsonl'),
                         ['the cat\ta\tb'])
        said, details = TextChoice().answer(opened, line, (('a  b', 'a\nb'), 0), [{'logits': [0.0]}, {'logits': [1.0]}])
        self.assertEqual((said, details['answer']), ('a b\t0.7311', 'a\nb'))

    def test_the_columns_are_said(self):
        text = tsv((), [('the cat', 'no', 'bad', 'A'), ('a dog', 'bad', 'no', 'B')])
        self.assertIn('no header; context from 1, answers from 2 and 3, label from 4; 2 examples of 2 answers to train on; '
                      'right is answer 1 50.0%, 2 50.0%; ', self.opened('a.tsv', text, header='false').describe())

    @parameterized.parameters(
        ('context\tending0\tending1\tlabel\nno\ta\tb\t5\n', "a.tsv:2 says that '5' is right, which names none of its 2"),
        ('context\tending0\tending1\tlabel\nno\ta\tb\t0\nno\ta\tb\tC\n', "a.tsv:3 says that 'C' is right"),
        ('context\tending0\tending1\tlabel\nno\ta\tb\tß\n', "a.tsv:2 says that 'ß' is right, which names none of its 2"),
        ('context\tending0\tending1\tlabel\nno\ta\tb\t\n', "a.tsv:2 has nothing in column 'label'"),
        ('context\tending0\tending1\tlabel\nno\ta\t\t0\n', "a.tsv:2 has nothing in column 'ending1'"),
        ('context\tending0\tending1\tending2\tending3\tlabel\nno\ta\tb\t\td\t0\n',
         "a.tsv:2 has the answers 'a', 'b', '', 'd'; expected"),
        ('context\tquestion\tending0\tending1\tlabel\n\t\ta\tb\t0\n', 'a.tsv:2 has neither a context nor a question'),
        ('one\ttwo\tthree\tfour\nno\ta\tb\tc\n', "has the columns 'one', 'two', 'three', 'four', which leaves open",
         {'header': 'true'}),
        ('no\ta\t0\n', 'a.tsv has the columns 3, which leaves open what is the context', {'header': 'false'}),
        ('context\tending0\tending0\tlabel\nno\ta\tb\t0\n', "has the name 'ending0' for the columns 2 and 3",
         {'header': 'true'}),
        ('context\tchoices\tlabel\nno\t["a", "\\ud83d"]\t0\n', r"a.tsv:2 has '\\ud83d', half of a character"),
        ('context\tchoices\tlabel\nno\ta b\t0\n', "a.tsv:2 has 'a b' for its answers; expected a list of texts",
         {'header': 'true'}),
        ('no\ta\tb\t0\n', 'data.context, question, answers and label name the column 1 twice',
         {'context': (1,), 'answers': (1, 2)}),
        ('no\ta\tb\t0\n', "data.first='2' is not known", {'first': '2'}),
        ('no\t2\t1\t1\nno\t1\t2\t2\n', 'a.tsv:1 and the other rows have answers that are numbers', {'header': 'false'}),
        ('no\ta\tb\t0\n', "data.question_with='x' is not known", {'question_with': 'x'}),
        ('no\ta\tb\t0\n', "data.quotes='x' is not known", {'quotes': 'x'}),
    )
    def test_bad_input(self, text, message, fields=()):
        with self.assertRaisesRegex(ValueError, message) as caught:
            self.opened('a.tsv', text, **dict(fields))
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters((5,), ('x',), ([1, [2]],), ({'text': ['a', 'b'], 'label': ['A']},), ([{'label': 'A'}],),
                              ({'text': ['a', 'b'], 'label': 5},), ({'text': ['a', 'b'], 'label': [[1], [2]]},))
    def test_what_is_no_list_of_answers(self, choices):
        with self.assertRaisesRegex(ValueError, 'a.jsonl:1 has .* for its answers; expected a list of texts'):
            self.opened('a.jsonl', jsonl([{'question': 'no', 'choices': choices, 'label': 0}]))

    def test_answers_that_are_missing_are_none(self):
        row = {'context': 'no', 'ending0': 'a', 'ending1': 'b', 'ending2': float('nan'), 'label': 0}
        self.assertEqual(self.opened('a.jsonl', jsonl([row])).config.part('train').examples[0].answers, ('a', 'b'))
        with self.assertRaisesRegex(ValueError, "a.jsonl:1 has the answers 'a', '', 'b'; expected two or more, none of them"):
            self.opened('a.jsonl', jsonl([{'context': 'no', 'choices': ['a', float('nan'), 'b'], 'label': 0}]))

    def test_a_context_that_is_a_list(self):
        with self.assertRaisesRegex(ValueError, 'a.jsonl:1 has a list, .*, where a text is expected'):
            self.opened('a.jsonl', jsonl([{'context': ['no'], 'choices': ['a', 'b'], 'label': 0}]))

    def test_rows_in_buckets_are_as_long_as_their_longest_answer(self):
        opened = self.opened('a.jsonl', jsonl({'context': 'no', 'choices': ['a', 'a ' * (1 + 9 * (i % 2))], 'label': i % 2}
                                              for i in range(8)), length=16, packing='buckets')
        sizes = {batch['inputs'].shape for batch, _ in zip(opened.train(seed=0), range(4))}
        self.assertEqual(sizes, {(4, 2, 8), (4, 2, 16)})
        self.assertEqual({*opened._training.sizes.tolist()}, {5, 14})


if __name__ == '__main__':
    absltest.main()
