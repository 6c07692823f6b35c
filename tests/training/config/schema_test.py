from collections.abc import Mapping

import ml_collections
from absl.testing import absltest, parameterized

from tests import experiments
from training.config import cli, schema


def config_of(**changes):
    """A tiny experiment whose fields may be set to anything."""
    config = ml_collections.ConfigDict(experiments.tiny('text').to_dict(), type_safe=False)
    return experiments.changed(config, **changes)


CONFIGS = [path.name for path in (experiments.ROOT / 'configs').glob('*.py') if path.stem not in experiments.NO_CONFIGS]


class SchemaTest(parameterized.TestCase):
    @parameterized.parameters(*sorted(CONFIGS))
    def test_a_config_of_ours_fits_and_one_field_more_or_less_does_not(self, name):
        config, _ = cli.load_config(f'configs/{name}')
        self.assertIsNone(schema.check(config))  # it raises what does not fit
        for changes, said in (({'train.steps': None}, 'no field train.steps'), ({'train.more': 1}, 'unknown field train.more')):
            with self.assertRaisesRegex(ValueError, said):
                schema.check(experiments.changed(cli.load_config(f'configs/{name}')[0], **changes))

    @parameterized.parameters(
        *schema.FIELDS, *(f'{part}.{name}' for part, (fields, _) in schema.PARTS.items() for name in fields),
        'evals.valid.split')
    def test_a_field_that_is_missing_is_named(self, name):
        with self.assertRaisesRegex(ValueError, f'The config has no field {name}; '):
            schema.check(config_of(**{name: None}))

    @parameterized.parameters(*((name, kind) for name, kind in schema.FIELDS.items()))
    def test_a_value_of_another_kind_is_refused(self, name, kind):
        wanted = 'a group of fields' if kind is Mapping else kind.__name__
        with self.assertRaisesRegex(ValueError, f'{name} is .*; expected {wanted}'):
            schema.check(config_of(**{name: 5 if kind is str else 'x'}))

    @parameterized.parameters(*schema.AT_LEAST.items())
    def test_a_number_below_the_least_is_refused(self, name, least):
        with self.assertRaisesRegex(ValueError, f'{name} is .*; set it to at least {least}'):
            schema.check(config_of(**{name: least - 1}))

    @parameterized.parameters(
        ('sede', "unknown field 'sede'; did you mean 'seed'"), ('mesh.dta', "unknown field mesh.dta; .* mean 'data'"))
    def test_an_unknown_field_is_refused(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            schema.check(config_of(**{name: 1}))

    @parameterized.parameters(
        ({'dtype': 'float16'}, "^dtype is 'float16'; expected one of float32, bfloat16, float64"),
        ({'parameter_dtype': 'float16'}, "^parameter_dtype is 'float16'; expected one of float32, bfloat16, float64"),
        ({'parameter_dtype': 'float64'}, "^parameter_dtype='float64' is for proofs .* dtype is 'float32'; set dtype='float64'"),
        ({'parameter_dtype': 'mixed'}, "^parameter_dtype is 'mixed'; expected one of float32, bfloat16, float64"),
        ({'parameter_dtype': 'float64', 'dtype': 'bfloat16'}, "dtype is 'bfloat16'; set dtype='float64'"))
    def test_types_that_nothing_is_computed_or_stored_in_are_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            schema.check(config_of(**changes))
        for stored in ('float32', 'bfloat16', 'float64'):
            schema.check(config_of(dtype='float64', parameter_dtype=stored))

    @parameterized.parameters('train', 'timing')
    def test_an_evaluation_with_the_name_of_other_rows_is_refused(self, name):
        config = config_of()
        config.evals[name] = config.evals.valid
        with self.assertRaisesRegex(ValueError, f'evals.{name} has the name of the rows of {name} itself; give it another'):
            schema.check(config)

    @parameterized.parameters(('seed', 1 << 32), ('train.steps', 1 << 31))
    def test_numbers_that_the_device_cannot_count_are_refused(self, name, value):
        with self.assertRaisesRegex(ValueError, f'{name} is {value}; set it to less than 2'):
            schema.check(config_of(**{name: value}))
        config = config_of(**{name: value - 1, 'log.every_steps': 1})
        schema.check(config)


if __name__ == '__main__':
    absltest.main()
