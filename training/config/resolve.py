"""Turns strings in a config into objects: import paths ('transformer.models.gpt:Gpt'), call expressions ('Window(size=256)').

A class is named by its import path, and each of its fields becomes a field of the config. A field whose type is a part (not a
number, string or boolean) holds a call expression. Its names are the subclasses of that type in the imported modules, their
keywords are checked, and no other Python is evaluated. A field's type decides its form:

    Part                  a call expression
    Part | None           the same, or '' for none
    tuple[Part, ...]      a tuple of them
    Mapping[str, Part]    a group of fields for each name, where Part is a class with fields

`&`, `|` and `~` join parts whose class has these operators (masks, constraints), and `>>` chains steps. A class whose
constructor takes any number of parts, such as OneOf(*parts), is called with them.
"""

import ast
import collections.abc
import dataclasses
import difflib
import importlib
import inspect
import math
import operator
import sys
import types
import typing

import ml_collections

PRIMITIVES = (bool, int, float, str, tuple)
_FEW = 6
_JOINED = {ast.BitAnd: ('&', operator.and_), ast.BitOr: ('|', operator.or_), ast.RShift: ('>>', operator.rshift)}
_WAYS = {'__and__': 'a & b', '__or__': 'a | b', '__invert__': '~a', '__rshift__': 'a >> b'}


def did_you_mean(name, known):
    """'did you mean X?', with all known names if these are few; without a similar name all known names."""
    close, listed = difflib.get_close_matches(str(name), list(known), 1), f'known: {", ".join(sorted(known)) or "none"}'
    if not close:
        return f'{listed}.'
    return f'did you mean {close[0]!r}' + (f' ({listed})?' if 1 < len(known) <= _FEW else '?')


def load(path):
    """The class that 'package.module:Class' names. Raises ValueError if it does not exist or has no fields."""
    module_name, _, name = path.partition(':')
    if not name or not all(part.isidentifier() for part in module_name.split('.')):
        raise ValueError(f'{path!r} does not name a class; expected an import path such as transformer.models.gpt:Gpt.')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not (module_name + '.').startswith(error.name + '.'):
            raise
        raise ValueError(f'There is no module {error.name!r} (in {path!r}); check the import path.') from None
    if name not in classes(module):
        raise ValueError(f'There is no class {name!r} in {module_name}; {did_you_mean(name, classes(module))}')
    cls = getattr(module, name)
    if inspect.isabstract(cls):
        raise ValueError(f'{path} is only a base of others; known: {", ".join(sorted(subclasses(cls))) or "none"}.')
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f'{path} has no fields of its own to configure; name a dataclass or a Flax module.')
    return cls


def classes(module):
    """Names of the public classes that a module defines."""
    return [name for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith('_')]


def fields(cls):
    """{name: dataclasses.Field} of a class, without the fields that Flax adds; types are resolved."""
    hints = typing.get_type_hints(cls)
    found = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if 'parent' in found:  # a Flax module
        del found['parent'], found['name']
    for name, field in found.items():
        field.type = hints[name]
    return found


def default(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@dataclasses.dataclass(frozen=True)
class Slot:
    """A field of a config.

    Attributes:
      kind: the type of its value; default: dataclasses.MISSING if there is none.
      inside: the inlined field of the class to which it belongs; '' for a field of the class itself.
    """
    kind: typing.Any
    default: typing.Any
    inside: str = ''

    @property
    def is_group(self):
        """Whether it is a group of fields in a config: a dataclass that is not the base of a choice of parts."""
        return dataclasses.is_dataclass(self.kind) and not inspect.isabstract(self.kind) and not subclasses(self.kind)


def slots(cls):
    """{name: `Slot`} of a class; a field with the metadata 'inline' is replaced by the slots of its part."""
    found = {}
    for name, field in fields(cls).items():
        value = default(field)
        found |= _slots_of(value, name) if field.metadata.get('inline') else {name: Slot(field.type, value)}
    return found


def _slots_of(part, inside=''):
    """The slots of a part, with its values as defaults."""
    return {name: Slot(field.type, getattr(part, name), inside) for name, field in fields(type(part)).items()}


def _optional(kind):
    """(Part, True) for the type Part | None, (kind, False) for any other."""
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not types.NoneType), True
    return kind, False


def _of_mapping(kind):
    """Part for the type Mapping[str, Part], None for any other."""
    return typing.get_args(kind)[1] if typing.get_origin(kind) is collections.abc.Mapping else None


def _of_tuple(kind):
    """Part for the type tuple[Part, ...], None for any other."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def describe(path, key='name', /, **given):
    """The config of a class: its path under `key`, and every field with its default or the given value. A group of fields is
    given as {field: value}, or as the part itself.

    A field without a default or a given value stays open: the data fills it in when the run is built."""
    return _described(slots(load(path)), given, path, {key: path})


def _described(known, given, what, begin=None):
    for name in given:
        if name not in known:
            raise ValueError(f'{what} has no field {name!r}; {did_you_mean(name, known)}')
    config = ml_collections.ConfigDict(begin or {})
    for name, slot in known.items():
        value = given.get(name, slot.default)
        if value is dataclasses.MISSING:
            config[name] = ml_collections.config_dict.placeholder(slot.kind)
        elif slot.is_group:
            whole = isinstance(value, slot.kind)
            config[name] = _described(_slots_of(value if whole else slot.default), {} if whole else value, f'{what}.{name}')
        elif part := _of_mapping(slot.kind):
            config[name] = {
                one: _described(slots(part), vars(held) if isinstance(held, part) else held, f'{what}.{name}.{one}')
                for one, held in value.items()}
        else:
            if slot.kind is float and type(value) is int:
                value = float(value)  # else the flag would accept only whole numbers
            require_type(value, slot.kind, f'{name} of {what}')
            plain = slot.kind in PRIMITIVES or isinstance(value, str)
            config[name] = value if plain else '' if value is None else repr(value)
    return config


def require_type(value, kind, what):
    """Raises ValueError if the value of a field of a primitive type has another type."""
    accepted = {float: (float, int), tuple: (tuple, list)}.get(kind, kind)
    if kind in PRIMITIVES and not isinstance(value, accepted):
        raise ValueError(f'{what} is {value!r}; expected {kind.__name__}.')


def construct(config, key='name', *, ignore=(), extra=None):
    """The object that a config of `describe` describes.

    Args:
      ignore: fields of the config that are not fields of the class.
      extra: {field: value} for fields of the class that the config leaves open or does not mention.
    """
    own = {name: value for name, value in config.items() if name not in (key, *ignore)}
    return _constructed(load(config[key]), config[key], own, extra)


def _constructed(cls, what, config, extra):
    """An object of the class, from a group of fields."""
    values = {name: value for name, value in (extra or {}).items() if name in fields(cls)}
    values |= _values(slots(cls), what, config, extra)
    for name, field in fields(cls).items():
        if name not in values and default(field) is dataclasses.MISSING:
            raise ValueError(f'{what} needs a value for {name!r}, which the data does not give; set it in the config, or '
                             'choose data that gives it, or a model that does without.')
        if field.metadata.get('inline'):
            values[name] = dataclasses.replace(default(field), **values.pop(name, {}))
    return cls(**values)


def _values(known, what, config, extra):
    """{field: value} of a class with the slots `known`; an inlined field has the values of its own fields."""
    values = {}
    for name, value in config.items():
        if name not in known:
            raise ValueError(f'{what} has no field {name!r}; {did_you_mean(name, known)}')
        slot = known[name]
        if value is None and (name in (extra or {}) or slot.default is dataclasses.MISSING):
            continue
        inside = values.setdefault(slot.inside, {}) if slot.inside else values
        inside[name] = _value(value, slot, name, what, extra)
    return values


def _value(value, slot, name, what, extra):
    """The value of a field, from its value in a config."""
    if slot.is_group:
        if not hasattr(value, 'items'):
            raise ValueError(f'{name} of {what} is {value!r}; expected a group of fields, such as '
                             f'{name}.{next(iter(fields(slot.kind)))}.')
        values = _values(_slots_of(slot.default), f'{what}.{name}', value, extra)
        try:
            return dataclasses.replace(slot.default, **values)
        except ValueError as error:
            raise ValueError(f'{name} of {what}: {error}') from None
    require_type(value, slot.kind, f'{name} of {what}')
    kind, optional = _optional(slot.kind)
    if part := _of_mapping(kind):
        return {one: _constructed(part, f'{what}.{name}.{one}', group, extra) for one, group in value.items()}
    if kind in PRIMITIVES or not isinstance(value, str):
        return _tuples(value)
    return None if optional and not value else parse(value, kind, name, extra)


def _tuples(value):
    """Lists as tuples: config.json has no tuples, and the fields of a model must be hashable."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def parse(text, kind, field, extra=None):
    """Evaluates a call expression such as 'Causal() & Window(size=256)' to an instance of `kind`, or for tuple[Part, ...] to a
    tuple of them. Its names are the subclasses of `kind`, and within a call those of the type of the field; `extra` has values
    for fields without a default that a call does not give."""
    wrong = lambda why: ValueError(f'{field} is {text!r}: {why}')
    try:
        tree = ast.parse(text.strip(), mode='eval').body
    except SyntaxError:
        raise wrong('this is not a call expression such as '
                    + ' or '.join(f'{n}(...)' for n in sorted(subclasses(_of_tuple(kind) or kind))[:2])) from None

    def value(node, kind):
        names = subclasses(kind)
        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.UnaryOp(op=ast.Invert()):
                return combine(('~', operator.invert), kind, node.operand)
            case ast.Tuple() | ast.List():
                return tuple(value(element, kind) for element in node.elts)
            case ast.BinOp(op=op) if type(op) in _JOINED:
                return combine(_JOINED[type(op)], kind, node.left, node.right)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                if name not in names:
                    raise wrong(f'there is no {name!r}; {did_you_mean(name, names)}')
                return call(names[name], node)
            case _:
                raise wrong(f'{ast.unparse(node)!r} is not allowed here; write calls of {", ".join(sorted(names))}.')

    def part(node, kind):
        kind, optional = _optional(kind)
        if optional and isinstance(node, ast.Constant) and node.value is None:
            return None
        if inner := _of_tuple(kind):
            if not isinstance(node, ast.Tuple | ast.List):
                raise wrong(f'expected a tuple of {", ".join(sorted(subclasses(inner)))}.')
            return tuple(part(element, inner) for element in node.elts)
        found = value(node, kind)
        if not isinstance(found, kind):
            raise wrong(f'expected one of {", ".join(sorted(subclasses(kind)))}.')
        return found

    def combine(joined, kind, *nodes):
        sign, operation = joined
        parts = [part(node, kind) for node in nodes]
        try:
            return operation(*parts)
        except TypeError:
            raise wrong(f'{kind.__name__} has no {sign}; {_ways(kind)}.') from None

    def call(cls, node):
        known, any_number = fields(cls), _any_number(cls)
        args, bound = list(getattr(node, 'args', ())), {}
        parts = [part(one, _of_tuple(known[any_number].type)) for one in args] if any_number else []
        given = list(zip(known, [] if any_number else args)) + [(k.arg, k.value) for k in getattr(node, 'keywords', ())]
        if len(args) > len(known) and not any_number:
            raise wrong(f'{cls.__name__}: too many positional arguments.')
        for name, node in given:
            if name not in known or name == any_number:
                raise wrong(f'{cls.__name__} has no field {name!r}; {did_you_mean(name, known)}')
            if name in bound:
                raise wrong(f'{cls.__name__} has two values for {name}; give one.')
            expected = known[name].type
            if expected in PRIMITIVES:
                bound[name] = value(node, kind)
                if expected is float and type(bound[name]) is int:
                    bound[name] = float(bound[name])
                if expected is float and type(bound[name]) is float and not math.isfinite(bound[name]):
                    raise wrong(f'{name} of {cls.__name__} is {bound[name]!r}; expected a finite number.')
                if type(bound[name]) is not expected:
                    raise wrong(f'{name} of {cls.__name__} is {bound[name]!r}; expected {expected.__name__}.')
            else:
                bound[name] = part(node, expected)
        needed = [name for name, one in known.items() if name not in bound and default(one) is dataclasses.MISSING]
        bound |= {name: extra[name] for name in needed if name in (extra or {}) and name != any_number}
        try:
            inspect.signature(cls).bind(*parts, **bound)
        except TypeError as error:
            raise wrong(f'{cls.__name__}: {error}.') from None
        return cls(*parts, **bound)

    return part(tree, kind)


def _any_number(cls):
    """The field for the parts of a constructor that takes any number of them: 'parts' of OneOf(*parts)."""
    return next((p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.VAR_POSITIONAL), None)


def _ways(kind):
    """A hint on how parts of a kind are combined."""
    own = {name for cls in kind.__mro__ for name in vars(cls)}
    ways = [way for name, way in _WAYS.items() if name in own]
    ways += [f'{name}(a, b)' for name, cls in sorted(subclasses(kind).items()) if _any_number(cls)]
    return f'write {" or ".join(ways)}' if ways else 'give one'


def subclasses(kind):
    """{name: class} of the classes that an expression may name as a `kind`: not bases, nor classes that hold arrays."""
    found, ahead = {}, [kind]
    while ahead:
        cls = ahead.pop()
        ahead += cls.__subclasses__()
        public = cls is not kind and dataclasses.is_dataclass(cls) and not cls.__name__.startswith('_')
        public = public and vars(sys.modules[cls.__module__]).get(cls.__name__) is cls  # not a class inside a function
        if public and not inspect.isabstract(cls) and all(f.type is not typing.Any for f in fields(cls).values()):
            found[cls.__name__] = cls
    return found
