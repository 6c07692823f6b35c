"""tests/programs.py notices programs that do more than those on record."""

from absl.testing import absltest, parameterized

from tests import programs

RECORD = {'versions': 'jax 1, libtpu 1', 'traffic_gb': 0.2, 'temporaries_gb': 0.03, 'operations': {'fusion': 68, 'copy': 22},
          'collectives': {'all-reduce over data': [2, 0.001], 'all-gather over fsdp': [1, 0.002]}}
OTHER = 'jax 2, libtpu 1'


class DifferencesTest(parameterized.TestCase):

    @parameterized.parameters(
        (dict(), []), (dict(traffic_gb=0.2019), []), (dict(traffic_gb=0.18), ['traffic_gb']),
        (dict(temporaries_gb=0.031), ['temporaries_gb']), (dict(operations={'fusion': 68, 'copy': 23}), ['operations']),
        (dict(collectives={'all-reduce over data': [3, 0.001]}), ['collectives']))
    def test_of_the_same_versions_all_is_the_same(self, changes, wanted):
        self.assertEqual(programs.differences(RECORD | changes, RECORD), wanted)

    @parameterized.parameters(
        (dict(), []), (dict(operations={'fusion': 90}), []), (dict(traffic_gb=0.1, temporaries_gb=0.0), []),
        (dict(traffic_gb=0.24, temporaries_gb=0.036), []), (dict(collectives={'all-reduce over data': [4, 0.001]}), []),
        (dict(traffic_gb=0.4), ['traffic_gb']), (dict(temporaries_gb=0.06), ['temporaries_gb']),
        (dict(collectives=RECORD['collectives'] | {'all-to-all over fsdp': [1, 1e-9]}), ['collectives']),
        (dict(collectives={'all-reduce over data fsdp': [2, 0.001]}), ['collectives']))
    def test_of_other_versions_only_more_is_noticed(self, changes, wanted):
        self.assertEqual(programs.differences(RECORD | changes | {'versions': OTHER}, RECORD), wanted)

    def test_a_program_of_a_few_kilobytes_may_have_another_buffer(self):
        small = RECORD | {'traffic_gb': 2e-5, 'temporaries_gb': 0.0}
        self.assertEmpty(programs.differences(small | {'temporaries_gb': 1e-5, 'versions': OTHER}, small))


if __name__ == '__main__':
    absltest.main()
