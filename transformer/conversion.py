"""Models in and out of Hugging Face transformers: tables over the fields of a config and over the names of weights, each read
in both directions.

    Row('block_{i}/attention/{query,key,value}/kernel', 'h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)')

says that for every layer i three kernels [D, N, H] of ours, stacked, are one matrix [D, 3·N·H] of theirs. Whatever no row or
field covers is an error: nothing is left out, and nothing ignored, in silence.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Fields of any config of theirs that do not change what a model computes: what it is called, how it is trained or generates.
ASIDE = (
    'architectures', 'auto_map', 'bad_words_ids', 'begin_suppress_tokens', 'bos_token_id', 'chunk_size_feed_forward',
    'decoder_start_token_id', 'diversity_penalty', 'do_sample', 'dtype', 'early_stopping', 'encoder_no_repeat_ngram_size',
    'eos_token_id', 'exponential_decay_length_penalty', 'finetuning_task', 'forced_bos_token_id', 'forced_eos_token_id',
    'gradient_checkpointing', 'id2label', 'initializer_range', 'is_encoder_decoder', 'label2id', 'length_penalty', 'max_length',
    'min_length', 'model_type', 'name_or_path', '_name_or_path', 'no_repeat_ngram_size', 'num_beam_groups', 'num_beams',
    'num_labels', '_num_labels', 'num_return_sequences', 'output_attentions', 'output_hidden_states', 'output_past',
    'output_scores', 'pad_token_id', 'prefix', 'problem_type', 'remove_invalid_values', 'repetition_penalty', 'return_dict',
    'return_dict_in_generate', 'sep_token_id', 'suppress_tokens', 'task_specific_params', 'temperature', 'tf_legacy_loss',
    'tokenizer_class', 'top_k', 'top_p', 'torch_dtype', 'torchscript', 'transformers_version', 'typical_p', 'use_bfloat16',
    'use_cache', '_attn_implementation', '_attn_implementation_autoset')


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of theirs, and the one of our model that says the same.

    Attributes:
      theirs: its name; further names are of fields that have to agree with it, as our one field speaks for all.
      ours: '' if the model has none: then only the default will do.
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
    def names(self):
        """(theirs, ours)."""
        return self.theirs.split(), [self.ours] if self.ours else []

    def read(self, config):
        """{name: value} of our model, for their config."""
        first, *others = self.theirs.split()
        given = config.get(first, self.default)
        for other in others:
            if (own := config.get(other, self.default)) != given:
                raise ValueError(f'config.json has {first}={given!r} and {other}={own!r}, which are one field here, '
                                 f'model.{self.ours}; make them equal.')
        if not self.ours and given != self.default:
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected {self.default!r}.')
        if self.values is not None and given not in [*self.values]:  # a list, as what is given may have no hash
            raise ValueError(f'config.json has {first}={given!r}, which is not supported; expected one of '
                             f'{", ".join(map(repr, self.values))}.')
        given = self.none if given is None else given if self.values is None else self.values[given]
        return {self.ours: given} if self.ours else {}

    def write(self, model):
        """{name: value} of their config, for our model."""
        given = getattr(model, self.ours) if self.ours else self.default
        if self.ours and self.values is not None:
            names = {ours: theirs for theirs, ours in reversed(self.values.items())}  # of several the first
            if given not in names:
                raise ValueError(f'model.{self.ours} is {given!r}, which has no name there; expected one of '
                                 f'{", ".join(map(repr, names))}.')
            given = names[given]
        given = None if self.none is not None and given == self.none else given
        return dict.fromkeys(self.theirs.split(), given)


# Fields of any config of theirs of which only one value will do.
FIXED = (Field('cross_attention_hidden_size'), Field('pruned_heads', default={}), Field('tie_encoder_decoder', default=False))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields of theirs that say together what some of ours do.

    Attributes:
      names: (theirs, ours).
      read: their config -> {name: value} of our model.
      write: our model -> {name: value} of their config.
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
    """
    ours: str
    theirs: str
    axes: str = ''

    def entries(self, names):
        """The entries for a model with parameters of these names."""
        choice = re.search(r'\{(\w+(?:,\w+)+)\}', self.ours)
        ours = [self.ours.replace(choice[0], one) for one in choice[1].split(',')] if choice else [self.ours]
        pattern = re.compile(r'(\d+)'.join(map(re.escape, ours[0].split('{i}'))))
        for found in filter(None, map(pattern.fullmatch, names)):
            number = found[1] if pattern.groups else ''
            yield Entry(tuple(one.replace('{i}', number) for one in ours), self.theirs.replace('{i}', number), self.axes)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row for one layer; `ours` are the names of the parameters."""
    ours: tuple
    theirs: str
    axes: str

    def shape(self, shapes):
        """The shape of their weight, for parameters of these shapes."""
        return self.written({name: np.broadcast_to(np.float32(0), shapes[name]) for name in self.ours}).shape

    def written(self, params):
        """Their weight."""
        import einops

        x = np.stack([params[name] for name in self.ours]) if len(self.ours) > 1 else params[self.ours[0]]
        return einops.rearrange(x, self.axes) if self.axes else x

    def read(self, weight, shapes):
        """{name: parameter}, of their weight."""
        import einops

        if self.axes:
            left, right = (side.strip() for side in self.axes.split('->'))
            shape = shapes[self.ours[0]]
            sizes = dict(zip(left.split(), shape if len(self.ours) == 1 else (len(self.ours), *shape)))
            weight = einops.rearrange(weight, f'{right} -> {left}', **sizes)
        return dict(zip(self.ours, weight)) if len(self.ours) > 1 else {self.ours[0]: weight}


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture of theirs, as a composition of ours.

    Attributes:
      kind: its `model_type`.
      model: the import path of our class.
      architecture: the class of theirs that is written; `others` are read too.
      prepared: (config, {name: `Weight`}) -> the config with what only the weights tell, before it is read.
      prefix: begins names of weights where a head is there, and is left out where the model alone was saved.
      fields: of the config.
      aside: names of further fields of theirs that do not change what the model computes.
      implied: {field of our model: the value that theirs always has}.
      free: fields of ours that do not matter to what theirs computes.
      rows: of the table of weights.
      inputs: {name: (shape, dtype)} with which our model can begin.
      computed: weights of theirs that are no parameters (regex): buffers of older versions.
      copies: {weight that may stand beside the one that it is a copy of: that one}, unless the model has it as a parameter.
    """
    kind: str
    model: str
    architecture: str
    fields: tuple
    implied: Mapping
    rows: tuple
    inputs: Mapping
    free: tuple = ()
    others: tuple = ()
    prepared: Callable | None = None
    prefix: str = ''
    aside: tuple = ()
    computed: str = '(?!)'
    copies: Mapping = dataclasses.field(default_factory=dict)

    def model_fields(self, config):
        """{field: value} of our model, for their config; what would change the result and is not known is refused by name."""
        fields = *self.fields, *FIXED
        known = {name for field in fields for name in field.names[0]}
        unknown = sorted(config.keys() - {*known, *self.aside, *ASIDE})
        if unknown:
            raise ValueError(f'config.json has {unknown[0]}={config[unknown[0]]!r}, which is not known of {self.kind}; '
                             'leave it out if it does not change what the model computes.')
        named = config.get('architectures') or [self.architecture]
        if named[0] not in (self.architecture, *self.others):
            raise ValueError(f'config.json names {named[0]}; of {self.kind} expected '
                             f'{" or ".join((self.architecture, *self.others))}.')
        found = {name: value for field in fields for name, value in field.read(config).items()}
        return dict(self.implied) | found

    def config(self, model, free):
        """Their config, for our model; `free` are the fields of ours that do not change what is computed."""
        covered = {name for field in self.fields for name in field.names[1]}
        for field in dataclasses.fields(model):
            name = field.name
            if name in {*covered, *free, *self.free, 'parent', 'name'}:
                continue
            value, wanted = getattr(model, name), self.implied.get(name, field.default)
            if value != wanted:
                raise ValueError(f'model.{name} is {value!r}, which {self.architecture} cannot be; expected {wanted!r}.')
        written = {name: value for field in self.fields for name, value in field.write(model).items()}
        return {'architectures': [self.architecture], 'model_type': self.kind} | written

    def entries(self, shapes):
        """The table for parameters of these shapes; one that no row covers is an error."""
        found = [entry for row in self.rows for entry in row.entries(shapes)]
        covered = [name for entry in found for name in entry.ours]
        if wrong := sorted({*shapes} ^ {*covered}) or sorted(n for n in {*covered} if covered.count(n) > 1):
            raise ValueError(f'The table of {self.kind} does not have {wrong[0]} once; a model with it has no such weights.')
        return found

    def sides(self, weights, shapes):
        """({their name: shape} of parameters of these shapes, the same of {name: `Weight`}): what has to be equal."""
        entries = {entry.theirs: entry for entry in self.entries(shapes)}
        needed = {name: str(list(entry.shape(shapes))) for name, entry in entries.items()}
        found = {name: str(list(weight.shape)) for name, weight in self._whole(weights, entries).items()
                 if name in entries or name not in self.copies}
        return needed, found

    def read(self, weights, shapes, source):
        """(name, parameter in float32) one after the other, of {name: `Weight`} whose `sides` are equal."""
        entries = {entry.theirs: entry for entry in self.entries(shapes)}
        whole = self._whole(weights, entries)
        for copy, original in self.copies.items():
            if copy in whole and copy not in entries and not np.array_equal(whole[copy](), whole[original]()):
                raise ValueError(f'In {source}, {copy} is not {original}, but they are one table in this model; if it is the '
                                 'output layer, set tie_word_embeddings to false in config.json.')
        for name, entry in entries.items():
            yield from entry.read(np.asarray(whole[name](), np.float32), shapes).items()

    def _whole(self, weights, entries):
        """The weights with the prefix in their names, and without what is computed."""
        plain = lambda name: name in entries or name in self.copies or name.startswith(self.prefix)
        whole = {name if plain(name) else self.prefix + name: weight for name, weight in weights.items()}
        return {name: weight for name, weight in whole.items() if not re.fullmatch(self.computed, name)}

    def write(self, params):
        """{their name: weight}, of {our name: parameter}."""
        entries = self.entries({name: x.shape for name, x in params.items()})
        return {entry.theirs: np.ascontiguousarray(entry.written(params)) for entry in entries}


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that is read when it is called for."""
    shape: tuple
    load: Callable

    def __call__(self):
        return self.load()
