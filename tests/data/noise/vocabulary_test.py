import numpy as np
from absl.testing import absltest, parameterized

from data.noise.vocabulary import Vocabulary
from data.tokenizers import specs
from tests.data import tiny_tokenizers

TEXT = 'The cat sat. Then the other cat sat, too!\nWhy not?'


class VocabularyTest(parameterized.TestCase):
    def words(self, tokenizer, text=TEXT):
        """A text, cut where words begin."""
        ids = tokenizer.encode(text)
        starts = Vocabulary.of(tokenizer).word_starts(ids)
        parts = np.split(ids, starts[1:])
        return [tokenizer.decode(part).strip() for part in parts]

    def test_words_of_learnt_pieces(self):
        words = self.words(specs.SentencePiece(300).learn([TEXT * 20]))
        self.assertEqual([word for word in words if word], TEXT.split())

    def test_words_of_bytes(self):
        self.assertEqual(self.words(specs.Byte().learn()), TEXT.split())

    def test_words_of_byte_level_pieces(self):
        made = tiny_tokenizers.byte_level(self.folder, 'cat sat').learn()
        self.assertEqual(self.words(made, 'the cats sat up'), ['the', 'cats', 'sat', 'up'])

    def test_words_of_word_pieces(self):
        made = tiny_tokenizers.word_piece(self.folder, 'cat sat').learn()
        words = [word.replace(' ##', '') for word in self.words(made, 'cats sat up.')]  # the first of a part keeps its sign
        self.assertEqual(words, ['cats', 'sat', 'up', '.'])

    def test_a_row_may_begin_inside_of_a_word(self):
        self.assertEqual(self.words(specs.Byte().learn(), 'ord and more'), ['ord', 'and', 'more'])

    def test_a_text_that_follows_another_begins_a_word(self):
        made = Vocabulary.of(specs.Byte().learn())
        self.assertEqual(made.word_starts(np.array([97, 97, 256, 98, 98])).tolist(), [0, 2, 3])

    def test_stops_and_special_tokens(self):
        made = Vocabulary.of(specs.Byte(special=('mask',), sentinels=2).learn())
        self.assertEqual(np.flatnonzero(made.stops).tolist(), [ord('!'), ord('.'), ord('?'), 256])
        self.assertEqual((made.mask, made.sentinels), (257, (259, 258)))
        self.assertEqual(made.ordinary.tolist(), [*range(256)])


if __name__ == '__main__':
    absltest.main()
