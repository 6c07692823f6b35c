import dataclasses
import types
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest
from sacrebleu import metrics

from data.seq2seq.parallel import Parallel
from tests import experiments
from tests.data import tiny_tokenizers
from transformer.decoding.strategies import Beam, Greedy
from transformer.decoding.translate import best_texts, encoded, translate, written
from transformer.evaluators import paired, translations
from transformer.evaluators.translations import ByLength, Sentences, Translations
from transformer.models.bahdanau import RecurrentEncoderDecoder
from transformer.models.gpt import Gpt
from transformer.models.recurrent_attention import NoAttention

TOKEN = np.ones((1, 1), np.int32)


class TranslationsTest(experiments.TestCase):
    def setUp(self):
        super().setUp()
        from training import run as runs

        self.snapshot = runs.load(self.translator())

    @pytest.mark.slow
    def test_sources_get_what_they_get_alone(self):
        data, key = self.snapshot.data, jax.random.key(0)
        sources = [data.encode(text) for text in ('key value mask', 'row', 'head block norm token row', 'loss step')]
        for strategy in (Greedy(), Beam(size=3, count=2)):
            together = translate(self.snapshot, sources, strategy=strategy, key=key, rows=2)
            for source, found in zip(sources, together):
                alone, = translate(self.snapshot, [source], strategy=strategy, key=key)
                self.assertEqual([one.tokens.tolist() for one in found], [one.tokens.tolist() for one in alone])
                np.testing.assert_allclose([one.score for one in found], [one.score for one in alone], rtol=1e-4)
        self.assertEqual(translate(self.snapshot, [], strategy=Greedy(), key=key), [])

    def test_scores_are_those_of_the_outputs(self):
        from transformer.evaluators.metrics import translation_scores

        texts, run = [], self.snapshot.run
        batches = run.evaluation('valid')
        snapshot = types.SimpleNamespace(**{name: getattr(self.snapshot, name) for name in ('model', 'params', 'data', 'key')},
                                         text=lambda name, text: texts.append((name, text)))
        evaluator = Translations(limit=6, shown=2)
        self.assertEqual(evaluator.check(run, batches), ('bleu', 'chrf', 'exact_match', 'pairs'))
        numbers = evaluator(snapshot, batches)
        pairs = batches.pairs()[:6]
        outputs = [snapshot.data.decode(found[0].tokens) for found in translate(
            snapshot, [snapshot.data.encode(source) for source, _ in pairs], strategy=Greedy(), key=jax.random.key(1))]
        self.assertEqual(numbers, translation_scores(outputs, [target for _, target in pairs])[0] | {'pairs': 6})
        (name, text), = texts
        self.assertEqual(name, 'translations')
        self.assertStartsWith(text, f'source:    {pairs[0][0]}\nreference: {pairs[0][1]}\noutput:    {outputs[0]}\n')
        self.assertEqual(text.count('source:'), 2)
        self.assertIn(f"\n{Greedy()}, of texts prepared by data.text='nfc'\nBLEU nrefs:1|", text)
        self.assertIn('|tok:13a|', text)
        found = evaluator.each(snapshot, batches)
        for name, number in evaluator.numbers(found).items():
            self.assertAlmostEqual(number, numbers[name], places=10)
        self.assertEqual(evaluator.right(found)['exact_match'].tolist(),
                         [output == target for output, (_, target) in zip(outputs, pairs)])

    def test_what_is_in_per_cent(self):
        texts = ['the cat sat on the mat', 'a dog ran']
        numbers, _ = translations.translation_scores(texts, texts)
        self.assertEqual({name for name, x in numbers.items() if round(x) == 100}, {*Translations.percent})

    def test_what_the_scores_are_of_is_said(self):
        texts, batches = [], types.SimpleNamespace(pairs=lambda: [('key row', 'row key')])
        snapshot = types.SimpleNamespace(**{name: getattr(self.snapshot, name) for name in ('model', 'params', 'data', 'key')},
                                         text=lambda name, text: texts.append(text))
        with (mock.patch.object(snapshot.data, 'config', dataclasses.replace(snapshot.data.config, text='raw')),
              mock.patch.object(snapshot.data, 'target_language', 'ja')):
            Translations()(snapshot, batches)
        self.assertIn(f'\n\n{Greedy()}\nBLEU nrefs:1|case:mixed|eff:no|tok:char|', texts[0])

    @pytest.mark.slow
    def test_a_long_source_is_cut_only_when_asked(self):
        data, long = self.snapshot.data, ' '.join(['key'] * 12)
        whole = data.encode(long)
        cut = encoded(data, long, 12, truncate=True)
        self.assertEqual((cut.tolist(), cut.dtype), ([*whole[:11].tolist(), data.end], whole.dtype))
        for truncate in (True, False):
            self.assertEqual(encoded(data, long, 13, truncate=truncate).tolist(), whole.tolist())
        sentence = '{} has 13 tokens with its end, but this model takes 12; shorten it, or give --truncate.'
        for what in ('The source', 'The source in line 2'):
            with self.assertRaises(ValueError) as raised:
                encoded(data, long, 12, what=what, otherwise='give --truncate')
            self.assertEqual(str(raised.exception), sentence.format(what))
        with self.assertRaisesRegex(ValueError, 'takes 12; shorten it[.]$'):
            encoded(data, long, 12)

    def test_evaluators_cut_where_the_data_does(self):
        long = ' '.join(['key', 'value'] * 7)
        with self.assertRaisesRegex(ValueError, "'key value .* has 15 tokens .* takes 12; shorten it, or set data.long='trunc"):
            Sentences(sources=(long,), references=('a',)).check(self.snapshot.run, None)  # before training
        data = self.snapshot.data
        with mock.patch.object(data, 'config', dataclasses.replace(data.config, long='truncate')):
            self.assertEqual(Sentences(sources=(long,), references=('a',)).check(self.snapshot.run, None), ('bleu_1',))
            text, = best_texts(self.snapshot, [long], Greedy())
        self.assertEqual(text, best_texts(self.snapshot, [' '.join(long.split()[:11])], Greedy())[0])

    @pytest.mark.slow
    def test_sentences_are_scored_one_by_one(self):
        texts = []
        snapshot = types.SimpleNamespace(**{name: getattr(self.snapshot, name) for name in ('model', 'params', 'data', 'key')},
                                         text=lambda name, text: texts.append(text))
        output = snapshot.data.decode(translate(snapshot, [snapshot.data.encode('key row')], strategy=Greedy(),
                                                key=jax.random.key(0))[0][0].tokens)
        evaluator = Sentences(sources=('key row', 'key row'), references=(output, 'something else entirely'))
        self.assertEqual(evaluator.check(self.snapshot.run, None), ('bleu_1', 'bleu_2'))
        numbers = evaluator(snapshot, None)
        self.assertEqual(numbers, {'bleu_1': 1.0, 'bleu_2': 0.0})
        self.assertEqual(texts[0], f'key row => {output}, bleu 1.000\nkey row => {output}, bleu 0.000\n')

    def test_what_cannot_be_measured_is_refused(self):
        for evaluator, message in ((Translations(limit=-1), 'limit=-1'), (Sentences(), '0 sources'),
                                   (Sentences(sources=('a',), references=('b', 'c')), '1 sources, 2 references')):
            with self.assertRaisesRegex(ValueError, message):
                evaluator.check(self.snapshot.run, None)
        blind = RecurrentEncoderDecoder(vocab=11, source_vocab=0, layers=1, width=4, attention=NoAttention())
        shapes = jax.eval_shape(lambda: blind.init(jax.random.key(0), TOKEN, decoder_inputs=TOKEN)['params'])
        run = types.SimpleNamespace(data=self.snapshot.data, model=blind, shapes=types.SimpleNamespace(params=shapes))
        Translations(strategy=Beam()).check(run, None)
        for evaluator in (Translations(strategy=Beam(coverage_penalty=0.2)), Sentences(('a',), ('b',), 2, Beam(2, 0.6, 0.1))):
            with self.assertRaisesRegex(ValueError, 'A coverage penalty needs a model that attends to a source'):
                evaluator.check(run, None)
        run.model = blind.clone(source_length=7)
        for evaluator in (Translations(), Sentences(('a',), ('b',))):
            with self.assertRaisesRegex(ValueError, 'data.source_length=8 tokens, but model.source_length is 7; raise that'):
                evaluator.check(run, None)
        run.model = Gpt(vocab=11)
        with self.assertRaisesRegex(ValueError, 'Gpt has no encoder, and Parallel gives it no row of source and target'):
            Translations().check(run, None)
        run = types.SimpleNamespace(data=types.SimpleNamespace(config=types.SimpleNamespace()))
        with self.assertRaisesRegex(ValueError, 'Translations needs pairs of texts, and SimpleNamespace has none'):
            Translations().check(run, None)


class WrittenTest(experiments.TestCase):
    def test_references_are_as_the_tokenizer_writes_them(self):
        self.text.write_text(experiments.pairs(20))
        data = Parallel(source='table', path=str(self.text), framing='bert', tokenizer=tiny_tokenizers.word_piece(
            self.folder, 'the cat not equal')).open(None)
        given = ['The  cat, not-equal!', '3.8', '\u00c9 cat', 'not_equal', 'the cat']
        found = written(data, given)
        letters = [''.join(text.split()) for text in found]
        self.assertEqual(letters, ['thecat,not-equal!', '3.8', 'ecat', 'not_equal', 'thecat'])
        self.assertEqual(found[3:], given[3:])  # '_' is unknown to it, so that no output can be right
        outputs = [data.decode(data.encode_target(text)[:-1]) for text in given]
        self.assertEqual(found[:3], outputs[:3])
        self.assertNotEqual(outputs[3], given[3])


class ByLengthTest(absltest.TestCase):
    """Over these outputs, whatever the model."""
    pairs = [(' '.join(['word'] * count), f'the reference number {i} of some words .')
             for i, count in enumerate((1, 2, 7, 2, 3, 9, 3, 1, 12, 5))]
    texts = [reference if i % 3 else f'a reference number {i} of words' * (i != 3) for i, (_, reference) in enumerate(pairs)]

    def measured(self, method, evaluator, texts=None):
        batches = types.SimpleNamespace(pairs=lambda: self.pairs)
        said, self.asked, self.written = dict(zip(self.pairs, texts or self.texts)), [], {}
        data = types.SimpleNamespace(target_language='fr', preparation='nfc', decode=lambda ids: ''.join(map(chr, ids)),
                                     encode_target=lambda text: [*map(ord, text), 0])

        def translated(_, sources, strategy):
            self.asked.append((list(sources), strategy))
            return [said[pair] for pair in self.chosen]

        self.chosen = evaluator._chosen(batches)[1]
        with (mock.patch.object(translations, 'best_texts', translated),
              mock.patch.object(translations, 'require_translation', lambda *_: None)):
            names = evaluator.check(types.SimpleNamespace(data=data), batches)
            found = getattr(evaluator, method)(types.SimpleNamespace(data=data, text=self.written.__setitem__), batches)
        return found, names

    def bleu(self, numbers):
        return metrics.BLEU().corpus_score([self.texts[i] for i in numbers], [[self.pairs[i][1] for i in numbers]]).score

    def test_bins_hold_every_pair_once_and_score_as_sacrebleu_does(self):
        numbers, names = self.measured('__call__', ByLength(bounds=(1, 2, 5, 6)))
        self.assertEqual([*numbers], [*names])
        self.assertEqual({name.partition('/')[0] for name in names}, {*ByLength.percent, 'pairs'})
        bins = {'1': (0, 7), '2': (1, 3), '3-5': (4, 6, 9), '7+': (2, 5, 8)}  # no source has six words
        self.assertEqual({name: numbers[f'pairs/{name}'] for name in bins}, {name: len(own) for name, own in bins.items()})
        self.assertLen(numbers, 4 * len(bins))
        for name, own in bins.items():
            self.assertAlmostEqual(numbers[f'bleu/{name}'], self.bleu(own), places=10)
            self.assertLessEqual(numbers[f'low/{name}'], numbers[f'bleu/{name}'])
            self.assertGreaterEqual(numbers[f'high/{name}'], numbers[f'bleu/{name}'])
        self.assertLess(numbers['low/3-5'], numbers['high/3-5'])
        self.assertRegex(self.written['by_length'], rf"words .*\n1 +{numbers['bleu/1']:.2f} .* 2\n")
        self.assertIn("BLEU of tokens by 13a, of texts prepared by data.text='nfc'\n", self.written['by_length'])

    def test_fields(self):
        strategy = Beam(size=2)
        numbers, _ = self.measured('__call__', ByLength(strategy, bounds=(4,), limit=3))
        self.assertEqual([numbers['pairs/1-4'], numbers['pairs/5+']], [3, 3])
        self.assertEqual(self.asked, [([self.pairs[i][0] for i in (0, 1, 2, 3, 5, 8)], strategy)])
        self.assertAlmostEqual(numbers['bleu/1-4'], self.bleu((0, 1, 3)), places=10)
        numbers, _ = self.measured('__call__', ByLength(bounds=(4, 9), unit='characters'))
        self.assertEqual([numbers[f'pairs/{name}'] for name in ('1-4', '5-9', '10+')], [2, 2, 6])
        numbers, _ = self.measured('__call__', ByLength(bounds=()))
        self.assertAlmostEqual(numbers['bleu/1+'], self.bleu(range(10)), places=10)

    def test_two_runs_are_compared_bin_by_bin(self):
        evaluator = ByLength(bounds=(2, 6, 20))
        found = self.measured('each', evaluator)[0], self.measured('each', evaluator, [text for _, text in self.pairs])[0]
        tests = paired.compare(evaluator, *found, draws=200)
        self.assertEqual([*tests], ['bleu/1-2', 'bleu/3-6', 'bleu/7-20'])
        for one in tests.values():
            self.assertAlmostEqual(one['second'], 100)
            self.assertAlmostEqual(one['difference'], one['first'] - 100)
            self.assertTrue(one['low'] <= one['difference'] <= one['high'] <= 1e-9)
        self.assertEqual(evaluator.numbers({name: x[found[0]['bin'] == 0] for name, x in found[0].items()})['bleu/3-6'], 0)

    def test_what_cannot_be_measured_is_refused(self):
        for fields, message in ((dict(bounds=(5, 5)), r'bounds=\(5, 5\); give increasing'), (dict(bounds=(0, 5)), 'bounds'),
                                (dict(bounds=(2.5,)), 'bounds'), (dict(unit='tokens'), "unit='tokens'; it must be 'words' or"),
                                (dict(limit=-1), 'limit=-1')):
            with self.assertRaisesRegex(ValueError, message):
                self.measured('each', ByLength(**fields))


if __name__ == '__main__':
    absltest.main()
