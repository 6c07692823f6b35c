"""Bare ids; the other plain tokenizers are tested with the rest, in tokenizers_test.py."""

from absl.testing import absltest, parameterized

from data import tokenizers
from data.plain_tokenizers import Ids


class IdsTest(parameterized.TestCase):

    def test_numbers_are_ids(self):
        made = Ids(vocab=12, end=3)
        self.assertEqual(made.encode(' 5 11\n0').tolist(), [5, 11, 0])
        self.assertEqual(made.decode([5, 11, 0]), ' 5 11 0')
        self.assertEqual([x.tolist() for x in made.encode_many(['1', '', '2 3'])], [[1], [], [2, 3]])
        self.assertEqual((made.piece(7), made.first_bytes(' 11 5')), ('7', 3))
        self.assertNotEqual(made.fingerprint, Ids(vocab=12, end=4).fingerprint)
        ids, ranges = made.offsets(' 5 11\n0')
        self.assertEqual((ids.tolist(), ranges.tolist()), ([5, 11, 0], [[1, 2], [3, 5], [6, 7]]))

    @parameterized.parameters('key', '1.5', '-1', '12', '²')
    def test_what_is_no_id_is_refused(self, word):
        with self.assertRaisesRegex(ValueError, 'is no token: .* numbers from 0 to 11 between spaces'):
            Ids(vocab=12, end=3).encode(f'5 {word}')

    def test_saved_and_named(self):
        folder = self.create_tempdir().full_path
        made = tokenizers.learn('Ids(vocab=12, end=3)', [])
        made.save(folder)
        self.assertEqual(tokenizers.load(folder, 'Ids(vocab=12, end=3)'), made)
        with self.assertRaisesRegex(ValueError, 'is not the tokenizer of .* Ids with 12 ids'):
            tokenizers.load(folder, 'Ids(vocab=13, end=3)')
        for wrong in ('Ids()', 'Ids(vocab=3, end=3)', 'Ids(vocab=3, end=-1)'):
            with self.assertRaisesRegex(ValueError, 'names no ids'):
                tokenizers.learn(wrong, [])


if __name__ == '__main__':
    absltest.main()
