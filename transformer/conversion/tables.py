"""Conversion of models of Hugging Face transformers ("theirs") and of this repository ("ours"): tables of config fields and of
weight names, each read in both directions.

    Row('block_{i}/attention/{query,key,value}/kernel', 'h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)')

means that for every layer i our three kernels [D, N, H], stacked, are one matrix [D, 3·N·H] of theirs. A field or weight that
no entry covers is an error: nothing is silently left out or ignored.
"""

import contextlib
import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer.conversion.fields import FIXED, at, changed, fields_of
from transformer.conversion.forms import Form, with_fields
from transformer.layers.initial import MuP
from transformer.layers.stack import Blocks

STACKS = 'encoder', 'decoder'  # fields of our models that are groups of fields
RATES = 'dropout', 'twice', 'drop_path'  # ends of the paths of fields that act in training alone

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


@dataclasses.dataclass(frozen=True)
class Row:
    """Our parameters and the weight of theirs that holds them.

    Attributes:
      ours: {i} stands for the number of a layer, {s} for that of a stage; {a,b} for the names of parameters that are stacked,
        as the first axis.
      theirs: the same, where {s-1} is a number that is one less, and {i/2}.{i%2} count every other layer.
      axes: the pattern of `einops.rearrange` from ours to theirs; '' if they are equal.
      sizes: {axis: its size, or the path of our field with it}, for axes that together make up one of ours.
      absent: whether a file may lack the weight, which then is zero.
      reversed_axis: the axis of theirs whose order is the reverse of ours; None: there is none.
    """
    ours: str
    theirs: str
    axes: str = ''
    sizes: tuple = ()
    absent: bool = False
    reversed_axis: int | None = None

    def entries(self, names: Iterable[str], model: Any) -> Iterator['Entry']:
        """The entries for a model whose parameters have these names."""
        sizes = {axis: size if isinstance(size, int) else at(fields_of(model), size) for axis, size in self.sizes}
        choice = re.search(r'\{(\w+(?:,\w+)+)\}', self.ours)
        ours = [self.ours.replace(choice[0], one) for one in choice[1].split(',')] if choice else [self.ours]
        pattern = re.compile(_pattern(ours[0]))
        for found in filter(None, map(pattern.fullmatch, names)):
            filled = lambda text: _NUMBER.sub(lambda one: _count(int(found[one[1]]), one[2], one[3]), text)  # noqa: B023
            yield Entry(tuple(map(filled, ours)), filled(self.theirs), self.axes, sizes, self.absent, self.reversed_axis)


_NUMBER = re.compile(r'\{(\w)(?:([-/%])(\d+))?\}')  # in the names of a row
_OPERATIONS = {'-': operator.sub, '/': operator.floordiv, '%': operator.mod}


def _count(number, operation, other):
    return str(_OPERATIONS[operation](number, int(other)) if operation else number)


def _pattern(name):
    """The regex for the names of a row, with a group for each of its numbers."""
    plain = map(re.escape, _NUMBER.split(name)[::4])
    numbers = [rf'(?P<{one[1]}>\d+)' for one in _NUMBER.finditer(name)]
    return ''.join(text for pair in itertools.zip_longest(plain, numbers, fillvalue='') for text in pair)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table for one layer; `ours` are the names of the parameters."""
    ours: tuple
    theirs: str
    axes: str
    sizes: Mapping
    absent: bool
    reversed_axis: int | None = None

    def shape(self, shapes: Mapping) -> tuple:
        """The shape of their weight, from {name: shape} of our parameters."""
        return self.written({name: np.broadcast_to(np.float32(0), shapes[name]) for name in self.ours}).shape

    def written(self, params: Mapping) -> np.ndarray:
        """Their weight, from {name: array} of our parameters."""
        import einops

        x = np.stack([params[name] for name in self.ours]) if len(self.ours) > 1 else params[self.ours[0]]
        x = einops.rearrange(x, self.axes, **self.sizes) if self.axes else x
        return x if self.reversed_axis is None else np.flip(x, self.reversed_axis)

    def read(self, weight: np.ndarray, shapes: Mapping) -> dict:
        """{name: parameter} of ours, from their weight."""
        import einops

        weight = weight if self.reversed_axis is None else np.flip(weight, self.reversed_axis)
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
        sentence) or 'order' (and the order of sentences), 'next', 'replaced', 'classes', 'choices', 'tags', 'spans',
        'images', or 'hidden', for hidden states alone.
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
      check: our model, (height, width) -> what keeps theirs from taking such images, and what to do; '' if nothing does.
      derived: (model, inputs, start) -> inputs, with those that theirs derives by itself; start: the first decoder input.
      outputs: {our output: its name there}, where it differs from that in convert.py.
      layouts: {our output: the pattern of `einops.rearrange` from ours to theirs}, where the axes differ.
      computed: weights of theirs that are no parameters (regex): buffers of older versions.
      buffers: {name: weight} of theirs -> those that a file has besides, and that are read as `computed`.
      copies: {weight that may be stored besides: the weight of which it is a copy}, unless our model has it as a parameter.
      forms: in which a model of ours is written that lacks what theirs always has, one after the other.
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
    check: Callable = lambda model, sides: ''
    fixed: tuple = ()
    free: tuple = ()
    others: tuple = ()
    prepared: Callable | None = None
    derived: Callable = lambda model, inputs, start: inputs
    prefix: str = ''
    renamed: tuple = ()
    outputs: Mapping = dataclasses.field(default_factory=dict)
    layouts: Mapping = dataclasses.field(default_factory=dict)
    aside: tuple = ()
    computed: str = '(?!)'
    buffers: Callable = lambda weights: {}
    copies: Mapping = dataclasses.field(default_factory=dict)
    forms: tuple[Form, ...] = ()

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

    def formed(self, model: Any, free: Iterable[str]) -> 'Formed':
        """The model in the forms of this family, and what theirs cannot express of it; `free` are the paths of fields that do
        not change outputs."""
        steps = []
        for form in self.forms:
            if changes := form.changes(model):
                steps.append((form, model, model := with_fields(model, changes)))
        own = fields_of(model)
        free = [path for path in free if not _under_mup(own, path)]
        differences = [*_differences(own, self._nearest(own, type(model), free))]
        rates = {path: wanted for path, _, wanted in differences if path.endswith(RATES)}
        misfits = {}
        for path, _, wanted in differences:
            if path not in rates:
                misfits.setdefault(_flag_of(path, own), {})[path] = wanted
        sides = [(flag, at(own, flag), at(changed(own, changes), flag)) for flag, changes in misfits.items()]
        return Formed(with_fields(model, rates) if rates else model, steps, rates, sides)

    def _nearest(self, own, cls, free):
        """The fields nearest to `own` that theirs can express."""
        usual = self.model_fields(self.prepared({}, {}) if self.prepared else {}, cls)
        if hasattr(own.get('head'), 'classes') and hasattr(usual['head'], 'classes'):
            usual['head'] = dataclasses.replace(usual['head'], classes=own['head'].classes)
        found = own
        for field in self.fields:
            if field.nearest is not None:
                found = changed(found, field.nearest(found))
            elif paths := field.names[1]:
                found = next(filter(None, (_written(field, make) for make in _mended(found, usual, paths))), found)
        wanted = changed(fields_of(cls), self.implied)
        for path in (*(path for field in self.fields for path in field.names[1]), *free, *self.free):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a part of another kind stays the implied one
                wanted = changed(wanted, {path: at(found, path)})
        return wanted

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
        pattern = lambda row: re.sub(r'\?P<\w>', '?:', _pattern(row.theirs))
        wanted = {row.theirs for row in self.rows if not row.absent and not _NUMBER.search(row.theirs)}
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
        return found | self.buffers(found)


def _under_mup(own, path):
    """Whether the field at a path of `own` is an initialisation that also divides scores and outputs."""
    front, _, name = path.rpartition('.')
    if name != 'initial' or (front and front not in own) or not (front or name in own):
        return False
    initial, width = at(own, path), at(own, f'{front}.width' if front else 'width')
    return isinstance(initial, MuP) and initial.at(width) != dataclasses.replace(initial, base=width, head_width=0).at(width)


def _mended(own, usual, paths):
    """Yields functions that return the fields `own`, then changed more and more at some paths: with equal values in both
    stacks, with one value at all paths, with usual values, with usual parts."""
    yield lambda: own
    first = paths[0].partition('.')
    if first[0] in STACKS:
        yield lambda: changed(own, {path: at(own, f'{first[0]}.{path.partition(".")[2]}') for path in paths})
    yield lambda: changed(own, {path: at(own, paths[0]) for path in paths})
    yield lambda: changed(own, {path: at(usual, path) for path in paths})
    parts = {path.rpartition('.')[0] or path for path in paths}
    yield lambda: changed(own, {path: at(usual, path) for path in parts})


def _written(field, make):
    """The fields that `make` returns if a field of theirs can be written from them, else None."""
    try:
        fields = make()
        field.write(fields)
    except (ValueError, TypeError, AttributeError):
        return None
    return fields


def _flag_of(path, fields):
    """The beginning of a path that is a flag by itself: through groups, which are mappings, blocks or parts without a base
    class, of which there is no choice."""
    first, _, inside = path.partition('.')
    value = fields[first]
    group = isinstance(value, Mapping | Blocks) or (dataclasses.is_dataclass(value) and type(value).__bases__ == (object,))
    if not inside or not group:
        return first
    return f'{first}.{_flag_of(inside, value if isinstance(value, Mapping) else vars(value))}'


def _differences(own, wanted, front=''):
    """Yields (path, value, wanted value) of the fields that differ; of parts of the same class, and of equally many stages,
    each field by itself."""
    for name, value in own.items():
        if value == wanted[name]:
            continue
        if isinstance(value, Mapping) and {*value} == {*wanted[name]}:
            yield from _differences(value, wanted[name], f'{front}{name}.')
        elif dataclasses.is_dataclass(value) and type(value) is type(wanted[name]):
            fields = lambda part: {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
            yield from _differences(fields(value), fields(wanted[name]), f'{front}{name}.')
        else:
            yield f'{front}{name}', value, wanted[name]


@dataclasses.dataclass(frozen=True)
class Formed:
    """A model in the forms of a family.

    Attributes:
      steps: (form, model before, model after) of each form that has changed it.
      rates: {path: its new rate} of dropout, which matters in training alone.
      misfits: (path of a field, its value, the nearest value that theirs has) of all that theirs cannot express.
    """
    model: Any
    steps: list
    rates: Mapping
    misfits: list

    def params(self, params: Mapping, image: tuple = ()) -> dict:
        """{name: parameter} of this model, from those of the original; image: (height, width, channels), () for text."""
        for form, before, after in self.steps:
            params = form.params(params, before, after, image)
        return dict(params)

    @property
    def distance(self) -> tuple:
        """How far the model is from this family, by which families are compared: first whether its head is of another kind."""
        head = any(path == 'head' and type(value) is not type(wanted) for path, value, wanted in self.misfits)
        return head, len(self.misfits), len(self.steps) + len(self.rates)

    @property
    def said(self) -> str:
        """A line on what has been changed; '' if nothing was."""
        forms = [form.said for form, _, _ in self.steps]
        rates = [f'model.{path}={self._stated(path, rate)}' for path, rate in self.rates.items()]
        return '\n'.join([f'with {", ".join(forms)}: the outputs are the same'] * bool(forms)
                         + [f'dropout in training there: {", ".join(rates)}'] * bool(rates))

    def _stated(self, path: str, rate: float) -> float:
        """A rate of dropout, for a negative one the rate that it stands for."""
        return rate if rate >= 0 else at(fields_of(self.model), re.sub(r'\w+$', 'dropout', path))

    def refusal(self, architecture: str) -> str:
        """The sentence on all misfits, with the flags of a run that has none."""
        return (' and '.join(f'model.{path}={value!r}' for path, value, _ in self.misfits)
                + f' cannot be written as {architecture}; train with '
                + ' '.join(f'--config.model.{path}={_flag(wanted)}' for path, _, wanted in self.misfits)
                + ', or write the run as it is with --to_safetensors=FILE.')


def _flag(value):
    """The value of a flag as a shell takes it, a part without fields that have their default."""
    if not dataclasses.is_dataclass(value):
        return str(value) if isinstance(value, bool | int | float) else repr(value)
    return f"'{_called(value)}'"


def _called(value):
    """A part as a call without the arguments that have their default."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = [f'{field.name}={_called(getattr(value, field.name))}' for field in dataclasses.fields(value)
             if getattr(value, field.name) != field.default]
    return f'{type(value).__name__}({", ".join(given)})'


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
