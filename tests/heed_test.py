import json
import types

import numpy as np
from absl.testing import absltest

import convert
import heed
from tests import experiments, recorded
from transformer.readers import base


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
        ids = np.array([[1, 2, 3]])
        wanted = run.model.apply({'params': run.params}, inputs=ids)['logits']
        np.testing.assert_allclose(run.logits(ids), wanted, rtol=1e-4, atol=1e-5)
        self.assertEqual(run.config.model.layers, run.model.stack.layers)
        pieces = []
        flags = dict(tokens=9, strategy='Sample(constraint=MinLength(9))')
        text = run.generate('key', watch=pieces.append, **flags)
        self.assertEqual(''.join(pieces), text)
        self.assertGreater(len(pieces), 5)
        self.assertEqual(text, run.generate('key', **flags))
        with self.assertRaisesRegex(ValueError, "Completion does not take token; did you mean 'tokens'"):
            run.predict('key', token=5)
        with self.assertRaisesRegex(ValueError, "strategy is 'Beem..': there is no 'Beem'; did you mean 'Beam'"):
            run.generate('key', strategy='Beem()')

    def test_what_is_no_text_and_no_ids(self):
        run = heed.load(self.trained())
        for call, message in (
                (lambda: run.generate('a\ud800'), r'Line 1 of the inputs is no text: its character 1 is U\+D800'),
                (lambda: run.generate(5), 'The inputs are 5; expected a string, or a list of strings'),
                (lambda: run.predict([b'a']), r"The inputs are \[b'a'\]; expected a string"),
                (lambda: run.logits([[1, 23]]), r'The ids are int64 \[1, 2\] from 1 to 23; expected integers .* from 0 to 22'),
                (lambda: run.logits([1.5]), r'The ids are float64 \[1\] from 1.5')):
            with self.assertRaisesRegex(ValueError, message):
                call()
        self.assertIsInstance(run.generate('a\0b', tokens=2), str)

    def test_a_folder_that_is_no_run_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'is not a workdir of a run: it has no config.json'):
            heed.load(self.folder)


class PiecesTest(absltest.TestCase):
    def test_a_character_of_several_tokens_waits_for_the_last(self):
        data, pieces = types.SimpleNamespace(end=0, decode=lambda ids: bytes(ids).decode(errors='replace')), []
        found = base._Pieces(data, pieces.append)
        for token in (*'aé€'.encode(), 0):
            found(np.int32(token))
        self.assertEqual(pieces, ['a', 'é', '€'])


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
        with self.assertRaisesRegex(ValueError, 'TextClass does not generate text; call run.predict'):
            run.generate('a')
        self.assertIn('class', run.predict('3 4 5'))


if __name__ == '__main__':
    absltest.main()
