"""Tokenizers of Hugging Face folders: the ids that transformers gave (tests/reference), in and out."""

import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest

from data import hugging_face, tokenizers
from data.plain_tokenizers import Char

REFERENCE = pathlib.Path(__file__).parent.parent / 'reference'


class HuggingFaceTest(absltest.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def test_gpt2(self):
        recorded = json.loads((REFERENCE / 'gpt2_tokenizer' / 'ids.json').read_text())
        made, expression = hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, None)
        self.assertEqual(expression, 'Json()')
        for text, ids in recorded.items():
            self.assertEqual(made.encode(text).tolist(), ids, text)
            self.assertEqual(made.decode(ids), text.replace('<|endoftext|>', ''))
        self.assertEqual(made.piece(made.end), '<|endoftext|>')

    def test_t5(self):
        recorded = json.loads((REFERENCE / 't5_tokenizer' / 'ids.json').read_text())
        made, expression = hugging_face.read(REFERENCE / 't5_tokenizer', 160, 1)
        self.assertEqual((expression, made.vocab, made.end), ("Json(end='</s>')", 160, 1))
        for text, ids in recorded.items():
            self.assertEqual([*made.encode(text).tolist(), made.end], ids, text)
        self.assertEqual(made.decode([*made.encode('the  lines '), 1]), 'the lines')  # it keeps no spaces
        self.assertEqual([made.sign(i) for i in (0, 60, 159)], ['<pad>', '<extra_id_99>', '<extra_id_0>'])

    def test_the_config_names_the_end(self):
        made, expression = hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, 5)
        self.assertEqual(made.end, 5)
        self.assertEqual(tokenizers.learn(expression.replace('(', f"(path='{self.saved(made)}', "), []).end, 5)
        with self.assertRaisesRegex(ValueError, 'eos_token_id=4000, which the tokenizer of .* does not have'):
            hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, 4000)

    def saved(self, tokenizer):
        tokenizer.save(self.folder)
        return self.folder / 'tokenizer.json'

    def test_out_and_in_again(self):
        made, _ = hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, 7)
        ids = {'eos_token_id': 7, 'pad_token_id': 0, 'bos_token_id': None, 'decoder_start_token_id': 0}
        self.assertEqual(hugging_face.write(self.folder, made, ids), ['tokenizer.json', 'tokenizer_config.json'])
        self.assertEqual(hugging_face.read(self.folder, 400, 7), hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, 7))
        settings = json.loads((self.folder / 'tokenizer_config.json').read_text())
        self.assertEqual(settings, {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': made.sign(7),
                                    'pad_token': '<|endoftext|>'})

    def test_without_files(self):
        made, expression = hugging_face.read(self.folder, 9, 4)
        self.assertEqual((made.vocab, made.end, expression), (9, 4, 'Ids(vocab=9, end=4)'))
        self.assertEqual(tokenizers.learn(expression, []), made)
        self.assertEqual(hugging_face.read(self.folder, 9, None)[0].end, 0)
        with self.assertRaisesRegex(ValueError, 'eos_token_id=50256, but the model has 9 tokens'):
            hugging_face.read(self.folder, 9, 50256)
        self.assertEqual(hugging_face.write(self.folder, made, {}), [])
        self.assertEqual(hugging_face.write(self.folder, Char('ab'), {}), [])
        self.assertEmpty([*self.folder.iterdir()])

    def test_files_that_cannot_be_read(self):
        (self.folder / 'vocab.json').write_text('{"a": 0')
        (self.folder / 'merges.txt').write_text('a b\n')
        with self.assertRaisesRegex(ValueError, 'vocab.json and merges.txt cannot be read'):
            hugging_face.read(self.folder, 9, None)
        (self.folder / 'vocab.json').unlink()
        (self.folder / 'spiece.model').write_bytes(b'no model')
        with self.assertRaisesRegex(ValueError, 'spiece.model is no SentencePiece model'):
            hugging_face.read(self.folder, 9, None)
        pieces = tokenizers.learn('SentencePiece(vocab=264)', ['ab cd'] * 9)  # of pairs
        (self.folder / 'spiece.model').write_bytes(pieces.model)
        with self.assertRaisesRegex(ValueError, 'spiece.model is no unigram model'):
            hugging_face.read(self.folder, 9, None)


if __name__ == '__main__':
    absltest.main()
