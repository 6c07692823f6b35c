import abc
import collections.abc
import dataclasses
import json
import pathlib
import sys
from unittest import mock

import ml_collections
from absl.testing import absltest, parameterized

from configs import base
from tests import experiments, models
from training.config import cli, resolve
from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.decoding.strategies import Greedy, Sample, Strategy
from transformer.layers.activations import Relu
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.norm import RMSNorm
from transformer.layers.stack import Stack
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt

GPT = 'transformer.models.gpt:Gpt'


@dataclasses.dataclass(frozen=True)
class Part:
    """Base of the parts below."""

    def __rshift__(self, other):
        return Several(self, other)


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
class Optional:
    part: Part | None = None


@dataclasses.dataclass(frozen=True)
class Nested(Part):
    inner: Part | None = Shift()


@dataclasses.dataclass(frozen=True, init=False)
class Several(Part):
    parts: tuple[Part, ...]
    share: float = 0.5

    def __init__(self, *parts, share=0.5):
        object.__setattr__(self, 'parts', parts)
        object.__setattr__(self, 'share', share)


@dataclasses.dataclass(frozen=True)
class Group:
    rate: float = 0.5
    part: Part = Shift()


@dataclasses.dataclass(frozen=True)
class Holder:
    parts: tuple[Part, ...] = ()
    groups: collections.abc.Mapping[str, Group] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Base(abc.ABC):
    @abc.abstractmethod
    def __call__(self):
        pass


@dataclasses.dataclass(frozen=True)
class Inside:
    count: int = 3
    group: Group = dataclasses.field(default=Group(part=Shift(4)), metadata={'inline': True})
    other: Group = Group()


HERE, INSIDE = f'{__name__}:Whole', f'{__name__}:Inside'
PAIR = 'transformer.models.encoder_decoder:EncoderDecoder'


class DescribeTest(parameterized.TestCase):
    def test_every_field_is_there_with_its_default_or_what_is_given(self):
        config = resolve.describe(GPT, layers=3, mask='Full()')
        self.assertEqual(config.name, GPT)
        own = {f.name for cls in (Gpt, Stack) for f in dataclasses.fields(cls)}
        self.assertEqual(set(config), own - {'parent', 'stack'})  # the stack's fields are the model's
        self.assertEqual((config.layers, config.heads, config.mask, config.vocab), (3, 12, 'Full()', None))
        self.assertEqual(resolve.describe(GPT).mask, 'Causal()')
        self.assertEqual(resolve.describe(HERE, 'pipeline').to_dict(), {
            'pipeline': HERE, 'part': repr(Shift()), 'rate': 0.5, 'count': 7})

    def test_round_trip_through_json(self):
        config = resolve.describe(GPT, vocab=11, mask=Causal() & ~Window(2), dropout=0.25)
        again = ml_collections.ConfigDict(json.loads(json.dumps(config.to_dict())))
        self.assertEqual(resolve.construct(again), models.build(Gpt, vocab=11, mask=Causal() & ~Window(2), dropout=0.25))
        self.assertEqual(resolve.construct(resolve.describe(HERE, part=Shift(3))), Whole(Shift(3)))

    @parameterized.parameters(
        ('transformer.models.gpt:Gtp', "no class 'Gtp' in transformer.models.gpt; did you mean 'Gpt'"),
        ('transformer.models.gpt:Block', "no class 'Block' in transformer.models.gpt"),  # imported there, defined elsewhere
        ('transformer.gtp:Gpt', "no module 'transformer.gtp'"),
        ('transfomer.gpt:Gpt', "no module 'transfomer'"),
        ('transformer.models.gpt', 'does not name a class'),
        ('transformer.decoding.strategies:Strategy', 'Strategy is only a base of others; known: Beam, '),
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
        self.assertEqual(resolve.construct(read).stack.kept, kept)
        hash(resolve.construct(read))

    def test_open_fields_are_filled_and_given_ones_kept(self):
        facts = {'vocab': 65, 'layers': 99, 'unknown': 1}
        self.assertEqual(resolve.construct(resolve.describe(GPT, layers=2), extra=facts),
                         models.build(Gpt, vocab=65, layers=2))
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

    def test_tuples_and_groups_of_parts(self):
        path = f'{__name__}:Holder'
        self.assertEqual(resolve.construct(resolve.describe(path)), Holder())
        config = resolve.describe(path, parts='(Shift(2), Several())', groups={'a': {'rate': 1}, 'b': Group(part=Shift(3))})
        self.assertEqual(config.groups.to_dict(), {
            'a': {'rate': 1.0, 'part': repr(Shift())}, 'b': {'rate': 0.5, 'part': repr(Shift(3))}})
        config.groups.a.part = 'Shift(4)'
        held = Holder((Shift(2), Several()), {'a': Group(1.0, Shift(4)), 'b': Group(part=Shift(3))})
        self.assertEqual(resolve.construct(ml_collections.ConfigDict(json.loads(config.to_json()))), held)
        self.assertEqual(resolve.construct(resolve.describe(path, parts=(Shift(2), Shift()))).parts, (Shift(2), Shift()))
        for parts, message in (('Shift(2)', 'parts is .*a tuple of Nested, Several, Shift'), ('(3,)', 'expected one of')):
            with self.assertRaisesRegex(ValueError, message):
                resolve.construct(resolve.describe(path, parts=parts))
        with self.assertRaisesRegex(ValueError, r"Holder.groups.a has no field 'rat'; did you mean 'rate'"):
            resolve.describe(path, groups={'a': {'rat': 1}})
        with config.unlocked():
            config.groups.a.rat = 1
        with self.assertRaisesRegex(ValueError, r"Holder.groups.a has no field 'rat'; did you mean 'rate'"):
            resolve.construct(config)

    def test_a_part_that_may_be_missing_is_an_empty_string_then(self):
        path = f'{__name__}:Optional'
        self.assertEqual(resolve.describe(path).to_dict(), {'name': path, 'part': ''})
        for given in (None, Shift(2), Nested(None)):
            self.assertEqual(resolve.construct(resolve.describe(path, part=given)), Optional(given))
        with self.assertRaisesRegex(ValueError, "there is no 'Shit'; did you mean 'Shift'"):
            resolve.construct(resolve.describe(path, part='Shit()'))
        with self.assertRaisesRegex(ValueError, "part is '': this is not a call expression"):
            resolve.construct(resolve.describe(HERE, part=''))


class InlinedTest(parameterized.TestCase):
    """A field whose own fields are those of the class that has it, and fields that are groups."""

    def test_fields_are_told_and_made_again(self):
        config = resolve.describe(INSIDE, rate=2)
        self.assertEqual(config.to_dict(), {'name': INSIDE, 'count': 3, 'rate': 2.0, 'part': repr(Shift(4)),
                                            'other': {'rate': 0.5, 'part': repr(Shift())}})
        self.assertEqual(resolve.construct(config), Inside(group=Group(2.0, Shift(4))))
        config.part, config.other.part = 'Nested(None)', 'Shift(7)'
        self.assertEqual(resolve.construct(config), Inside(group=Group(2.0, Nested(None)), other=Group(part=Shift(7))))

    def test_what_is_left_out_is_that_of_the_default(self):
        config = resolve.describe(INSIDE)
        del config.part
        del config.other.rate
        self.assertEqual(resolve.construct(config), Inside())

    def test_a_group_is_given_by_its_fields_or_whole(self):
        for given in ({'rate': 1}, Group(1.0)):
            config = resolve.describe(INSIDE, other=given)
            self.assertEqual(config.other.to_dict(), {'rate': 1.0, 'part': repr(Shift())})
            self.assertEqual(resolve.construct(config).other, Group(1.0))

    def test_a_mistake_in_a_group_names_the_group(self):
        config = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(heads=2, width=8), vocab=5)
        config.decoder.heads = 0
        with self.assertRaisesRegex(ValueError, '^decoder of .*:EncoderDecoder: heads is 0; set it to at least 1'):
            resolve.construct(config)

    @parameterized.parameters(
        (dict(rat=1), "Inside has no field 'rat'; did you mean 'rate'"), (dict(group=Group()), "Inside has no field 'group'"),
        (dict(rate='x'), "rate of .*Inside is 'x'; expected float"),
        (dict(other={'rat': 1}), "Inside.other has no field 'rat'; did you mean 'rate'"),
        (dict(other={'rate': 'x'}), "rate of .*Inside.other is 'x'; expected float"))
    def test_mistakes_are_one_sentence(self, given, message):
        with self.assertRaisesRegex(ValueError, message) as caught:
            resolve.describe(INSIDE, **given)
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters(
        ('other', 5, "other of .*Inside is 5; expected a group of fields, such as other.rate"),
        ('other', 'Group()', "expected a group of fields, such as other.rate"),
        ('other.rat', 1, "Inside.other has no field 'rat'; did you mean 'rate'"),
        ('other.rate', 'x', "rate of .*Inside.other is 'x'; expected float"),
        ('other.part', 'Shit()', "part is 'Shit..': there is no 'Shit'; did you mean 'Shift'"),
        ('rat', 1, "Inside has no field 'rat'; did you mean 'rate'"), ('group', {}, "Inside has no field 'group'"),
        ('part', 'Shit()', "there is no 'Shit'; did you mean 'Shift'"),
        ('rate', 'x', "rate of .*Inside is 'x'; expected float"))
    def test_mistakes_in_a_config_too(self, name, value, message):
        config = ml_collections.ConfigDict(resolve.describe(INSIDE).to_dict(), type_safe=False)
        *groups, last = name.split('.')
        (config[groups[0]] if groups else config)[last] = value
        with self.assertRaisesRegex(ValueError, message) as caught:
            resolve.construct(config)
        self.assertNotIn('\n', str(caught.exception))

    def test_models(self):
        config = base.part(PAIR, vocab=11, source_vocab=0, **base.both(layers=2, feed_forward='Gated(inner=6)'), share=False)
        self.assertEqual(set(config.encoder), {f.name for f in dataclasses.fields(Stack)})
        self.assertEqual((config.decoder.mask, config.encoder.mask), ('Causal()', 'Full()'))
        config.encoder.layers, config.decoder.norm = 3, 'RMSNorm(epsilon=0.1)'
        again = ml_collections.ConfigDict(json.loads(json.dumps(config.to_dict())))
        made = resolve.construct(again)
        wanted = models.build(EncoderDecoder, vocab=11, source_vocab=0, layers=2, feed_forward=Gated(6), share=False,
                              **{'encoder.layers': 3, 'decoder.norm': RMSNorm(0.1)})
        self.assertEqual(made, wanted)
        self.assertEqual(hash(made), hash(wanted))
        with config.unlocked(), self.assertRaisesRegex(ValueError, "EncoderDecoder.encoder has no field 'bias'"):
            config.encoder.bias = False
            resolve.construct(config)

    def test_a_config_says_what_has_no_biases(self):
        made = resolve.construct(base.part(GPT, vocab=5, **base.NO_BIASES))
        self.assertEqual(made, models.build(Gpt, vocab=5, **models.NO_BIASES))


class FlagsTest(parameterized.TestCase):
    def run_with(self, *arguments):
        """The model that a config describes after flags, or what is said on stderr."""
        file, found = pathlib.Path(self.create_tempdir()) / 'own.py', []
        file.write_text('''"""A config."""
from configs import base
def get_config(variant=''):
    c = base.config()
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', vocab=11, source_vocab=0, **base.both(layers=2))
    return c.lock()
''')
        with (experiments.own_flags(), mock.patch.object(sys, 'argv', ['some.py', f'--config={file}', *arguments]),
              self.assertRaises(SystemExit) as end):
            cli.run(lambda config, name: found.append(resolve.construct(config.model)), config='none.py')
        return found[0] if found else end.exception.code

    def test_fields_of_groups_are_flags(self):
        model = self.run_with('--config.model.encoder.layers=3', '--config.model.decoder.feed_forward=Mlp(inner=7)',
                              '--config.model.share=false')
        self.assertEqual((model.encoder.layers, model.decoder.layers, model.share), (3, 2, False))
        self.assertEqual((model.encoder.feed_forward, model.decoder.feed_forward), (Mlp(activation=Relu()), Mlp(inner=7)))

    @parameterized.parameters(
        ('--config.model.layers=3', "There is no field 'layers' in config.model"),
        ('--config.model.encoder.layer=3', "There is no field 'layer' in config.model.encoder; did you mean 'layers'"),
        ('--config.model.encoder=3', 'config.model.encoder is a group of fields'),
        ('--config.model.encoder.layers=two', "--config.model.encoder.layers is 'two'; expected a whole number"),
        ('--config.model.encoder.feed_forward=Mpl()', "there is no 'Mpl'; did you mean 'Mlp'"))
    def test_mistakes_are_one_sentence(self, argument, message):
        said = self.run_with(argument)
        self.assertIn(message, said)
        self.assertLen(said.splitlines(), 1)


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

    @parameterized.parameters(
        ('Greedy() | Sample()', Strategy, r'Strategy has no \|; give one[.]$'),
        ('~Greedy()', Strategy, 'Strategy has no ~; give one[.]$'),
        ('Causal() >> Full()', Mask, r'Mask has no >>; write a & b or a \| b or ~a[.]$'),
        ('Shift() & Shift()', Part, r'Part has no &; write a >> b or Several\(a, b\)[.]$'))
    def test_operators_of_parts_that_have_others_or_none(self, text, kind, message):
        with self.assertRaisesRegex(ValueError, f'^field is .*: {message}'):
            resolve.parse(text, kind, 'field')

    def test_any_number_of_parts(self):
        for text, wanted in (('Several()', Several()), ('Several(Shift(2), Several(Shift(), share=1))',
                                                        Several(Shift(2), Several(Shift(), share=1.0)))):
            self.assertEqual(resolve.parse(text, Part, 'part'), wanted)
        for text, message in (('Several(3)', 'expected one of Nested, Several, Shift'), ('Several(Causal())', "no 'Causal'"),
                              ('Several(parts=(Shift(),))', "Several has no field 'parts'"),
                              ('Several(*(Shift(),))', 'is not allowed here'), ('Several(shar=1)', "did you mean 'share'")):
            with self.assertRaisesRegex(ValueError, message):
                resolve.parse(text, Part, 'part')

    def test_one_after_the_other(self):
        self.assertEqual(resolve.parse('Shift(1) >> Shift(2)', Part, 'part'), Several(Shift(1), Shift(2)))
        with self.assertRaisesRegex(ValueError, 'expected one of Nested'):
            resolve.parse('Shift(1) >> 3', Part, 'part')

    def test_a_part_of_another_kind_is_refused(self):
        self.assertEqual(resolve.construct(resolve.describe(
            'transformer.evaluators.language_model:Continuations', strategy='Sample(top_k=4)')).strategy, Sample(top_k=4))
        with self.assertRaisesRegex(ValueError, "strategy is 'Causal\\(\\)': there is no 'Causal'"):
            resolve.construct(resolve.describe('transformer.evaluators.language_model:Continuations', strategy='Causal()'))


class DidYouMeanTest(parameterized.TestCase):
    def test_names_the_closest_or_all(self):
        self.assertEqual(resolve.did_you_mean('layer', ['layers', 'heads']), "did you mean 'layers' (known: heads, layers)?")
        self.assertEqual(resolve.did_you_mean('layer', ['layers', *'abcdef']), "did you mean 'layers'?")
        self.assertEqual(resolve.did_you_mean('layer', ['layers']), "did you mean 'layers'?")
        self.assertEqual(resolve.did_you_mean('zzz', ['layers', 'heads']), 'known: heads, layers.')
        self.assertEqual(resolve.did_you_mean('zzz', []), 'known: none.')


if __name__ == '__main__':
    absltest.main()
