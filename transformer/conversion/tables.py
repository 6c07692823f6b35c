"""Models in and out of Hugging Face transformers: tables over the fields of a config and over the names of weights, each read
in both directions.

    Row('block_{i}/attention/{query,key,value}/kernel', 'h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)')

says that for every layer i three kernels [D, N, H] of ours, stacked, are one matrix [D, 3·N·H] of theirs. Whatever no row or
field covers is an error: nothing is left out, and nothing ignored, in silence.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

# Fields of any config of theirs that do not change what a model computes: what it is called, how it is trained or generates.
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


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of theirs, and the one of our model that says the same.

    Attributes:
      theirs: its name; further names are of fields that have to agree with it, as our one field speaks for all.
      ours: the path of a field, such as 'layers', 'norm.epsilon' of a part or 'encoder.layers' of a group; further ones say the
        same; '' if the model has none: then only the default will do.
      default: their value where a config does not name it.
      values: {their value: ours}; None: the same.
      none: ours where theirs is null, in place of the same.
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
        """{name: value} of our model, for their config."""
        first, *others = self.theirs.split()
        given = config.get(first, self.default)
        for other in others:
            if (own := config.get(other, self.default)) != given:
                raise ValueError(f'config.json has {first}={given!r} and {other}={own!r}, which are one field here, '
                                 f'model.{self.ours.split()[0]}; make them equal.')
        if not self.ours and given != self.default:
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected {self.default!r}.')
        if self.values is not None and given not in [*self.values]:  # a list, as what is given may have no hash
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected one of '
                             f'{", ".join(map(repr, self.values))}.')
        if self.values is None and isinstance(self.default, (int, float)) and not _is_like(given, self.default):
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected a value such as '
                             f'{self.default!r}.')
        given = self.none if given is None else given if self.values is None else self.values[given]
        return dict.fromkeys(self.ours.split(), given)

    def write(self, model: Mapping) -> dict:
        """{name: value} of their config, for the fields of our model, `fields_of`."""
        names = self.ours.split()
        given = at(model, names[0]) if names else self.default
        for other in names[1:]:
            if at(model, other) != given:
                raise ValueError(f'model.{names[0]} is {given!r} and model.{other} {at(model, other)!r}, which are one field '
                                 'there; make them equal.')
        if names and self.values is not None:
            known = {ours: theirs for theirs, ours in reversed(self.values.items())}  # of several the first
            if given not in known:
                raise ValueError(f'model.{names[0]} is {given!r}, which has no name there; expected one of '
                                 f'{", ".join(map(repr, known))}.')
            given = known[given]
        given = None if self.none is not None and given == self.none else given
        return dict.fromkeys(self.theirs.split(), given)


def fields_of(model: Any) -> dict:
    """{field: value} of a model, or of a class of models with its defaults, as its config has them: those of an inlined part
    are among the model's own, and what has no default is None."""
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
    """The value of a path such as 'norm.epsilon' of {field: value}."""
    first, *others = path.split('.')
    value = fields[first]
    for name in others:
        if not hasattr(value, name):
            raise ValueError(f'model.{first} is {value!r}, which has no form there; expected a part with {name}.')
        value = getattr(value, name)
    return value


def changed(fields: Mapping, changes: Mapping) -> dict:
    """{field: value} with {path: value} of changes: a part is replaced first, and then what is in it."""
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
    """Whether a value is true or false, whole or any number, as `number` is."""
    kinds = (int, float) if isinstance(number, float) else int
    return isinstance(given, kinds) and isinstance(given, bool) == isinstance(number, bool)


def dropouts(branches: str, attention: str, defaults: tuple = (0.1, 0.1), stacks: Sequence[str] = ('',)) -> 'Fields':
    """The fields of the rates of dropout on embedding and branches, one or several names, and on the attention weights.

    stacks: how the paths of our stacks begin, such as 'encoder.'."""
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
    """The field of the inner width of the feed-forward; 0 stands for 4·width in a model of ours."""
    field = Field(name, f'{front}feed_forward.inner', default)
    return Fields(field.names, field.read,
                  lambda model: {name: at(model, f'{front}feed_forward').width(at(model, f'{front}width'))})


def labels(config: Mapping) -> list[str]:
    """The names of the classes of their config, those that several have with their numbers."""
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
    """What a head with classes predicts, by their config: one class ('classes'), any number of 'labels', or a 'number'."""
    kind, count = config.get('problem_type'), len(labels(config))
    told = {theirs: ours for ours, theirs in PROBLEMS.items()} | {None: 'number' if count == 1 else 'classes'}
    if kind not in told:
        raise ValueError(f'config.json has problem_type={kind!r}, which is not supported; expected one of '
                         f'{", ".join(map(repr, PROBLEMS.values()))}.')
    if (told[kind] == 'number') > (count == 1) or (told[kind] == 'classes') > (count > 1):
        raise ValueError(f'config.json has problem_type={kind!r} and names {count} labels, which does not go together here; '
                         'expected one label for a number, and two or more to choose one from.')
    return told[kind]


def named(classes: Sequence[str]) -> list[str]:
    """The inverse of `labels`: the names of classes without the numbers by which they were told apart."""
    plain = [name.removesuffix(f' ({i})') for i, name in enumerate(classes)]
    return [name if plain.count(short) == 1 else short for name, short in zip(classes, plain)]


def head(made: Callable, dropout: str | None = 'classifier_dropout', default: float | None = None,
         of: str = 'dropout') -> 'Fields':
    """The field of a head with classes: `made(classes=, dropout=)` of the labels and of the rate, where theirs has one; `of` is
    the path of the rate that ours has otherwise."""
    like = made(classes=2)

    def read(config):
        rate = None if dropout is None else config.get(dropout, default)
        return {'head': made(classes=len(labels(config)), **({} if rate is None else {'dropout': rate}))}

    def write(model):
        head = model['head']
        if not isinstance(head, type(like)) or dataclasses.replace(head, classes=2, dropout=like.dropout) != like:
            raise ValueError(f'model.head is {head!r}, which has no form there; expected one as {like!r}.')
        usual = default if default is None else at(model, of)
        return {} if dropout is None else {dropout: head.dropout if head.dropout >= 0 else usual}

    return Fields(((dropout,) if dropout else (), ('head',)), read, write)


# Fields of any config of theirs of which only one value will do.
FIXED = (Field('cross_attention_hidden_size'), Field('pruned_heads', default={}), Field('tie_encoder_decoder', default=False))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields of theirs that say together what some of ours do.

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
    """Parameters of ours and the weight of theirs that holds them.

    Attributes:
      ours: {i} stands for the number of a layer; {a,b} for names of parameters that theirs holds together, as the first axis.
      axes: how axes move, as in `einops.rearrange`, from ours to theirs; '' if they stay.
      sizes: {axis: the path of our field that tells its size}, for axes that one of ours is made of.
      absent: whether a file may lack it, which then stands for zeros.
    """
    ours: str
    theirs: str
    axes: str = ''
    sizes: tuple = ()
    absent: bool = False

    def entries(self, names: Iterable[str], model: Any) -> Iterator['Entry']:
        """The entries for a model with parameters of these names."""
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
    """A row for one layer; `ours` are the names of the parameters."""
    ours: tuple
    theirs: str
    axes: str
    sizes: Mapping
    absent: bool

    def shape(self, shapes: Mapping) -> tuple:
        """The shape of their weight, for parameters of these shapes."""
        return self.written({name: np.broadcast_to(np.float32(0), shapes[name]) for name in self.ours}).shape

    def written(self, params: Mapping) -> np.ndarray:
        """Their weight."""
        import einops

        x = np.stack([params[name] for name in self.ours]) if len(self.ours) > 1 else params[self.ours[0]]
        return einops.rearrange(x, self.axes, **self.sizes) if self.axes else x

    def read(self, weight: np.ndarray, shapes: Mapping) -> dict:
        """{name: parameter}, of their weight."""
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
    """An architecture of theirs, as a composition of ours.

    Attributes:
      kind: its `model_type`.
      model: the import path of our class.
      architecture: the class of theirs that is written; `others` are read too.
      use: what it is for, as convert.py makes runs of it: 'text', 'pairs', 'masked', 'sentences' (masked words and the next
        sentence), 'next', 'classes', 'tags', 'spans', 'images', or 'hidden', for hidden states alone.
      prepared: (config, {name: `Weight`}) -> the config with what only the weights tell, before it is read.
      prefix: begins names of weights where a head is there, and is left out where the model alone was saved.
      renamed: (regex, what it becomes) of names of weights in older files.
      fields: of the config; `fixed` are those of older configs of which one value will do, and which are not written.
      aside: names of further fields of theirs that do not change what the model computes.
      implied: {path of our model: the value that theirs always has}.
      free: paths of ours that do not matter to what theirs computes.
      rows: of the table of weights.
      inputs: config -> {name: (shape, dtype)} with which our model can begin.
      limits: our model -> {their name of an input: what its integers are below, None for floats}.
      derived: (model, inputs, start) -> inputs with what theirs works out by itself; start: what a decoder is given first.
      outputs: {our output: its name there}, where that is not as convert.py has it.
      computed: weights of theirs that are no parameters (regex): buffers of older versions.
      copies: {weight that may stand beside the one that it is a copy of: that one}, unless the model has it as a parameter.
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
        """The architectures of theirs that it reads."""
        return self.architecture, *self.others

    def model_fields(self, config: Mapping, cls) -> dict:
        """{field: value} of our model, of class `cls`, for their config; what would change the result and is not known is
        refused by name."""
        fields = *self.fields, *self.fixed, *FIXED
        known = {name for field in fields for name in field.names[0]}
        unknown = sorted(config.keys() - {*known, *self.aside, *ASIDE})
        if unknown:
            raise ValueError(f'config.json has {unknown[0]}={config[unknown[0]]!r}, which is not known of {self.kind}; '
                             'leave it out if it does not change what the model computes.')
        found = {name: value for field in fields for name, value in field.read(config).items()}
        return changed(changed(fields_of(cls), self.implied), found)

    def misfits(self, model: Any, free: Iterable[str]) -> list[str]:
        """What of our model theirs cannot be, a sentence each; `free` are the paths that do not change what is computed."""
        own, found = fields_of(model), []
        for field in self.fields:
            try:
                field.write(own)
            except ValueError as error:
                found.append(str(error))
        wanted = changed(fields_of(type(model)), self.implied)
        for path in (*(path for field in self.fields for path in field.names[1]), *free, *self.free):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a part of another kind is reported below
                wanted = changed(wanted, {path: at(own, path)})
        return found + [sentence for name, value in own.items() if value != wanted[name]
                        for sentence in _differences(f'model.{name}', value, wanted[name], self.architecture)]

    def config(self, model: Any) -> dict:
        """Their config, for our model, which has no misfits."""
        own = fields_of(model)
        written = {name: value for field in self.fields for name, value in field.write(own).items()}
        return {'architectures': [self.architecture], 'model_type': self.kind} | written

    def entries(self, shapes: Iterable[str], model: Any = None) -> list[Entry]:
        """The table for parameters of these shapes; one that no row covers is an error."""
        found = [entry for row in self.rows for entry in row.entries(shapes, model)]
        covered = [name for entry in found for name in entry.ours]
        if wrong := sorted({*shapes} ^ {*covered}) or sorted(n for n in {*covered} if covered.count(n) > 1):
            raise ValueError(f'The table of {self.kind} does not have {wrong[0]} once; a model with it has no such weights.')
        return found

    def distance(self, weights: Mapping) -> int:
        """How many names of weights say that {name: `Weight`} are of another architecture."""
        pattern = lambda row: re.escape(row.theirs).replace(r'\{i\}', r'\d+')
        wanted = {row.theirs for row in self.rows if not row.absent and '{i}' not in row.theirs}
        known = re.compile('|'.join(map(pattern, self.rows)))
        names = {*self._whole(weights, wanted)}
        return len(wanted - names) + sum(name not in self.copies and not known.fullmatch(name) for name in names)

    def sides(self, weights: Mapping, shapes: Mapping, model: Any = None) -> tuple[dict, dict]:
        """({their name: shape} of parameters of these shapes, the same of {name: `Weight`}): what has to be equal."""
        entries = {entry.theirs: entry for entry in self.entries(shapes, model)}
        whole = self._whole(weights, entries)
        needed = {name: str(list(entry.shape(shapes))) for name, entry in entries.items() if name in whole or not entry.absent}
        found = {name: str(list(weight.shape)) for name, weight in whole.items() if name in entries or name not in self.copies}
        return needed, found

    def parameter_dtype(self, weights: Mapping) -> str:
        """The type in which parameters hold {name: `Weight`} as they are: 'bfloat16' where all of them are, else 'float32'."""
        return 'bfloat16' if self.kinds(weights) == {'BF16'} else 'float32'

    def kinds(self, weights: Mapping) -> set[str]:
        """The types of {name: `Weight`}."""
        return {weight.kind for weight in self._whole(weights, ()).values()}

    def read(self, weights: Mapping, shapes: Mapping, source: Any, model: Any = None,
             dtype: str = 'float32') -> Iterator[tuple[str, np.ndarray]]:
        """(name, parameter in `dtype`) one after the other, of {name: `Weight`} whose `sides` are equal."""
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
        """The weights under their newest names, with the prefix, and without what is computed."""
        def name_of(name):
            for old, new in self.renamed:
                name = re.sub(old, new, name)
            plain = name in entries or name in self.copies or name.startswith(self.prefix)
            return name if plain else self.prefix + name

        whole = {name_of(name): weight for name, weight in weights.items()}
        for copy, original in self.copies.items():  # of tensors that are one, a file may have any
            if copy in whole and copy not in entries:
                whole.setdefault(original, whole[copy])
        return {name: weight for name, weight in whole.items() if not re.fullmatch(self.computed, name)}

    def write(self, params: dict, model: Any = None) -> dict[str, np.ndarray]:
        """{their name: weight}, of {our name: parameter}, out of which each is taken: the two need not be there at once."""
        entries, found = self.entries({name: x.shape for name, x in params.items()}, model), {}
        for entry in entries:
            found[entry.theirs] = np.ascontiguousarray(entry.written(params))
            for name in entry.ours:
                del params[name]
        return found


def _differences(path: str, value: Any, wanted: Any, architecture: str) -> list[str]:
    """Sentences on how a field differs from what is wanted; of a part of the same class, on each of its fields."""
    if dataclasses.is_dataclass(value) and type(value) is type(wanted):
        return [sentence for field in dataclasses.fields(value)
                if getattr(value, field.name) != getattr(wanted, field.name)
                for sentence in _differences(f'{path}.{field.name}', getattr(value, field.name), getattr(wanted, field.name),
                                             architecture)]
    return [f'{path} is {value!r}, which {architecture} cannot be; expected {wanted!r}.']


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that is read when it is called for.

    Attributes:
      kind: its type, as .safetensors files name it: 'F32', 'BF16', ...
    """
    shape: tuple
    kind: str
    load: Callable

    def __call__(self) -> np.ndarray:
        return self.load()
