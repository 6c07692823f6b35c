"""ELECTRA: a generator of masked words and a discriminator of replaced ones (Clark et al. 2020)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from transformer.layers.dropout import fold
from transformer.layers.heads import MaskedWords, ReplacedTokens
from transformer.layers.norm import LayerNorm
from transformer.layers.residual import PostNorm
from transformer.layers.stack import Heads, Stack
from transformer.models.bert import Bert

# The discriminator of ELECTRA-Base, with the generator of a third of its width (appendix A, table 6).
BASE = Stack(residual=PostNorm(), embedding_norm=True, norm=LayerNorm(epsilon=1e-12))
# What the code shares in `tied` models, where the paper has tokens and positions alone (section 3.2).
TABLES = 'tokens', 'types', 'positions', 'embedding_norm'


class Electra(nn.Module):
    """Two encoders, each a `Bert` with a stack of its own: the generator G predicts masked words, and the discriminator D tells
    of every token whether it was replaced. The discriminator alone is a `Bert` with the head 'ReplacedTokens()', whose
    parameters are those under 'discriminator/'.

    Attributes:
      vocab: vocabulary size V; by default the tokenizer's.
      length: the largest number of tokens in a row.
      types: number of token types; 0: no embedding of types.
      embedding_width: the width E of the tables, which are projected to another width of a stack; 0: the discriminator's.
      tied: whether the generator has the discriminator's tables and their norm; else it has its own, of its own width.
      generator, discriminator: the stacks of blocks, each with its own sizes.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    length: int = 512
    types: int = 2
    embedding_width: int = 0
    tied: bool = True
    generator: Stack = dataclasses.replace(BASE, width=256, heads=4)
    discriminator: Stack = BASE
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        one, other = self.generator, self.discriminator
        for name in ('positions', 'norm', 'embedding_norm') if self.tied else ():
            if getattr(one, name) != getattr(other, name):
                raise ValueError(f'generator.{name} is {getattr(one, name)} and discriminator.{name} {getattr(other, name)}, '
                                 'but tied=True shares the tables and their norm; make them equal, or set tied=False.')
        super().__post_init__()

    @property
    def packs(self) -> bool:
        """Whether it tells apart the documents of a row, by `segments`."""
        return self.generator.packs and self.discriminator.packs

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attention layers whose heads `head_mask` can switch off."""
        return {f'{name}/attention': Heads(getattr(self, name), name) for name in ('generator', 'discriminator')}

    @nn.compact
    def __call__(self, inputs: jax.Array, *, segments: jax.Array | None = None, positions: jax.Array | None = None,
                 types: jax.Array | None = None, masked: jax.Array | None = None, key: jax.Array | None = None,
                 head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """inputs [B, T] -> with `masked` the outputs of the generator, 'logits' [B, M, V]; else those of the discriminator,
        'replaced_logits' [B, T]; also 'hidden' [B, T, D] and the `aux` of the stack, under 'generator/' or 'discriminator/'.

        Args:
          segments, positions: [B, T], as in `Stack.over_rows`.
          types: [B, T], the type of each token; None: 0.
          masked: [B, M], the positions whose tokens the generator predicts.
          key: random key of training; None switches dropout off.
          head_mask, capture: as in `Context`; the names of heads as in `attentions`.
        """
        given = dict(segments=segments, positions=positions, types=types, capture=capture)

        def outputs(name, apply):
            own = {path.removeprefix(f'{name}/'): x for path, x in (head_mask or {}).items() if path.startswith(f'{name}/')}
            found = apply(inputs, **given, key=fold(key, name), head_mask=own)
            return {f'{name}/{path}' if '/' in path else path: x for path, x in found.items()}

        found = {}
        if masked is None or self.is_initializing():  # initialisation makes both
            found = outputs('discriminator', self._maker('discriminator')(name='discriminator'))
        if masked is not None or self.is_initializing():
            generator = With(self._maker('generator'), name='generator')
            shared = self._shared(self.variables['params']['discriminator'])
            made = outputs('generator', functools.partial(generator, shared, masked=masked))
            found = made if masked is not None else found
        return found

    def encoder(self, name: str, params: Mapping) -> tuple[Bert, dict]:
        """(the 'generator' or the 'discriminator' as a model of its own, its parameters) from the parameters of both."""
        shared = self._shared(params['discriminator']) if name == 'generator' else {}
        return self._maker(name)(parent=None), {**params[name], **shared}

    def _maker(self, name: str) -> Callable:
        """The constructor of an encoder."""
        stack, head = (self.generator, MaskedWords()) if name == 'generator' else (self.discriminator, ReplacedTokens())
        width = self._tables_of(stack) if self.tied or name == 'discriminator' else 0
        return functools.partial(Bert, self.vocab, self.length, width, self.types, stack, head, self.dense_gradient,
                                 self.dtype, self.parameter_dtype)

    def _tables_of(self, stack: Stack) -> int:
        """The `Bert.embedding_width` of a stack on the shared tables: 0 if they have its width."""
        width = self.embedding_width or self.discriminator.width
        return width if width != stack.width else 0

    def _shared(self, there: Mapping) -> dict:
        """The parameters that the generator takes from those of the discriminator: the tables, and positions of the same
        shapes."""
        if not self.tied:
            return {}
        width = self.embedding_width or self.discriminator.width
        one, other = (stack.positions.parameters(stack.sizes(self.length, input_width=width))
                      for stack in (self.generator, self.discriminator))
        alike = {name: wanted.shape for name, wanted in one.items()} == {name: wanted.shape for name, wanted in other.items()}
        return {name: there[name] for name in TABLES if name in there and (alike or name != 'positions')}


class With(nn.Module):
    """A module some of whose parameters are given, since they are another's.

    Attributes:
      make: the constructor of the module.
    """
    make: Callable

    @nn.compact
    def __call__(self, shared: Mapping, *inputs: Any, **given: Any) -> Any:
        """The outputs of the module for its inputs.

        Args:
          shared: {name: parameters}; all others are this module's own.
        """
        module = self.make(parent=None)
        if self.is_initializing():
            for kind, made in module.init(self.make_rng('params'), *inputs, **given).items():
                for name, value in made.items():
                    if name not in shared and self.is_mutable_collection(kind):
                        self.put_variable(kind, name, value)
        return module.apply({'params': {**self.variables['params'], **shared}}, *inputs, **given)
