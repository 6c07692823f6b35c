import gzip
import json

import numpy as np
from absl.testing import absltest, parameterized

from data.text.tagged import Tagged
from tests.data import tiny_tokenizers

NAMES = ('-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n\n'
         'Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER\n')


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class TaggedCase(parameterized.TestCase):
    def write(self, text, name='names.conll'):
        path = self.folder / 'texts' / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith('.gz') else text.encode())
        return str(path)

    def fields(self, **more):
        tokenizer = tiny_tokenizers.word_piece(self.folder, 'eu rejects german peter black ##burn')
        return dict(path=str(self.folder / 'texts'), tokenizer=tokenizer, length=8, batch_size=2, train='all', valid='',
                    test='') | more

    def rows(self, evaluation):
        batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
        return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}

    def spelt(self, opened, ids):
        return [opened.tokenizer.sign(int(i)) for i in ids if i]

    def tagged(self, opened, rows):
        """[(first token of a word, tag)] of each row."""
        return [[(opened.tokenizer.sign(int(i)), opened.classes[t]) for i, t, w in zip(*row) if w]
                for row in zip(rows['inputs'], rows['targets'], rows['weights'])]


class FormsTest(TaggedCase):
    def test_conll_2003(self):
        self.write(NAMES)
        opened = Tagged(**self.fields()).open(None)
        self.assertEqual(opened.classes, ('O', 'B-MISC', 'B-ORG', 'B-PER', 'I-PER'))
        rows = self.rows(opened.evaluation('train', 4))
        self.assertEqual([self.spelt(opened, ids) for ids in rows['inputs']],
                         [['[CLS]', 'eu', 'rejects', 'german', '[SEP]'], ['[CLS]', 'peter', 'black', '##burn', '[SEP]']])
        self.assertEqual(rows['targets'].tolist(), [[0, 2, 0, 1, 0, 0, 0, 0], [0, 3, 4, 0, 0, 0, 0, 0]])
        self.assertEqual(rows['weights'].tolist(), [[0, 1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]])
        self.assertEqual(opened.facts, {'vocab': opened.tokenizer.vocab, 'types': 2, 'classes': 5})

    def test_conll_u(self):
        row = lambda number, word, tag: '\t'.join((number, word, word, tag, *'______')) + '\n'
        text = ('# sent_id = 1\n# text = EU rejects it\n' + row('1-2', 'EUrejects', '_') + row('1', 'EU', 'PROPN')
                + row('2', 'rejects', 'VERB') + row('2.1', 'not', 'PART') + '\n'
                + row('1', '#', 'SYM') + row('2', '1.1', 'NUM'))
        path = self.write(text, 'en-ud-train.conllu')
        opened = Tagged(**self.fields()).open(None)
        self.assertEqual(Tagged(**self.fields(columns=(2, 3))).open(None).classes, ('#', '1.1', 'EU', 'rejects'))
        found = opened.config.part('train').examples
        self.assertEqual([(one.words, one.tags) for one in found],
                         [(('EU', 'rejects'), ('PROPN', 'VERB')), (('#', '1.1'), ('SYM', 'NUM'))])
        self.assertEqual(found[0].places, (f'{path}:4', f'{path}:5'))
        self.assertIn('no header; words from 2, tags from 4; 2 sentences', opened.describe())
        self.write('# columns\nID\tFORM\tLEMMA\tUPOS' + '\t_' * 6 + '\n' + row('1', 'EU', 'PROPN') + row('2', 'is', 'AUX'),
                   'en-ud-train.conllu')
        opened = Tagged(**self.fields()).open(None)
        self.assertEqual([(one.words, one.tags) for one in opened.config.part('train').examples],
                         [(('EU', 'is'), ('PROPN', 'AUX'))])
        self.assertIn("(line 2); words from 'FORM', tags from 'UPOS'; 1 sentences", opened.describe())

    def test_conll_u_with_tabs_in_comments_and_a_blank_line_before_it(self):
        row = lambda word, tag: '\t'.join(('1', word, word, tag, *'______')) + '\n'
        for before in ('# text = EU\tis\n', '\n', '\n# text = EU\tis\n'):
            self.write(before + row('EU', 'PROPN') + '\n# text = a\tb\n' + row('is', 'AUX'), 'en-ud-train.conllu')
            found = Tagged(**self.fields()).open(None).config.part('train').examples
            self.assertEqual([(one.words, one.tags) for one in found], [(('EU',), ('PROPN',)), (('is',), ('AUX',))])

    def test_a_hashtag_among_ten_columns_is_a_word(self):
        self.write('\t'.join(('word', *'12345678', 'tag')) + '\n' + '\t'.join(('#eu', *'12345678', 'B-x')) + '\n'
                   + '\t'.join(('is', *'12345678', 'O')) + '\n')
        self.assertEqual(Tagged(**self.fields()).open(None).config.part('train').examples[0].words, ('#eu', 'is'))

    def test_a_hashtag_with_a_tag_is_a_word(self):
        self.write('-DOCSTART- -X-\n\n#eu\tB-x\nrejects\tO\n')
        self.assertEqual(Tagged(**self.fields()).open(None).config.part('train').examples[0].words, ('#eu', 'rejects'))

    def test_lines_with_tabs_and_blank_ones_that_hold_a_tab(self):
        self.write('EU\tB-x\r\nrejects it\tO\n\t\n\n\nGerman\tO\n \n', 'train.conll.gz')
        opened = Tagged(**self.fields()).open(None)
        rows = self.rows(opened.evaluation('train', 4))
        self.assertEqual(self.tagged(opened, rows), [[('eu', 'B-x'), ('rejects', 'O')], [('german', 'O')]])
        self.assertEqual(self.spelt(opened, rows['inputs'][0]), ['[CLS]', 'eu', 'rejects', 'i', '##t', '[SEP]'])

    @parameterized.parameters(
        ('a.tsv', 'word\ttag\nEU\tB-x\nrejects\tO\n\nGerman\tO\n', "header: 'word', 'tag' (line 1); words from 'word'"),
        ('a.tsv', '\n \nword\ttag\nEU\tB-x\nrejects\tO\n\nGerman\tO\n', "header: 'word', 'tag' (line 3); words from 'word'"),
        ('a.csv', ',\n,\nword,tag\nEU,B-x\nrejects,O\n,\nGerman,O\n', "header: 'word', 'tag' (line 3); words from 'word'"),
        ('a.tsv', '-DOCSTART- O\n\nword\ttag\nEU\tB-x\nrejects\tO\n-DOCSTART-\tO\nGerman\tO\n', "(line 3); words from 'word'"),
        ('a.csv', '"-DOCSTART-",O\nword,tag\nEU,B-x\nrejects,O\n"-DOCSTART-",O\nGerman,O\n', "(line 2); words from 'word'"),
        ('a.tsv', ' -DOCSTART-\tO\nword\ttag\nEU\tB-x\nrejects\tO\n -DOCSTART- O\nGerman\tO\n', "(line 2); words from 'word'"),
        ('a.conll', 'tokens ner\nEU B-x\nrejects O\n\nGerman O\n', "words from 'tokens', tags from 'ner'; 2 sentences"),
        ('a.csv', 'Sentence #,Word,POS,Tag\nSentence: 1,EU,N,B-x\n,rejects,V,O\nSentence: 2,"German",A,O\n',
         "'Word', 'POS', 'Tag' (line 1); words from 'Word', tags from 'Tag', sentences from 'Sentence #'; "),
        ('a.csv', 'id;w;sent_id;t\n1;EU;7;B-x\n2;rejects;7;O\n3;German;8;O\n', "tags from 't', sentences from 'sent_id'",
         {'columns': ('w', 't')}),
        ('a.csv', 'EU,B-x\nrejects,O\n,\nGerman,O\n', 'no header; words from 1, tags from 2; 2 sentences'),
        ('a.tsv', 'B-x\tEU\t1\nO\trejects\t1\n\nO\tGerman\t2', 'words from 2, tags from 1; 2 sentences', {'columns': (2, 1)}),
    )
    def test_words_with_columns_that_are_named_or_separated_by_commas(self, name, contents, said, more=()):
        self.write(contents, name)
        opened = Tagged(**self.fields(**dict(more))).open(None)
        rows = self.rows(opened.evaluation('train', 4))
        self.assertEqual(self.tagged(opened, rows), [[('eu', 'B-x'), ('rejects', 'O')], [('german', 'O')]])
        self.assertIn(said, opened.describe())

    @parameterized.parameters(
        ('a.jsonl', '{"tokens": ["EU", "rejects"], "ner_tags": ["B-x", "O"]}\n{"tokens": [], "ner_tags": []}\n'
                    '{"tokens": ["German"], "ner_tags": ["O"]}\n'),
        ('a.json', '[{"w": ["EU", "rejects"], "t": [1, 0]}, {"w": ["German"], "t": [0]}]', {'columns': ('w', 't')}),
    )
    def test_tables(self, name, contents, more=()):
        features = "[{name: t, dtype: {class_label: {names: {'0': O, '1': B-x}}}}]"
        self.write(f'---\ndataset_info: {{features: {features}}}\n---\n', 'README.md')
        path = self.write(contents, name)
        opened = Tagged(**self.fields(**dict(more))).open(None)
        rows = self.rows(opened.evaluation('train', 4))
        self.assertEqual(self.tagged(opened, rows), [[('eu', 'B-x'), ('rejects', 'O')], [('german', 'O')]])
        self.assertStartsWith(opened.config.part('train').examples[1].place, path)

    def test_words_have_a_space_before_them_but_at_the_beginning(self):
        self.write('German O\nGerman B-x\n')
        tokenizer = tiny_tokenizers.byte_level(self.folder, 'German German')
        opened = Tagged(**self.fields(tokenizer=tokenizer, framing='roberta', length=16)).open(None)
        rows = self.rows(opened.evaluation('train', 1))
        text = opened.encode('German German').tolist()  # as in running text
        self.assertEqual(rows['inputs'][rows['segments'] > 0].tolist(), [*opened.frame.before, *text, opened.frame.end])
        self.assertEqual(opened.tokenizer.sign(text[-1]), '\u0120German')
        self.assertEqual(np.flatnonzero(rows['weights']).tolist(), [1, len(text)])

    def test_a_word_of_no_tokens_is_unknown(self):
        self.write('eu B-x\n\ufe0f O\ngerman O\n'.replace('\ufe0f', '\u200d'))
        opened = Tagged(**self.fields()).open(None)
        self.assertEqual(opened.encode('\u200d').tolist(), [])
        rows = self.rows(opened.evaluation('train', 1))
        self.assertEqual(self.tagged(opened, rows), [[('eu', 'B-x'), ('[UNK]', 'O'), ('german', 'O')]])

    def test_long_sentences_become_several_rows_that_cut_no_word(self):
        words = ['eu', 'german', 'blackburn', 'abcdefghij', 'peter', 'peter', 'xy', 'zzzz', 'eu']
        self.write(''.join(f'{word} T{i}\n' for i, word in enumerate(words)) + '\neu T0\n')
        opened = Tagged(**self.fields(length=6)).open(None)
        evaluation = opened.evaluation('train', 3)
        self.assertEqual(evaluation.facts, {'words': 10, 'sentences': 2, 'rows': 6})
        self.assertEqual(evaluation.sentences.tolist(), [0] * 5 + [1])
        rows = self.rows(evaluation)
        self.assertEqual([[sign for sign, _ in row] for row in self.tagged(opened, rows)],
                         [['eu', 'german', 'black'], ['a'], ['peter', 'peter', 'x'], ['z'], ['eu'], ['eu']])
        tags = [tag for row in self.tagged(opened, rows)[:5] for _, tag in row]
        self.assertEqual(tags, [f'T{i}' for i in range(9)])  # each word once, in order
        self.assertEqual(self.spelt(opened, rows['inputs'][1]), ['[CLS]', 'a', '##b', '##c', '##d', '[SEP]'])
        framed, places = opened.read_words(' '.join(words))
        for row, ((ids, types), at) in enumerate(zip(framed, places, strict=True)):
            self.assertEqual(ids.tolist(), rows['inputs'][row][:len(ids)].tolist())
            self.assertEqual((types.any(), len(types)), (False, len(ids)))
            self.assertEqual(at.tolist(), np.flatnonzero(rows['weights'][row]).tolist())
        with self.assertRaisesRegex(ValueError, 'has no words; expected some'):
            opened.read_words(' ')


class ContractTest(TaggedCase):
    def sentences(self, count=9):
        self.write('\n'.join(f'{"x" * (i + 1)} O\n{"x" * (i + 1)} B-x\n' for i in range(count)))
        return self.fields(length=30)

    def test_contract(self):
        opened = Tagged(**self.sentences()).open(None)
        batch = next(opened.train(0))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
        self.assertEqual((opened.count(batch), opened.unit), (4, 'words'))
        self.assertEqual(opened.batches_per_epoch, 4.5)
        self.assertIn('9 sentences in 9 rows, 18 words to train on; 2 tags (O, B-x); Json vocabulary', opened.describe())
        self.assertEqual(sum(map(opened.count, opened.evaluation('all', 4))), 18)
        path = self.write('x O\n', 'more.conll')
        self.assertEqual(opened.score([path], 4).facts, {'words': 1, 'sentences': 1, 'rows': 1})
        with self.assertRaisesRegex(ValueError, 'takes no stride'):
            opened.evaluation('all', 4, stride=3)

    def test_every_sentence_comes_once_an_epoch_and_a_run_resumes_exactly(self):
        opened = Tagged(**self.sentences()).open(None)
        runs = [[next(iterator) for _ in range(9)] for iterator in map(opened.train, (0, 0, 1))]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(equal(runs[0][0], runs[2][0]))
        lengths = np.concatenate([batch['segments'].sum(1) for batch in runs[0]])
        for epoch in (lengths[:9], lengths[9:]):
            self.assertEqual(sorted(epoch), [2 * (i + 1) + 2 for i in range(9)])
        again = opened.train(0)
        again.set_state({'next': 4})
        self.assertTrue(all(equal(batch, next(again)) for batch in runs[0][4:]))

    def test_saved_and_started_from(self):
        fields = self.sentences()
        opened = Tagged(**fields).open(None)
        opened.save(self.folder / 'run')
        self.assertEqual(json.loads((self.folder / 'run' / 'tags.json').read_text())['classes'], ['O', 'B-x'])
        self.write('x B-z\ny O\n')
        self.assertEqual(Tagged(**fields).open(None, self.folder / 'run').classes, ('O', 'B-z'))
        (self.folder / 'texts' / 'names.conll').unlink()
        again = Tagged(**fields).open(self.folder / 'run')
        self.assertEqual((again.classes, again.facts, again.shapes), (opened.classes, opened.facts, opened.shapes))

    @parameterized.parameters(
        ('eu B-x\ngerman\n', "names.conll:2 is 'german'; expected a word and its tag"),
        ('eu\tB-x\n\tO\n', r"names.conll:2 is '\\tO'; expected a word and its tag"),
        ('eu\tB-x\ngerman\t\n', 'names.conll:2 is .*; expected a word and its tag'),
        ('# id = 1\neu\tB-x\n', "names.conll:1 is '# id = 1', without a tab, and line 2 has some; separate"),
        ('eu\tB-x\ngerman O\n', "names.conll:2 is 'german O', without a tab, and line 1 has some; separate"),
        ('eu B-x\n' * 101, r'names.conll is one sentence of 101 words; expected .* and an empty line between sentences'),
        ('eu O\n', "All words of data.train='all' have the tag 'O'; widen it"),
        ('-DOCSTART- O\n', "The split 'all' is empty: its files have no example"),
    )
    def test_bad_files(self, text, message):
        self.write(text)
        with self.assertRaisesRegex(ValueError, message):
            Tagged(**self.fields()).open(None)

    def test_tags_are_no_words(self):
        self.write(''.join(f'{tag} w{i}\n\n' for i, tag in enumerate('OAB' * 10)))
        message = r"30 tags and 3 words \(such as the tag 'w0' for 'O', at .*:1\), so that .* set data.columns=2,1"
        with self.assertRaisesRegex(ValueError, message):
            Tagged(**self.fields()).open(None)
        self.assertEqual(Tagged(**self.fields(columns=(2, 1))).open(None).classes, ('O', 'A', 'B'))

    def test_a_tag_that_occurs_once_is_mentioned(self):
        path = self.write('eu B-x\ngerman O\n\n' * 15 + 'peter X-LOC\n')
        said = f"3 tags (O, B-x, X-LOC) (CAUTION: 'X-LOC', at {path}:46, occurs once: correct it if it is mistyped"
        self.assertIn(said, Tagged(**self.fields()).open(None).describe())

    @parameterized.parameters(('eu B-x\nold E-x\ngerman O\n\n' * 15, True), ('eu L-x\ngerman O\n\n' * 15, True),
                              ('eu NN\ngerman JJ\n\n' * 15, False), ('eu PER\ngerman O\n\n' * 15, False))
    def test_tags_that_name_no_spans_are_said(self, text, spans):
        self.write(text)
        opened = Tagged(**self.fields()).open(None)
        self.assertEqual(opened.has_spans, spans)
        self.assertEqual('which name no spans (B-type, I-type): there is no F1; ' in opened.describe(), not spans)

    @parameterized.parameters(
        ('EU rejects,B-x O\n', 'a.csv:1 is .EU rejects,B-x O.; expected a word and its tag'),
        ('sentence_id,word,tag\n1,EU\n', 'a.csv:2 is .1,EU.; expected a word'),
        ('word,tag,sentence_id\nEU,O\n', 'a.csv:2 is .EU,O.; expected a word'),
        ('word,Tag,Tag\nEU,O,x\n', "a.csv has the name 'Tag' for the columns 2 and 3; name columns by numbers from 1"),
        ('w,t,w\nEU,O,x\n', "a.csv has the name 'w' for the columns 1 and 3; name columns by numbers", ('w', 't')),
        ('EU,O\n', "data.columns names the column 'w', which line 1 of .*a.csv does not name; it is 'EU', 'O'", ('w', 2)),
        ('word,tag\nEU,x,O\n', "a.csv:1 names 2 columns, 'word', 'tag', and data.columns asks for 3; correct the line", (1, 3)),
        ('{"words": ["EU"], "tags": ["O"]}\n', 'a.jsonl:1 has 2 columns .*, and data.columns asks for 3; correct', (2, 3)),
    )
    def test_bad_columns(self, text, message, columns=()):
        self.write(text, 'a.jsonl' if text.startswith('{') else 'a.csv')
        with self.assertRaisesRegex(ValueError, message):
            Tagged(**self.fields(columns=columns)).open(None)

    @parameterized.parameters(
        ('{"tokens": ["EU"], "ner_tags": ["O", "O"]}', r"a.jsonl:1 has the words \['EU'\] and the tags .*; expected two lists"),
        ('{"tokens": ["EU", null], "ner_tags": ["O", "O"]}', "a.jsonl:1 has the word None with the tag 'O'; expected a word"),
        ('{"tokens": ["EU", " "], "ner_tags": ["O", "O"]}', "a.jsonl:1 has the word ' ' with the tag 'O'; expected a word"),
        ('{"tokens": ["EU"], "ner_tags": [null]}', "a.jsonl:1 has the word 'EU' with the tag None; expected a word"),
        ('{"tokens": ["EU"], "ner_tags": [NaN]}', "a.jsonl:1 has the word 'EU' with the tag nan; expected a word and its tag"),
        ('{"tokens": "EU", "ner_tags": "O"}', 'expected two lists of one length'),
        ('{"wort": ["EU"], "tags": ["O"]}', "data.columns names the column 'tokens', which .* its columns are 'wort', 'tags'"),
    )
    def test_bad_tables(self, text, message):
        self.write(text, 'a.jsonl')
        with self.assertRaisesRegex(ValueError, message):
            Tagged(**self.fields()).open(None)

    def test_a_tag_that_training_does_not_have(self):
        self.write(NAMES)
        opened = Tagged(**self.fields(train='train[:1]', valid='train[1:]')).open(None)
        with self.assertRaisesRegex(ValueError, "names.conll:7 has the tag 'B-PER', which the training part does not have"):
            opened.evaluation('valid', 4)


if __name__ == '__main__':
    absltest.main()
