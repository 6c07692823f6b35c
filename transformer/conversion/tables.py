"""Conversion of models of Hugging Face transformers ("theirs") and of this repository ("ours"): tables of config fields and of
weight names, each read in both directions.

    Row('block_{i}/attention/{query,key,value}/kernel', 'h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)')

means that for every layer i our three kernels [D, N, H], stacked, are one matrix [D, 3·N·H] of theirs. A field or weight that
no entry covers is an error: nothing is silently left out or ignored.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

# Fields of their configs that do not change the outputs of a model: names, settings of training and of generation.
ASIDE = (
    'architectures', '_attn_implementation', '_attn_implementation_autoset', 'auto_map', 'bad_words_ids',
    'begin_suppress_tokens', 'bos_token_id', 'chunk_size_feed_forward', 'cls_token_id', 'decoder_start_token_id',
    'diversity_penalty', 'do_sample', 'dtype', 'early_stopping', 'emb_size', 'encoder_no_repeat_ngram_size', 'eos_token_id',
    'eos_token_ids', 'exponential_decay_length_penalty', 'finetuning_task', 'forced_bos_token_id', 'forced_eos_token_id',
    'gradient_checkpointing', 'id2label', 'initializer_range', 'is_encoder_decoder', 'label2id', 'language', 'length_penalty',
    'mask_token_id', 'max_length', 'min_length', 'model_type', 'name', '_name_or_path', 'name_or_path', 'no_repeat_ngram_size',
    'num_beam_groups', 'num_beams', '_num_labels', 'num_labels', 'num_return_sequences', 'output_attentions',
    'output_hidden_states', 'output_past', 'output_scores', 'pad_token_id', 'prefix', 'problem_type',
    'remove_invalid_values', 'repetition_penalty', 'replacing_rate', 'return_dict', 'return_dict_in_generate', 'save_step',
    'sbert_ce_default_activation_function', 'sentence_transformers', 'sep_token_id', 'student_decoder_layers',
    'student_encoder_layers',
    'suppress_tokens', 'task_specific_params', 'temperature', 'tf_legacy_loss', 'tokenizer_class', 'top_k', 'top_p',
    'torch_dtype', 'torchscript', 'transformers_version', 'typical_p', 'use_bfloat16', 'use_cache', 'xla_device')


class Inexpressible(ValueError):
    """A field of our model that theirs cannot express.

    Attributes:
      path: of the field, such as 'encoder.norm'; wanted: a value that it could have. '' and None if they are unknown.
    """

    def __init__(self, sentence: str, path: str = '', wanted: Any = None):
        super().__init__(sentence)
        self.path, self.wanted = path, wanted


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
                raise Inexpressible(f'model.{names[0]} is {given!r} and model.{other} {at(model, other)!r}, which are one '
                                    'field there; make them equal.', other, given)
        if names and self.values is not None:
            known = {ours: theirs for theirs, ours in reversed(self.values.items())}  # the first of several names
            if given not in known:
                raise Inexpressible(f'model.{names[0]} is {given!r}, which has no name there; expected one of '
                                    f'{", ".join(map(repr, known))}.', names[0], next(iter(known)))
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


# Fields of their configs for which only the default is accepted.
FIXED = (Field('cross_attention_hidden_size'), Field('pruned_heads', default={}), Field('tie_encoder_decoder', default=False))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Several fields of their config that are together equivalent to fields of our model.

    Attributes:
      names: (theirs, ours).
      read: their config -> {path: value} of our model.
      write: the fields of our model -> {name: value} of their config.
    """
    names: tuple
    read: Callable
    write: Callable


@dataclasses.dataclass(frozen=True)
class Row:
    """Our parameters and the weight of theirs that holds them.

    Attributes:
      ours: {i} stands for the number of a layer; {a,b} for the names of parameters that are stacked, as the first axis.
      axes: the pattern of `einops.rearrange` from ours to theirs; '' if they are equal.
      sizes: {axis: path of our field with its size}, for axes that together make up one of ours.
      absent: whether a file may lack the weight, which then is zero.
    """
    ours: str
    theirs: str
    axes: str = ''
    sizes: tuple = ()
    absent: bool = False

    def entries(self, names: Iterable[str], model: Any) -> Iterator['Entry']:
        """The entries for a model whose parameters have these names."""
        sizes = {axis: at(fields_of(model), path) for axis, path in self.sizes}
        choice = re.search(r'\{(\w+(?:,\w+)+)\}', self.ours)
        ours = [self.ours.replace(choice[0], one) for one in choice[1].split(',')] if choice else [self.ours]
        pattern = re.compile(r'(\d+)'.join(map(re.escape, ours[0].split('{i}'))))
        for found in filter(None, map(pattern.fullmatch, names)):
            number = found[1] if pattern.groups else ''
            yield Entry(tuple(one.replace('{i}', number) for one in ours), self.theirs.replace('{i}', number), self.axes,
                        sizes, self.absent)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table for one layer; `ours` are the names of the parameters."""
    ours: tuple
    theirs: str
    axes: str
    sizes: Mapping
    absent: bool

    def shape(self, shapes: Mapping) -> tuple:
        """The shape of their weight, from {name: shape} of our parameters."""
        return self.written({name: np.broadcast_to(np.float32(0), shapes[name]) for name in self.ours}).shape

    def written(self, params: Mapping) -> np.ndarray:
        """Their weight, from {name: array} of our parameters."""
        import einops

        x = np.stack([params[name] for name in self.ours]) if len(self.ours) > 1 else params[self.ours[0]]
        return einops.rearrange(x, self.axes, **self.sizes) if self.axes else x

    def read(self, weight: np.ndarray, shapes: Mapping) -> dict:
        """{name: parameter} of ours, from their weight."""
        import einops

        if self.axes:
            left, right = (side.strip() for side in self.axes.split('->'))
            shape, axes = shapes[self.ours[0]], re.findall(r'\([^)]*\)|\S+', left)
            sizes = dict(zip(axes, shape if len(self.ours) == 1 else (len(self.ours), *shape)))
            sizes = {axis: size for axis, size in sizes.items() if axis.isalpha()}
            weight = einops.rearrange(weight, f'{right} -> {left}', **sizes | self.sizes)
        return dict(zip(self.ours, weight)) if len(self.ours) > 1 else {self.ours[0]: weight}


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture of theirs as a composition of our parts.

    Attributes:
      kind: its `model_type`.
      model: the import path of our class.
      architecture: the class of theirs that is written; `others` are read too.
      use: the kind of run that convert.py makes of it: 'text', 'pairs', 'masked', 'sentences' (masked words and the next
        sentence), 'next', 'classes', 'tags', 'spans', 'images', or 'hidden', for hidden states alone.
      prepared: (config, {name: `Weight`}) -> the config, completed with facts that only the weights tell, before it is read.
      prefix: the prefix of weight names in a model with a head, which files of the model alone leave out.
      renamed: (regex, replacement) for the weight names of older files.
      fields: of the config; `fixed` are fields of older configs that accept only their default and are not written.
      aside: names of further fields of theirs that do not change the outputs of the model.
      implied: {path of our model: the value that theirs always has}.
      free: paths of our model that do not change its outputs here.
      rows: the table of weights.
      inputs: config -> {name: (shape, dtype)} with which our model can be initialised.
      limits: our model -> {their name of an input: exclusive upper bound of its integers, None for floats}.
      derived: (model, inputs, start) -> inputs, with those that theirs derives by itself; start: the first decoder input.
      outputs: {our output: its name there}, where it differs from that in convert.py.
      computed: weights of theirs that are no parameters (regex): buffers of older versions.
      copies: {weight that may be stored besides: the weight of which it is a copy}, unless our model has it as a parameter.
    """
    kind: str
    model: str
    architecture: str
    use: str
    fields: tuple
    implied: Mapping
    rows: tuple
    inputs: Callable
    limits: Callable
    fixed: tuple = ()
    free: tuple = ()
    others: tuple = ()
    prepared: Callable | None = None
    derived: Callable = lambda model, inputs, start: inputs
    prefix: str = ''
    renamed: tuple = ()
    outputs: Mapping = dataclasses.field(default_factory=dict)
    aside: tuple = ()
    computed: str = '(?!)'
    copies: Mapping = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Their architectures that it reads."""
        return self.architecture, *self.others

    def model_fields(self, config: Mapping, cls) -> dict:
        """{field: value} of our model, of class `cls`, from their config. Raises ValueError for an unknown field, which might
        change the outputs."""
        fields = *self.fields, *self.fixed, *FIXED
        known = {name for field in fields for name in field.names[0]}
        unknown = sorted(config.keys() - {*known, *self.aside, *ASIDE})
        if unknown:
            raise ValueError(f'config.json has {unknown[0]}={config[unknown[0]]!r}, which is not known for {self.kind}; '
                             'leave it out if it does not change the outputs of the model.')
        found = {name: value for field in fields for name, value in field.read(config).items()}
        return changed(changed(fields_of(cls), self.implied), found)

    def misfits(self, model: Any, free: Iterable[str]) -> list[Inexpressible]:
        """The fields of our model that theirs cannot express; `free` are the paths that do not change outputs."""
        own, found = fields_of(model), []
        for field in self.fields:
            try:
                field.write(own)
            except ValueError as error:
                found.append(error if isinstance(error, Inexpressible) else Inexpressible(str(error)))
        wanted = changed(fields_of(type(model)), self.implied)
        for path in (*(path for field in self.fields for path in field.names[1]), *free, *self.free):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a part of another kind is reported below
                wanted = changed(wanted, {path: at(own, path)})
        return found + [misfit for name, value in own.items() if value != wanted[name]
                        for misfit in _differences(name, value, wanted[name], self.architecture)]

    def config(self, model: Any) -> dict:
        """Their config, from our model, which must have no misfits."""
        own = fields_of(model)
        written = {name: value for field in self.fields for name, value in field.write(own).items()}
        return {'architectures': [self.architecture], 'model_type': self.kind} | written

    def entries(self, shapes: Iterable[str], model: Any = None) -> list[Entry]:
        """The entries for parameters of these names. Raises ValueError unless each is covered once."""
        found = [entry for row in self.rows for entry in row.entries(shapes, model)]
        covered = [name for entry in found for name in entry.ours]
        if wrong := sorted({*shapes} ^ {*covered}) or sorted(n for n in {*covered} if covered.count(n) > 1):
            raise ValueError(f'The table of {self.kind} does not cover {wrong[0]} exactly once; a model with it has no '
                             'counterpart there.')
        return found

    def distance(self, weights: Mapping) -> int:
        """The number of weight names in {name: `Weight`} that are missing for this architecture or foreign to it."""
        pattern = lambda row: re.escape(row.theirs).replace(r'\{i\}', r'\d+')
        wanted = {row.theirs for row in self.rows if not row.absent and '{i}' not in row.theirs}
        known = re.compile('|'.join(map(pattern, self.rows)))
        names = {*self._whole(weights, wanted)}
        return len(wanted - names) + sum(name not in self.copies and not known.fullmatch(name) for name in names)

    def sides(self, weights: Mapping, shapes: Mapping, model: Any = None) -> tuple[dict, dict]:
        """({their name: shape} from the shapes of our parameters, {their name: shape} of the file), which must be equal."""
        entries = {entry.theirs: entry for entry in self.entries(shapes, model)}
        whole = self._whole(weights, entries)
        needed = {name: str(list(entry.shape(shapes))) for name, entry in entries.items() if name in whole or not entry.absent}
        found = {name: str(list(weight.shape)) for name, weight in whole.items() if name in entries or name not in self.copies}
        return needed, found

    def parameter_dtype(self, weights: Mapping) -> str:
        """The type of our parameters: 'bfloat16' if all of {name: `Weight`} are, else 'float32'."""
        return 'bfloat16' if self.kinds(weights) == {'BF16'} else 'float32'

    def kinds(self, weights: Mapping) -> set[str]:
        """The types of {name: `Weight`}."""
        return {weight.kind for weight in self._whole(weights, ()).values()}

    def read(self, weights: Mapping, shapes: Mapping, source: Any, model: Any = None,
             dtype: str = 'float32') -> Iterator[tuple[str, np.ndarray]]:
        """Yields (name, parameter in `dtype`) from {name: `Weight`}, whose `sides` must be equal."""
        entries = {entry.theirs: entry for entry in self.entries(shapes, model)}
        whole = self._whole(weights, entries)
        for copy, original in self.copies.items():
            if copy in whole and copy not in entries and not np.array_equal(whole[copy](), whole[original]()):
                raise ValueError(f'In {source}, {copy} is not {original}, but they are one table in this model; if it is the '
                                 'output layer, set tie_word_embeddings to false in config.json.')
        for name, entry in entries.items():
            weight = np.asarray(whole[name]() if name in whole else np.zeros(entry.shape(shapes)), jnp.dtype(dtype))
            yield from entry.read(weight, shapes).items()

    def _whole(self, weights, entries):
        """The weights under their newest names, with the prefix, and without computed ones."""
        def name_of(name):
            for old, new in self.renamed:
                name = re.sub(old, new, name)
            plain = name in entries or name in self.copies or name.startswith(self.prefix)
            return name if plain else self.prefix + name

        whole = {name_of(name): weight for name, weight in weights.items()}
        for copy, original in self.copies.items():  # a file may hold any of several tied tensors
            if copy in whole and copy not in entries:
                whole.setdefault(original, whole[copy])
        return {name: weight for name, weight in whole.items() if not re.fullmatch(self.computed, name)}

    def write(self, params: dict, model: Any = None) -> dict[str, np.ndarray]:
        """{their name: weight} from {our name: parameter}, which is emptied on the way, so that memory holds one of the two."""
        entries, found = self.entries({name: x.shape for name, x in params.items()}, model), {}
        for entry in entries:
            found[entry.theirs] = np.ascontiguousarray(entry.written(params))
            for name in entry.ours:
                del params[name]
        return found


def _differences(path: str, value: Any, wanted: Any, architecture: str) -> list[Inexpressible]:
    """How a field differs from the wanted value; for parts of the same class each of their fields."""
    if dataclasses.is_dataclass(value) and type(value) is type(wanted):
        return [misfit for field in dataclasses.fields(value)
                if getattr(value, field.name) != getattr(wanted, field.name)
                for misfit in _differences(f'{path}.{field.name}', getattr(value, field.name), getattr(wanted, field.name),
                                           architecture)]
    return [Inexpressible(f'model.{path} is {value!r}, which {architecture} cannot be; expected {wanted!r}.', path, wanted)]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight of a file, which is read by a call.

    Attributes:
      kind: its type, as .safetensors files name it: 'F32', 'BF16', ...
    """
    shape: tuple
    kind: str
    load: Callable

    def __call__(self) -> np.ndarray:
        return self.load()
