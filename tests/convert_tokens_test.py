"""What convert.py makes of tokenizers and of settings of generation: the roles of tokens and what stands around texts survive,
whatever the tokens are called and whichever family they are of."""

import json
import shutil

import numpy as np
import pytest
import tokenizers as library
from absl.testing import absltest, parameterized

from data.tokenizers.specs import Ids, Json
from tests import experiments, recorded
from tests.marks import slow_but
from tests.recorded import REFERENCE, convert
from training.config import resolve
from transformer.attention.positions.absolute import Learned

BERT = dict(pad='[PAD]', cls='[CLS]', separator='[SEP]', mask='[MASK]', unknown='[UNK]')
ROBERTA = dict(begin='<s>', end='</s>', pad='<pad>', cls='<s>', separator='</s>', mask='<mask>', unknown='<unk>')
CNN = {'num_beams': 4, 'length_penalty': 2.0, 'max_length': 22, 'min_length': 3, 'no_repeat_ngram_size': 3,
       'early_stopping': True, 'forced_bos_token_id': 0}  # of facebook/bart-large-cnn, but for the lengths


class TokensCase(recorded.TestCase):

    def model(self, name, tokenizer=None, files=(), weights=None, **config):
        """A copy of a recorded model with the files of a recorded tokenizer, for whose tokens its tables have room, and
        `files`, {name: object}, beside them."""
        vocab = 400
        config = ({'vocab_size': vocab} if tokenizer else {}) | config

        def widened(tensors):
            return {key: np.concatenate([x, np.zeros((vocab - 67, *x.shape[1:]), x.dtype)]) if len(x) == 67 else
                    np.pad(x, [(0, 0), (0, vocab - 67)]) if x.shape == (1, 67) else x for key, x in tensors.items()}

        folder = self.hugging_face(name, weights or (widened if tokenizer else None), **config)
        for path in (REFERENCE / f'{tokenizer}_tokenizer').iterdir() if tokenizer else ():
            if path.name != 'ids.json':
                shutil.copy(path, folder)
        for file, contents in dict(files).items():
            (folder / file).write_text(json.dumps(contents))
        return folder

    def run_of(self, folder):
        workdir = self.folder / 'run'
        said = self.convert(f'--from_hf={folder}', f'--workdir={workdir}')
        return convert.runs.load(workdir), said

    def out(self):
        """({name: object} of the .json files that come out, what is said)."""
        out = self.folder / 'out'
        said = self.convert(f'--workdir={self.folder / "run"}', f'--to_hf={out}')
        return {path.name: json.loads(path.read_text()) for path in out.glob('*.json')}, said

    def again(self, snapshot):
        """Reading what came out gives the same config."""
        workdir = self.folder / 'again'
        self.convert(f'--from_hf={self.folder / "out"}', f'--workdir={workdir}')
        again = convert.runs.load(workdir)
        for part in ('data', 'task', 'model', 'generation'):
            self.assertEqual(again.run.config[part].to_dict(), snapshot.run.config[part].to_dict())
        self.assertEqual(again.data.tokenizer, snapshot.data.tokenizer)


@slow_but('test_gpt2_with_tokens_of_its_own', 'gpt2')
class TokenizersTest(TokensCase):

    def assert_framed(self, snapshot, tokenizer, case=0):
        """The ids around texts are those that transformers gave for these files (tests/reference)."""
        recorded_case = json.loads((REFERENCE / f'{tokenizer}_tokenizer' / 'ids.json').read_text())[case]
        for text, ids in list(recorded_case['texts'].items())[:6]:
            found = snapshot.data.frame.framed(snapshot.data.encode(text))[0]
            self.assertEqual(found.tolist(), ids, text)
        for first, second, ids, types in recorded_case['pairs']:
            found = snapshot.data.frame.framed(snapshot.data.encode(first), snapshot.data.encode(second))
            types = types if getattr(snapshot.model, 'types', 1) > 1 else [0] * len(ids)
            self.assertEqual([x.tolist() for x in found], [ids, types])

    @pytest.mark.slow
    def test_t5_with_a_tokenizer_of_roberta(self):
        """As in CodeT5."""
        folder = self.model('t5', 'roberta', {'tokenizer_config.json': {'tokenizer_class': 'RobertaTokenizer'}},
                            bos_token_id=0, eos_token_id=2, pad_token_id=1, decoder_start_token_id=1)
        snapshot, said = self.run_of(folder)
        data = snapshot.data
        self.assertEqual((data.config.tokenizer, data.config.framing), (Json(**ROBERTA), 'roberta'))
        self.assertIn(f'tokenizer {Json(**ROBERTA)}', said)
        self.assertEqual((data.start, data.end), (1, 2))
        texts = json.loads((REFERENCE / 'roberta_tokenizer' / 'ids.json').read_text())[0]['texts']
        for text, ids in list(texts.items())[:6]:
            self.assertEqual((data.encode(text).tolist(), data.encode_target(text).tolist()), (ids, ids))
        self.assertEqual(data.decode([0, *data.encode('the lines'), 2]), 'the lines')
        files, _ = self.out()
        wanted = {'bos_token_id': 0, 'eos_token_id': 2, 'pad_token_id': 1, 'decoder_start_token_id': 1}
        for file in ('config.json', 'generation_config.json'):
            self.assertContainsSubset(wanted, files[file])
        self.assertContainsSubset({'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>', 'cls_token': '<s>'},
                                  files['tokenizer_config.json'])
        self.again(snapshot)

    def test_roberta_with_a_tokenizer_of_bert(self):
        """As in klue/roberta: the model has one type."""
        folder = self.model('roberta', 'bert', {'tokenizer_config.json': {'tokenizer_class': 'BertTokenizer'}})
        snapshot, _ = self.run_of(folder)
        config = snapshot.data.config
        self.assertEqual((config.tokenizer, config.framing), (
            Json(**BERT), 'cls a separator | cls a separator b separator'))
        self.assertEqual(snapshot.model.types, 1)
        self.assert_framed(snapshot, 'bert')
        files, said = self.out()
        self.assertEqual(files['tokenizer_config.json']['model_input_names'], ['input_ids', 'attention_mask'])
        self.assertEqual(files['special_tokens_map.json'], {
            'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'mask_token': '[MASK]', 'unk_token': '[UNK]'})
        # There a RoBERTa counts no position for token 1, which here is [UNK]; so it is written as a BERT.
        self.assertIn('BertForMaskedLM', said)
        self.assertContainsSubset({'cls_token_id': 2, 'sep_token_id': 3, 'mask_token_id': 4, 'pad_token_id': 0,
                                   'max_position_embeddings': snapshot.model.length}, files['config.json'])
        with self.assertRaisesRegex(ValueError, 'RobertaForMaskedLM pads with token 1, to which it gives no position, and this '
                                                'run with token 0; train with a tokenizer'):
            convert.expressed(snapshot, 'roberta')
        with snapshot.run.config.unlocked():
            snapshot.run.config.model.positions = repr(Learned(at='input', scale=0.0))
        self.again(snapshot)

    @pytest.mark.slow
    def test_bert_with_a_tokenizer_of_roberta(self):
        folder = self.model('bert_classes', 'roberta', {'tokenizer_config.json': {'tokenizer_class': 'RobertaTokenizer'}})
        snapshot, _ = self.run_of(folder)
        self.assertEqual((snapshot.data.config.tokenizer, snapshot.data.config.framing), (Json(**ROBERTA), 'roberta'))
        self.assert_framed(snapshot, 'roberta')
        self.assertEqual(self.out()[0]['tokenizer_config.json']['model_input_names'], ['input_ids', 'attention_mask'])
        self.again(snapshot)

    @parameterized.named_parameters((name, name) for name in ('gpt2', 'gpt2_classes'))
    def test_gpt2_with_tokens_of_its_own(self, name):
        """Nothing stands around its texts; a document that it writes begins with the one and ends with the other."""
        end, plain = '<|endoftext|>', 270
        signs = {'bos_token': '<|startoftext|>', 'eos_token': end, 'pad_token': '<|pad|>', 'unk_token': end}
        files = {'added_tokens.json': {'<|startoftext|>': plain, '<|pad|>': plain + 1},
                 'special_tokens_map.json': signs, 'tokenizer_config.json': {'tokenizer_class': 'GPT2Tokenizer'}}
        snapshot, _ = self.run_of(self.model(name, 'gpt2', files, bos_token_id=0, eos_token_id=0, pad_token_id=None))
        data, spec = snapshot.data, Json(begin='<|startoftext|>', end=end, pad='<|pad|>', unknown=end)
        self.assertEqual((data.config.tokenizer, data.tokenizer.roles.named()), (
            spec, {'begin': plain, 'end': 0, 'pad': plain + 1, 'unknown': 0}))
        if name == 'gpt2':
            self.assertEqual(data.prompt('key').tolist(), [plain, *data.encode('key')])
            self.assertEqual(data.end, 0)
        else:
            self.assertEqual((data.config.framing, data.read_text('key')[0].tolist()), ('plain', data.encode('key').tolist()))
        files, _ = self.out()
        self.assertEqual(files['special_tokens_map.json'], signs)
        ids = {'bos_token_id': plain, 'eos_token_id': 0, 'pad_token_id': plain + 1}
        self.assertContainsSubset(ids, files['config.json'])
        self.assertEqual(files.get('generation_config.json', ids), ids)
        self.again(snapshot)

    @pytest.mark.slow
    def test_gpt2_with_a_tokenizer_of_bert(self):
        """As in many models of Chinese, whose config.json names the tokens of GPT-2: a document has that around it."""
        folder = self.model('gpt2', 'bert', {'tokenizer_config.json': {'tokenizer_class': 'BertTokenizer'}}, bos_token_id=50256,
                            eos_token_id=50256)
        snapshot, said = self.run_of(folder)
        for role in ('bos', 'eos'):
            self.assertIn(f'without {role}_token_id=50256, as the model has 400 tokens\n', said)
        self.assertEqual(snapshot.data.config.tokenizer, Json(begin='[CLS]', end='[SEP]', **BERT))
        self.assertEqual((snapshot.data.prompt('key')[0], snapshot.data.end, snapshot.data.config.documents), (2, 3, 'file'))
        self.assertContainsSubset({'bos_token_id': 2, 'eos_token_id': 3}, self.out()[0]['generation_config.json'])
        self.again(snapshot)

    @parameterized.parameters(('bart', Json(**ROBERTA)), ('bart', Ids(67, begin=0, end=16, pad=1)),
                              ('t5', Ids(67, end=36, pad=0)), ('t5', Json(end='</s>', pad='<pad>', unknown='<unk>')))
    @pytest.mark.slow
    def test_pairs_of_texts(self, name, spec):
        tokenizer = (None if isinstance(spec, Ids) else 'roberta' if name == 'bart' else 't5')
        ids = {'eos_token_id': 2 if name == 'bart' else 1} if tokenizer else {}
        snapshot, _ = self.run_of(self.model(name, tokenizer, decoder_start_token_id='absent', **ids))
        data = snapshot.data
        self.assertEqual((data.config.tokenizer, data.config.framing), (spec, {'bart': 'roberta', 't5': 't5'}[name]))
        end, start = data.tokenizer.end, {'bart': 2, 't5': 0}[name]
        self.assertEqual((data.start, data.end), (start, end))
        begin = [0] if name == 'bart' else []
        self.assertEqual(data.encode('7 9').tolist(), [*begin, *data.encode_target('7 9')[len(begin):-1], end])
        files, _ = self.out()
        wanted = {'bos_token_id': begin[0] if begin else None, 'eos_token_id': end, 'pad_token_id': {'bart': 1, 't5': 0}[name]}
        self.assertContainsSubset({**wanted, 'decoder_start_token_id': start}, files['config.json'])
        self.again(snapshot)

    @pytest.mark.slow
    def test_bare_ids_between_those_that_the_config_names(self):
        ids = {'cls_token_id': 11, 'sep_token_id': 12, 'mask_token_id': 13}
        snapshot, said = self.run_of(self.model('bert', **ids))
        config, spec = snapshot.data.config, Ids(67, pad=0, cls=11, separator=12, mask=13)
        self.assertEqual((config.tokenizer, config.framing), (spec, 'bert'))
        self.assertNotIn('no special tokens', said)
        self.assertEqual([x.tolist() for x in snapshot.data.framed('5 6', '7')], [[11, 5, 6, 12, 7, 12], [0, 0, 0, 0, 1, 1]])
        self.assertEqual(snapshot.data.read_masked('5 13')[2].tolist(), [2])
        files, said = self.out()
        self.assertIn('without a tokenizer', said)
        self.assertContainsSubset({**ids, 'pad_token_id': 0}, files['config.json'])
        self.again(snapshot)

    @pytest.mark.slow
    def test_bare_ids_of_which_nothing_is_known(self):
        """They are read as they are; a mask is asked for where one is needed."""
        snapshot, said = self.run_of(self.model('bert'))
        self.assertIn('texts get no special tokens around them, as no file names those with the roles cls, separator: give '
                      'cls_token_id, sep_token_id in config.json\n', said)
        config = snapshot.data.config
        self.assertEqual((config.tokenizer, config.framing, config.packing), (Ids(67, pad=0), 'a | a b:1', 'none'))
        self.assertEqual([x.tolist() for x in snapshot.data.framed('2 5 3', '6 3')], [[2, 5, 3, 6, 3], [0, 0, 0, 1, 1]])
        done = experiments.call('predict', f'--workdir={self.folder / "run"}', stdin=b'5 6\n')
        self.assertEqual(done.code, 1)
        self.assertIn("data.tokenizer='Ids(vocab=67, pad=0)' states no mask of its own", done.err)
        self.out()
        self.again(snapshot)

    @pytest.mark.slow
    def test_bare_ids_of_which_no_one_ends_a_text(self):
        """The text is one then, as it is of a config.json that names an end which the model lacks."""
        snapshot, said = self.run_of(self.model('gpt2', bos_token_id=50256, eos_token_id=50256))
        self.assertIn('without eos_token_id=50256, as the model has 67 tokens\n', said)
        self.assertEqual((snapshot.data.config.documents, snapshot.data.end), ('stream', -1))
        self.assertEqual(snapshot.data.prompt('5 6').tolist(), [5, 6])
        files, _ = self.out()
        self.assertContainsSubset({'bos_token_id': None, 'eos_token_id': None}, files['config.json'])
        self.again(snapshot)

    def test_pairs_of_texts_need_an_end(self):
        self.assert_refused("Texts need a token with the role 'end' around them, but no file names it; give eos_token_id",
                            f'--from_hf={self.model("t5", eos_token_id=None)}', f'--workdir={self.folder / "run"}')

    @pytest.mark.slow
    def test_a_tokenizer_that_adds_nothing_does_so_here(self):
        """What the data of a pair of texts need is said."""
        folder = self.model('t5', 'roberta', eos_token_id=2)
        made = convert.tokenizer_files.read(folder, 't5', 400, ({}, {})).tokenizer
        bare = library.Tokenizer.from_str(made.contents.decode())
        bare.post_processor = library.processors.ByteLevel()
        bare.save(str(folder / 'tokenizer.json'))
        settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '</s>'}
        (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
        snapshot, said = self.run_of(folder)
        self.assertIn('texts end with a token that the original tokenizer does not add\n', said)
        self.assertEqual(snapshot.data.encode('key').tolist()[-1], 2)
        files, _ = self.out()
        whole = library.Tokenizer.from_str(json.dumps(files['tokenizer.json']))
        self.assertEqual(whole.encode('key').ids, snapshot.data.encode('key').tolist())  # as it was learnt here

    @pytest.mark.slow
    def test_a_run_with_a_tokenizer_learnt_here(self):
        """A language model on pieces of words: what continues a text has no [SEP] before it."""
        workdir = self.trained(**{'train.steps': 1, 'data.tokenizer': 'WordPiece(vocab=60)'})
        out = self.folder / 'out'
        self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        data = convert.runs.load(workdir).data
        whole = library.Tokenizer.from_file(str(out / 'tokenizer.json'))
        self.assertEqual(whole.encode('key').ids, data.encode('key').tolist())
        settings = json.loads((out / 'tokenizer_config.json').read_text())
        self.assertEqual((settings['bos_token'], settings['eos_token']), ('[SEP]', '[SEP]'))  # between documents
        self.assertEqual(settings['model_input_names'], ['input_ids', 'attention_mask'])
        self.assertEqual(json.loads((out / 'generation_config.json').read_text()),
                         {'bos_token_id': 3, 'eos_token_id': 3, 'pad_token_id': 0})


class GenerationTest(TokensCase):

    def generation(self, snapshot):
        given = snapshot.run.config.generation
        return given.strategy, given.tokens, given.settings.to_dict()

    @parameterized.parameters('config.json', 'generation_config.json')
    @pytest.mark.slow
    def test_settings_travel(self, file):
        settings = {} if file == 'config.json' else {'generation_config.json': CNN | {'eos_token_id': 16, 'bos_token_id': 0}}
        snapshot, said = self.run_of(self.model('bart', files=settings, **(CNN if file == 'config.json' else {'num_beams': 9})))
        strategy = ('Beam(size=4, length_penalty=2.0, coverage_penalty=0.0, count=1, constraint=((NoRepeat(ngram=3) & '
                    'MinLength(tokens=2)) & First(token=0)), length_offset=0.0)')
        self.assertEqual(self.generation(snapshot), (strategy, 21, CNN))
        self.assertIn(f'predict.py takes {strategy} and 21 tokens at most\n', said)
        self.assertIn('kept for generation_config.json, but without effect here: early_stopping=True\n', said)
        files, said = self.out()
        ids = {'bos_token_id': 0, 'eos_token_id': 16, 'pad_token_id': 1, 'decoder_start_token_id': 2}
        self.assertEqual(files['generation_config.json'], CNN | ids)
        self.assertIn(', and generation_config.json\n', said)
        self.again(snapshot)

    @pytest.mark.slow
    def test_they_are_what_predict_uses_if_its_flags_say_nothing_else(self):
        snapshot, _ = self.run_of(self.model('bart', **CNN))
        strategy, _, _ = self.generation(snapshot)
        call = lambda *flags: experiments.call('predict', f'--workdir={self.folder / "run"}', '--json', *flags,
                                               stdin=b'5 8 9\n7 30\n')
        usual = call()
        self.assertEqual((usual.code, usual.err), (0, ''))
        self.assertEqual(call(f'--strategy={strategy}', '--tokens=21').out, usual.out)
        self.assertNotEqual(call('--strategy=Greedy()').out, usual.out)
        short = [json.loads(line)['tokens'] for line in call('--tokens=3').out.splitlines()]
        self.assertLessEqual(max(short), 3)
        self.assertGreater(max(json.loads(line)['tokens'] for line in usual.out.splitlines()), 3)
        other = convert.base.config()
        self.assertEqual((other.generation.strategy, other.generation.tokens), ('', 0))

    def test_a_run_that_generates_in_another_way_comes_out_so(self):
        self.run_of(self.model('gpt2', files={'generation_config.json': {
            'do_sample': True, 'typical_p': 0.9, 'max_new_tokens': 30, 'eos_token_id': [33, 7]}}))
        path = self.folder / 'run' / 'config.json'
        config = json.loads(path.read_text())
        self.assertEqual(config['generation']['tokens'], 30)
        config['generation'] |= {'strategy': 'Beam(size=3, length_penalty=0.6)', 'tokens': 12}
        path.write_text(json.dumps(config))
        files, said = self.out()
        self.assertIn('generation_config.json, which cannot express length_penalty=0.6 with length_offset=5.0\n', said)
        self.assertEqual(files['generation_config.json'], {
            'num_beams': 3, 'do_sample': False, 'length_penalty': 0.0, 'early_stopping': 'never', 'max_new_tokens': 12,
            'typical_p': 0.9, 'bos_token_id': 0, 'eos_token_id': [33, 7]})

    @pytest.mark.slow
    def test_a_model_trained_further_keeps_them(self):
        self.run_of(self.model('t5', num_beams=2, max_length=9))
        self.text.write_text(''.join(f'{i % 50 + 2} 7\t{i % 50 + 3}\n' for i in range(50)))
        done = experiments.call(
            'train', f'--config=configs/finetune.py:{self.folder / "run"}', f'--config.data.path={self.text}',
            '--config.train.steps=1', '--config.data.length=8', '--config.data.source_length=8',
            '--config.generation.tokens=5', f'--workdir={self.folder / "mine"}')
        self.assertEqual(done.code, 0, done.err)
        given = convert.workdir.load_config(self.folder / 'mine').generation
        self.assertEqual((resolve.parse(given.strategy, convert.Strategy, '').size, given.tokens), (2, 5))

    @parameterized.parameters(([7, 33], 7), (7, 7), ([33, 7], 33))
    def test_texts_end_where_generation_config_says(self, ends, end):
        """And not where config.json does."""
        settings = {'generation_config.json': {'eos_token_id': ends}}
        snapshot, _ = self.run_of(self.model('gpt2', files=settings, eos_token_id=33))
        self.assertEqual(snapshot.data.end, end)
        files, _ = self.out()
        self.assertEqual((files['config.json']['eos_token_id'], files['generation_config.json']['eos_token_id']), (end, ends))
        self.again(snapshot)

    def test_settings_that_cannot_be_read(self):
        folder = self.model('t5', files={'generation_config.json': {'num_beams': 'many'}})
        self.assert_refused("settings of generation have num_beams='many'; expected a whole number", f'--from_hf={folder}',
                            f'--workdir={self.folder / "run"}')

    def test_models_that_write_no_texts_have_none(self):
        snapshot, _ = self.run_of(self.model('bert_classes', num_beams=4))
        self.assertEqual(self.generation(snapshot), ('', 0, {}))
        self.assertNotIn('generation_config.json', self.out()[0])


if __name__ == '__main__':
    absltest.main()
