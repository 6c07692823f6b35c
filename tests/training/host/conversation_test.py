import contextlib
import io
from unittest import mock

from absl.testing import absltest

import heed
from tests import recorded
from training.host.conversation import SETTINGS, Conversation


class ConversationTest(recorded.TestCase):
    def said(self, run, settings, *inputs):
        """What is printed after each input; the inputs end as a terminal does."""
        out, parts = io.StringIO(), []

        def asked(prompt):
            parts.append(out.getvalue())
            out.seek(0)
            out.truncate()
            if len(parts) > len(inputs):
                raise EOFError
            return inputs[len(parts) - 1]

        with mock.patch('builtins.input', asked), contextlib.redirect_stdout(out):
            Conversation(run, settings).start('runs/x')
        return parts

    def test_continues_texts_and_takes_settings(self):
        run = heed.load(self.trained())
        settings = dict(strategy=None, tokens=5, seed=3)
        first, *parts = self.said(run, settings, 'key', 'key', ':set temperature=0.5', ':settings', 'key', '', ':what')
        self.assertEqual(first, 'runs/x: a model of text to continue; :help shows the commands.\n')
        made = [run.generate('key', tokens=5, seed=seed, strategy=f'Sample(temperature={t})')
                for seed, t in ((3, 0.8), (4, 0.8), (5, 0.5))]
        self.assertEqual([part.replace('\n', '') for part in (parts[0], parts[1], parts[4])],
                         [f'key{text}'.replace('\n', '') for text in made])
        self.assertStartsWith(parts[3], 'strategy=Sample(temperature=0.5, ')
        self.assertIn('\ntokens=5\nseed=5\njson=False\n', parts[3])
        self.assertStartsWith(parts[2], 'strategy=Sample(temperature=0.5, ')
        self.assertEqual(parts[5], '')
        self.assertStartsWith(parts[6], 'There is no command :what.\n:set NAME=VALUE')

    def test_every_flag_of_a_reader_is_a_setting(self):
        self.assertEqual({*SETTINGS} - {'json'}, {*heed._FLAGS} - {'strategy', 'watch'})
        for name, (_, *bounds) in SETTINGS.items():
            for value in bounds:
                self.assertTrue(heed._FLAGS[name][0](value))
            for value in (bounds[0] - 1, bounds[1] + 1) if bounds else ():
                self.assertFalse(heed._FLAGS[name][0](value))
                with self.assertRaisesRegex(ValueError, f'{name} is {value}; expected {bounds[0]} to {bounds[1]}'):
                    Conversation(mock.Mock(), {name: 1}).set(name, str(value))

    def test_an_interrupted_answer_ends_and_the_conversation_goes_on(self):
        run = heed.load(self.trained())
        calls, usual = [], Conversation.show

        def show(conversation, text):
            calls.append(text)
            if len(calls) == 2:
                raise KeyboardInterrupt
            usual(conversation, text)

        with mock.patch.object(Conversation, 'show', show):
            parts = self.said(run, dict(strategy='Greedy()', tokens=8, seed=3), 'key', 'key', ':settings')
        self.assertEndsWith(parts[1], '\n(interrupted; :quit ends)\n')
        self.assertEqual(parts[2].strip(), f'key{run.generate("key", strategy="Greedy()", tokens=8)}'.strip())
        self.assertIn('tokens=8', parts[3])

    def test_other_strategies_and_mistakes(self):
        run = heed.load(self.trained())
        inputs = {':set strategy=Beam(size=2)': '^strategy=Beam', 'row': '^row[^\n]*\n$',
                  ':set json=true': '^json=True', 'key': '^{"prompt": "key", ',
                  ':set temprature=1': "There is no setting 'temprature'; known: ",
                  ':set tokens=0': 'tokens is 0; expected 1 to 2147483647',
                  ':set size=x': "size is 'x'; expected a whole number", ':set size=0': r'Beam\(.*size is 0; expected 1 to',
                  ':set strategy=Beem()': "there is no 'Beem'; did you mean 'Beam'",
                  ':set constraint=MinLength(2)': '^strategy=Beam.*MinLength',
                  ':set json=maybe': "json is 'maybe'; expected true or false", ':set prefix=a': "no setting 'prefix'"}
        parts = self.said(run, dict(strategy=None, tokens=3, seed=0), *inputs, ':quit', 'never asked')
        for (given, message), part in zip(inputs.items(), parts[1:], strict=True):
            with self.subTest(given):
                self.assertRegex(part, message or '^$')

    def test_a_model_that_does_not_generate(self):
        run = heed.load(self.hugging_face('bert_classes'))
        parts = self.said(run, {}, '3 4 5', 'x', ':set seed=1')
        self.assertRegex(parts[1], '^[a-z]+\t0[.]')
        self.assertIn("'x' is no token", parts[2])
        self.assertIn("There is no setting 'seed'; known: json.", parts[3])


if __name__ == '__main__':
    absltest.main()
