"""The fields of configs of Hugging Face transformers ("theirs") and of our models, each read in both directions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of their config and the equivalent field of our model.

    Attributes:
      theirs: its name; further names are of fields that must have the same value, as ours is a single field.
      ours: the path of a field, such as 'layers', 'norm.epsilon' of a part or 'encoder.layers' of a group; further paths get
        the same value. '': our model has no such field, and only the default is accepted.
      default: their value if a config does not name the field.
      values: {their value: ours}; None: the values are the same.
      none: our value if theirs is null; by default None.
    """
    theirs: str
    ours: str = ''
    default: Any = None
    values: Mapping | None = None
    none: Any = None
    nearest = None  # as of `Fields`

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """(theirs, ours)."""
        return self.theirs.split(), self.ours.split()

    def read(self, config: Mapping) -> dict:
        """{path: value} of our model, from their config."""
        first, *others = self.theirs.split()
        given = config.get(first, self.default)
        for other in others:
            if (own := config.get(other, self.default)) != given:
                raise ValueError(f'config.json has {first}={given!r} and {other}={own!r}, which are one field here, '
                                 f'model.{self.ours.split()[0]}; make them equal.')
        if not self.ours and given != self.default:
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected {self.default!r}.')
        if self.values is not None and given not in [*self.values]:  # a list, as the given value may be unhashable
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected one of '
                             f'{", ".join(map(repr, self.values))}.')
        if self.values is None and isinstance(self.default, (int, float)) and not _is_like(given, self.default):
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected a value such as '
                             f'{self.default!r}.')
        given = self.none if given is None else given if self.values is None else self.values[given]
        return dict.fromkeys(self.ours.split(), given)

    def write(self, model: Mapping) -> dict:
        """{name: value} of their config, from the fields of our model (see `fields_of`)."""
        names = self.ours.split()
        given = at(model, names[0]) if names else self.default
        for other in names[1:]:
            if at(model, other) != given:
                raise ValueError(f'model.{names[0]} is {given!r} and model.{other} {at(model, other)!r}, which are one field '
                                 'there; make them equal.')
        if names and self.values is not None:
            known = {ours: theirs for theirs, ours in reversed(self.values.items())}  # the first of several names
            if given not in known:
                raise ValueError(f'model.{names[0]} is {given!r}, which has no name there; expected one of '
                                 f'{", ".join(map(repr, known))}.')
            given = known[given]
        given = None if self.none is not None and given == self.none else given
        return dict.fromkeys(self.theirs.split(), given)


def fields_of(model: Any) -> dict:
    """{field: value} of a model, or of a class of models with its defaults, as in a config: the fields of an inlined part are
    among the model's own. A field without a default is None."""
    found = {}
    for field in dataclasses.fields(model):
        if field.name in ('parent', 'name'):
            continue
        usual = None if field.default is dataclasses.MISSING else field.default
        value = usual if isinstance(model, type) else getattr(model, field.name)
        if field.metadata.get('inline'):
            found |= {own.name: getattr(value, own.name) for own in dataclasses.fields(value)}
        else:
            found[field.name] = value
    return found


def at(fields: Mapping, path: str) -> Any:
    """The value at a path such as 'norm.epsilon' in {field: value}."""
    first, *others = path.split('.')
    value = fields[first]
    for name in others:
        if isinstance(value, Mapping):
            value = value[name]
            continue
        if not hasattr(value, name):
            raise ValueError(f'model.{first} is {value!r}, which has no counterpart there; expected a part with {name}.')
        value = getattr(value, name)
    return value


def changed(fields: Mapping, changes: Mapping) -> dict:
    """{field: value} with the changes {path: value}: first whole parts, then fields inside parts."""
    direct = {path: value for path, value in changes.items() if '.' not in path}
    found, deeper = dict(fields) | direct, {}
    for path, value in changes.items():
        first, _, rest = path.partition('.')
        if rest:
            deeper.setdefault(first, {})[rest] = value
    for name, inside in deeper.items():
        part = found[name]
        if isinstance(part, Mapping):
            found[name] = changed(part, inside)
            continue
        own = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        found[name] = dataclasses.replace(part, **changed(own, inside))
    return found


def _is_like(given, number):
    """Whether a value is a boolean, an integer or a number like `number`."""
    kinds = (int, float) if isinstance(number, float) else int
    return isinstance(given, kinds) and isinstance(given, bool) == isinstance(number, bool)


def dropouts(branches: str, attention: str, defaults: tuple = (0.1, 0.1), stacks: Sequence[str] = ('',)) -> 'Fields':
    """The fields of the dropout rates: on embedding and branches (one or several names), and on the attention weights.

    stacks: the prefixes of the paths of our stacks, such as 'encoder.'."""
    ours = [front + name for front in stacks for name in ('dropout', 'attention_dropout')]
    rate = Field(branches, ' '.join(f'{front}dropout' for front in stacks), defaults[0])

    def write(model):
        stack = {at(model, f'{front}attention_dropout') for front in stacks}
        own = stack.pop()
        if stack:
            raise ValueError(f'model.{ours[1]} is {own!r} and model.{ours[-1]} {stack.pop()!r}, which are one field there; '
                             'make them equal.')
        found = rate.write(model)
        return found | {attention: own if own >= 0 else at(model, ours[0])}

    def read(config):
        found, own = rate.read(config), config.get(attention, defaults[1])
        return found | {f'{front}attention_dropout': -1.0 if own == found[ours[0]] else own for front in stacks}

    return Fields(((*branches.split(), attention), tuple(ours)), read, write)


def inner(name: str, default: int, front: str = '') -> 'Fields':
    """The field of the inner width of the feed-forward; 0 stands for 4·width in our model."""
    field = Field(name, f'{front}feed_forward.inner', default)
    return Fields(field.names, field.read,
                  lambda model: {name: at(model, f'{front}feed_forward').width(at(model, f'{front}width'))})


def labels(config: Mapping) -> list[str]:
    """The class names of their config; a name that several classes have is followed by the number of the class."""
    named = config.get('id2label')
    if named is None:
        named = {i: f'LABEL_{i}' for i in range(config.get('num_labels') or 2)}
    try:
        numbered = {int(number): str(name) for number, name in named.items()}
        found = [numbered[i] for i in range(len(numbered))]
    except (AttributeError, ValueError, TypeError, KeyError):
        raise ValueError(f'config.json has id2label={named!r}; expected a name for each of 0, 1, ...') from None
    return [name if found.count(name) == 1 else f'{name} ({i})' for i, name in enumerate(found)]


PROBLEMS = {'classes': 'single_label_classification', 'labels': 'multi_label_classification', 'number': 'regression'}


def problem_of(config: Mapping) -> str:
    """The prediction of a head with classes, by their config: one class ('classes'), any number of 'labels', or a 'number'."""
    kind, count = config.get('problem_type'), len(labels(config))
    told = {theirs: ours for ours, theirs in PROBLEMS.items()} | {None: 'number' if count == 1 else 'classes'}
    if kind not in told:
        raise ValueError(f'config.json has problem_type={kind!r}, which is not supported; expected one of '
                         f'{", ".join(map(repr, PROBLEMS.values()))}.')
    if (told[kind] == 'number') > (count == 1) or (told[kind] == 'classes') > (count > 1):
        raise ValueError(f'config.json has problem_type={kind!r}, but names {count} labels; expected one '
                         'label for a number, and two or more to choose one from.')
    return told[kind]


def named(classes: Sequence[str]) -> list[str]:
    """The inverse of `labels`: class names without the numbers that distinguish equal ones."""
    plain = [name.removesuffix(f' ({i})') for i, name in enumerate(classes)]
    return [name if plain.count(short) == 1 else short for name, short in zip(classes, plain)]


def head(made: Callable, dropout: str | None = 'classifier_dropout', default: float | None = None,
         of: str = 'dropout') -> 'Fields':
    """The field of a head with classes: `made(classes=, dropout=)` with the number of labels and with their dropout rate, if
    they have one; `of` is the path of the rate that our head uses otherwise."""
    like = made(classes=2)

    def read(config):
        rate = None if dropout is None else config.get(dropout, default)
        return {'head': made(classes=len(labels(config)), **({} if rate is None else {'dropout': rate}))}

    def write(model):
        head = model['head']
        if not isinstance(head, type(like)) or dataclasses.replace(head, classes=2, dropout=like.dropout) != like:
            raise ValueError(f'model.head is {head!r}, which has no counterpart there; expected one like {like!r}.')
        usual = default if default is None else at(model, of)
        return {} if dropout is None else {dropout: head.dropout if head.dropout >= 0 else usual}

    return Fields(((dropout,) if dropout else (), ('head',)), read, write)


def score(made: Callable, dropout: str | None = 'classifier_dropout', default: float | None = None) -> 'Fields':
    """As `head`, of a head with one score, whatever labels a config names."""
    classes = head(made, dropout, default)
    return Fields(classes.names, lambda config: classes.read({**config, 'id2label': {0: 'LABEL_0'}}), classes.write)


# Fields of their configs for which only the default is accepted.
FIXED = (Field('cross_attention_hidden_size'), Field('pruned_heads', default={}), Field('tie_encoder_decoder', default=False))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Several fields of their config that are together equivalent to fields of our model.

    Attributes:
      names: (theirs, ours).
      read: their config -> {path: value} of our model.
      write: the fields of our model -> {name: value} of their config.
      nearest: the fields of our model -> {path: value}, the nearest that theirs can express; None: those that `write` takes.
    """
    names: tuple
    read: Callable
    write: Callable
    nearest: Callable | None = None
