import copy
import json

import numpy as np
from absl.testing import absltest, parameterized

from data.text.questions import Questions
from data.tokenizers.specs import Byte, WordPiece
from tests.data import tiny_tokenizers

WORDS = [f'w{i}' for i in range(40)]
LONG = ' '.join(WORDS)  # w0 to w39
SHORT = 'The war (1914-18) ended, at last!'


def asked(key, question, *answers, **more):
    found = [{'answer_start': start, 'text': text} for start, text in answers]
    return {'id': key, 'question': question, 'answers': found} | more


def squad(*paragraphs, version='1.1'):
    return {'version': version, 'data': [{'title': 'one', 'paragraphs': [{'context': context, 'qas': [*qas]}]}
                                         for context, *qas in paragraphs]}


V1 = squad((LONG, asked('a', 'which one?', (LONG.index('w7'), 'w7 w8 w9')), asked('b', 'which?', (0, 'w0'), (0, 'w0 w1'))),
           (SHORT, asked('c', 'when?', (SHORT.index('1914'), '1914-18'), (SHORT.index('18'), '18')),
            asked('d', 'how?', (SHORT.index('at'), 'at last'))))
V2 = squad((SHORT, asked('a', 'when?', (SHORT.index('1914'), '1914')), asked('b', 'who?', (4, 'war'), is_impossible=True),
            asked('c', 'what?', is_impossible=True, plausible_answers=[{'answer_start': 4, 'text': 'war'}])), version='v2.0')


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class QuestionsCase(parameterized.TestCase):
    def write(self, contents, name='squad.json'):
        path = self.folder / 'files' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        return str(path)

    def fields(self, kind='word_piece', **more):
        tokenizer = getattr(tiny_tokenizers, kind)(self.folder, ' '.join([*WORDS, 'which one the war ended at last 1914 18']))
        framing = {'word_piece': 'bert', 'byte_level': 'roberta'}[kind]
        return dict(path=str(self.folder / 'files'), tokenizer=tokenizer, framing=framing, length=20, stride=6,
                    question_length=3, batch_size=4, train='all', valid='', test='') | more

    def opened(self, contents=V1, **more):
        self.write(contents)
        return Questions(**self.fields(**more)).open(None)

    def rows(self, evaluation):
        batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
        return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}


class OffsetsTest(parameterized.TestCase):
    @parameterized.parameters('word_piece', 'byte_level', 'byte_level_untrimmed', 'unigram')
    def test_ranges_are_of_what_the_tokens_stand_for(self, kind):
        make = getattr(tiny_tokenizers, kind.removesuffix('_untrimmed'))
        given = (self.folder, *(['the war'] if kind != 'unigram' else []))
        spec = make(*given, trim=False) if kind.endswith('untrimmed') else make(*given)
        tokenizer = spec.learn()
        text = '  the war\tto end\u2003the \U0001f600 (1914)\n'
        ids, ranges = tokenizer.offsets(text)
        np.testing.assert_array_equal(ids, tokenizer.encode(text))
        self.assertEqual((ranges.shape, ranges.dtype), ((len(ids), 2), np.int32))
        for number, (start, stop) in zip(ids, ranges):
            covered = text[start:stop]
            self.assertEqual(covered, covered.strip())
            sign = tokenizer.sign(int(number)).removeprefix('##').lstrip('\u2581\u0120')
            if covered.isascii() and sign.isascii() and not sign.startswith(('[', '<')):
                self.assertEqual(covered, sign)
        self.assertEqual({*''.join(text[start:stop] for start, stop in ranges)}, {*text} - {*' \t\u2003\n'})


class WindowsTest(QuestionsCase):
    def test_windows_of_a_long_context_by_hand(self):
        opened = self.opened()
        rows = self.rows(opened.evaluation('all[:1]', 3))
        signs = [[opened.tokenizer.sign(int(i)) for i in ids] for ids in rows['inputs']]
        start = ['[CLS]', 'which', 'one', '?', '[SEP]']  # 3 tokens of a question leave 14 of a context
        self.assertEqual(signs, [[*start, *WORDS[first:first + 14], '[SEP]'] for first in (0, 6, 12, 18, 24)]
                         + [[*start, *WORDS[30:40], '[SEP]', *['[PAD]'] * 4]])
        self.assertEqual(rows['types'].tolist(), [[0] * 5 + [1] * 15] * 5 + [[0] * 5 + [1] * 11 + [0] * 4])
        self.assertEqual(rows['start'].tolist(), [5 + 7, 5 + 1, 0, 0, 0, 0])  # w7 w8 w9
        self.assertEqual(rows['end'].tolist(), [5 + 9, 5 + 3, 0, 0, 0, 0])

    def test_a_window_that_cuts_the_answer_has_none(self):
        opened = self.opened(squad((LONG, asked('a', 'which one?', (LONG.index('w12'), 'w12 w13 w14')))))
        rows = self.rows(opened.evaluation('all', 3))
        self.assertEqual(rows['start'].tolist(), [0, 5 + 6, 5 + 0, 0, 0, 0])
        self.assertEqual(rows['end'].tolist(), [0, 5 + 8, 5 + 2, 0, 0, 0])

    @parameterized.product(kind=['word_piece', 'byte_level'], length=[14, 20, 31, 200], stride=[1, 5, 7])
    def test_the_places_of_an_answer_are_its_text(self, kind, length, stride):
        style = {'word_piece': (1, 1), 'byte_level': (1, 2)}[kind]  # special tokens before the question, and behind it
        opened = self.opened(kind=kind, length=length, stride=stride)
        evaluation = opened.evaluation('all', 4)
        rows = self.rows(evaluation)
        self.assertEqual(evaluation.facts, {'questions': 4, 'windows': len(rows['start'])})
        self.assertLen(evaluation.windows, len(rows['start']))
        held, shown = set(), [set() for _ in range(4)]
        for row, window in enumerate(evaluation.windows):
            question = evaluation.questions[window.question]
            before = len(opened.encode(question.question)[:3]) + sum(style)
            ids, ranges = opened.tokenizer.offsets(question.context)
            at = next(i for i in range(len(ids)) if (ranges[i:i + len(window.ranges)] == window.ranges).all())
            self.assertEqual(window.first, before)
            self.assertEqual(window.context, question.context)
            np.testing.assert_array_equal(rows['inputs'][row, before:before + len(window.ranges)],
                                          ids[at:at + len(window.ranges)])
            shown[window.question] |= {*range(at, at + len(window.ranges))}
            first, text = question.answers[0]
            inside = window.ranges[0, 0] <= first and first + len(text) <= window.ranges[-1, 1]
            self.assertEqual(rows['start'][row] > 0, inside)
            if inside:
                held.add(window.question)
                start, stop = (rows[name][row] - before for name in ('start', 'end'))
                self.assertEqual(question.context[window.ranges[start, 0]:window.ranges[stop, 1]], text)
        if kind == 'word_piece' or length > 14:  # or no window has room for the bytes
            self.assertEqual(held, {0, 1, 2, 3})
        for question, tokens in zip(evaluation.questions, shown):
            self.assertLen(tokens, len(opened.tokenizer.offsets(question.context)[0]))  # nothing is left out

    def test_long_questions_are_cut(self):
        opened = self.opened(squad((SHORT, asked('a', 'which one which one which', (0, 'The')))))
        ids = self.rows(opened.evaluation('all', 1))['inputs'][0]
        self.assertEqual(opened.pieces(ids[:5]), ['[CLS]', 'which', 'one', 'which', '[SEP]'])

    def test_an_answer_within_a_token(self):
        opened = self.opened(squad(('which w39', asked('a', 'which?', (7, '39')))))
        rows = self.rows(opened.evaluation('all', 1))
        self.assertEqual((rows['start'].tolist(), rows['end'].tolist()), ([5], [5]))  # of w39

    def test_reading_a_question_is_as_in_evaluation(self):
        opened = self.opened()
        evaluation = opened.evaluation('all[:1]', 8)
        framed, windows = opened.read_question('which one?', LONG)
        for row, ((ids, types), window) in enumerate(zip(framed, windows, strict=True)):
            batch = next(iter(evaluation))
            self.assertEqual(ids.tolist(), batch['inputs'][row, :len(ids)].tolist())
            self.assertEqual(types.tolist(), batch['types'][row, :len(ids)].tolist())
            self.assertEqual(window.first, evaluation.windows[row].first)
            np.testing.assert_array_equal(window.ranges, evaluation.windows[row].ranges)
        with self.assertRaisesRegex(ValueError, 'is empty; give a question and a text'):
            opened.read_question(' ', LONG)


class ContractTest(QuestionsCase):
    def test_contract(self):
        opened = self.opened()
        batch = next(opened.train(0))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
        self.assertEqual((opened.count(batch), opened.unit), (4, 'windows'))
        self.assertEqual(opened.facts, {'vocab': opened.tokenizer.vocab, 'types': 2})
        self.assertEqual(opened.batches_per_epoch, 14 / 4)  # 6 windows of each long one
        self.assertIn('4 questions in 14 windows to train on; Json vocabulary', opened.describe())
        self.assertFalse(opened.unanswerable)

    def test_every_window_comes_once_an_epoch_and_a_run_resumes_exactly(self):
        opened = self.opened()
        runs = [[next(iterator) for _ in range(7)] for iterator in map(opened.train, (0, 0, 1))]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(equal(runs[0][0], runs[2][0]))
        rows = np.concatenate([batch['inputs'] for batch in runs[0]])
        expected = sorted(map(tuple, self.rows(opened.evaluation('all', 4))['inputs']))
        for epoch in (rows[:14], rows[14:]):
            self.assertEqual(sorted(map(tuple, epoch)), expected)
        again = opened.train(0)
        again.set_state({'next': 3})
        self.assertTrue(all(equal(batch, next(again)) for batch in runs[0][3:]))

    def test_version_2(self):
        opened = self.opened(V2)
        evaluation = opened.evaluation('all', 3)
        self.assertTrue(opened.unanswerable)
        self.assertEqual([question.accepted for question in evaluation.questions], [('1914',), ('',), ('',)])
        self.assertEqual([bool(start) for start in self.rows(evaluation)['start']], [True, False, False])
        self.assertIn('3 questions (2 without an answer) in 3 windows', opened.describe())
        opened.save(self.folder / 'run')
        (self.folder / 'files' / 'squad.json').unlink()
        again = Questions(**self.fields()).open(self.folder / 'run')
        self.assertEqual((again.unanswerable, again.facts, again.shapes), (True, opened.facts, opened.shapes))
        ids = [one.read_question('when?', SHORT)[0][0][0].tolist() for one in (opened, again)]
        self.assertEqual(ids[0], ids[1])

    def test_slices_count_questions_and_score_takes_files(self):
        opened = self.opened(train='train[:2]', valid='train[2:]')
        self.assertEqual([question.place[-10:] for question in opened.evaluation('valid', 4).questions],
                         ['question c', 'question d'])
        path = self.write(V2, 'other.json')
        scored = opened.score([path], 4)
        self.assertEqual((scored.facts, len(scored.windows)), ({'questions': 3, 'windows': 3}, 3))
        self.assertNotEqual(opened.digest('train'), opened.digest('valid'))

    @parameterized.parameters(
        ('a.jsonl', '\n'.join(json.dumps({'id': i, 'context': SHORT, 'question': 'when?', 'answers': found}) for i, found in (
            ('a', {'text': ['1914'], 'answer_start': [9]}), ('b', {'text': [], 'answer_start': []})))),
        ('a.json', json.dumps([{'context': SHORT, 'question': 'when?', 'answers': answers}
                               for answers in ([{'text': '1914', 'answer_start': 9}], [])])),
        ('a.json', '\n' + ''.join(json.dumps({'context': SHORT, 'question': 'when?', 'answer': answer}) + '\n'
                                  for answer in ('1914', ''))),
        ('a.json', ''.join(json.dumps({'context': SHORT, 'question': 'when?', 'answer': answer}) + '\r'
                           for answer in ('1914', ''))),
        ('a.json', ''.join(json.dumps({'data': ['a'], 'context': SHORT, 'question': 'when?', 'answer': answer}) + '\n'
                           for answer in ('1914', ''))),
        ('a.json', ''.join(json.dumps({'data': ['a' * (1 << 20)], 'context': SHORT, 'question': 'when?', 'answer': answer})
                           + '\n' for answer in ('1914', ''))),
        ('a.json', ''.join(json.dumps({'data': 'a', 'context': SHORT, 'question': 'when?', 'answer': answer}) + '\n'
                           for answer in ('1914', ''))),
        ('a.csv', f'question,context,answer\nwhen?,"{SHORT}",1914\nwhen?,"{SHORT}",\n'),
        ('a.csv', f'question,context,answer,answer_start\nwhen?,"{SHORT}",1914,9.0\nwhen?,"{SHORT}",,\n'),
        ('a.csv', f'question,context,answer,answer_start,id\nwhen?,"{SHORT}",1914\nwhen?,"{SHORT}",,,a\n'),
        ('a.jsonl', '\n'.join(json.dumps({'context': SHORT, 'question': 'when?', 'answer': answer, 'answer_start': start})
                              for answer, start in (('1914', float('nan')), (float('nan'), float('nan'))))),
        ('a.tsv', f'question\tanswer_start\tanswer\tcontext\nwhen?\t9\t1914\t{SHORT}\nwhen?\t\t\t{SHORT}\n'),
    )
    def test_tables(self, name, contents):
        path = self.write(contents, name)
        opened = Questions(**self.fields()).open(None)
        found = opened.config.part('train').examples
        self.assertEqual([(one.question, one.context, one.answers) for one in found],
                         [('when?', SHORT, ((9, '1914'),)), ('when?', SHORT, ())])
        self.assertTrue(opened.unanswerable)
        self.assertStartsWith(found[1].place, path)
        self.assertNotIn('id from', opened.describe())

    @parameterized.parameters(
        ('{"context": "a b", "question": "q", "answer": "c"}', "a.jsonl:1 has the answer 'c', which its context does not hold"),
        ('{"context": "a b", "question": "q", "answer": "{x}"}', "a.jsonl:1 has the answer '{x}', which its context does not"),
        ('{"context": "a b", "question": "q", "answer": "%s"}' % ('{' * 5000), 'which its context does not hold'),
        ('{"context": "a b", "question": "q", "answer": "a", "answer_start": "x"}', "the answer_start 'x'; expected a text"),
        ('{"context": "a b", "question": "q", "answer": "a", "answer_start": 0.5}', "the answer_start '0.5'; expected"),
        ('{"context": "a b", "question": "q", "answer": "a", "answer_start": "%s"}' % ('9' * 5000), 'expected a text and'),
        ('{"context": "a b", "question": "q", "answer": "a", "answer_start": -1}', "has the answer 'a' at character -1, where"),
        ('{"context": "a b", "question": "q", "answers": {"text": ["a"], "answer_start": []}}', 'expected a text and'),
        ('{"context": "a b", "question": "q", "answers": {"text": ["a"], "answer_start": ["x"]}}', 'expected a text and'),
        ('{"context": "a b", "question": "q", "answers": [{"text": 3, "answer_start": 0}]}', 'expected a text and'),
        ('{"context": "a b", "question": "q", "answers": {"text": ["a"]}}', 'has the answers .*; expected a text and'),
        ('{"context": "a b", "question": 1, "answer": "a"}', "and the question 1; expected two texts"),
        ('{"context": "a b", "answer": "a"}', "A table of questions names the column 'question', which"),
    )
    def test_bad_tables(self, contents, message):
        self.write(contents, 'a.jsonl')
        with self.assertRaisesRegex(ValueError, message):
            Questions(**self.fields()).open(None)

    def test_one_object_of_several_lines_or_of_one_is_in_the_form_of_squad(self):
        for indent in (None, 2):
            self.assertIn("SQuAD's form; 4 questions", self.opened(json.dumps(V1, indent=indent) + '\n').describe())
        self.assertIn("SQuAD's form; 4 questions", self.opened(V1 | {'licence': 'a' * (1 << 20)}).describe())

    def test_the_columns_are_said(self):
        self.write('question,context,answer\nWho?,Ada wrote it.,Ada\n', 'a.csv')
        said = "header: 'question', 'context', 'answer' (line 1); context from 'context', question from 'question', "
        self.assertIn(said, Questions(**self.fields()).open(None).describe())

    def test_a_table_without_a_header(self):
        self.write('Who?,Ada wrote it.,Ada\nWhen?,Ada wrote it in 1843.,1843\n', 'a.csv')
        with self.assertRaisesRegex(ValueError, 'a.csv has no header; a table of questions needs one, with context, question'):
            Questions(**self.fields()).open(None)

    def test_a_name_of_two_columns_can_only_be_changed(self):
        self.write('question,context,answer,answer\nWho?,Ada wrote it.,Ada,x\n', 'a.csv')
        with self.assertRaisesRegex(ValueError, "a.csv has the name 'answer' for the columns 3 and 4; rename one.$"):
            Questions(**self.fields()).open(None)

    def test_an_answer_in_braces(self):
        self.write('{"context": "f{x} y", "question": "q", "answer": "{x}"}', 'a.jsonl')
        found = Questions(**self.fields()).open(None).config.part('train').examples
        self.assertEqual(found[0].answers, ((1, '{x}'),))

    def test_a_tokenizer_that_is_learnt(self):
        opened = self.opened(squad((SHORT * 9, asked('a', 'when?', (9, '1914'))), (LONG, asked('b', 'q', (0, 'w0')))),
                             tokenizer=WordPiece(vocab=50), train='all[:1]', length=60)
        self.assertEqual(opened.tokenizer.vocab, 50)
        self.assertEqual(opened.tokenizer.number('0'), None)  # of the second question alone

    def changed(key, value):
        def change(contents, *path):
            *path, last = path
            for step in path:
                contents = contents[step]
            if value is None:
                del contents[last]
            else:
                contents[last] = value
        made = copy.deepcopy(V1)
        change(made, 'data', 0, 'paragraphs', 0, *key)
        return made

    def test_questions_of_one_id_are_several(self):
        made = copy.deepcopy(V1)
        made['data'][0]['paragraphs'][0]['qas'][1]['id'] = 'a'
        made['data'][0]['paragraphs'][0]['qas'][0]['id'] = 'a'
        opened = self.opened(made, train='train[:1]', valid='train[1:2]', test='')
        self.assertEqual(opened.evaluation('valid', 2).facts['questions'], 1)
        self.assertIn("SQuAD's form; 1 questions", opened.describe())

    @parameterized.parameters(
        ('{', 'squad.json is no JSON in UTF-8'),
        (changed(('qas', 1, 'question'), 'who \ud83d?'), r"squad.json has '\\ud83d', half of a character; correct the line"),
        ('{}', 'squad.json is not in the format of SQuAD'),
        (changed(('context',), None), r"is not in the format of SQuAD \(KeyError: 'context'\); expected data\[\]"),
        (changed(('qas', 0, 'answers', 0, 'answer_start'), 3),
         "squad.json, question a has the answer 'w7 w8 w9' at character 3, where its context has 'w1 w2 w3'"),
        (changed(('qas', 0, 'answers', 0, 'text'), ' '), "question a has the answer ' '"),
        (changed(('qas', 0, 'answers', 0, 'answer_start'), '<'), "question a has the answers .* and the answer_start"),
        (changed(('qas', 0, 'answers', 0, 'answer_start'), 0.5), "question a has the answers .*'answer_start': 0.5"),
        (changed(('qas', 0, 'answers', 0, 'text'), 3), "question a has the answers .*; expected a text and a number"),
        (changed(('qas', 0, 'answers'), 3), r"question a has the answers '\[3\]'.*; expected a text and a number"),
        (changed(('qas', 1, 'question'), 3), "question b has the context .* and the question 3; expected two texts"),
        (changed(('qas', 1, 'question'), ''), 'question b has no question; fill it in'),
        (changed(('context',), ' '), 'question a has no context'),
        (changed(('qas', 0, 'answers', 0, 'text'), None), 'squad.json, question a has the answers'),
        (V1, 'data.length=20 leaves 14 tokens of a context .* windows move on by data.stride=15; raise', {'stride': 15}),
        (V1, 'data.stride=0 is out of range', {'stride': 0}),
        (V1, r"data.tokenizer='Byte\(\)' does not say where its tokens are in a text", {'tokenizer': Byte()}),
        (V1, r"'train\[:3\]' and data.valid='train\[2:\]' share 1 examples, the first of them .*question c", {
            'train': 'train[:3]', 'valid': 'train[2:]'}),
    )
    def test_bad_input(self, contents, message, more=()):
        with self.assertRaisesRegex(ValueError, message) as caught:
            self.opened(contents, **dict(more))
        self.assertNotIn('\n', str(caught.exception))


if __name__ == '__main__':
    absltest.main()
