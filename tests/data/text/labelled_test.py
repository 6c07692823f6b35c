import gzip
import json
import re
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from data.text.labelled import Labelled
from data.text.targets import Labels, Number, OneClass
from data.tokenizers.specs import Word
from tests.data import tiny_tokenizers

PARAPHRASES = ('\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n'
               '1\t10\t11\tHe said "no\tHe said no".\r\n\r\n'
               '0\t12\t13\tthe cat sat\t a dog ran \r\n')


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def everything(evaluation):
    batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
    return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}


class LabelledCase(parameterized.TestCase):
    def write(self, name, text):
        path = self.folder / 'texts' / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith('.gz') else text.encode())
        return str(path)

    def fields(self, **more):
        tokenizer = tiny_tokenizers.word_piece(self.folder, 'the cat sat a dog ran he said no good bad film')
        return dict(path=str(self.folder / 'texts'), tokenizer=tokenizer, length=12, batch_size=4, valid='', test='') | more

    def reviews(self, count=20, **more):
        """`count` texts, text i of class 'bad' or 'good', with i + 1 letters x behind it."""
        self.write('reviews.tsv', ''.join(f'the film {"x" * (i + 1)}\t{("bad", "good")[i % 2]}\n' for i in range(count)))
        return self.fields(length=32, **more)

    def spelt(self, opened, ids):
        return ' '.join(opened.tokenizer.sign(int(i)) for i in ids).removesuffix(' [PAD]' * (len(ids) - np.count_nonzero(ids)))


class FormsTest(LabelledCase):
    @parameterized.parameters(
        ('1\tno\tbad\n2\tyes\tgood\n', 'no header; text from 2, label from 3', (1,)),
        ('7\tno\tyes\tbad\n9\tyes\tno\tgood\n', 'no header; text from 2 and 3, label from 4', (2,)),
        ('no\tyes\tbad\nyes\tno\tgood\n', 'no header; text from 1 and 2, label from 3', (2,)),
        ('1\tbad\n2\tgood\n', 'no header; text from 1, label from 2', (1,)))
    def test_ids_are_no_texts(self, contents, said, texts):
        self.write('a.tsv', contents)
        opened = Labelled(**self.fields(train='train', length=32)).open(None)
        self.assertIn(said, opened.describe())
        self.assertEqual((opened.counts, opened.classes), (texts, ('bad', 'good')))

    def test_pairs_in_the_format_of_mrpc(self):
        self.write('pairs.txt', PARAPHRASES)
        opened = Labelled(**self.fields(columns=(4, 5), label='1', header='true', train='train')).open(None)
        rows = everything(opened.evaluation('train', 4))
        self.assertEqual([self.spelt(opened, ids) for ids in rows['inputs']],
                         ['[CLS] he said " no [SEP] he said no " . [SEP]', '[CLS] the cat sat [SEP] a dog ran [SEP]'])
        self.assertEqual(rows['types'].tolist(), [[0] * 6 + [1] * 6, [0] * 5 + [1] * 4 + [0] * 3])
        self.assertEqual(rows['segments'].sum(1).tolist(), [12, 9])
        self.assertEqual(rows['label'].tolist(), [1, 0])
        self.assertEqual(opened.classes, ('0', '1'))
        self.assertEqual(opened.facts, {'vocab': opened.tokenizer.vocab, 'types': 2, 'classes': 2})

    def test_single_texts_with_the_label_first_and_packed(self):
        self.write('train.tsv.gz', 'label\tsentence\n1\tthe film \n0\tno\n')
        opened = Labelled(**self.fields(columns=(2,), label='1', header='true', train='train.tsv.gz')).open(None)
        rows = everything(opened.evaluation('train', 1))
        self.assertEqual([self.spelt(opened, ids) for ids in rows['inputs']], ['[CLS] the film [SEP]', '[CLS] no [SEP]'])
        self.assertEqual((rows['label'].tolist(), rows['types'].any()), ([1, 0], False))

    @parameterized.parameters(
        ('label\tsentence\nbad\tno\ngood\ta\n', [('no',), ('a',)], "text from 'sentence', label from 'label'"),
        ('idx\tsentence1\tsentence2\tlabel\n0\tno\ta\tbad\n1\ta\tno\tgood\n', [('no', 'a'), ('a', 'no')],
         "text from 'sentence1' and 'sentence2', label from 'label'"),
        ('film\tid\tsentiment\nno\t0\tbad\na\t1\tgood\n', [('no',), ('a',)], "text from 'film', label from 'sentiment'"),
        ('x\tno\tbad\ny\ta\tgood\n', [('no',), ('a',)], 'text from 2, label from 3', {'columns': (2,)}),
        ('bad\tno\ngood\ta\n', [('no',), ('a',)], 'text from 2, label from 1', {'label': '1'}),
        ('a,no\tx\tbad\nno,a\ty\tgood\n', [('x', 'a,no'), ('y', 'no,a')], 'text from 2 and 1, label from 3',
         {'columns': ('2,1',)}),
    )
    def test_columns_are_found_and_said(self, text, texts, said, more=()):
        self.write('a.tsv', text)
        opened = Labelled(**self.fields(train='train', **dict(more))).open(None)
        found = opened.config.part('train').examples
        self.assertEqual([example.texts for example in found], texts)
        self.assertEqual([example.label for example in found], ['bad', 'good'])
        self.assertIn(said, opened.describe())
        opened.save(self.folder / 'run')
        again = Labelled(**self.fields(path='')).open(self.folder / 'run')
        self.assertLen(again.read_text('\t'.join(texts[0])), 2)
        with self.assertRaisesRegex(ValueError, 'is not what this run classifies'):
            again.read_text('\t'.join((*texts[0], 'more')))

    def test_names_of_classes_in_the_card_of_a_data_set(self):
        names = "names: {'0': bad, '1': good}"
        features = f'  - name: label\n    dtype: {{class_label: {{{names}}}}}\n'
        self.write('README.md', f'---\ndataset_info:\n  features:\n{features}---\n')
        self.write('a.csv', 'text,label\n' + 'no,1\na,0\n' * 3)
        opened = Labelled(**self.fields(train='train')).open(None)
        self.assertEqual((opened.classes, [e.label for e in opened.config.part('train').examples][:2]),
                         (('bad', 'good'), ['good', 'bad']))
        for unknown in ('2', '1' * 5000):
            self.write('a.csv', f'text,label\nno,1\na,{unknown}\n')
            with self.assertRaisesRegex(ValueError, "a.csv:3 has the class '[12]+.*, and the names of the classes are bad,"):
                Labelled(**self.fields(train='train')).open(None)

    def test_values_of_json(self):
        self.write('a.jsonl', '{"text": "no", "label": ["x", "y"]}\n{"text": "a", "label": []}\n')
        opened = Labelled(**self.fields(train='train', target=Labels())).open(None)
        self.assertEqual([example.label for example in opened.config.part('train').examples], [('x', 'y'), ()])
        self.write('a.jsonl', '{"text": "no", "label": 1}\n{"text": "a", "label": 2.5}\n')
        opened = Labelled(**self.fields(train='train', target=Number())).open(None)
        self.assertEqual([example.label for example in opened.config.part('train').examples], [1, 2.5])

    @parameterized.parameters(
        (('10', '9', '-1', '10'), ('-1', '9', '10')),
        (('10', '9', 'x'), ('10', '9', 'x')),
        (('9', '1' * 5000, '10'), ('10', '1' * 5000, '9')),  # longer than a number may be
        (('not_entailment', 'entailment'), ('entailment', 'not_entailment')),
    )
    def test_classes_are_sorted(self, labels, expected):
        self.write('a.tsv', ''.join(f'no\t{label}\n' for label in labels))
        opened = Labelled(**self.fields(train='train')).open(None)
        self.assertEqual(opened.classes, expected)
        rows = everything(opened.evaluation('all', 8))
        self.assertEqual(tuple(opened.classes[i] for i in rows['label']), labels)

    def test_any_number_of_labels(self):
        self.write('a.tsv', 'no\tsea, sky\ngood\t\nfilm\tland,land\nno film\tsky\n')
        opened = Labelled(**self.fields(train='train', target=Labels())).open(None)
        self.assertEqual((opened.classes, opened.facts['classes']), (('land', 'sea', 'sky'), 3))
        rows = everything(opened.evaluation('all', 3))
        self.assertEqual(rows['label'].tolist(), [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]])
        self.assertIn('4 texts to train on; 3 labels (sky 50.0%, land 25.0%, sea 25.0%); ', opened.describe())
        batch = next(opened.train(0))
        self.assertEqual((batch['label'].shape, batch['label'].dtype), opened.shapes['label'])
        self.write('a.tsv', 'no\tsea; sky\ngood\tland\n')
        other = Labelled(**self.fields(train='train', target=Labels(separator=';'))).open(None)
        self.assertEqual(everything(other.evaluation('all', 2))['label'].tolist(), [[0, 1, 1], [1, 0, 0]])
        opened.save(self.folder / 'run')  # a run that goes on has the labels in the order of the other, and those it lacks
        self.write('a.tsv', 'no\tsky\n')
        on = Labelled(**self.fields(train='train', target=Labels())).open(None, self.folder / 'run')
        self.assertEqual(on.classes, ('land', 'sea', 'sky'))

    @parameterized.parameters(
        ("['sea', 'sky']", ('sea', 'sky')), ('[]', ()), ('''["it's", 'a,b']''', ("it's", 'a,b')), ('[1, 20]', ('1', '20')),
        ('[sea, sky]', ('[sea', 'sky]')), ("['sea' 'sky']", ("['sea' 'sky']",)), ('[007]', ('[007]',)), ("['a", ("['a",)))
    def test_labels_in_lists_that_are_written_as_text(self, cell, labels):
        """pandas writes a column of lists into CSV as Python spells them."""
        self.assertEqual(Labels().value(cell, 'a.csv:2'), labels)

    def test_targets_that_have_no_meaning(self):
        with self.assertRaisesRegex(ValueError, "separator of Labels is ''; expected the string between two labels, such as"):
            Labels(separator='')
        with self.assertRaisesRegex(ValueError, ' has True in the column of numbers, and expected is a number such as'):
            Number().value(True, 'a.jsonl:2')

    @parameterized.parameters(
        (';', ('art', 'law', 'art;law'), ','), ('|', ('art|law', 'law | sea', 'art|sea'), ','),
        (',', ('art', 'law', 'art,law'), ';'),
        ('', ('art', 'law', 'art;law'), ';'), ('', ('art; old', 'law'), ','), ('', ('art', 'law'), ','))
    def test_labels_with_another_separator_are_mentioned(self, mark, labels, separator):
        self.write('a.tsv', ''.join(f'no\t{label}\n' for label in labels))
        said = Labelled(**self.fields(train='train', target=Labels(separator))).open(None).describe()
        if not mark:
            self.assertNotIn('CAUTION', said)
            return
        self.assertRegex(said, rf"CAUTION: 'art.law', at [^ ]*a.tsv:\d, looks like several .* joined by '{re.escape(mark)}'")
        self.assertIn(f'--config.data.target="Labels(separator={mark!r})")', said)

    @parameterized.parameters(('["no"]', r"a list, \['no'\],"), ('{"a": 1}', "an object, {'a': 1},"))
    def test_a_list_is_no_text(self, text, said):
        self.write('a.jsonl', f'{{"text": {text}, "label": "x"}}\n')
        with self.assertRaisesRegex(ValueError, f'a.jsonl:1 has {said} where a text is expected; write the text alone'):
            Labelled(**self.fields(train='train')).open(None)

    def test_numbers(self):
        self.write('a.tsv', 'no\t1.5\ngood\t-2e1\nfilm\t5\n')
        opened = Labelled(**self.fields(train='train', target=Number())).open(None)
        self.assertEqual((opened.classes, opened.facts['classes']), (('LABEL_0',), 1))
        self.assertEqual(everything(opened.evaluation('all', 2))['label'].tolist(), [1.5, -20.0, 5.0])
        self.assertIn('3 texts to train on; numbers from -20 to 5, -4.5 on average; ', opened.describe())
        (self.folder / 'run').mkdir()
        for names, wanted in ((['grade'], ('grade',)), (['no', 'yes'], ('LABEL_0',))):  # of a run to start from
            opened.save(self.folder / 'run')
            (self.folder / 'run' / 'classes.json').write_text(json.dumps({'classes': names}))
            on = Labelled(**self.fields(train='train', target=Number())).open(None, self.folder / 'run')
            self.assertEqual(on.classes, wanted)
        batch = next(Labelled(**self.fields(train='train', target=Number(), batch_size=3)).open(None).train(0))
        self.assertEqual((batch['label'].dtype, sorted(batch['label'].tolist())), (np.float32, [-20.0, 1.5, 5.0]))

    def test_pairs_in_both_orders(self):
        self.write('a.tsv', 'the cat\ta dog ran\t0\nno\tno film\t1\n')
        opened = Labelled(**self.fields(train='train', both=True, packing='buckets')).open(None)
        batch, = opened.evaluation('train', 2)
        self.assertEqual([[self.spelt(opened, ids) for ids in pair] for pair in batch['inputs'][np.argsort(batch['row'])]],
                         [['[CLS] the cat [SEP] a dog ran [SEP]', '[CLS] a dog ran [SEP] the cat [SEP]'],
                          ['[CLS] no [SEP] no film [SEP]', '[CLS] no film [SEP] no [SEP]']])
        self.assertEqual((opened.shapes['inputs'][0], opened.shapes['label'][0]), ((4, 2, 12), (4,)))
        first, second = opened.read_orders('the cat\ta dog ran')
        self.assertEqual([ids.tolist() for ids, _ in (first, second)], [[int(i) for i in ids if i] for ids in batch['inputs'][
            list(batch['row']).index(0)]])

    def test_incomplete_rows(self):
        self.write('a.tsv', 'label\ttext\nbad\tno\n\tthe\ngood\t \nbad\ngood\ta\n')
        with self.assertRaisesRegex(ValueError, "a.tsv:3 has nothing in column 'label'; fill it in, take the line out, or "
                                                'leave all such lines out with data.incomplete=skip.$'):
            Labelled(**self.fields(train='train')).open(None)
        opened = Labelled(**self.fields(train='train', incomplete='skip')).open(None)
        self.assertEqual([example.texts for example in opened.config.part('train').examples], [('no',), ('a',)])
        self.assertIn('2 texts to train on, without 3 incomplete rows; ', opened.describe())
        self.write('b.tsv', 'label\ttext\nbad\tno\nbad\n\tthe\n')
        self.write('c.tsv', 'label\ttext\ngood\ta\ngood\t\n')
        parts = Labelled(**self.fields(train='a.tsv', valid='b.tsv', test='c.tsv', incomplete='skip')).open(None)
        self.assertIn('2 texts to train on, without 3 incomplete rows; data.valid without 2 incomplete rows; '
                      'data.test without 1 incomplete row; ', parts.describe())
        slices = Labelled(**self.fields(train='a.tsv[:1]', valid='a.tsv[1:]', incomplete='skip', target=Labels())).open(None)
        self.assertIn('1 texts to train on, without 2 incomplete rows; 1 labels', slices.describe())
        labels = Labelled(**self.fields(train='a.tsv', incomplete='skip', target=Labels())).open(None)
        self.assertLen(labels.config.part('train').examples, 3)  # no label is a label
        with self.assertRaisesRegex(ValueError, "data.incomplete='drop' is not known; it takes 'refuse', 'skip'"):
            Labelled(**self.fields(train='train', incomplete='drop')).open(None)

    @parameterized.parameters('index', 'id', 'idx', 'Idx')
    def test_tables_without_labels(self, name):
        self.write('a.tsv', 'label\ttext\nbad\tno\ngood\ta\n')
        opened = Labelled(**self.fields(train='train')).open(None)
        self.assertEqual(opened.unlabelled([f'{name}\ttext', '7\tthe cat', '9\tno', '', '\t']), (['7', '9'], ['the cat', 'no']))
        self.assertIsNone(opened.unlabelled(['', '']))
        with self.assertRaisesRegex(ValueError, "Line 2 is '', which lacks what line 1 names"):
            opened.unlabelled([f'{name}\ttext', '', '7\tthe cat', ''])

    @parameterized.parameters(('true', 'he said "no"'), ('auto', 'he said "no"'), ('false', '"he said ""no""\"'))
    def test_quotes_of_a_table_without_labels(self, quotes, wanted):
        self.write('a.tsv', 'label\ttext\nbad\tno\ngood\ta\n')
        opened = Labelled(**self.fields(train='train', quotes=quotes)).open(None)
        lines = ['id\ttext', '7\t"he said ""no""\"', '9\t"a film"']
        self.assertEqual(opened.unlabelled(lines)[1][0], wanted)
        self.assertEqual(opened.unlabelled([*lines, '11\tno "film'])[1][2], 'no "film')  # which 'auto' takes for no quotes
        quoted = opened.unlabelled(['"id"\t"text"', '7\t"a\tfilm"', '8\t"a"'])
        self.assertEqual(quoted, None if quotes != 'true' else (['7', '8'], ['a film', 'a']))

    def test_a_class_0_is_not_incomplete(self):
        rows = [{'text': f'the cat {i}', 'label': i % 2} for i in range(6)] + [
            {'text': ' ', 'label': 1}, {'text': 'a'}, {'text': [], 'label': 1}]
        path = self.write('a.jsonl', ''.join(json.dumps(row) + '\n' for row in rows))
        data = lambda **more: Labelled(**self.fields(path=path, train='all', incomplete='skip') | more)
        self.assertEqual([one.label for one in data().part('train').examples], ['0', '1'] * 3)
        self.assertEqual([one.label for one in data(target=Number()).part('train').examples], [0.0, 1.0] * 3)
        path = self.write('b.tsv', 'the cat\ta|b\nno\t\n \ta\n')  # no label is a label, in columns that nobody has named too
        labels = data(path=path, target=Labels(), header='false')
        self.assertEqual([one.texts for one in labels.part('train').examples], [('the cat',), ('no',)])

    def test_names_of_classes_may_be_numbers(self):
        """Then a number in a file is a place among them, and a text a name."""
        self.assertEqual([OneClass().value(cell, 'a:1', ['1', '2', '10']) for cell in (0, 2, '1', '10', '0')],
                         ['1', '10', '1', '10', '1'])
        with self.assertRaisesRegex(ValueError, "a:1 has the class '3', and the names of the classes are 1, 2, 10"):
            OneClass().value(3, 'a:1', ['1', '2', '10'])

    def test_few_examples_of_many_classes(self):
        self.write('a.tsv', 'text\tlabel\n' + ''.join(f'the cat {i}\tintent {i % 30}\n' for i in range(45)))
        self.assertLen(Labelled(**self.fields(train='train', columns=('text',), label='label')).open(None).classes, 30)
        with self.assertRaisesRegex(ValueError, '30 different values in 45 examples .*, so it names no class'):
            Labelled(**self.fields(train='train')).open(None)

    def test_what_is_too_long_is_cut(self):
        self.write('a.tsv', 'the cat sat the cat sat the cat sat\ta dog ran\t0\nno\tno\t1\n')
        opened = Labelled(**self.fields(columns=(1, 2), label='3', train='train', length=10)).open(None)
        inputs = everything(opened.evaluation('train', 2))['inputs'][0]
        self.assertEqual(self.spelt(opened, inputs), '[CLS] the cat sat the [SEP] a dog ran [SEP]')
        self.assertIn('2 pairs of texts to train on, 1 of them cut to 10 tokens; 2 classes (', opened.describe())
        line = 'the cat sat the cat sat the cat sat\ta dog ran'
        self.assertEqual((opened.cut(line), opened.cut('no\tno'), opened.evaluation('train', 2).facts['cut']), (5, 0, 1))
        ids, types = opened.read_text(line)
        self.assertEqual((ids.tolist(), types.tolist()), (inputs.tolist(), [0] * 6 + [1] * 4))

    def test_a_line_to_classify(self):
        opened = Labelled(**self.reviews()).open(None)
        ids, types = opened.read_text(' The FILM ')
        self.assertEqual((self.spelt(opened, ids), types.tolist()), ('[CLS] the film [SEP]', [0] * 4))
        self.assertEqual(opened.pieces(opened.encode('good film')), ['good', 'film'])
        for line in ('a\tdog', '  ', ''):
            with self.assertRaisesRegex(ValueError, 'is not what this run classifies; expected a text without tabs'):
                opened.read_text(line)
        self.write('reviews.tsv', 'no\tno\t0\nno\ta\t1\n')
        pairs = Labelled(**self.fields(columns=(1, 2), label='3', train='train')).open(None)
        with self.assertRaisesRegex(ValueError, 'expected two texts with a tab between them'):
            pairs.read_text('no')


class ContractTest(LabelledCase):
    def test_contract(self):
        opened = Labelled(**self.reviews(train='train[:10]', valid='train[10:]')).open(None)
        batch = next(opened.train(0))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
        self.assertEqual((opened.count(batch), opened.unit), (4, 'texts'))
        self.assertEqual(opened.batches_per_epoch, 2.5)
        self.assertIn('10 texts to train on; 2 classes (bad 50.0%, good 50.0%); Json vocabulary of', opened.describe())

    def test_evaluation_holds_every_text_once_in_order(self):
        opened = Labelled(**self.reviews(train='train[:10]', valid='train[10:]')).open(None)
        evaluation = opened.evaluation('valid', 4)
        self.assertEqual((len(evaluation), evaluation.facts), (3, {'texts': 10, 'cut': 0}))
        self.assertEqual(sum(map(opened.count, evaluation)), 10)
        rows = everything(evaluation)
        self.assertEqual(rows['segments'].sum(1).tolist(), [4 + i + 1 for i in range(10, 20)])
        self.assertEqual(rows['label'].tolist(), [0, 1] * 5)
        with self.assertRaisesRegex(ValueError, 'takes no context, stride in evaluation; leave it out'):
            opened.evaluation('valid', 4, context=3, stride=1)
        with self.assertRaisesRegex(ValueError, 'data.test is empty, so there is no such split'):
            opened.evaluation('test', 4)
        path = self.write('more.txt', 'no\tgood\n')
        self.assertEqual(everything(opened.score([path], 4))['label'].tolist(), [1])

    def test_every_text_comes_once_an_epoch_and_a_run_resumes_exactly(self):
        opened = Labelled(**self.reviews(train='all')).open(None)
        runs = [[next(iterator) for _ in range(10)] for iterator in map(opened.train, (0, 0, 1))]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(equal(runs[0][0], runs[2][0]))
        for epoch in (runs[0][:5], runs[0][5:]):
            lengths = np.concatenate([batch['segments'].sum(1) for batch in epoch])
            labels = np.concatenate([batch['label'] for batch in epoch])
            self.assertEqual(sorted(lengths), [*range(5, 25)])
            np.testing.assert_array_equal(labels, (lengths - 5) % 2)  # of the same text
        self.assertFalse(equal(runs[0][0], runs[0][5]))
        iterator, again = opened.train(0), opened.train(0)
        for _ in range(3):
            next(iterator)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        self.assertTrue(all(equal(batch, next(again)) for batch in runs[0][3:]))

    def test_a_saved_run_needs_no_files(self):
        fields = self.reviews(train='train[:10]')
        opened = Labelled(**fields).open(None)
        opened.save(self.folder / 'run')
        (self.folder / 'texts' / 'reviews.tsv').unlink()
        again = Labelled(**fields | {'path': ''}).open(self.folder / 'run')
        self.assertEqual((again.facts, again.classes, again.shapes), (opened.facts, opened.classes, opened.shapes))
        self.assertEqual(again.read_text('good')[0].tolist(), opened.read_text('good')[0].tolist())
        with self.assertRaisesRegex(ValueError, 'data.path is empty; set it to a file'):
            again.train(0)
        for damaged in ('{"classes": 2}', '["no", "yes"]', '{}', '', None):
            file = self.folder / 'run' / 'classes.json'
            file.unlink() if damaged is None else file.write_text(damaged)
            with self.assertRaisesRegex(ValueError, 'classes.json does not hold the classes of this run; restore it'):
                Labelled(**fields).open(self.folder / 'run')

    def test_one_text_or_two_a_line(self):
        self.write('a.tsv', 'no\tgood\nno\ta\tbad\n')
        opened = Labelled(**self.fields(columns=(), train='train')).open(None)
        self.assertEqual(opened.classes, ('bad', 'good'))
        rows = everything(opened.evaluation('train', 2))
        self.assertEqual(rows['label'].tolist(), [1, 0])
        for row, line in enumerate(('no', 'no\ta')):
            ids, types = opened.read_text(line)
            self.assertEqual(rows['inputs'][row, :len(ids)].tolist(), ids.tolist())
            self.assertEqual(rows['types'][row, :len(ids)].tolist(), types.tolist())
        self.assertEqual(types[-2:].tolist(), [1, 1])
        for line in ('no', 'no\ta\tb\tgood'):
            self.write('a.tsv', line + '\n')
            with self.assertRaisesRegex(ValueError, r'a.tsv:1 has . columns? separated by tabs, and expected are'):
                Labelled(**self.fields(columns=(), train='train')).open(None)
        with self.assertRaisesRegex(ValueError, 'expected one text, or two texts with a tab between them'):
            opened.read_text('a\tb\tc')

    def test_classes_of_a_run_to_start_from_keep_their_order(self):
        self.write('a.tsv', 'no\tgood\nno a\tbad\n')
        fields = self.fields(train='train', valid='', test='')
        Labelled(**fields).open(None).save(self.folder / 'run')
        saved = self.folder / 'run' / 'classes.json'
        for known, wanted in ((['good', 'other', 'bad'], ('good', 'other', 'bad')), (['good', 'other'], ('bad', 'good'))):
            saved.write_text(json.dumps({'classes': known}))
            self.assertEqual(Labelled(**fields).open(None, self.folder / 'run').classes, wanted)

    def test_a_run_to_start_from_gives_its_tokenizer_and_not_its_classes(self):
        fields = self.reviews(train='all')
        Labelled(**fields).open(None).save(self.folder / 'run')
        first = self.folder / 'word_piece.json'
        kept = first.read_bytes()
        first.unlink()
        self.write('reviews.tsv', 'no\t3\na\t1\nthe\t2\n')
        opened = Labelled(**fields).open(None, self.folder / 'run')
        self.assertEqual(opened.classes, ('1', '2', '3'))
        self.assertEqual(opened.tokenizer.contents, kept)

    def test_a_learnt_tokenizer_knows_the_training_part_alone(self):
        self.write('a.tsv', 'one two\t0\nthree\t1\nfour\t0\n')
        opened = Labelled(**self.fields(tokenizer=Word(), framing='t5', train='train[:2]')).open(None)
        self.assertEqual(opened.tokenizer.words, ('one', 'three', 'two'))

    def test_digests_name_contents_and_how_they_are_read(self):
        fields = self.reviews(train='train[:10]', valid='train[10:]')
        digest = lambda split='train', **more: Labelled(**fields | more).part(split).digest
        before = digest()
        self.assertEqual(before, digest(valid='', length=9))
        others = [digest('valid'), digest(header='true'), digest(columns=(2,), label='1'), digest(quotes='false'),
                  digest(train='train[:9]')]
        self.reviews(21)
        self.assertLen({before, digest(), *others}, 7)

    def test_contents_name_the_examples_however_they_are_read(self):
        fields = self.reviews(train='train[:10]', valid='train[10:]')
        contents = lambda split='train', **more: Labelled(**fields | more).open(None).contents(split)
        before, digest = contents(), Labelled(**fields).part('train').digest
        (self.folder / 'other').mkdir()
        elsewhere = self.folder / 'other' / 'a.tsv'
        elsewhere.write_bytes((self.folder / 'texts' / 'reviews.tsv').read_bytes())
        for same in dict(columns=(1,), label='2'), dict(incomplete='skip'), dict(path=str(elsewhere)):
            self.assertEqual(contents(**same), before)
        for other in dict(split='valid'), dict(train='train[1:10]'), dict(target=Labels()):
            self.assertNotEqual(contents(**other), before)
        self.assertNotEqual(Labelled(**fields, incomplete='skip').part('train').digest, digest)  # it names how files are read
        self.write('reviews.tsv', (self.folder / 'texts' / 'reviews.tsv').read_text().replace('film x\t', 'film y\t'))
        self.assertNotEqual(contents(), before)


class RefusalTest(LabelledCase):
    @parameterized.parameters(
        ('no\tgood\nno\n', 'a.tsv:2 has 1 column separated by tabs, and expected are one text or two and the'),
        ('no\tgood\nno\n', 'a.tsv:2 has 1 column separated by tabs, and data.columns with data.label asks for 2',
         {'columns': (1,)}),
        ('no\tgood\n\nno\t \n', 'a.tsv:3 has nothing in column 2; fill it in'),
        ('\tgood\n', 'a.tsv:1 has nothing in column 1'),
        ('no\tgood\na\tgood\n', "All examples of data.train='train' have the class 'good'; widen it, or set data.label"),
        ('no\t4\na\tfour\n', "a.tsv:2 has 'four' in the column of numbers, and expected is", {'target': Number()}),
        ('no\t1_000\n', "a.tsv:1 has '1_000' in the column of numbers, and expected is a number such as", {'target': Number()}),
        ('no\tnan\n', "a.tsv:1 has 'nan' in", {'target': Number()}),
        ('no\t1e300\n', "a.tsv:1 has '1e300' in", {'target': Number()}),
        ('no\t3,5\n', "a.tsv:1 has '3,5' in .* a number such as 3.5, with a point", {'target': Number()}),
        ('no\t3%\n', 'a number such as 3, with a point and without a percent sign', {'target': Number()}),
        ('a\t3\nb\t3.0\n', "All examples of .* have the number 3 in the column '2'; widen it", {'target': Number()}),
        ('no,good\nyes,bad\n', r'a.tsv:1 has 1 column separated by tabs \(name the file .csv if commas or semicolons do\)'),
        ('text\tlabel\nno\tbad\tgood\n', 'a.tsv:2 has 3 columns, and the header has 2, separated by tabs; take tabs out'),
        ('text\tlabel\tlabel\nno\tbad\tgood\n', "a.tsv has the name 'label' for the columns 2 and 3; name columns by numbers"),
        ('text\tsport\tpolitics\na\t0\t1\nb\t1\t0\n',
         "of 0 and 1 for each of 'sport', 'politics', .* set data.label=politics", {'target': Labels()}),
        ('\n \n', 'is empty: its files have no example', {'header': 'true'}),
        ('no\t\n', 'a.tsv:1 has nothing in column 2', {'target': Number()}),
        ('no\t\na\t,\n', "All examples of data.train='train' are without labels; widen it", {'target': Labels()}),
        ('no\tgood\na\tbad\n', r"The split 'b.tsv' names no file of this data; did you mean 'a.tsv'", {'train': 'b.tsv'}),
        ('no\tgood\na\tbad\n', r"The split 'train\[2:\]' is empty: it names none of the 2", {'train': 'train[2:]'}),
        ('no\tgood\n', 'is empty: its files have no example', {'header': 'true'}),
        ('no\tgood\n', r'data.columns=1,2,3 names more than two texts', {'columns': (1, 2, 3)}),
        ('no\tgood\n', r'data.columns=0 names no column', {'columns': (0,)}),
        ('no\tgood\n', 'name a column twice', {'columns': (2,), 'label': '2'}),
        ('no\tgood\n', 'name a column twice', {'columns': (1, 1), 'label': '3'}),
        ('no\tgood\n', "data.label=0 names no column", {'label': '0'}),
        ('no\tgood\n', 'data.batch_size=0 is out of range', {'batch_size': 0}),
        ('no\tgood\n', 'data.length=2 has no room for a text and 2 special tokens; it must be 3 or more', {'length': 2}),
        ('no\tgood\n', 'data.path is empty; set it to a file, a folder or a glob', {'path': ''}),
    )
    def test_bad_input(self, text, message, more=()):
        self.write('a.tsv', text)
        with self.assertRaisesRegex(ValueError, message) as caught:
            Labelled(**self.fields(train='train') | dict(more)).open(None)
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters(('{"text": "no", "label": NaN}\n', 'label'), ('{"text": NaN, "label": 1}\n', 'text'))
    def test_what_is_missing_is_no_text_and_no_class(self, row, column):
        self.write('a.jsonl', '{"text": "yes", "label": 0}\n' + row)
        with self.assertRaisesRegex(ValueError, f"a.jsonl:2 has nothing in column '{column}'"):
            Labelled(**self.fields(train='train')).open(None)

    def test_labels_that_are_missing_are_none(self):
        self.write('a.jsonl', '{"text": "yes", "label": ["a", NaN]}\n{"text": "no", "label": NaN}\n')
        opened = Labelled(**self.fields(train='train', target=Labels())).open(None)
        self.assertEqual([one.label for one in opened.config.part('train').examples], [('a',), ()])

    def test_many_columns_of_numbers_are_refused_at_once(self):
        self.write('a.csv', (','.join(map(str, range(300))) + '\n') * 1000)
        with mock.patch.object(re, 'fullmatch', wraps=re.fullmatch) as matches, self.assertRaises(ValueError):
            Labelled(**self.fields(train='train', label='300')).open(None)
        self.assertLess(matches.call_count, 1_000_000)

    def test_a_class_that_occurs_once_is_mentioned(self):
        lines = ''.join(f'the film {i}\t{("bad", "good")[i % 2]}\n' for i in range(30))
        for text, said in (
                (f'What did they say?\trating\n{lines}',
                 "(CAUTION: 'rating', at {path}:1, occurs once: if line 1 is a header, set data.header=true)"),
                (f'{lines}no\tgod\nno\tbda\n',
                 "(CAUTION: 'god', at {path}:31, occurs once; 1 more do: correct it if it is mistyped, or set data.label")):
            path = self.write('a.tsv', text)
            self.assertIn(said.format(path=path), Labelled(**self.fields(train='train', length=32)).open(None).describe())
        self.write('a.tsv', lines)
        self.assertNotIn('CAUTION', Labelled(**self.fields(train='train', length=32)).open(None).describe())

    def test_few_numbers_with_decimal_places_may_be_classes(self):
        self.write('a.csv', 'text,label\n' + ''.join(f'film {i},{i % 2}.5\n' for i in range(40)))
        with self.assertRaisesRegex(ValueError, "'label', has numbers with .*; set data.label=label if they name"):
            Labelled(**self.fields(train='train')).open(None)
        self.assertEqual(Labelled(**self.fields(train='train', label='label', length=32)).open(None).classes, ('0.5', '1.5'))

    def test_labels_that_are_nearly_all_different(self):
        self.write('a.tsv', ''.join(f'the film\t{i}.25\n' for i in range(30)))
        with self.assertRaisesRegex(ValueError, "The column of the labels, '2', has 30 different values in 30 examples"):
            Labelled(**self.fields(train='train', target=Labels())).open(None)

    def test_a_class_that_is_held_out_alone(self):
        self.write('a.tsv', 'no\tbad\nyes\tgood\nyes\tgod\n')
        opened = Labelled(**self.fields(train='train[:2]', valid='train[2:]')).open(None)
        with self.assertRaisesRegex(ValueError, "a.tsv:3 has the class 'god', which the training part does not .*; correct it "
                                                'if it is mistyped, take the line out if it is rare, or widen data.train.$'):
            opened.evaluation('valid', 2)

    def test_columns_with_one_name_are_told_apart_by_numbers(self):
        self.write('a.tsv', 'text\tlabel\tlabel\nno\tbad\tx\nyes\tgood\tx\n')
        opened = Labelled(**self.fields(train='train', columns=('1',), label='2')).open(None)
        self.assertEqual(opened.classes, ('bad', 'good'))
        with self.assertRaisesRegex(ValueError, "has the name 'label' for the columns 2 and 3"):
            Labelled(**self.fields(train='train', columns=('text',), label='label')).open(None)

    @parameterized.parameters({}, {'label': '1', 'columns': ('2',)})
    def test_a_column_of_texts_is_no_column_of_classes(self, **fields):
        self.write('a.tsv', 'x\tlabel\n' + ''.join(f'the film {i}\t{i} no\n' for i in range(30)))
        with self.assertRaisesRegex(ValueError, '30 different values in 30 examples .*, so it names no class; set data.label'):
            Labelled(**self.fields(train='train', header='true', **fields)).open(None)

    def test_the_column_of_classes_is_suggested(self):
        self.write('a.csv', 'v1,v2,,\n' + ''.join(f'{"ab"[i % 2]},the film {i},,\n' for i in range(30)))
        with self.assertRaisesRegex(ValueError, 'so it names no class; set data.label=v1, which has few'):
            Labelled(**self.fields(train='train')).open(None)
        self.assertEqual(Labelled(**self.fields(train='train', label='v1', length=32)).open(None).classes, ('a', 'b'))

    def test_numbers_with_decimal_places_are_classes_only_if_named(self):
        self.write('a.csv', 'text,the verdict,stars\n' + ''.join(f'film {i},{"ab"[i % 2]},{i % 5}.5\n' for i in range(40)))
        with self.assertRaisesRegex(ValueError, "'stars', has numbers with .*'0.5'.* set data.label='the verdict', which"):
            Labelled(**self.fields(train='train')).open(None)
        self.assertLen(Labelled(**self.fields(train='train', label='stars', length=32)).open(None).classes, 5)
        opened = Labelled(**self.fields(train='train', label='the verdict', length=32)).open(None)
        self.assertIn("text from 'text', label from 'the verdict'", opened.describe())  # and not from the number of stars

    def test_columns_that_cannot_be_known(self):
        self.write('a.csv', 'one,two,three,label\n' + 'no,a,the,0\n' * 3)
        with self.assertRaisesRegex(ValueError, "a.csv has the columns 'one', 'two', 'three', 'label', which leaves open what "
                                                'is the text .*; name them, such as --config.data.columns=1'):
            Labelled(**self.fields(train='train')).open(None)
        with self.assertRaisesRegex(ValueError, "data.columns names the column 'on', which .* its columns are 'one', 'two'"):
            Labelled(**self.fields(train='train', columns=('on',))).open(None)

    def test_no_such_file(self):
        with self.assertRaisesRegex(FileNotFoundError, 'nowhere.* does not exist; data.path must be'):
            Labelled(**self.fields(path=str(self.folder / 'nowhere'))).open(None)

    def test_a_class_that_training_does_not_have(self):
        self.write('a.tsv', 'no\tgood\na\tbad\nno\tfair\n')
        opened = Labelled(**self.fields(train='train[:2]', valid='train[2:]')).open(None)
        with self.assertRaisesRegex(ValueError, r"a.tsv:3 has the class 'fair', which the training part does not have \(it has "
                                                r'bad, good\)'):
            opened.evaluation('valid', 4)

    @parameterized.parameters('train', 'a.tsv', 'train[1:]', '*.tsv[:1]')
    def test_training_shares_nothing_with_held_out_parts(self, valid):
        self.write('a.tsv', 'no\tgood\na\tbad\nno\tgood\n')
        with self.assertRaisesRegex(ValueError, r"data.train='train\[:2\]' and data.valid=.* share . examples, the first "
                                                r'of them .*a.tsv:[12]; give each its own file'):
            Labelled(**self.fields(train='train[:2]', valid=valid)).open(None)

    def test_held_out_parts_may_share_examples(self):
        opened = Labelled(**self.reviews(valid='train[90%:]', test='train[95%:]', train='train[:90%]')).open(None)
        self.assertEqual([opened.evaluation(part, 2).facts['texts'] for part in ('valid', 'test')], [2, 1])


if __name__ == '__main__':
    absltest.main()
