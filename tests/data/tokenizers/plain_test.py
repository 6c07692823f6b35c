"""Bare ids, and pieces; the other plain tokenizers are tested with the rest, in tokenizer_test.py."""

from absl.testing import absltest, parameterized

from data.tokenizers import specs
from data.tokenizers.plain import ByteTokenizer, CharTokenizer, IdTokenizer, WordTokenizer, require_characters
from data.tokenizers.roles import Roles


class IdsTest(parameterized.TestCase):

    def test_numbers_are_ids(self):
        made = IdTokenizer(12, Roles(end=3))
        self.assertEqual(made.encode(' 5 11\n0').tolist(), [5, 11, 0])
        self.assertEqual(made.decode([5, 11, 0]), ' 5 11 0')
        self.assertEqual([x.tolist() for x in made.encode_many(['1', '', '2 3'])], [[1], [], [2, 3]])
        self.assertEqual((made.piece(7), made.first_bytes(' 11 5')), ('7', 3))
        self.assertNotEqual(made.fingerprint, IdTokenizer(12, Roles(end=4)).fingerprint)
        ids, ranges = made.offsets(' 5 11\n0')
        self.assertEqual((ids.tolist(), ranges.tolist()), ([5, 11, 0], [[1, 2], [3, 5], [6, 7]]))

    @parameterized.parameters('key', '1.5', '-1', '12', '²')
    def test_what_is_no_id_is_refused(self, word):
        with self.assertRaisesRegex(ValueError, 'is no token: .* numbers from 0 to 11 between spaces'):
            IdTokenizer(12).encode(f'5 {word}')

    def test_saved_and_named(self):
        folder = self.create_tempdir().full_path
        made = specs.Ids(vocab=12, end=3).learn()
        made.save(folder)
        self.assertEqual(specs.load(folder, specs.Ids(vocab=12, end=3)), made)
        other = specs.load(folder, specs.Ids(vocab=12, cls=2, separator=4))  # the spec alone says which are special
        self.assertEqual((other.roles, other.end), (Roles(cls=2, separator=4), 4))
        with self.assertRaisesRegex(ValueError, 'is not the tokenizer of .* Ids.vocab=12. with 12 ids'):
            specs.load(folder, specs.Ids(vocab=13, end=3))
        for fields in (dict(end=3), dict(mask=-2), dict(vocab=0)):
            with self.assertRaisesRegex(ValueError, 'names no ids; expected a vocab, and roles of ids below it'):
                specs.Ids(**{'vocab': 3} | fields)


class CharactersTest(absltest.TestCase):

    def test_half_of_a_character_is_shown_in_its_place(self):
        text = f'{"x" * 99}{"before":>20}\ud83d{"after":<20}{"y" * 99}'
        for check in (lambda: require_characters(['a', text]), lambda: ByteTokenizer().encode(text)):
            with self.assertRaisesRegex(ValueError, r"^The text ' {14}before\\ud83dafter {15}' has '\\ud83d', half of a"):
                check()


class PiecesTest(absltest.TestCase):

    def test_one_piece_takes_no_copy_of_the_vocabulary(self):
        def refuse(_):
            raise AssertionError('copied')

        uncopied = lambda kind: type('Uncopied', (kind,), {'__iter__': refuse})
        chars, words = CharTokenizer(uncopied(str)('aé')), WordTokenizer(uncopied(tuple)(('a', 'bc')))
        self.assertEqual([chars.piece(number) for number in range(4)], ['<unk>', '<end>', 'a', 'é'])
        self.assertEqual([words.piece(number) for number in range(4)], ['<unk>', '<eos>', 'a', 'bc'])


if __name__ == '__main__':
    absltest.main()
