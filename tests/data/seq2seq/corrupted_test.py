import itertools

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.denoising import DeleteTokens, Infill, PermuteSentences, Rotate
from data.noise.span_corruption import SpanCorruption
from data.seq2seq.corrupted import Corrupted
from data.tokenizers.specs import Byte, Ids, SentencePiece, WordPiece

RNG = np.random.default_rng(0)
LINES = [' '.join(RNG.choice(['the', 'cat.', 'sat', 'on', 'a', 'mat.'], size)) for size in [1, 2, *RNG.integers(1, 40, 60)]]
BYTES = Byte(special=('mask', 'begin'), sentinels=30)
END, MASK, BEGIN = 256, 257, 258
DRAWS = 10_000


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class CorruptedCase(parameterized.TestCase):
    def opened(self, text=None, folder=None, **fields):
        path = self.folder / 'text.txt'
        path.write_text('\n'.join(LINES if text is None else text) + '\n')
        given = dict(path=str(path), documents='line', train='all', tokenizer=BYTES, length=24, batch_size=8)
        return Corrupted(**given | fields).open(folder)

    def rows(self, batches):
        """(inputs, targets) of every row, without padding."""
        for batch in batches:
            for row in range(len(batch['inputs'])):
                if batch.get('example_weights', batch['weights'].max(1))[row]:
                    yield (batch['inputs'][row][batch['segments'][row] > 0],
                           batch['targets'][row][batch['decoder_segments'][row] > 0])


class RowsTest(CorruptedCase):
    @parameterized.product(packing=('concat', 'none'), documents=('line', 'file', 'stream'), length=(24, 7))
    def test_evaluation_holds_every_token_once_and_in_order(self, packing, documents, length):
        opened = self.opened(packing=packing, documents=documents, length=length, noise=PermuteSentences())
        found = [targets for _, targets in self.rows(opened.evaluation('all', 70))]
        for targets in found:
            self.assertEqual(targets[-1], END)
            self.assertLessEqual(len(targets), length)
            self.assertNotEqual(targets[0], END)
        text = '\n'.join(LINES) + '\n' if documents != 'line' else ''.join(LINES)
        self.assertEqual(bytes([one for targets in found for one in targets[:-1] if one != END]).decode(), text)

    def test_no_row_begins_or_ends_with_documents_without_tokens(self):
        text = ['the cat sat on', *['\u200b'] * 40, 'the mat', *['\ufeff'] * 3] * 9
        opened = self.opened(text, tokenizer=WordPiece(vocab=21), framing='bert', noise=DeleteTokens(), length=12)
        part = opened._rows
        rows = [part.text(row).tolist() for row in range(len(part))]
        self.assertNotIn(opened.end, [one for row in rows for one in (row[0], row[-1])])
        words = [one for line in text for one in opened.tokenizer.encode(line).tolist()]
        self.assertEqual([one for row in rows for one in row if one != opened.end], words)

    def test_between_documents_stands_what_the_framing_puts_behind_a_text(self):
        fields = dict(text=['11 12', '21 22 23', '31'], tokenizer=Ids(vocab=50, end=1, cls=2, separator=3), framing='bert',
                      noise=PermuteSentences(), batch_size=1)
        opened = self.opened(**fields)
        (_, targets), = self.rows(opened.evaluation('all', 1))
        self.assertEqual(targets.tolist(), [2, 11, 12, 3, 21, 22, 23, 3, 31, 3])
        found = {tuple(inputs[1:-1]) for inputs, _ in self.rows(itertools.islice(opened.train(0), 100))}
        orders = itertools.permutations([(11, 12, 3), (21, 22, 23, 3), (31,)])  # it is known as the end of a text
        self.assertEqual(found, {sum(order, ()) for order in orders})
        stream = self.opened(**fields | dict(text=['1 11 12'], documents='stream'))
        (_, targets), = self.rows(stream.evaluation('all', 1))
        self.assertEqual(targets.tolist(), [2, 1, 11, 12, 3])  # a stream has nothing between documents

    def test_t5_interleaves_into_the_text_in_every_row(self):
        opened, count = self.opened(length=24), 0
        text = b'\xff'.join(line.encode() for line in LINES)
        for inputs, targets in itertools.islice(self.rows(opened.train(3)), DRAWS):
            self.assertEqual((inputs[-1], targets[-1]), (END, END))
            found = opened.config.noise.restored(inputs[:-1], targets[:-1], opened._vocabulary)
            self.assertIn(bytes(np.where(found == END, 255, found).astype(np.uint8)), text)
            count += 1
        self.assertEqual(count, DRAWS)

    @parameterized.parameters('t5', 'roberta')
    def test_bart_decodes_the_text_and_its_noise_comes_from_the_seed(self, framing):
        noise = PermuteSentences() >> Infill() >> Rotate(share=0.5)
        opened = self.opened(noise=noise, framing=framing)
        before = [BEGIN] if framing == 'roberta' else []
        self.assertEqual(opened._before, tuple(before))
        iterator = opened.train(5)
        for number in range(DRAWS // 8):
            batch = next(iterator)
            for row, (inputs, targets) in enumerate(self.rows([batch])):
                self.assertEqual([*targets[: len(before)], targets[-1]], [*before, END])
                rng = np.random.default_rng((5, number * 8 + row, 2))
                again = noise(targets[len(before) : -1], rng, opened._vocabulary)
                self.assertEqual(inputs.tolist(), [*before, *again[: 23 - len(before)], END])

    def test_batches_keep_the_contract(self):
        for fields in ({}, dict(noise=Infill(mean=0.1)), dict(start=7, framing='roberta'),
                       dict(noise=SpanCorruption(closing=True))):
            opened = self.opened(**fields)
            for batch in itertools.islice(opened.train(0), 20):
                self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
                for prefix, length in zip(('', 'decoder_'), opened.lengths):
                    there = np.arange(length) < batch[f'{prefix}segments'].sum(1)[:, None]
                    np.testing.assert_array_equal(batch[f'{prefix}segments'], there)
                    np.testing.assert_array_equal(batch[f'{prefix}positions'], np.arange(length) * there)
                    self.assertFalse(batch[f'{prefix}inputs'][~there].any())
                np.testing.assert_array_equal(batch['weights'], batch['decoder_segments'])
                self.assertEqual(set(batch['decoder_inputs'][:, 0]), {fields.get('start', END)})
                inside = batch['decoder_segments'][:, 1:] > 0
                np.testing.assert_array_equal(batch['decoder_inputs'][:, 1:][inside], batch['targets'][:, :-1][inside])
                self.assertEqual(opened.count(batch), batch['weights'].sum())

    def test_full_rows_have_as_many_tokens_as_t5s(self):
        opened = self.opened(['a' * 3000], length=512, tokenizer=Byte(sentinels=100), documents='file')
        self.assertEqual((opened._raw, opened.lengths), (568, (512, 114)))
        batch = next(iter(opened.evaluation('all', 5)))
        self.assertEqual((batch['segments'].sum(1)[0], batch['decoder_segments'].sum(1)[0]), (512, 114))

    def test_evaluation_is_the_same_for_every_batch_size_and_differs_from_training(self):
        opened = self.opened()
        whole = list(self.rows(opened.evaluation('all', 500)))
        for size in (1, 7):
            for one, other in zip(whole, self.rows(opened.evaluation('all', size)), strict=True):
                self.assertEqual([a.tolist() for a in one], [a.tolist() for a in other])
        self.assertEqual(opened.evaluation('all', 5).facts['tokens'], sum(
            len(opened.config.noise.restored(inputs[:-1], targets[:-1], opened._vocabulary)) for inputs, targets in whole))

    def test_resumes_exactly_and_a_batch_depends_on_seed_and_number_alone(self):
        opened = self.opened()
        iterator = opened.train(1)
        batches = [next(iterator) for _ in range(3)]
        state = iterator.get_state()
        rest = [next(iterator) for _ in range(30)]  # into the next epochs
        again = self.opened().train(1)
        again.set_state(state)
        self.assertTrue(all(equal(one, next(again)) for one in rest))
        self.assertFalse(equal(batches[0], next(opened.train(2))))

    def test_unknown_words_are_one_token_and_never_predicted(self):
        made = self.opened([*LINES * 20, 'the <unk> cat'], noise=Rotate(), packing='none',
                           tokenizer=SentencePiece(vocab=290, sentinels=9))
        batches = list(made.evaluation('all', 100))
        row = [targets for _, targets in self.rows(batches)][-1]
        self.assertEqual(np.count_nonzero(row == 0), 1)
        for batch in batches:
            there = (batch['decoder_segments'] > 0) & (batch['example_weights'] > 0)[:, None]
            np.testing.assert_array_equal(batch['weights'][there] == 0, batch['targets'][there] == 0)
        self.assertEqual(np.count_nonzero(made.encode('the <unk> cat') == 0), 1)
        other = self.opened([*LINES * 20, 'the UNK cat'], noise=Rotate(), packing='none', unknown='UNK',
                            tokenizer=SentencePiece(vocab=290, sentinels=9))
        self.assertEqual([np.count_nonzero(other.encode(f'the {sign} cat') == 0) for sign in ('UNK', '<unk>')], [1, 0])
        rows = [targets for _, targets in self.rows(list(other.evaluation('all', 100)))]
        self.assertEqual(np.count_nonzero(rows[-1] == 0), 1)
        with self.assertRaisesRegex(ValueError, "data.unknown='a b' has white space"):
            self.opened(LINES, noise=Rotate(), unknown='a b', tokenizer=SentencePiece(vocab=290, sentinels=9))

    def test_the_end_counts_even_if_it_is_also_the_unknown_token(self):
        opened = self.opened(['1 2 3 4', '5 6 7'], tokenizer=Ids(vocab=9, end=8, unknown=8), noise=Rotate())
        for batch in opened.evaluation('all', 4):
            np.testing.assert_array_equal(batch['weights'], batch['decoder_segments'])

    def test_a_row_has_new_noise_in_every_epoch(self):
        opened = self.opened(['a b c d e f g h i j k l m n o p q r s t'], batch_size=1, length=40)
        self.assertGreater(len({str(batch['inputs']) for batch in itertools.islice(opened.train(0), 20)}), 10)

    def test_longer_inputs_are_cut_and_keep_their_end(self):
        opened = self.opened(noise=Infill(share=1.0, mean=0.05))
        inputs = [inputs for inputs, _ in itertools.islice(self.rows(opened.train(0)), 50)]
        self.assertEqual({len(one) for one in inputs if len(one) > 20}, {24})
        self.assertTrue(all(one[-1] == END for one in inputs))


class FillingTest(CorruptedCase):
    def test_sentinels_take_what_the_decoder_says(self):
        made = self.opened(LINES * 20, tokenizer=SentencePiece(vocab=290, sentinels=5))
        said = made.encode_target('<extra_id_0> cat. <extra_id_1> on')
        for text in ('the<extra_id_0> sat<extra_id_1> a mat.', 'the <extra_id_0> sat <extra_id_1> a mat.'):
            self.assertEqual(made.filled(text, said), 'the cat. sat on a mat.')
            self.assertEqual(made.encode(text).tolist(), made.encode('the<extra_id_0> sat<extra_id_1> a mat.').tolist())
        with self.assertRaisesRegex(ValueError, "'the cat' has no <extra_id_0>; write it"):
            made.filled('the cat', said)

    def test_denoising_says_the_whole_text(self):
        for tokenizer in (SentencePiece(vocab=290, special=('begin', 'mask')), WordPiece(vocab=27)):
            made = self.opened(LINES * 20, tokenizer=tokenizer, noise=Infill(), framing='roberta')
            self.assertEqual(made.filled('a mat', made.encode_target('the cat sat')), 'the cat sat')
        made = self.opened(LINES * 20, tokenizer=SentencePiece(vocab=290, special=('begin', 'mask')), noise=Infill())
        plain = made.encode('the')[:-1], [made.tokenizer.roles.mask], made.encode(' sat')
        self.assertEqual(made.encode('the <mask> sat').tolist(), np.concatenate(plain).tolist())

    def test_a_run_keeps_its_tokenizer(self):
        made = self.opened(LINES * 20, tokenizer=SentencePiece(vocab=290, sentinels=5))
        made.save(self.folder)
        self.assertEqual(self.opened([], self.folder, tokenizer=SentencePiece(vocab=290, sentinels=5)).lengths, made.lengths)
        with self.assertRaisesRegex(ValueError, 'sentinels=5'):
            self.opened(LINES, self.folder, tokenizer=SentencePiece(vocab=290, sentinels=4))


class RefusalTest(CorruptedCase):
    @parameterized.parameters(
        (dict(tokenizer=Byte(sentinels=2), length=64), "takes 3 sentinels in a row of data.length=64.*has 2; .*sentinels=3"),
        (dict(tokenizer=Byte()), 'takes 1 sentinels in a row.*has none'),
        (dict(tokenizer=Byte(), noise=Rotate() >> Infill()), 'has no mask, which data.noise='),
        (dict(tokenizer=Ids(vocab=300), noise=Rotate()), "needs a token with the role 'end'|no token that ends a document"),
        (dict(length=2), 'data.length=2 has no room for a text with noise and 1 special tokens; it must be 3 or more'),
        (dict(length=2, noise=Rotate(), framing='roberta'), 'it must be 3 or more'),
        (dict(noise=SpanCorruption(share=0.01)), 'hides 0.23 of the 23 tokens in a row, less than one; raise'),
        (dict(packing='first_fit'), "data.packing='first_fit' is not known"),
        (dict(framing='plain'), 'exactly one token after a text'),
        (dict(framing='so'), 'is no template'),
        (dict(start=900), 'data.start=900 is no id of the tokenizer'))
    def test_fields(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(**fields)

    def test_texts(self):
        with self.assertRaisesRegex(ValueError, 'holds no row of 2 tokens or more'):
            next(self.opened(['a'], packing='none').train(0))
        many = SentencePiece(vocab=290, sentinels=5)
        with self.assertRaisesRegex(ValueError, "has '<extra_id_1>' in its text, one of the sentinels"):
            next(self.opened([*LINES * 20, 'a <extra_id_1>'], tokenizer=many).train(0))
        next(self.opened([*LINES * 20, 'a <extra_id_1>'], tokenizer=many, noise=DeleteTokens()).train(0))
        with self.assertRaisesRegex(ValueError, 'Corrupted takes no stride in evaluation'):
            self.opened().evaluation('all', 4, stride=3)


if __name__ == '__main__':
    absltest.main()
