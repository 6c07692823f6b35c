"""Tokenizers of Hugging Face folders: the ids that transformers gave (tests/reference), in and out."""

import json
import pathlib
import shutil
import tempfile

import tokenizers as library
from absl.testing import absltest, parameterized

from data import hugging_face, tokenizers
from data.frames import Frame
from data.plain_tokenizers import Char

REFERENCE = pathlib.Path(__file__).parent.parent / 'reference'


def recorded(name):
    """(the files beside the vocabulary, what transformers made of texts with them), for each case."""
    cases = json.loads((REFERENCE / name / 'ids.json').read_text())
    return [(name, case.pop('files'), case) for case in cases]


class HuggingFaceTest(parameterized.TestCase):

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

    def copy(self, name, files):
        """A folder with the vocabulary of a recorded tokenizer and {name: object} beside it."""
        for path in (REFERENCE / name).iterdir():
            shutil.copy(path, self.folder)
        for file, contents in files.items():
            (self.folder / file).write_text(json.dumps(contents))
        return self.folder

    @parameterized.parameters(*recorded('bert_tokenizer'), *recorded('roberta_tokenizer'))
    def test_bert_and_roberta(self, name, files, case):
        made, _ = hugging_face.read(self.copy(name, files), 400, None)
        usual = not any('sep_token' in settings for settings in files.values())
        frame = Frame.of(name.split('_')[0], made)
        whole = library.Tokenizer.from_str(made.contents.decode())  # with the special tokens, as transformers has it
        for text, ids in case['texts'].items():
            self.assertEqual(whole.encode(text).ids, ids, text)
            self.assertEqual(made.encode(text).tolist(), ids[1:-1], text)
            if usual:
                self.assertEqual(frame.framed(made.encode(text))[0].tolist(), ids, text)
        for first, second, ids, types in case['pairs']:
            found = whole.encode(first, second)
            self.assertEqual((found.ids, found.type_ids), (ids, types), (first, second))
            if usual:
                found = [x.tolist() for x in frame.framed(made.encode(first), made.encode(second))]
                self.assertEqual(found, [ids, types], (first, second))
        self.assertEqual(made.sign(frame.mask), case['mask'])

    @parameterized.parameters(('bert_tokenizer', '[SEP]', '[CLS]the key[SEP] [MASK]'),
                              ('roberta_tokenizer', '</s>', '<s>the key</s><pad><unk><mask>'))
    def test_the_end_and_the_text_without_special_tokens(self, name, end, text):
        made, expression = hugging_face.read(REFERENCE / name, 400, None)
        self.assertEqual((expression, made.sign(made.end)), ('Json()', end))
        self.assertEqual(made.decode(made.encode(text)), 'the key')
        named = hugging_face.read(REFERENCE / name, 400, made.end)
        self.assertEqual(named, (tokenizers.Json(made.contents, end), f'Json(end={end!r})'))

    def test_a_model_without_a_token_that_was_added(self):
        """As bart-large-cnn has no <mask>."""
        made, expression = hugging_face.read(self.copy('roberta_tokenizer', {}), 274, None)
        self.assertEqual((expression, made.vocab, made.number('<mask>')), ('Json(vocab=274)', 274, 274))
        self.assertLess(made.encode('the key').max(), 274)
        for encode in (made.encode, made.offsets):
            with self.assertRaisesRegex(ValueError, "A text has '<mask>', for which this model has nothing: it takes 274 of"):
                encode('the <mask>')
        made.save(self.folder)
        self.assertEqual(tokenizers.load(self.folder, expression), made)
        _, expression = hugging_face.read(self.folder, 270, None)
        self.assertEqual(expression, 'Json()')  # more than those is missing: run.build refuses it

    def test_the_mask_of_roberta_takes_the_space_before_it_if_nothing_is_said(self):
        _, files, case = recorded('roberta_tokenizer')[0]
        self.assertTrue(files['tokenizer_config.json']['mask_token']['lstrip'])
        for config in ({}, {'mask_token': '<mask>', 'tokenizer_class': 'RobertaTokenizer'}):
            made, _ = hugging_face.read(self.copy('roberta_tokenizer', {'tokenizer_config.json': config}), 400, None)
            for text, ids in case['texts'].items():
                self.assertEqual(made.encode(text).tolist(), ids[1:-1], text)

    @parameterized.parameters(
        ('bert_tokenizer', {'added_tokens.json': {'[NEW]': 4000}}, r"give '\[NEW\]' the id 4000, and its place there is \d+;"),
        ('bert_tokenizer', {'tokenizer_config.json': {'cls_token': '<s>'}}, r'vocab.txt has no \[CLS\], as those of BERT have'),
        ('bert_tokenizer', {'tokenizer_config.json': {'unk_token': None}}, r'vocab.txt has no \[UNK\]'),
        ('bert_tokenizer', {'tokenizer_config.json': [1]}, 'tokenizer_config.json is no JSON object; fetch it again'),
        ('bert_tokenizer', {'tokenizer_config.json': {'do_lower_case': 'yes'}}, 'tokenizer_config.json of .* cannot be used'),
        ('roberta_tokenizer', {'tokenizer_config.json': {'cls_token': 3}}, 'tokenizer_config.json of .* cannot be used'),
        ('roberta_tokenizer', {'tokenizer_config.json': {'cls_token': {}}}, 'tokenizer_config.json of .* cannot be used'),
    )
    def test_settings_that_cannot_be_used(self, name, files, message):
        with self.assertRaisesRegex(ValueError, message):
            hugging_face.read(self.copy(name, files), 400, None)

    def test_a_gpt2_with_tokens_of_its_own(self):
        files = {'added_tokens.json': {}, 'special_tokens_map.json': {'pad_token': '<pad>'},
                 'tokenizer_config.json': {'add_prefix_space': True, 'additional_special_tokens': ['<pad>']}}
        plain, _ = hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, None)
        files['added_tokens.json']['<pad>'] = plain.vocab
        made, _ = hugging_face.read(self.copy('gpt2_tokenizer', files), 400, None)
        self.assertEqual(made.encode('key<pad>').tolist(), [*plain.encode(' key').tolist(), plain.vocab])
        self.assertEqual(made.special, {'<|endoftext|>', '<pad>'})

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
        self.assertEqual(hugging_face.write(self.folder, made, ids, 64), ['tokenizer.json', 'tokenizer_config.json'])
        self.assertEqual(hugging_face.read(self.folder, 400, 7), hugging_face.read(REFERENCE / 'gpt2_tokenizer', 400, 7))
        settings = json.loads((self.folder / 'tokenizer_config.json').read_text())
        self.assertEqual(settings, {
            'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': ['input_ids', 'attention_mask'],
            'model_max_length': 64,
            **dict.fromkeys(('bos_token', 'unk_token', 'pad_token'), '<|endoftext|>'), 'eos_token': made.sign(7)})

    @parameterized.parameters(
        ('bert_tokenizer', {'unk': '[UNK]', 'sep': '[SEP]', 'pad': '[PAD]', 'cls': '[CLS]', 'mask': '[MASK]'}),
        ('roberta_tokenizer', {'bos': '<s>', 'eos': '</s>', 'unk': '<unk>', 'sep': '</s>', 'pad': '<pad>', 'cls': '<s>',
                               'mask': '<mask>'}),
        ('gpt2_tokenizer', dict.fromkeys(('bos', 'eos', 'unk'), '<|endoftext|>')),
        ('t5_tokenizer', {'eos': '</s>', 'unk': '<unk>', 'pad': '<pad>'}),
    )
    def test_the_special_tokens_are_named_as_in_the_original(self, name, signs):
        made, _ = hugging_face.read(REFERENCE / name, 400, None)
        hugging_face.write(self.folder, made, {}, 64)
        settings = json.loads((self.folder / 'tokenizer_config.json').read_text())
        self.assertEqual({role[:-6]: sign for role, sign in settings.items() if role.endswith('_token')}, signs)
        self.assertEqual('token_type_ids' in settings['model_input_names'], name == 'bert_tokenizer')
        self.assertEqual(hugging_face.read(self.folder, 400, None), (made, 'Json()'))

    def test_without_files(self):
        made, expression = hugging_face.read(self.folder, 9, 4)
        self.assertEqual((made.vocab, made.end, expression), (9, 4, 'Ids(vocab=9, end=4)'))
        self.assertEqual(tokenizers.learn(expression, []), made)
        self.assertEqual(hugging_face.read(self.folder, 9, None)[0].end, 0)
        with self.assertRaisesRegex(ValueError, 'eos_token_id=50256, but the model has 9 tokens'):
            hugging_face.read(self.folder, 9, 50256)
        self.assertEqual(hugging_face.write(self.folder, made, {}, 64), [])
        self.assertEqual(hugging_face.write(self.folder, Char('ab'), {}, 64), [])
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
