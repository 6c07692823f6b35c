import types

import numpy as np
from absl.testing import absltest, parameterized

from data.text import frames
from tests.models import build
from transformer.explain import attention
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.tasks.reading import Spans, Tags


class RowTest(parameterized.TestCase):
    @parameterized.parameters((Tags, (0, 5, 6, 2)), (Spans, (9, 0, 5, 6)))
    def test_a_decoder_is_shown_what_it_reads_in_the_task(self, task, wanted):
        """Of tags the text as it is, not moved by one."""
        model = build(EncoderDecoder, vocab=10, source_vocab=0, layers=1, heads=1, width=4)
        run, given = types.SimpleNamespace(task=task(types=False, start=9)), {}

        def captured(*names, **inputs):
            given.update(inputs)
            even = np.full((1, 1, 4, 4), 0.25, np.float32)
            return {f'{name}attention': even for name in ('encoder/block_0/', 'decoder/block_0/', 'decoder/block_0/cross_')}

        data = types.SimpleNamespace(pieces=lambda ids: [str(i) for i in ids], rows=frames.rows)
        ids = np.array([0, 5, 6, 2], np.int32)
        snapshot = types.SimpleNamespace(data=data, run=run, model=model, captured=captured)
        view, _, more = attention.of_row(snapshot, ids, np.zeros_like(ids))
        np.testing.assert_array_equal(given['decoder_inputs'], [wanted])
        self.assertEqual(view.sections[-1].queries, [str(i) for i in wanted])
        self.assertEqual((more['source'], more['output']), (['0', '5', '6', '2'],) * 2)


if __name__ == '__main__':
    absltest.main()
