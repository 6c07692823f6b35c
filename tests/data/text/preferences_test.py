"""What a reward model learns from: which column is what, and the rows of the chosen and the rejected text."""

import json

import numpy as np
from absl.testing import absltest, parameterized

from data.text.preferences import Preferences
from tests.data.text.labelled_test import LabelledCase, equal, everything

ROWS = [('the cat sat', 'a dog ran', 'no'), ('he said', 'good', 'bad film'), ('a film', 'no good', 'the dog')]


def messages(*texts):
    return [{'role': ('user', 'assistant')[i % 2], 'content': text} for i, text in enumerate(texts)]


def jsonl(rows):
    return ''.join(json.dumps(row) + '\n' for row in rows)


NAMED = jsonl(dict(zip(('prompt', 'chosen', 'rejected'), row)) for row in ROWS)


class PreferencesTest(LabelledCase):
    def opened(self, name, text, **fields):
        self.write(name, text)
        return Preferences(**self.fields(train='train', **fields)).open(None)

    def read(self, opened, split='train'):
        """[(chosen, rejected), ..] as they are spelt, each with its special tokens."""
        return [tuple(self.spelt(opened, ids) for ids in pair) for pair in everything(opened.evaluation(split, 2))['inputs']]

    @parameterized.parameters(
        ('a.jsonl', NAMED),
        ('a.csv', 'id,rejected,Chosen,prompt\n' + ''.join(f'{i},{c},{b},{a}\n' for i, (a, b, c) in enumerate(ROWS))),
        ('a.tsv', ''.join('\t'.join(row) + '\n' for row in ROWS), {'header': 'false'}),
        ('a.tsv', ''.join(f'{c}\t{a}\t{b}\n' for a, b, c in ROWS), {'columns': (2, 3, 1), 'header': 'false'}),
        ('a.jsonl', jsonl({'prompt': a, 'chosen': messages(a, b), 'rejected': messages(a, c)} for a, b, c in ROWS)),
        ('a.jsonl', jsonl({'chosen': messages(a, b), 'rejected': messages(a, c)} for a, b, c in ROWS)),
        ('a.jsonl', jsonl({'prompt': messages(a), 'chosen': messages(b), 'rejected': messages(c)} for a, b, c in ROWS)),
    )
    def test_a_prompt_and_two_responses(self, name, text, fields=()):
        opened = self.opened(name, text, **dict(fields))
        self.assertEqual(self.read(opened), [tuple(f'[CLS] {a} [SEP] {end} [SEP]' for end in (b, c)) for a, b, c in ROWS])
        rows = everything(opened.evaluation('train', 2))
        self.assertEqual(rows['types'][0].tolist(), [[0] * 5 + [1] * 4 + [0] * 3, [0] * 5 + [1] * 2 + [0] * 5])
        self.assertEqual(rows['segments'][0].sum(-1).tolist(), [9, 7])
        self.assertEqual({name: x.shape for name, x in rows.items() if name != 'example_weights'},
                         {name: (3, 2, 12) for name in ('inputs', 'segments', 'positions', 'types')})

    @parameterized.parameters({}, {'header': 'false'}, {'columns': (1, 2)})
    def test_two_texts_without_a_prompt(self, **fields):
        header = '' if fields else 'chosen\trejected\n'
        opened = self.opened('a.tsv', header + ''.join(f'{b}\t{c}\n' for _, b, c in ROWS), **fields)
        self.assertEqual(self.read(opened), [(f'[CLS] {b} [SEP]', f'[CLS] {c} [SEP]') for _, b, c in ROWS])
        self.assertFalse(everything(opened.evaluation('train', 2))['types'].any())

    def test_what_is_too_long_is_cut_and_counted(self):
        opened = self.opened('a.jsonl', NAMED, length=6)
        self.assertEqual(self.read(opened)[:2], [('[CLS] the cat [SEP] a [SEP]', '[CLS] the cat [SEP] no [SEP]'),
                                                 ('[CLS] he said [SEP] good [SEP]', '[CLS] he said [SEP] bad [SEP]')])
        self.assertIn('3 pairs to train on, 5 texts of them cut to 6 tokens', opened.describe())

    @parameterized.parameters(
        ('good', 'bad', 'sat a dog good', 'sat a dog bad', 2),
        ('good film', 'bad', 'a dog good film', 'a dog bad', 2),  # as far in both
        ('good film', '', 'a dog good film', 'a dog', 2),
        ('good film no good film no', 'bad', 'good film no good', 'bad', 2),
        ('', 'good film no good film', 'dog', 'dog good film no', 2),  # no row is empty
    )
    def test_of_a_shared_beginning_the_start_is_cut(self, chosen, rejected, *wanted):
        shared = 'the cat sat a dog'
        pairs = [(f'{shared} {chosen}'.strip(), f'{shared} {rejected}'.strip()), ('he said', 'he ran')]
        text = jsonl(dict(zip(('chosen', 'rejected'), pair)) for pair in pairs)
        opened = self.opened('a.jsonl', text, length=6)
        *rows, cut = wanted
        self.assertEqual(self.read(opened), [tuple(f'[CLS] {row} [SEP]' for row in pair) for pair in (rows, pairs[1])])
        self.assertIn(f'2 pairs to train on, {cut} texts of them cut to 6 tokens', opened.describe())

    def test_training_visits_every_pair_and_goes_on_where_it_stopped(self):
        opened = self.opened('a.jsonl', jsonl({'chosen': f'{"x" * i} good', 'rejected': f'{"x" * i} bad'} for i in range(8)))
        batches = opened.train(seed=1)
        first = [next(batches) for _ in range(2)]
        self.assertEqual({name: (x.shape, x.dtype) for name, x in first[0].items()}, dict(opened.shapes))
        seen = np.concatenate([batch['inputs'] for batch in first])
        self.assertLen({pair.tobytes() for pair in seen}, 8)
        state, later = batches.get_state(), next(batches)
        again = opened.train(seed=1)
        again.set_state(state)
        self.assertTrue(equal(next(again), later))

    def test_a_saved_run_reads_a_line_without_its_texts(self):
        self.opened('a.jsonl', NAMED).save(self.folder)
        opened = Preferences(**self.fields(path=str(self.folder / 'nowhere'))).open(self.folder)
        ids, types = opened.read_text('the cat\tno')
        self.assertEqual((self.spelt(opened, ids), types.tolist()), ('[CLS] the cat [SEP] no [SEP]', [0] * 4 + [1] * 2))
        self.assertEqual((opened.classes, opened.facts['classes']), (('LABEL_0',), 1))
        for line in ('the cat', 'the\tcat\tno', 'the cat\t', ''):
            with self.assertRaisesRegex(ValueError, 'is not what this run rates; expected a prompt and a response with a tab'):
                opened.read_text(line)

    def test_the_columns_are_said(self):
        self.assertIn('no header; prompt from 1, chosen from 2, rejected from 3; ',
                      self.opened('a.tsv', 'no\tthe\tcat\nno\tcat\tthe\n').describe())

    @parameterized.parameters(
        ('prompt\tchosen\trejected\nno\ta\ta\n', "a.tsv:2 prefers 'a' to itself; take it out"),
        ('prompt\tchosen\trejected\nno\ta\t\n', "a.tsv:2 has nothing in column 'rejected'"),
        ('one\ttwo\tthree\nno\ta\tno\n', "has the columns 'one', 'two', 'three', which leaves open what is preferred", 'true'),
        ('question,response_a,response_b\n'.replace(',', '\t') + 'What is it\tnot this\tnor that\n' * 3,
         "has the columns 'question', 'response_a', 'response_b', which leaves open what is preferred"),
        ('chosen\tchosen\tprompt\tmore\nno\ta\tb\tc\n', "has the name 'chosen' for the columns 1 and 2", 'true'),
        ('no\n', 'has the columns 1, which leaves open', 'false'),
        ('no\ta\n', 'data.columns=1 are not two or three columns', 'false', (1,)),
        ('no\ta\n', 'data.columns=1,1 .*column', 'false', (1, 1)),
        ('no\ta\n', 'a.tsv:1 has 2 columns separated by tabs, and data.columns asks for 3', 'false', (1, 2, 3)),
    )
    def test_bad_input(self, text, message, header='auto', columns=()):
        with self.assertRaisesRegex(ValueError, message) as caught:
            self.opened('a.tsv', text, header=header, columns=columns)
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters(([{}],), ([5],), ([{'role': 'user'}],), ({'content': 'no'},))
    def test_what_is_no_response(self, chosen):
        with self.assertRaisesRegex(ValueError, 'a.jsonl:1 has .*; expected a text, or a list of messages'):
            self.opened('a.jsonl', jsonl([{'prompt': 'no', 'chosen': chosen, 'rejected': 'a'}]))


if __name__ == '__main__':
    absltest.main()
