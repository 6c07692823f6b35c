import abc
import dataclasses
import json

import ml_collections
from absl.testing import absltest, parameterized

from training import resolve
from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Causal, Full, Window
from transformer.gpt import Gpt
from transformer.strategies import Greedy, Sample, Strategy

GPT = 'transformer.gpt:Gpt'


@dataclasses.dataclass(frozen=True)
class Part:
    """Base of the parts below."""


@dataclasses.dataclass(frozen=True)
class Shift(Part):
    pixels: int = 1
    scale: float = 1.0
    name_of_it: str = ''
    fill: bool = False


@dataclasses.dataclass(frozen=True)
class Whole:
    part: Part = Shift()
    rate: float = 0.5
    count: int = dataclasses.field(default_factory=lambda: 7)


@dataclasses.dataclass(frozen=True)
class Base(abc.ABC):
    @abc.abstractmethod
    def __call__(self):
        pass


HERE = f'{__name__}:Whole'


class DescribeTest(parameterized.TestCase):
    def test_every_field_is_there_with_its_default_or_what_is_given(self):
        config = resolve.describe(GPT, layers=3, mask='Full()')
        self.assertEqual(config.name, GPT)
        self.assertEqual(set(config), {f.name for f in dataclasses.fields(Gpt)} - {'parent'})
        self.assertEqual((config.layers, config.heads, config.mask, config.vocab), (3, 12, 'Full()', None))
        self.assertEqual(resolve.describe(GPT).mask, 'Causal()')
        self.assertEqual(resolve.describe(HERE, 'pipeline').to_dict(), {
            'pipeline': HERE, 'part': repr(Shift()), 'rate': 0.5, 'count': 7})

    def test_round_trip_through_json(self):
        config = resolve.describe(GPT, vocab=11, mask=Causal() & ~Window(2), dropout=0.25)
        again = ml_collections.ConfigDict(json.loads(json.dumps(config.to_dict())))
        self.assertEqual(resolve.construct(again), Gpt(vocab=11, mask=Causal() & ~Window(2), dropout=0.25))
        self.assertEqual(resolve.construct(resolve.describe(HERE, part=Shift(3))), Whole(Shift(3)))

    @parameterized.parameters(
        ('transformer.gpt:Gtp', "no class 'Gtp' in transformer.gpt; did you mean 'Gpt'"),
        ('transformer.gpt:Block', "no class 'Block' in transformer.gpt"),  # imported there, defined elsewhere
        ('transformer.gtp:Gpt', "no module 'transformer.gtp'"),
        ('transfomer.gpt:Gpt', "no module 'transfomer'"),
        ('transformer.gpt', 'does not name a class'),
        ('transformer.evaluators:Evaluator', 'Evaluator is only a base of others; known: Averages, '),
        ('transformer.tasks:Prediction', 'Prediction is only a base of others; known: NextToken'),
        (f'{__name__}:Base', 'Base is only a base of others; known: none'))
    def test_paths_that_name_no_class_to_use(self, path, message):
        with self.assertRaisesRegex(ValueError, message):
            resolve.describe(path)

    def test_unknown_field(self):
        with self.assertRaisesRegex(ValueError, "Gpt has no field 'layer'; did you mean 'layers'"):
            resolve.describe(GPT, layer=3)


class ConstructTest(parameterized.TestCase):
    def test_tuples_come_back_from_json(self):
        kept = ((0, 1), (), (2,))
        config = resolve.describe(GPT, vocab=5, kept=kept)
        read = ml_collections.ConfigDict(json.loads(config.to_json()))
        self.assertEqual(resolve.construct(read).kept, kept)
        hash(resolve.construct(read))

    def test_open_fields_are_filled_and_given_ones_kept(self):
        facts = {'vocab': 65, 'layers': 99, 'unknown': 1}
        self.assertEqual(resolve.construct(resolve.describe(GPT, layers=2), extra=facts), Gpt(vocab=65, layers=2))
        self.assertEqual(resolve.construct(resolve.describe(GPT, vocab=11), extra=facts).vocab, 11)

    def test_a_field_that_the_config_does_not_have_comes_from_the_facts(self):
        config = resolve.describe(GPT, vocab=5)
        del config.dtype
        self.assertEqual(resolve.construct(config, extra={'dtype': 'bfloat16'}).dtype, 'bfloat16')

    def test_a_field_that_stays_open_is_refused(self):
        with self.assertRaisesRegex(ValueError, "Gpt needs a value for 'vocab'"):
            resolve.construct(resolve.describe(GPT))

    def test_fields_that_are_not_of_the_class(self):
        config = ml_collections.ConfigDict({'name': HERE, 'rat': 0.1})
        with self.assertRaisesRegex(ValueError, "Whole has no field 'rat'; did you mean 'rate'"):
            resolve.construct(config)
        self.assertEqual(resolve.construct(config, ignore=('rat',)), Whole())


class ParseTest(parameterized.TestCase):
    @parameterized.parameters(('Window(3, size=4)', 'Window has two values for size; give one'),
                              ('Window(size=3, 4)', 'not a call expression'))
    def test_a_value_is_given_once(self, text, message):
        with self.assertRaisesRegex(ValueError, message):
            resolve.parse(text, Mask, 'mask')

    @parameterized.parameters(
        ('Causal()', Causal()), ('Causal', Causal()), (' Window(size=3) ', Window(3)), ('Window(3)', Window(3)),
        ('Causal() & Window(3)', Causal() & Window(3)), ('Causal() | ~Window(3)', Causal() | ~Window(3)),
        ('~(Full() & (Causal() | Window(2)))', ~(Full() & (Causal() | Window(2)))))
    def test_expressions_of_masks(self, text, wanted):
        self.assertEqual(resolve.parse(text, Mask, 'mask'), wanted)

    def test_numbers_strings_and_booleans(self):
        self.assertEqual(resolve.parse("Shift(-2, scale=3, name_of_it='a', fill=True)", Part, 'part'),
                         Shift(-2, 3.0, 'a', True))
        self.assertIs(type(resolve.parse('Sample(temperature=2)', Strategy, 'strategy').temperature), float)
        self.assertEqual(resolve.parse('Greedy()', Strategy, 'strategy'), Greedy())

    @parameterized.parameters(
        ('Causl()', "there is no 'Causl'; did you mean 'Causal'"),
        ('Window(sise=3)', "Window has no field 'sise'; did you mean 'size'"),
        ('Window()', "missing a required argument: 'size'"), ('Window(1, 2, 3)', 'too many positional arguments'),
        ("Window(size='3')", "size of Window is '3'; expected int"), ('Window(2.5)', 'expected int'),
        ('Window(True)', 'expected int'), ('Window(size=0)', 'at least 1'),
        ('Causal(', 'not a call expression'), ('', 'not a call expression'),
        ('3', 'expected one of'), ("'Causal()'", 'expected one of'), ('Mask()', "there is no 'Mask'"),
        ('Causal() & 3', 'Causal'), ('3 | Causal()', 'Causal'), ('~3', 'Causal'), ('Causal() & (1, 2)', 'Causal'))
    def test_mistakes_are_named(self, text, message):
        with self.assertRaisesRegex(ValueError, message):
            resolve.parse(text, Mask, 'mask')

    @parameterized.parameters(
        'Causal().__class__', 'jnp.ones(3)', 'lambda: 1', '__import__("os")', 'jnp', 'Any', 'dataclasses', '[c for c in "a"]',
        'Causal() and Full()', 'Causal() if True else Full()', 'Causal() + Full()', 'f"{1}"', 'Window(*[1])',
        'Window(**{"size": 1})', 'Window(size=open("x"))', '(x := Causal())', 'Causal()()')
    def test_nothing_else_of_python_is_evaluated(self, text):
        with self.assertRaisesRegex(ValueError, "^mask is '.*(is not allowed here|there is no|has no field)"):
            resolve.parse(text, Mask, 'mask')

    def test_operators_of_parts_that_have_none(self):
        with self.assertRaisesRegex(ValueError, 'strategy is'):
            resolve.parse('Greedy() | Sample()', Strategy, 'strategy')

    def test_a_part_of_another_kind_is_refused(self):
        self.assertEqual(resolve.construct(resolve.describe(
            'transformer.evaluators:Continuations', strategy='Sample(top_k=4)')).strategy, Sample(top_k=4))
        with self.assertRaisesRegex(ValueError, "strategy is 'Causal\\(\\)': there is no 'Causal'"):
            resolve.construct(resolve.describe('transformer.evaluators:Continuations', strategy='Causal()'))


class DidYouMeanTest(parameterized.TestCase):
    def test_names_the_closest_or_all(self):
        self.assertEqual(resolve.did_you_mean('layer', ['layers', 'heads']), "did you mean 'layers' (known: heads, layers)?")
        self.assertEqual(resolve.did_you_mean('layer', ['layers', *'abcdef']), "did you mean 'layers'?")
        self.assertEqual(resolve.did_you_mean('layer', ['layers']), "did you mean 'layers'?")
        self.assertEqual(resolve.did_you_mean('zzz', ['layers', 'heads']), 'known: heads, layers.')
        self.assertEqual(resolve.did_you_mean('zzz', []), 'known: none.')


if __name__ == '__main__':
    absltest.main()
