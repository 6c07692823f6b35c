import json
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from data import cache
from data.sources import files as sources
from data.text import tokens
from data.tokenizers import specs
from data.tokenizers import tokenizer as tokenizers
from tests.data import tiny_tokenizers


class FewIds(tokenizers.ByteTokenizer):
    """Bytes in a vocabulary that needs 32 bits."""

    vocab = 1 << 17
    end = 70_000
    fingerprint = 'few'


class TokensTest(parameterized.TestCase):
    def part(self, expression='all', documents='file', **contents):
        for name, text in contents.items():
            (self.folder / f'{name}.txt').write_bytes(text.encode())
        return sources.Split.of(expression, sources.files(str(self.folder)), documents)

    def test_documents_share_their_ends(self):
        store = tokens.load(self.part(a='ab', b='c'), tokenizers.ByteTokenizer())
        self.assertEqual(store.ids.tolist(), [256, 97, 98, 256, 99, 256])
        self.assertEqual(store.offsets.tolist(), [0, 3, 5])
        self.assertEqual(store.meta, {'tokens': 5, 'bytes': 3, 'documents': 2, 'ids': 6, 'width': 2})

    def test_lines_count_their_end(self):
        store = tokens.load(self.part(documents='line', a='ab\n\nc'), tokenizers.ByteTokenizer())
        self.assertEqual(store.ids.tolist(), [256, 97, 98, 256, 99, 256])
        self.assertEqual((store.meta['bytes'], store.meta['documents']), (5, 2))

    @parameterized.parameters(0, 1, 30)
    def test_documents_begin_with_a_token_of_their_own(self, documents):
        random = np.random.default_rng(0)
        store = tokens.Tokens(self.folder, begin=99)
        vars(store).update(offsets=np.sort(random.integers(0, 50, documents + 1)), ids=np.arange(60))
        places = random.integers(0, 60, (2, 100))
        wanted = np.where(np.isin(places, store.offsets[:-1]), 99, places)
        np.testing.assert_array_equal(store.inputs(places), wanted)

    def test_stream_does_not_count_its_first_token(self):
        part = self.part(documents='stream', a='éa', b='b')
        store = tokens.load(part, specs.Char().learn(['éab']))
        self.assertEqual((store.ids.tolist(), store.offsets.tolist()), ([4, 2, 3], [0, 2]))
        self.assertEqual((store.meta['tokens'], store.meta['bytes']), (2, 2))

    @parameterized.parameters((' \n ', ()), (' \n a', (5,)))
    def test_a_stream_without_a_token_to_predict_is_refused_also_where_the_cache_has_it(self, text, ids):
        def before(folder, part, tokenizer):  # what was made of it before it was refused
            np.array(ids, '<u2').tofile(folder / 'ids.bin')
            np.save(folder / 'offsets.npy', np.array([0, len(ids) - 1]))
            meta = {'tokens': len(ids) - 1, 'bytes': len(text), 'documents': 1, 'ids': len(ids), 'width': 2}
            (folder / 'meta.json').write_text(json.dumps(meta))

        tokenizer = tiny_tokenizers.word_piece(self.folder.parent, 'a').learn()
        part = self.part(documents='stream', a=text)
        refused = lambda: self.assertRaisesRegex(ValueError, "The split 'all' holds no text to predict; give it more text")
        with refused():
            tokens.load(part, tokenizer)
        with mock.patch.object(tokens, '_build', before):
            tokens.load(part, tokenizer)
        with refused():
            tokens.load(part, tokenizer)

    @parameterized.parameters('file', 'line', 'stream')
    def test_text_of_many_chunks(self, documents):
        text = ''.join(f'line {i} é\n' for i in range(300_000))
        store = tokens.load(self.part(documents=documents, a=text), tokenizers.ByteTokenizer())
        ids = store.ids[store.ids != 256]
        expected = text.replace('\n', '') if documents == 'line' else text
        self.assertEqual(bytes(ids.astype(np.uint8)), expected.encode())
        self.assertEqual(store.meta['documents'], 300_000 if documents == 'line' else 1)

    def test_large_vocabulary_takes_32_bits(self):
        store = tokens.load(self.part(a='ab'), FewIds())
        self.assertEqual((store.ids.dtype, store.ids.tolist()), (np.uint32, [70_000, 97, 98, 70_000]))

    def test_entries_are_named_by_contents_documents_and_tokenizer(self):
        first = tokens.load(self.part(a='ab\nc'), tokenizers.ByteTokenizer()).folder
        self.assertEqual(tokens.load(self.part(), tokenizers.ByteTokenizer()).folder, first)
        others = {
            tokens.load(self.part(), specs.Char().learn(['abc\n'])).folder,
            tokens.load(self.part(documents='line'), tokenizers.ByteTokenizer()).folder,
            tokens.load(self.part('all[:1]', 'line'), tokenizers.ByteTokenizer()).folder,
            tokens.load(self.part(a='ab\nd'), tokenizers.ByteTokenizer()).folder,
        }
        self.assertLen(others - {first}, 4)

    def test_interrupted_build_leaves_nothing(self):
        class Killed(tokenizers.ByteTokenizer):
            def encode_many(self, texts):
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            tokens.load(self.part(a='ab'), Killed())
        self.assertEmpty([path for path in cache.root().rglob('*') if path.is_file()])
        self.assertLen(tokens.load(self.part(), tokenizers.ByteTokenizer()).ids, 4)

    def test_learnt_tokenizer_is_kept(self):
        part = self.part(a='abc')
        self.assertEqual(tokens.learn(part, specs.Char()).characters, 'abc')
        (saved,) = cache.root().rglob('tokenizer.json')
        tokenizers.CharTokenizer('xyz').save(saved.parent)
        self.assertEqual(tokens.learn(part, specs.Char()).characters, 'xyz')
        self.assertEqual(tokens.learn(self.part(a='abd'), specs.Char()).characters, 'abd')


if __name__ == '__main__':
    absltest.main()
