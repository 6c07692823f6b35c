"""From strings in a config to objects: import paths ('transformer.gpt:Gpt') and call expressions ('Window(size=256)').

A class is named by its import path and every field of it becomes a field of the config. A field whose type is a part
(not a number, string or boolean) holds a call expression; the names in it are the subclasses of that type which imported
modules define, their keywords are checked, and nothing else of Python is evaluated.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
import math
import operator
import sys
import typing

import ml_collections

PRIMITIVES = (bool, int, float, str, tuple)
_FEW = 6
OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}


def did_you_mean(name, known):
    """'did you mean X?' and what is known; a long list of that only where nothing is similar."""
    close, listed = difflib.get_close_matches(str(name), list(known), 1), f'known: {", ".join(sorted(known)) or "none"}'
    if not close:
        return f'{listed}.'
    return f'did you mean {close[0]!r}' + (f' ({listed})?' if 1 < len(known) <= _FEW else '?')


def load(path):
    """The class behind 'package.module:Class'."""
    module_name, _, name = path.partition(':')
    if not name or not all(part.isidentifier() for part in module_name.split('.')):
        raise ValueError(f'{path!r} does not name a class; expected an import path such as transformer.gpt:Gpt.')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not (module_name + '.').startswith(error.name + '.'):
            raise
        raise ValueError(f'There is no module {error.name!r} (in {path!r}); check the import path.') from None
    if name not in classes(module):
        raise ValueError(f'There is no class {name!r} in {module_name}; {did_you_mean(name, classes(module))}')
    cls = getattr(module, name)
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f'{path} has no fields of its own to configure; name a dataclass or a Flax module.')
    if inspect.isabstract(cls):
        others = [c for c in map(vars(module).get, classes(module)) if issubclass(c, cls) and not inspect.isabstract(c)]
        raise ValueError(f'{path} is only a base of others; {did_you_mean(name, [c.__name__ for c in others])}')
    return cls


def classes(module):
    """Names of the public classes that a module defines."""
    return [name for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith('_')]


def fields(cls):
    """{name: dataclasses.Field} of a class, without what Flax adds; types are resolved."""
    hints = typing.get_type_hints(cls)
    found = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if 'parent' in found:  # a Flax module
        del found['parent'], found['name']
    for name, field in found.items():
        field.type = hints[name]
    return found


def default(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def describe(path, key='name', /, **given):
    """The config of a class: its path under `key` and every field with its default or the value given.

    A field without a default that is not given either stays open: the data fills it in when the run is built."""
    cls = load(path)
    known = fields(cls)
    for name in given:
        if name not in known:
            raise ValueError(f'{path} has no field {name!r}; {did_you_mean(name, known)}')
    config = ml_collections.ConfigDict({key: path})
    for name, field in known.items():
        if name in given:
            value = given[name]
        elif default(field) is dataclasses.MISSING:
            config[name] = ml_collections.config_dict.placeholder(field.type)
            continue
        else:
            value = default(field)
        if field.type is float and type(value) is int:
            value = float(value)  # or the flag would take whole numbers only
        require_type(value, field.type, f'{name} of {path}')
        config[name] = value if field.type in PRIMITIVES or isinstance(value, str) else repr(value)
    return config


def require_type(value, kind, what):
    """Raises ValueError if the value of a field that holds a number, string or the like is another kind of thing."""
    accepted = {float: (float, int), tuple: (tuple, list)}.get(kind, kind)
    if kind in PRIMITIVES and not isinstance(value, accepted):
        raise ValueError(f'{what} is {value!r}; expected {kind.__name__}.')


def construct(config, key='name', *, ignore=(), extra=None):
    """The object that a config of `describe` stands for.

    Args:
      ignore: fields of the config that are not the class's.
      extra: values for fields, used for those that the class has and the config leaves open or does not mention.
    """
    path = config[key]
    cls = load(path)
    known = fields(cls)
    values = {name: value for name, value in (extra or {}).items() if name in known}
    for name, value in config.items():
        if name == key or name in ignore:
            continue
        if name not in known:
            raise ValueError(f'{path} has no field {name!r}; {did_you_mean(name, known)}')
        if value is None and (name in values or default(known[name]) is dataclasses.MISSING):
            continue
        require_type(value, known[name].type, f'{name} of {path}')
        part = known[name].type not in PRIMITIVES and isinstance(value, str)
        values[name] = parse(value, known[name].type, name, extra) if part else _tuples(value)
    for name, field in known.items():
        if name not in values and default(field) is dataclasses.MISSING:
            raise ValueError(f'{path} needs a value for {name!r}, which the data does not tell; set it in the config.')
    return cls(**values)


def _tuples(value):
    """Lists as tuples: config.json has no tuples, and what a model is made of is hashed."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def parse(text, kind, field, extra=None):
    """Evaluates a call expression such as 'Causal() & Window(size=256)' to an instance of `kind`. The names in it are the
    subclasses of `kind`, and within a call those of the type of the field that they are given for; `extra` has values for what
    a call needs and is not given."""
    wrong = lambda why: ValueError(f'{field} is {text!r}: {why}')
    try:
        tree = ast.parse(text.strip(), mode='eval').body
    except SyntaxError:
        raise wrong('this is not a call expression such as '
                    + ' or '.join(f'{n}(...)' for n in sorted(subclasses(kind))[:2])) from None

    def value(node, kind):
        names = subclasses(kind)
        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.UnaryOp(op=ast.Invert()):
                return combine(operator.invert, kind, node.operand)
            case ast.Tuple() | ast.List():
                return tuple(value(element, kind) for element in node.elts)
            case ast.BinOp(op=op) if type(op) in OPERATORS:
                return combine(OPERATORS[type(op)], kind, node.left, node.right)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                if name not in names:
                    raise wrong(f'there is no {name!r}; {did_you_mean(name, names)}')
                return call(names[name], node)
            case _:
                raise wrong(f'{ast.unparse(node)!r} is not allowed here; write calls of {", ".join(sorted(names))}.')

    def part(node, kind):
        found = value(node, kind)
        if not isinstance(found, kind):
            raise wrong(f'expected one of {", ".join(sorted(subclasses(kind)))}.')
        return found

    def combine(operation, kind, *nodes):
        parts = [part(node, kind) for node in nodes]
        try:
            return operation(*parts)
        except TypeError:
            raise wrong(f'a {kind.__name__} cannot be combined with &, | or ~; give one.') from None

    def call(cls, node):
        known = fields(cls)
        given = list(zip(known, getattr(node, 'args', ()))) + [(k.arg, k.value) for k in getattr(node, 'keywords', ())]
        if len(getattr(node, 'args', ())) > len(known):
            raise wrong(f'{cls.__name__}: too many positional arguments.')
        bound = {}
        for name, node in given:
            if name not in known:
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
        bound |= {name: extra[name] for name in needed if name in (extra or {})}
        try:
            inspect.signature(cls).bind(**bound)
        except TypeError as error:
            raise wrong(f'{cls.__name__}: {error}.') from None
        return cls(**bound)

    return part(tree, kind)


def subclasses(kind):
    """{name: class} of what an expression may name as a `kind`: not the bases, nor what holds arrays, which models make."""
    found, ahead = {}, [kind]
    while ahead:
        cls = ahead.pop()
        ahead += cls.__subclasses__()
        public = cls is not kind and dataclasses.is_dataclass(cls) and not cls.__name__.startswith('_')
        public = public and vars(sys.modules[cls.__module__]).get(cls.__name__) is cls  # not one inside a function
        if public and not inspect.isabstract(cls) and all(f.type is not typing.Any for f in fields(cls).values()):
            found[cls.__name__] = cls
    return found
