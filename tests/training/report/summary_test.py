import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from training.report import summary
from transformer.evaluators.base import Averages
from transformer.evaluators.reading import ClassScores

ROWS = [{'step': 1, 'split': 'train', 'loss': 2.0}, {'step': 2, 'split': 'train', 'loss': 1.25},
        {'step': 2, 'split': 'valid', 'loss': 1.5, 'perplexity': 4.481689}, {'step': 2, 'split': 'scores', 'f1': 50.0}]


class SummaryTest(parameterized.TestCase):
    def test_a_line_names_its_numbers(self):
        self.assertEqual(summary.line(ROWS[2]), 'loss 1.5  perplexity 4.48169')
        self.assertEqual(summary.line({'weight': 123456.0}), 'weight 123,456')

    def test_numbers_in_per_cent_say_so(self):
        row = {'step': 2, 'accuracy': 0.5, 'f1': 33.3333, 'bleu/1-5': 20.0, 'pairs/1-5': 12}
        self.assertEqual(summary.line(row, ('f1', 'bleu')), 'accuracy 0.5  f1 33.3333%  bleu/1-5 20%  pairs/1-5 12')

    def test_shows_the_last_rows_the_last_samples_and_the_plot(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS))
            (folder / 'samples').mkdir()
            for step in (1, 2):
                (folder / f'samples/continuations_{step}.txt').write_text(f'text of step {step}\n')
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                summary.show(folder, {'valid': Averages(), 'scores': ClassScores()})
            shown = printed.getvalue()
            for part in ('trained for 2 steps', 'train: loss 1.25', 'valid: loss 1.5  perplexity 4.48169',
                         'scores: f1 50%\n', 'text of step 2', 'continuations ('):
                self.assertIn(part, shown)
            self.assertNotIn('text of step 1', shown)
            plot = shown.splitlines()[-1].partition(': the losses')[0]
            self.assertTrue(pathlib.Path(plot).is_file(), shown)


if __name__ == '__main__':
    absltest.main()
