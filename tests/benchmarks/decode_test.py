"""benchmarks/decode.py: every number of its lines, on a tiny model."""

import contextlib
import io
import json
from unittest import mock

import pytest
from absl import flags
from absl.testing import absltest

from benchmarks import decode
from tests.models import changed

TINY = {name: changed(model, vocab=11, layers=1, heads=2, width=8, **{'feed_forward.inner': 8})
        for name, model in decode.MODELS.items()}
SHAPES = dict(batch=2, source=5, tokens=4, repeats=3)


class DecodeTest(absltest.TestCase):
    def lines(self, *cases, model='t5_small', **changes):
        given = mock.Mock(cases=cases, model=model, **SHAPES | changes)
        out = io.StringIO()
        with (mock.patch.object(decode, 'MODELS', TINY), mock.patch.object(flags, 'FLAGS', given),
              contextlib.redirect_stdout(out)):
            decode.main()
        return [json.loads(line) for line in out.getvalue().splitlines()]

    @pytest.mark.slow
    def test_every_number(self):
        rows = [*self.lines('greedy', 'beam'), *self.lines('greedy', model='gpt2')]
        self.assertEqual([(row['case'], row['model']) for row in rows], [
            ('greedy', 't5_small'), ('beam', 't5_small'), ('greedy', 'gpt2')])
        for row in rows:
            self.assertEqual(list(row), ['case', 'model', 'batch', 'source', 'tokens', 'ms', 'ms_min', 'ms_max', 'tokens_per_s',
                                         'first_s', 'device', 'cores', 'jax', 'peak_rss_mb'])
            self.assertEqual((row['batch'], row['source'], row['tokens']), (2, 5, 4))
            self.assertBetween(row['ms'], row['ms_min'], row['ms_max'])
            rounding = 0.05 * (row['tokens_per_s'] + row['ms'] + 0.05) / 1e3  # of both to a tenth
            self.assertAlmostEqual(row['tokens_per_s'] * row['ms'] / 1e3, 2 * 4, delta=rounding)
            self.assertGreater(row['first_s'], row['ms'] / 1e3)  # it compiles

    def test_more_tokens_than_the_model_has_positions_for(self):
        for model, source, tokens, most in (('gpt2', 1000, 26, 25), ('gpt2', 2000, 1, 0), ('t5_small', 100, 600, 512)):
            with self.assertRaisesRegex(ValueError, f'^--tokens={tokens} is too many .* of {model}, .* for {most} new ones'):
                self.lines('greedy', model=model, source=source, tokens=tokens)

    def test_an_unknown_case(self):
        with self.assertRaisesRegex(ValueError, "--cases has 'gredy'; did you mean 'greedy'"):
            self.lines('gredy')


if __name__ == '__main__':
    absltest.main()
