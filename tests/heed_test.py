import json
import pathlib
import types
import warnings
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest

import convert
import heed
from data.text.documents import Text
from data.tokenizers.specs import WordPiece
from tests import experiments, recorded
from transformer.decoding.generate import Hypothesis
from transformer.models.electra import Electra
from transformer.readers import base, completion


class TextTest(recorded.TestCase):
    def test_generates_predicts_and_gives_logits(self):
        workdir = self.trained()
        run, flags = heed.load(workdir), dict(strategy='Sample(temperature=0.7)', tokens=5, seed=3)
        done = experiments.call('predict', f'--workdir={workdir}', '--json', '--strategy=Sample(temperature=0.7)', '--tokens=5',
                                '--seed=3', stdin=b'key\nrow\n')
        wanted = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual(run.predict(['key', 'row'], **flags), wanted)
        self.assertEqual(run.generate(['key', 'row'], **flags), [one['text'] for one in wanted])
        self.assertEqual(run.generate('key', **flags), wanted[0]['text'])
        self.assertEqual(run.generate('key', **flags | {'tokens': np.int64(5), 'seed': np.uint32(3)}), wanted[0]['text'])
        ids = np.array([[1, 2, 3]])
        wanted = run.model.apply({'params': run.params}, inputs=ids)['logits']
        np.testing.assert_allclose(run.logits(ids), wanted, rtol=1e-4, atol=1e-5)
        marks = np.array([[1, 1, 0]])
        wanted = run.model.apply({'params': run.params}, inputs=ids, prefix=marks)['logits']
        np.testing.assert_allclose(run.logits(ids, prefix=marks), wanted, rtol=1e-4, atol=1e-5)
        self.assertEqual(run.config.model.layers, run.model.stack.layers)
        pieces = []
        flags = dict(tokens=9, strategy='Sample(constraint=MinLength(9))')
        text = run.generate('key', watch=pieces.append, **flags)
        self.assertEqual(''.join(pieces), text)
        self.assertGreater(len(pieces), 5)
        self.assertEqual(text, run.generate('key', **flags))
        with jax.log_compiles(), self.assertNoLogs('jax', 'WARNING'):  # another function needs no other program
            run.generate('key', watch=lambda piece: pieces.append(piece), **flags)
        self.assertEqual(''.join(pieces), text + text)
        with self.assertRaisesRegex(ValueError, "Completion does not take token; did you mean 'tokens'"):
            run.predict('key', token=5)
        with self.assertRaisesRegex(ValueError, "strategy is 'Beem..': there is no 'Beem'; did you mean 'Beam'"):
            run.generate('key', strategy='Beem()')

    def test_warns_of_what_predict_says(self):
        run = heed.load(self.trained())
        with self.assertWarnsRegex(UserWarning, r'\AAnswer 2: 2 of the \d tokens of the prompt are unknown') as found:
            texts = run.generate(['key', 'k\u4e2d\u6587'], tokens=2)
        self.assertLen(texts, 2)
        self.assertEqual(found.filename, __file__)
        with self.assertWarnsRegex(UserWarning, r'\AEnds after \d+ new tokens: the context of this model is \d+\Z'):
            run.generate('key', strategy='Sample(constraint=MinLength(99))', tokens=99)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            run.generate('key', tokens=2)

    def test_what_is_no_text_and_no_ids(self):
        run = heed.load(self.trained())
        for call, message in (
                (lambda: run.generate('a\ud800'), r'Line 1 of the inputs is no text: its character 1 is U\+D800'),
                (lambda: run.generate(5), 'The inputs are 5; expected a string or a path, or a list of these'),
                (lambda: run.predict(np.zeros((2, 2))), 'The inputs are of the type ndarray; expected a string or a path'),
                (lambda: heed.load(3), 'The folder is 3; expected the path of a workdir'),
                (lambda: run.predict([b'a']), r"The inputs are \[b'a'\]; expected a string"),
                (lambda: run.logits([[1, 23]]), r'The ids are int64 \[1, 2\] from 1 to 23; expected integers .* from 0 to 22'),
                (lambda: run.logits([1.5]), r'The ids are float64 \[1\] from 1.5'),
                (lambda: run.logits([[1], [2, 3]]), 'The ids have rows of several lengths; fill them up to one length'),
                (lambda: run.logits('abc'), r'The ids are <U3 \[\]; expected integers'),
                (lambda: run.logits(), r'Gpt needs inputs too; give run.logits\(inputs=..\)'),
                (lambda: run.logits(image=[[1]]), 'Gpt does not take image; known: inputs, positions, prefix, segments'),
                (lambda: run.logits([[1]], segment=[[1]]), "Gpt does not take segment; did you mean 'segments'"),
                (lambda: run.logits([[1]], cache={}), 'run.logits does not take cache; give it to run.model.apply'),
                (lambda: run.logits([[1]], positions=[[-1]]), 'positions are int64 .1, 1. from -1 to -1; expected .* 0 to 15'),
                (lambda: run.logits([[1]], prefix=[[1, 0]]), r'prefix are \[1, 2\] for inputs \[1, 1\]; expected one shape'),
                (lambda: run.logits([[1]], positions=[[16]]), 'positions are int64 .1, 1. from 16 to 16; expected .* 0 to 15'),
                (lambda: run.logits([[1]], segments=[[1], [1]]), r'segments are \[2, 1\] for inputs \[1, 1\]; expected one sh'),
                (lambda: run.logits([[1, 2]], segments=[[1]]), r'segments are \[1, 1\] for inputs \[1, 2\]; expected'),
                (lambda: run.generate('a', tokens=0), 'tokens is 0; expected a number of tokens, 1 or more'),
                (lambda: run.generate('a', tokens=-3), 'tokens is -3; expected'),
                (lambda: run.generate('a', tokens='5'), "tokens is '5'; expected"),
                (lambda: run.generate('a', tokens=True), 'tokens is True; expected'),
                (lambda: run.generate('a', strategy=3), "strategy is 3; expected an expression such as 'Greedy"),
                (lambda: run.generate('a', seed=-1), 'seed is -1; expected a whole number from 0'),
                (lambda: run.generate('a', watch='x'), "watch is 'x'; expected a function that")):
            with self.assertRaisesRegex(ValueError, message):
                call()
        with self.assertWarns(UserWarning):
            self.assertIsInstance(run.generate('a\0b', tokens=2), str)

    def test_a_run_without_a_reader(self):
        file = self.trained() / 'config.json'
        settings = json.loads(file.read_text())
        settings['data']['reader'] = ''
        file.write_text(json.dumps(settings))
        run = heed.load(file.parent)
        with self.assertRaisesRegex(ValueError, 'data.text.documents:Text has no data.reader, which predictions need'):
            run.predict('key')

    def test_a_folder_that_is_no_run_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'is not a workdir of a run: it has no config.json'):
            heed.load(self.folder)


class PiecesTest(absltest.TestCase):
    def test_a_character_of_several_tokens_waits_for_the_last(self):
        data, pieces = mock.Mock(end=0, decode=lambda ids: bytes(ids).decode(errors='replace')), []
        found = base.pieces_of(data, pieces.append)
        for token in (*'aé€'.encode(), 0):
            found(np.int32(token))
        self.assertEqual(pieces, ['a', 'é', '€'])

    def test_a_space_between_a_prompt_and_its_continuation_stays(self):
        """With a tokenizer that writes it between words alone, not before the first."""
        folder = pathlib.Path(self.create_tempdir())
        (folder / 'a.txt').write_text('the cat sat on a mat\n' * 20)
        data = Text(path=str(folder / 'a.txt'), documents='line', tokenizer=WordPiece(vocab=26), length=16).open(None)
        snapshot = types.SimpleNamespace(data=data, model=types.SimpleNamespace(length=16), params={}, key=mock.Mock())
        for prompt, text, signs in (('The cat', ' sat on', 'sat on'), ('a m', 'at', '##a ##t'), ('', 'the', 'the')):
            ids, pieces = np.array([data.tokenizer.number(sign) for sign in signs.split()]), []

            def generated(*_, ids=ids, pieces=pieces, **flags):
                for token in (*ids, data.end):
                    base.pieces_of(data, pieces.append)(token)
                return [[Hypothesis(ids, 0.0, False)]]

            with mock.patch.object(completion, 'generate', generated):
                (line, details), = completion.Completion().answers(snapshot, [prompt], '-', watch=pieces.append)
            self.assertEqual((line, details['text'], ''.join(pieces)), (prompt + text, text, text))
            self.assertLen(pieces, len(ids))


class HuggingFaceTest(recorded.TestCase):
    def test_a_folder_of_theirs(self):
        folder = self.hugging_face('gpt2')
        run, ids = heed.load(folder), np.array([[5, 9, 2, 7]])
        model, params = convert.from_hf(folder)
        np.testing.assert_allclose(run.logits(ids), model.apply({'params': params}, inputs=ids)['logits'], rtol=1e-5, atol=1e-5)
        self.assertLen(run.predict(['5 9', '2'], tokens=3), 2)
        with self.assertRaisesRegex(ValueError, "step is 'best', but .* has no checkpoints; leave it out"):
            heed.load(folder, step='best')

    def test_a_model_that_does_not_generate(self):
        run = heed.load(self.hugging_face('bert_classes'))
        with self.assertRaisesRegex(ValueError, 'types are int64 .1, 2. from 0 to 7; expected integers .* from 0 to 1'):
            run.logits([[3, 4]], types=[[0, 7]])
        with self.assertRaisesRegex(ValueError, 'TextClass does not generate text; call run.predict'):
            run.generate('a')
        self.assertIn('class', run.predict('3 4 5'))

    def test_a_model_without_logits(self):
        with self.assertRaisesRegex(ValueError, 'Bert has no logits here, but hidden, pooled; call run.model.apply'):
            heed.load(self.hugging_face('bert_model')).logits([[3, 4]])

    def test_inputs_of_a_translator(self):
        run = heed.load(self.hugging_face('t5'))
        self.assertEqual(run.logits([[5, 6], [7, 1]], decoder_inputs=[[0], [0]]).shape[:2], (2, 1))
        for call, message in (
                (lambda: run.logits([[5, 6]]), r'needs decoder_inputs too; give run.logits\(inputs=..'),
                (lambda: run.logits(decoder_inputs=[[0]]), 'EncoderDecoder needs inputs too'),
                (lambda: run.logits([[5, 6]], decoder_inputs=[[99999999]]), r'int64 \[1, 1\] from 99999999 to 99999999; exp'),
                (lambda: run.logits([[5, 6]], decoder_inputs=[[0]] * 2), r'are \[2, 1\] for inputs \[1, 2\]; expected as'),
                (lambda: run.logits([[5, 6]], decoder_inputs=[0]), r'decoder_inputs are int64 \[1\] from 0 to 0; expected')):
            with self.assertRaisesRegex(ValueError, message):
                call()

    def test_positions_beyond_the_tables_of_a_translator(self):
        run = heed.load(self.hugging_face('bart'))
        given, model = {'decoder_inputs': [[0]]}, run.model
        for name, length in (('positions', model.source_length), ('decoder_positions', model.length)):
            with self.assertRaisesRegex(ValueError, f'{name} are .* from {length} to {length}; .* from 0 to {length - 1}'):
                run.logits([[5]], **given, **{name: [[length]]})

    def test_positions_of_a_model_with_a_part_of_another_kind(self):
        model = Electra(vocab=9, length=4)
        run = heed.Run(types.SimpleNamespace(model=model, data=types.SimpleNamespace(facts={'vocab': 9})))
        self.assertEqual(run._array('positions', [[3]]).tolist(), [[3]])  # its `encoder` is a method

    def test_words_that_a_model_of_stories_does_not_know(self):
        model = types.SimpleNamespace(types=1)
        run = heed.Run(types.SimpleNamespace(model=model, data=types.SimpleNamespace(facts={'vocab': 9})))
        for name, value in (('story', [[[9]]]), ('question', [[-1]])):
            with self.assertRaisesRegex(ValueError, f'{name} are int64 .* expected integers .* from 0 to 8'):
                run._array(name, value)

    def test_a_folder_of_timm(self):
        self.assertEqual(type(heed.load(self.hugging_face('timm_swin')).model).__name__, 'Hierarchical')

    def test_inputs_of_a_model_of_images(self):
        run = heed.load(self.hugging_face('vit'))
        for call, message in (
                (lambda: run.logits([[1, 2]]), 'Vit does not take ids; known: image'),
                (lambda: run.logits(image=np.zeros((8, 8, 3))), r'image are float64 \[8, 8, 3\] .*expected floats \[rows'),
                (lambda: run.logits(image=np.zeros((0, 8, 8, 3))), r'are float64 \[0, 8, 8, 3\]; .*, each axis 1 or more\.$'),
                (lambda: run.logits(image=np.zeros((1, 0, 8, 3))), r'image are float64 \[1, 0, 8, 3\]; expected floats'),
                (lambda: run.logits(image=np.zeros((1, 8, 8, 3), int)), r'image are int64 .*floats \[.*, channels\]\.$')):
            with self.assertRaisesRegex(ValueError, message):
                call()


if __name__ == '__main__':
    absltest.main()
