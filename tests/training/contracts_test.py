"""Every class that a config names meets the contract of its part, and what does not is found."""

import ast
import dataclasses
import functools
import inspect
import pathlib
import types
import typing

from absl.testing import absltest, parameterized

from configs import base
from data.opened import Opened
from data.pipeline import Evaluation
from tests import experiments
from tests.configs_test import variants
from training import contracts, mesh
from training import run as runs
from training.config import cli, resolve
from training.snapshot import Snapshot

FACTS = {'dtype': 'float32', 'vocab': 7, 'source_vocab': 0, 'classes': 3, 'memory': 2, 'keys': ((0.0,),), 'values': ((1.0,),)}
CONTRACTS = {'data': contracts.Data, 'model': contracts.Model, 'task': contracts.Task, 'evaluator': contracts.Evaluator,
             'reader': contracts.Reader}


@functools.cache
def configs():
    """{'name:variant': config} of all configs that need no other run."""
    return {name: cli.load_config('configs/{}.py:{}'.format(*f'{name}:'.split(':')))[0] for name in variants()}


@functools.cache
def named():
    """{(role, import path)} of what all configs name: in their places, and in the texts of those that begin with another run,
    where the room tells the role."""
    found = set()
    for config in configs().values():
        found |= {('data', config.data.pipeline), ('model', config.model.name), ('task', config.task.name)}
        found |= {('evaluator', config.evals[name].evaluator) for name in config.evals}
    rooms = {'models': 'model', 'tasks': 'task', 'evaluators': 'evaluator', 'readers': 'reader'}
    for text in filter(None, map(in_full, texts())):
        package, *between, _ = text.partition(':')[0].split('.')
        role = 'data' if package == 'data' else rooms.get(between[0]) if between else None
        found |= {(role, text)} if role else set()
    return found | {('reader', resolve.load(path)().reader) for role, path in found if role == 'data'} - {('reader', '')}


def texts():
    """The strings in the configs that begin with another run, and in converted.py."""
    for name in {*experiments.NO_CONFIGS} - {'__init__', 'base'}:
        tree = ast.parse(pathlib.Path(experiments.ROOT, 'configs', f'{name}.py').read_text())
        yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def in_full(text):
    """The import path of a class that a text names; 'masked:MaskedTokens' stands in tasks or evaluators. '': it names none, as
    a config with a variant, 'gpt2.py:124m', does."""
    module, _, name = text.partition(':')
    if module.endswith('.py') or not (name.isidentifier() and all(part.isidentifier() for part in module.split('.'))):
        return ''
    for path in (text, f'transformer.tasks.{text}', f'transformer.evaluators.{text}'):
        try:
            resolve.load(path)
        except ValueError:
            continue
        return path
    raise AssertionError(f'configs/ name {text}, which is no class')


class NamedTest(parameterized.TestCase):
    def test_all_rooms_are_looked_at(self):
        self.assertContainsSubset({
            ('data', 'data.text.documents:Text'), ('data', 'data.text.tagged:Tagged'), ('model', 'vit.models.vit:Vit'),
            ('model', 'transformer.attention.pooling:Pooling'), ('task', 'transformer.tasks.reading:Hidden'),
            ('evaluator', 'transformer.evaluators.reading:Entities'), ('reader', 'transformer.readers.vectors:TextVector'),
            ('reader', 'vit.readers.images:ImageVector'), ('reader', 'transformer.readers.completion:Completion')}, named())

    @parameterized.parameters(*CONTRACTS)
    def test_classes_meet_their_contracts(self, role):
        for path in sorted(path for other, path in named() if other == role):
            with self.subTest(path):
                cls = resolve.load(path)
                self.assertEqual(contracts.misfits(cls, CONTRACTS[role]), [])
                self.assert_documented(cls, CONTRACTS[role])

    def test_opened_data_meet_theirs(self):
        for path in sorted(path for role, path in named() if role == 'data'):
            with self.subTest(path):
                opened = typing.get_type_hints(resolve.load(path).open)['return']
                self.assertEqual(contracts.misfits(opened, contracts.Opened), [])
                self.assertTrue(inspect.getdoc(opened))
                self.assert_documented(opened, contracts.Opened)

    def test_data_offer_what_their_reader_asks(self):
        for path in sorted(path for role, path in named() if role == 'data'):
            cls = resolve.load(path)
            if cls().reader:
                with self.subTest(path):
                    opened, contract = typing.get_type_hints(cls.open)['return'], resolve.load(cls().reader).contract
                    self.assertEqual(contracts.misfits(opened, contract), [])
                    self.assert_documented(opened, contract)

    def assert_documented(self, cls, contract):
        for name, function in contracts.members(contract).items():
            if function:
                self.assertTrue(inspect.getdoc(getattr(cls, name)), f'{cls.__name__}.{name} has no docstring')

    def test_parts_of_every_variant(self):
        for name, config in configs().items():
            with self.subTest(name):
                described = resolve.construct(config.data, 'pipeline')
                parts = [(described, 'data'), (resolve.construct(config.model, extra=FACTS), 'model'),
                         (resolve.construct(config.task), 'task')]
                parts += [(resolve.construct(one, 'evaluator', ignore=runs.EVAL_FIELDS), 'evaluator')
                          for one in config.evals.values()]
                parts += [(resolve.load(described.reader)(), 'reader')] if described.reader else []
                for part, role in parts:
                    self.assertEqual(contracts.misfits(part, CONTRACTS[role]), [])

    def test_readers_take_the_flags_that_they_name(self):
        flags = experiments.script('predict').FLAGS
        for path in sorted(path for role, path in named() if role == 'reader'):
            with self.subTest(path):
                reader = resolve.load(path)()
                given = inspect.signature(reader.answers).parameters.values()
                self.assertSequenceEqual([one.name for one in given if one.kind is one.KEYWORD_ONLY], reader.flags)
                self.assertContainsSubset({*reader.flags} - {'watch'}, flags)

    def test_readers_refuse_data_that_they_are_not_for(self):
        run = types.SimpleNamespace(data=types.SimpleNamespace(config=base))
        for path in sorted(path for role, path in named() if role == 'reader'):
            with self.subTest(path), self.assertRaisesRegex(
                    ValueError, r'^\w+ needs [\w ]+, and module has none; name another class in data.reader.$'):
                resolve.load(path)().picture(run, 'key')

    def test_what_the_project_itself_makes_of_runs(self):
        self.assertEqual(contracts.misfits(Snapshot, contracts.Snapshot), [])
        rows = Evaluation(3, 2, lambda numbers: {'x': numbers}, {'rows': 3})
        self.assertEqual(contracts.misfits(rows, contracts.Batches), [])


class Wanted(typing.Protocol):
    size: int

    def measure(self, text: str, *, exact: bool, scale: float = 1.0) -> float:
        """A number."""

    def begin(self) -> None:
        """Begins."""


class Fits:
    def __init__(self):
        self.size = 3

    def measure(self, text, exact, scale=2.0, *more):
        return 1.0

    @staticmethod
    def begin(at=0):
        pass


class Lazy(Fits):
    size: int

    @property
    def begin(self):
        raise AssertionError('this reads a whole text')


class MisfitsTest(parameterized.TestCase):
    def test_further_parameters_fit(self):
        self.assertEqual(contracts.misfits(Fits(), Wanted), [])

    def test_attributes_are_those_of_the_object_or_annotated_in_the_class(self):
        self.assertEqual(contracts.misfits(Fits, Wanted), ['it has no size'])
        part = Fits()
        del part.size
        self.assertEqual(contracts.misfits(part, Wanted), ['it has no size'])
        self.assertNotIn('it has no size', contracts.misfits(Lazy, Wanted))

    def test_nothing_is_run(self):
        self.assertEqual(contracts.misfits(Lazy(), Wanted), ['its begin is not called as begin()'])

    @parameterized.parameters(
        (lambda self: 1.0, '(self)'), (lambda self, given, *, exact, scale=1.0: 1.0, 'another name'),
        (lambda self, text, *, scale=1.0: 1.0, 'without exact'), (lambda self, text, *, exact: 1.0, 'without scale'),
        (lambda self, text, other, *, exact, scale=1.0: 1.0, 'one more'), (1.0, 'no function'))
    def test_methods_that_are_called_otherwise(self, method, what):
        found = contracts.misfits(type('Other', (Fits,), {'measure': method})(), Wanted)
        self.assertLen(found, 1, what)
        self.assertStartsWith(found[0], 'its measure is not called as measure(text, *, exact, scale=1.0)')

    def test_members_of_a_contract_and_of_what_it_extends(self):
        class More(Wanted, typing.Protocol):
            def __call__(self, x: int) -> int:
                """Calls."""

        self.assertEqual({name: bool(function) for name, function in contracts.members(More).items()},
                         {'size': False, 'measure': True, 'begin': True, '__call__': True})


@dataclasses.dataclass(frozen=True)
class Unread:
    """Data that cannot be read."""
    batch_size: int = 8
    reader: str = ''

    def open(self, folder, source=None):
        return OpenUnread()


class OpenUnread(Opened):
    """Opened, and of no use."""
    facts = types.MappingProxyType({})
    config, unit, batches_per_epoch, shapes = None, 'rows', 1.0, types.MappingProxyType({})

    def train(self):
        """Takes no seed."""


@dataclasses.dataclass(frozen=True)
class Unopened:
    """Data that cannot be opened."""
    batch_size: int = 8


class BuildTest(parameterized.TestCase):
    @parameterized.parameters(
        ({'data': base.data(f'{__name__}:Unopened')}, 'Unopened is no data: it has no reader, open; name another class'),
        ({'data': base.data(f'{__name__}:Unread')}, r'Unread is no data: it has no save, describe, digest, evaluation, score, '
         r'and its train is not called as train\(seed\) but as train\(\); name another class'),
        ({'data.reader': 'vit.models.vit:Vit'}, "vit.models.vit:Vit needs a value for 'classes'"),
        ({'data.reader': 'transformer.tasks.language_model:NextToken'}, 'NextToken is no reader: it has no flags, usual'),
        ({'data.reader': 'transformer.readers.completion:Complete'}, "There is no class 'Complete' .*you mean 'Completion'"),
        ({'task': base.part('transformer.evaluators.base:Averages')},
         'Averages is no task: it has no coefficients, keywords, inputs'))
    def test_parts_that_do_not_meet_their_contracts_are_refused(self, changes, message):
        config = experiments.changed(experiments.tiny(__file__), **changes)
        with self.assertRaisesRegex(ValueError, message):
            runs.build(config, mesh.make(1, 1, 1))


if __name__ == '__main__':
    absltest.main()
