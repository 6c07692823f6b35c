"""Tokenizers of Hugging Face folders: the ids that transformers gave (tests/reference), in and out."""

import dataclasses
import json
import pathlib
import shutil
import tempfile

import tokenizers as library
from absl.testing import absltest, parameterized
from sentencepiece import sentencepiece_model_pb2

from data.text.frames import Frame, lacking, named
from data.tokenizers import hugging_face, post_processor, specs
from data.tokenizers.plain import CharTokenizer, IdTokenizer
from data.tokenizers.roles import Roles
from data.tokenizers.specs import Ids, Json

REFERENCE = pathlib.Path(__file__).parents[2] / 'reference'


def recorded(name):
    """(the files beside the vocabulary, what transformers made of texts with them), for each case."""
    cases = json.loads((REFERENCE / name / 'ids.json').read_text())
    return [(name, case.pop('files'), case) for case in cases]


class HuggingFaceTest(parameterized.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def read(self, folder, kind='gpt2', vocab=400, config=(), generation=(), generates=False):
        return hugging_face.read(folder, kind, vocab, (dict(config), dict(generation)), generates)

    def test_gpt2(self):
        recorded = json.loads((REFERENCE / 'gpt2_tokenizer' / 'ids.json').read_text())
        found = self.read(REFERENCE / 'gpt2_tokenizer', generates=True)
        end = '<|endoftext|>'
        self.assertEqual((found.spec, found.framing, found.said), (Json(begin=end, end=end, unknown=end), 'plain', ()))
        for text, ids in recorded.items():
            self.assertEqual(found.tokenizer.encode(text).tolist(), ids, text)
            self.assertEqual(found.tokenizer.decode(ids), text.replace(end, ''))
        self.assertEqual(found.tokenizer.piece(found.tokenizer.end), end)

    def test_t5(self):
        recorded = json.loads((REFERENCE / 't5_tokenizer' / 'ids.json').read_text())
        found = self.read(REFERENCE / 't5_tokenizer', 't5', 160, {'eos_token_id': 1}, generates=True)
        made = found.tokenizer
        self.assertEqual((found.spec, named(found.framing)), (Json(end='</s>', pad='<pad>', unknown='<unk>'), 't5'))
        self.assertEqual((made.vocab, made.roles), (160, Roles(end=1, pad=0, unknown=2)))
        frame = Frame.of(found.framing, made)
        for text, ids in recorded.items():
            self.assertEqual(frame.framed(made.encode(text))[0].tolist(), ids, text)
        self.assertEqual(made.decode([*made.encode('the  lines '), 1]), 'the lines')  # it keeps no spaces
        self.assertEqual([made.sign(i) for i in (0, 60, 159)], ['<pad>', '<extra_id_99>', '<extra_id_0>'])

    @parameterized.parameters(
        ({'added_tokens.json': {'<sep>': 160}}, '<sep>', 160),
        ({'tokenizer_config.json': {'added_tokens_decoder': {'160': {'content': '<sep>', 'special': True}}}}, '<sep>', 160),
        ({'tokenizer_config.json': {'extra_ids': 300}}, '<extra_id_0>', 359),
        ({'tokenizer_config.json': {'extra_ids': 0}, 'added_tokens.json': {'<extra_id_0>': 60}}, '<extra_id_0>', 60))
    def test_a_t5_with_tokens_of_its_own(self, files, sign, number):
        recorded = json.loads((REFERENCE / 't5_tokenizer' / 'ids.json').read_text())
        made = self.read(self.copy('t5_tokenizer', files), 't5', number + 1, {'eos_token_id': 1}, generates=True).tokenizer
        self.assertEqual((made.vocab, made.sign(number)), (number + 1, sign))
        self.assertEqual(made.encode(f'the lines {sign}').tolist(), [*made.encode('the lines').tolist(), number])
        for text, ids in recorded.items():
            if '<extra_id' not in text:
                self.assertEqual([*made.encode(text), 1], ids, text)

    def copy(self, name, files):
        """A folder with the vocabulary of a recorded tokenizer and {name: object} beside it."""
        for path in (REFERENCE / name).iterdir():
            shutil.copy(path, self.folder)
        for file, contents in files.items():
            (self.folder / file).write_text(json.dumps(contents))
        return self.folder

    @parameterized.parameters(*recorded('bert_tokenizer'), *recorded('roberta_tokenizer'), *recorded('albert_tokenizer'))
    def test_bert_roberta_and_albert(self, name, files, case):
        """Whatever the tokens are that have the roles."""
        kind = name.split('_')[0]
        found = self.read(self.copy(name, files), kind)
        made, frame = found.tokenizer, Frame.of(found.framing, found.tokenizer)
        self.assertEqual(named(found.framing), 'roberta' if kind == 'roberta' else 'bert')
        whole = library.Tokenizer.from_str(made.contents.decode())  # with the special tokens, as transformers has it
        for text, ids in case['texts'].items():
            self.assertEqual(whole.encode(text).ids, ids, text)
            self.assertEqual(frame.framed(made.encode(text))[0].tolist(), ids, text)
        for first, second, ids, types in case['pairs']:
            with_library = whole.encode(first, second)
            self.assertEqual((with_library.ids, with_library.type_ids), (ids, types), (first, second))
            framed = [x.tolist() for x in frame.framed(made.encode(first), made.encode(second))]
            self.assertEqual(framed, [ids, types], (first, second))
        self.assertEqual(made.sign(frame.mask), case['mask'])

    @parameterized.parameters(
        ('bert_tokenizer', '[CLS]the key[SEP] [MASK]', Json(
            pad='[PAD]', cls='[CLS]', separator='[SEP]', mask='[MASK]', unknown='[UNK]')),
        ('roberta_tokenizer', '<s>the key</s><pad><unk><mask>', Json(
            begin='<s>', end='</s>', pad='<pad>', cls='<s>', separator='</s>', mask='<mask>', unknown='<unk>')),
        ('albert_tokenizer', '[CLS]the key[SEP]<pad><unk>[MASK]', Json(
            begin='[CLS]', end='[SEP]', pad='<pad>', cls='[CLS]', separator='[SEP]', mask='[MASK]', unknown='<unk>')))
    def test_the_roles_and_the_text_without_special_tokens(self, name, text, spec):
        found = self.read(REFERENCE / name, name.split('_')[0])
        self.assertEqual(found.spec, spec)
        self.assertEqual(found.tokenizer.sign(found.tokenizer.end), spec.end or spec.separator)
        self.assertEqual(found.tokenizer.decode(found.tokenizer.encode(text)), 'the key')
        config = {'bos_token_id': 7, 'eos_token_id': 8, 'pad_token_id': 9}  # of which only what generates asks
        self.assertEqual(self.read(REFERENCE / name, name.split('_')[0], config=config), found)
        writes = self.read(REFERENCE / name, name.split('_')[0], config=config, generates=True).spec
        sign = found.tokenizer.sign
        self.assertEqual(writes, dataclasses.replace(spec, begin=spec.begin or sign(7), end=sign(8)))

    def test_a_model_without_a_token_that_was_added(self):
        """As bart-large-cnn has no <mask>."""
        found = self.read(self.copy('roberta_tokenizer', {}), 'bart', 274)
        made = found.tokenizer
        self.assertEqual((found.spec.vocab, found.spec.mask, made.vocab, made.number('<mask>')), (274, '', 274, 274))
        self.assertLess(made.encode('the key').max(), 274)
        for encode in (made.encode, made.offsets):
            with self.assertRaisesRegex(ValueError, "A text has '<mask>', a token that this model lacks: it takes only 274 of"):
                encode('the <mask>')
        made.save(self.folder)
        self.assertEqual(specs.load(self.folder, found.spec), made)
        self.assertEqual(self.read(self.folder, 'bart', 270).spec.vocab, 0)  # more than those is missing: run.build refuses it

    def test_the_mask_of_roberta_takes_the_space_before_it_if_nothing_is_said(self):
        _, files, case = recorded('roberta_tokenizer')[0]
        self.assertTrue(files['tokenizer_config.json']['mask_token']['lstrip'])
        for config in ({}, {'mask_token': '<mask>', 'tokenizer_class': 'RobertaTokenizer'}):
            made = self.read(self.copy('roberta_tokenizer', {'tokenizer_config.json': config}), 'roberta').tokenizer
            for text, ids in case['texts'].items():
                self.assertEqual(made.encode(text).tolist(), ids[1:-1], text)

    @parameterized.parameters(
        ('bert_tokenizer', {'added_tokens.json': {'[NEW]': 4000}}, r"give '\[NEW\]' the id 4000, and its place there is \d+;"),
        ('bert_tokenizer', {'tokenizer_config.json': {'cls_token': '<s>'}},
         r'vocab.txt has no \[CLS\], which every vocabulary of BERT has'),
        ('bert_tokenizer', {'tokenizer_config.json': {'unk_token': None}}, r'vocab.txt has no \[UNK\]'),
        ('bert_tokenizer', {'tokenizer_config.json': [1]}, 'tokenizer_config.json is no JSON object; fetch it again'),
        ('bert_tokenizer', {'tokenizer_config.json': {'do_lower_case': 'yes'}}, 'tokenizer_config.json of .* cannot be used'),
        ('roberta_tokenizer', {'tokenizer_config.json': {'cls_token': 3}}, 'tokenizer_config.json of .* cannot be used'),
        ('roberta_tokenizer', {'tokenizer_config.json': {'cls_token': {}}}, 'tokenizer_config.json of .* cannot be used'),
        ('bert_tokenizer', {'tokenizer_config.json': {'tokenizer_class': 'BertJapaneseTokenizer'}},
         'names BertJapaneseTokenizer, which vocab.txt alone does not give; save it as tokenizer.json, or name one of '
         'BertTokenizer, DistilBertTokenizer, ElectraTokenizer'),
        ('roberta_tokenizer', {'config.json': {'tokenizer_class': 'HerbertTokenizerFast'}},
         'names HerbertTokenizerFast, which vocab.json alone does not give'),
        ('t5_tokenizer', {'tokenizer_config.json': {'tokenizer_class': 'XLNetTokenizer'}},
         'names XLNetTokenizer, which spiece.model alone does not give'),
    )
    def test_settings_that_cannot_be_used(self, name, files, message):
        with self.assertRaisesRegex(ValueError, message):
            self.read(self.copy(name, files), name.split('_')[0])

    def test_an_albert_cuts_commas_off_numbers(self):
        """As AlbertTokenizer does, whatever its SentencePiece model says."""
        proto = sentencepiece_model_pb2.ModelProto()
        scores = {'<unk>': 0, '[CLS]': 0, '[SEP]': 0, '[MASK]': 0, '▁': -3, '▁in': -4, '▁1': -4, '▁1,': -3, '0': -5, '000': -4,
                  ',': -4, '▁a,': -3}
        for sign, score in scores.items():
            kind = proto.SentencePiece.UNKNOWN if sign == '<unk>' else proto.SentencePiece.NORMAL
            proto.pieces.add(piece=sign, score=score, type=kind)
        (self.folder / 'spiece.model').write_bytes(proto.SerializeToString())
        made = self.read(self.folder, 'albert', len(scores)).tokenizer
        signs = lambda text: [made.sign(one) for one in made.encode(text).tolist()]
        self.assertEqual(signs('in 1,000'), ['▁in', '▁1', ',', '000'])
        self.assertEqual(signs('a, 1,'), ['▁a,', '▁1', ','])

    @parameterized.parameters(('albert', 'T5Tokenizer', 't5'), ('roberta', 'GPT2TokenizerFast', 'plain'))
    def test_the_class_decides_where_the_tokens_would_give_another(self, name, kind, framing):
        """As in rinna/japanese-gpt2-medium, a T5Tokenizer with [CLS] and [SEP]."""
        files = {'tokenizer_config.json': {'tokenizer_class': kind, 'extra_ids': 0}}
        self.assertEqual(named(self.read(self.copy(f'{name}_tokenizer', files)).framing), framing)

    def test_a_gpt2_with_tokens_of_its_own(self):
        end = '<|endoftext|>'
        plain = self.read(REFERENCE / 'gpt2_tokenizer').tokenizer
        files = {'added_tokens.json': {'<b>': plain.vocab, '<pad>': plain.vocab + 1},
                 'special_tokens_map.json': {'pad_token': '<pad>', 'bos_token': {'content': '<b>', 'lstrip': False}},
                 'tokenizer_config.json': {
                     'add_prefix_space': True, 'additional_special_tokens': ['<pad>', {'content': '<b>'}]}}
        config = {'bos_token_id': plain.end, 'eos_token_id': plain.end}  # which nobody has changed
        found = self.read(self.copy('gpt2_tokenizer', files), config=config, generates=True)
        made = found.tokenizer
        self.assertEqual((found.spec, found.framing), (Json(begin='<b>', end=end, pad='<pad>', unknown=end), 'plain'))
        self.assertEqual(made.encode('key<pad>').tolist(), [*plain.encode(' key').tolist(), plain.vocab + 1])
        self.assertEqual(made.special, {end, '<pad>', '<b>'})
        for field in ('add_bos_token', 'add_eos_token'):
            files['tokenizer_config.json'][field] = True
        found = self.read(self.copy('gpt2_tokenizer', files), config=config)
        self.assertEqual(found.framing, 'begin a end | begin a end begin b end')

    def test_the_config_names_the_end(self):
        found = self.read(REFERENCE / 'gpt2_tokenizer', config={'eos_token_id': [5, 7]}, generates=True)
        self.assertEqual((found.tokenizer.end, found.spec.end), (5, found.tokenizer.sign(5)))
        found.tokenizer.save(self.folder)
        again = dataclasses.replace(found.spec, path=str(self.folder / 'tokenizer.json'))
        self.assertEqual(again.learn(), found.tokenizer)
        for config, generation in (({'eos_token_id': None}, {'eos_token_id': 5}), ({}, {'eos_token_id': [5, 7]}),
                                   ({'eos_token_id': 5}, {'eos_token_id': None}), ({'eos_token_id': 7}, {'eos_token_id': 5})):
            self.assertEqual(self.read(REFERENCE / 'gpt2_tokenizer', 'gpt2', 400, config, generation, True), found)
        for file, configs in (('config', ({'eos_token_id': 399}, {})), ('generation_config', ({}, {'eos_token_id': 399}))):
            with self.assertRaisesRegex(ValueError, f'^{file}.json has eos_token_id=399, which the tokenizer of .* does not'):
                self.read(REFERENCE / 'gpt2_tokenizer', 'gpt2', 400, *configs, generates=True)

    def test_what_a_model_lacks_is_said(self):
        """As in small models whose config.json was copied from a large one."""
        config = {'bos_token_id': 50256, 'eos_token_id': 50256}
        said = tuple(f'without {role}_token_id=50256, as the model has 400 tokens' for role in ('bos', 'eos'))
        found = self.read(REFERENCE / 'gpt2_tokenizer', config=config, generates=True)
        self.assertEqual((found.spec.end, found.said), ('<|endoftext|>', said))
        found = self.read(self.folder, config=config, generates=True)
        self.assertEqual((found.spec, found.tokenizer.end, found.said), (Ids(400), -1, said))

    @parameterized.parameters(
        ('GPT2Tokenizer', {}, {'end': '</x>'}, 'plain'), ('BertTokenizerFast', {'cls_token': '<c>'}, {'cls': '<c>'}, 'bert'),
        ('PreTrainedTokenizerFast', {'pad_token': '<c>'}, {'pad': '<c>'}, 'plain'),
        ('TokenizersBackend', {}, {'end': '</x>'}, 'plain'),
        ('MyTokenizer', {'sep_token': '<c>', 'mask_token': '<unknown>'}, {'separator': '<c>'}, ''))
    def test_a_file_that_says_nothing_of_framing(self, kind, files, roles, framing):
        """Its class does, or nobody."""
        made = library.Tokenizer(library.models.WordLevel({'a': 0}, unk_token='a'))
        made.add_special_tokens(['<c>', '</x>'])
        made.save(str(self.folder / 'tokenizer.json'))
        (self.folder / 'tokenizer_config.json').write_text(json.dumps({'tokenizer_class': kind, **files}))
        found = self.read(self.folder, 'bert', 9, {'eos_token_id': 2} if 'end' in roles else {}, generates='end' in roles)
        self.assertEqual((dict(found.spec.stated), found.framing), (roles, framing))

    def test_tokens_around_texts_have_a_role_though_nothing_names_them(self):
        made = library.Tokenizer(library.models.WordLevel({'a': 0}, unk_token='a'))
        made.add_special_tokens(['<x>', '<y>'])
        made.post_processor = library.processors.TemplateProcessing('<x> $A <y>', '<x> $A <y> $B:1', [('<x>', 1), ('<y>', 2)])
        made.save(str(self.folder / 'tokenizer.json'))
        found = self.read(self.folder, 'bert', 9)
        self.assertEqual(found.spec, Json(cls='<x>', separator='<y>'))
        self.assertEqual(found.framing, 'cls a separator | cls a separator b:1')

    def around(self, tokenizer):
        found = post_processor.read(tokenizer.contents) or [[('a', 0)], [('a', 0), ('b', 0)]]
        return [[one for one, _ in part] for part in found]

    @parameterized.parameters('bert', 'roberta', 'albert', 't5', 'gpt2')
    def test_out_and_in_again(self, kind):
        vocab, generates = 160 if kind == 't5' else 400, kind in ('t5', 'gpt2')
        config = {'eos_token_id': 1 if kind == 't5' else 7} if generates else {}
        found = self.read(REFERENCE / f'{kind}_tokenizer', kind, vocab, config, generates=generates)
        made, frame = found.tokenizer, Frame.of(found.framing, found.tokenizer)
        files = hugging_face.write(self.folder, made, made.roles, 64, (frame.single, frame.pair), types=kind == 'bert')
        self.assertEqual(files, ['tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json'])
        self.assertEqual(self.read(self.folder, kind, vocab, config, generates=generates), dataclasses.replace(
            found, framing=made.framing or 'plain'))
        settings, signs = (json.loads((self.folder / file).read_text()) for file in files[1:])
        self.assertEqual(signs, {hugging_face.FIELDS[role]: sign for role, sign in found.spec.stated})
        names = ['input_ids', *['token_type_ids'] * (kind == 'bert'), 'attention_mask']
        self.assertEqual(settings, signs | {
            'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': names, 'model_max_length': 64})

    @parameterized.product(kind=('bert', 'roberta', 'albert', 't5', 'gpt2'), framing=('bert', 'roberta', 't5', 'plain'))
    def test_another_framing_is_written_into_the_file(self, kind, framing):
        made = self.read(REFERENCE / f'{kind}_tokenizer', kind).tokenizer
        if lacking(framing, made):
            made = dataclasses.replace(made, stated=(*made.stated, ('cls', made.sign(9)), ('separator', made.sign(8))))
        frame = Frame.of(framing, made)
        hugging_face.write(self.folder, made, made.roles, 64, (frame.single, frame.pair))
        again = dataclasses.replace(made, contents=(self.folder / 'tokenizer.json').read_bytes())
        whole = library.Tokenizer.from_str(again.contents.decode())
        for texts in (('the lines',), ('key the', ' read that ')):
            encoded = whole.encode(*texts)
            self.assertEqual(encoded.ids, frame.framed(*map(made.encode, texts))[0].tolist())
            if framing == 'bert':
                self.assertEqual(encoded.type_ids, frame.framed(*map(made.encode, texts))[1].tolist())
            offsets = [one for one, special in zip(encoded.offsets, encoded.special_tokens_mask) if not special]
            wanted = library.Tokenizer.from_str(made.contents.decode()).encode(*texts)
            self.assertEqual(offsets, [one for one, special in zip(wanted.offsets, wanted.special_tokens_mask) if not special])
        self.assertEqual(self.around(again), [[one for one, _ in part] for part in (frame.single, frame.pair)])
        self.assertEqual(again.contents == made.contents, self.around(made) == self.around(again))

    def test_without_files(self):
        found = self.read(self.folder, vocab=9, config={'eos_token_id': 4})
        self.assertEqual((found.spec, found.tokenizer, found.framing), (Ids(9, end=4), IdTokenizer(9, Roles(end=4)), ''))
        self.assertEqual(self.read(self.folder, vocab=9).spec, Ids(9))  # where 50256 is usual
        self.assertEqual(self.read(self.folder, 'bart', 9).spec, Ids(9, begin=0, end=2, pad=1))
        config = {'cls_token_id': 3, 'sep_token_id': 4, 'mask_token_id': 5, 'pad_token_id': None}
        self.assertEqual(self.read(self.folder, 'bert', 9, config).spec, Ids(9, cls=3, separator=4, mask=5))
        self.assertEqual(hugging_face.write(self.folder, found.tokenizer, found.tokenizer.roles, 64), [])
        self.assertEmpty([*self.folder.iterdir()])

    def test_characters_become_a_tokenizer_json(self):
        made = CharTokenizer('ab')
        self.assertIn('tokenizer.json', hugging_face.write(self.folder, made, made.roles, 64))
        again = hugging_face.read(self.folder, 'gpt2', made.vocab, ({'eos_token_id': 1}, {}), True).tokenizer
        self.assertEqual((again.encode('abx').tolist(), again.end), ([2, 3, 0], 1))

    @parameterized.parameters(
        ('t5', {}, {}, 0), ('t5', {'pad_token_id': 3}, {}, 3), ('t5', {}, {'decoder_start_token_id': 5}, 5),
        ('bart', {}, {}, 2),
        ('t5', {'decoder_start_token_id': 4, 'pad_token_id': 3}, {'decoder_start_token_id': 5}, 5),
        ('t5', {'decoder_start_token_id': 4, 'pad_token_id': 3}, {'decoder_start_token_id': 5}, 4, False),
        ('bart', {'decoder_start_token_id': None}, {'decoder_start_token_id': 0}, 0),
        ('bart', {'decoder_start_token_id': 0}, {'decoder_start_token_id': None}, 0))
    def test_what_a_decoder_is_given_first(self, kind, config, generation, start, generates=True):
        self.assertEqual(hugging_face.start(kind, (config, generation), generates), start)

    def test_files_that_cannot_be_read(self):
        (self.folder / 'vocab.json').write_text('{"a": 0')
        (self.folder / 'merges.txt').write_text('a b\n')
        with self.assertRaisesRegex(ValueError, 'vocab.json and merges.txt cannot be read'):
            self.read(self.folder)
        (self.folder / 'vocab.json').unlink()
        (self.folder / 'spiece.model').write_bytes(b'no model')
        with self.assertRaisesRegex(ValueError, 'spiece.model is no SentencePiece model'):
            self.read(self.folder)
        pieces = specs.SentencePiece(vocab=264).learn(['ab cd'] * 9)  # of pairs
        (self.folder / 'spiece.model').write_bytes(pieces.model)
        with self.assertRaisesRegex(ValueError, 'spiece.model is no unigram model'):
            self.read(self.folder)


if __name__ == '__main__':
    absltest.main()
