"""The stack of blocks in GPT, BERT, ViT, encoders and decoders, and the blocks alone, of which hierarchical models have several
in sequence."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer.attention.context import Context
from transformer.attention.kernels import residuals
from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.data import Marked, Padding, Segments
from transformer.attention.masks.patterns import Full
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.multi_head import MultiHead
from transformer.attention.partition import Partition, Whole
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.base import Encoding, Positions, Sizes
from transformer.attention.pruned import NoHeads, kept_heads, of_kept
from transformer.layers.block import Block
from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import dropout, fold, path_rates
from transformer.layers.feed_forward import FeedForward, FeedForwardLayer, Mlp
from transformer.layers.initial import Initial, MuP, Scaled
from transformer.layers.norm import LayerNorm, Norm, OverBatch, normed
from transformer.layers.numerics import Numerics, real_dtype
from transformer.layers.residual import Admin, PreNorm, Residual
from transformer.layers.sharding import BATCH, constrain
from transformer.layers.universal import Depth, Own, Universal, steps

INPUT = 'block_input'  # the name of the input of each block
# What is stored of a block's forward pass; the backward pass computes the rest again (Chen et al. 2016).
REMAT = {
    'none': jax.checkpoint_policies.everything_saveable,
    # The products with parameters, and of attention not the scores but what a fused kernel gives its backward pass.
    'dots': jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, residuals.kept),
    'full': jax.checkpoint_policies.nothing_saveable,
    'offload': jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=[INPUT], offload_src='device', offload_dst='pinned_host'),
}


class Rates(NamedTuple):
    """What blocks leave out in training.

    Attributes:
      dropout: the rate on each residual branch.
      attention: that on the attention weights.
      paths: the rate of drop path of each layer; (): there is no drop path.
    """
    dropout: float = 0.0
    attention: float = 0.0
    paths: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks of a `Stack`, without what is done once before and after them.

    They are called by the module that contains them, and whose parameters are then block_0, ..

    Attributes:
      layers: L, the number of blocks.
      heads: N, query heads of each attention.
      width: D.
      head_width: width H of a head; 0: width / heads.
      key_heads: heads of keys and values, shared by groups of query heads; 0: `heads`.
      attention: the mechanism that mixes positions, such as 'Softmax(score=Additive())'; 'AlternateAttention(Softmax(),
        Linear())' has one for every other layer.
      partition: the tokens that attention sees together: 'Whole()', or of an image 'Windows(size=7)'; 'AlternatePartition(
        Windows(size=7), Whole())' has another one for every other layer.
      mask: which query may attend to which key, such as 'Causal() & Window(size=256)'.
      positions: the position encoding, such as 'Learned()' or 'Rotary()'.
      projection_bias, output_bias: biases of queries, keys and values, and of the output projection, in every attention.
      feed_forward: 'Mlp(inner=0, activation=Gelu())', or 'Gated(..)'.
      norm: the kind of every norm, 'LayerNorm(epsilon=1e-05, bias=True)' or 'RMSNorm(epsilon=1e-06)'; to compare,
        'OverBatch()'.
      residual: how branches join and where norms are applied: 'PreNorm()' as in GPT-2, 'PostNorm()', 'Sandwich()',
        'ParallelBranches()', 'Admin()', 'ReZero()', 'LayerScale()', or 'NoNorm()'.
      initial: the initialisation: 'Scaled(scale=0.02)' as in GPT-2, 'Xavier()', 'LeCun()', 'T5()', or 'TFixup()' and
        'DTFixup()', for 'NoNorm()'; 'MuP(base=64)' also lets scores, outputs and learning rates follow the width.
      depth: 'Own()', every layer has its own parameters; 'Groups(groups=1)', those of a group share them as in ALBERT;
        'Universal()', all share them, with a signal of the step and with or without adaptive halting.
      kept, cross_kept: the heads that remain after pruning (eval.py --heads) in every self-attention and in every cross
        attention, such as ((0, 2), (1,)) in two layers; (): all.
      scan: stacks the parameters inside the step and scans one block over them: the program does not grow with depth, but
        needs one more copy of the parameters. Worth it for deep models on accelerators, slower for small ones on a CPU.
      remat: what is stored for the backward pass: 'none' (all activations), 'dots' (the products with parameters, and the
        outputs of attention kernels), 'full' (only the input of each block: a third more work), 'offload' (that in the memory
        of the host, from where it comes back for the backward pass: least memory of an accelerator).
    """
    layers: int = 12
    heads: int = 12
    width: int = 768
    head_width: int = 0
    key_heads: int = 0
    attention: Mechanism = Softmax()
    partition: Partition = Whole()
    mask: Mask = Full()
    positions: Positions = Learned()
    projection_bias: bool = True
    output_bias: bool = True
    feed_forward: FeedForward = Mlp()
    norm: Norm = LayerNorm()
    residual: Residual = PreNorm()
    initial: Initial = Scaled()
    depth: Depth = Own()
    kept: tuple = ()
    cross_kept: tuple = ()
    scan: bool = False
    remat: str = 'none'

    def __post_init__(self):
        for name, least in (('layers', 1), ('heads', 1), ('width', 1), ('head_width', 0), ('key_heads', 0)):
            if getattr(self, name) < least:
                raise ValueError(f'{name} is {getattr(self, name)}; set it to at least {least}.')
        if isinstance(self.norm, OverBatch) and (self.scan or self.remat != 'none' or not isinstance(self.depth, Own)):
            raise ValueError(f'norm={self.norm} gathers moments in each layer as it runs; leave out scan, remat and depth.')
        if self.depth.blocks(self.layers) < self.layers and isinstance(self.residual, Admin):
            raise ValueError(f'depth={self.depth} has layers with one block, whose stream cannot have weights of its own in '
                             f'each; use another residual than {self.residual}, or Own().')
        if isinstance(self.initial, MuP) and getattr(self.depth, 'halting', False):
            raise ValueError(f'initial={self.initial} says nothing of the matrix by which {self.depth} halts; leave out '
                             'halting, or use another initial.')
        if self.depth.blocks(self.layers) < self.layers and (self.kept or self.cross_kept):
            raise ValueError(f'depth={self.depth} has layers that share their heads, which cannot be pruned; leave out kept '
                             'and cross_kept.')
        self._turns()

    def _turns(self, cross=None):
        """The number of layers after which the constructors of blocks repeat, with the mechanism of cross attention if there is
        one. Raises ValueError if layers with one block would differ."""
        turns = math.lcm(self.attention.period, self.partition.period, cross.period if cross else 1)
        if self.depth.blocks(self.layers) < self.layers and turns > 1:
            raise ValueError(f'depth={self.depth} has layers with one block, which cannot alternate between attentions or '
                             'partitions; leave out those, or use Own().')
        return turns

    @property
    def each_head(self) -> int:
        """The width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def packs(self) -> bool:
        """Whether its attention keeps documents apart that share a row."""
        return self.attention.packed

    @property
    def table_init(self) -> Callable:
        """The initialiser of embeddings below the stack."""
        return self._initial.embedding(self.layers)

    @property
    def matrix_init(self) -> Callable:
        """The initialiser of matrices before and after the stack."""
        return self._initial.matrix(self.layers)

    @property
    def output_init(self) -> Callable:
        """The initialiser of a matrix from the stack to words or classes."""
        return self._initial.output(self.layers)

    @property
    def multiple(self) -> float:
        """m of muP, by which the states are divided before words or classes; 1 without it."""
        return self._initial.multiple

    @property
    def _initial(self):
        return self.initial.at(self.width)

    def sizes(self, length: int, **grid: Any) -> Sizes:
        """The sizes for its position encoding, for rows of up to `length`."""
        return Sizes(length, self.width, self.heads, self.each_head, table=self.table_init, **grid)

    def through(self, x: jax.Array, context: Context, rates: Rates, *, numerics: Numerics, key: jax.Array | None = None,
                cache: dict | None = None, cross: Mechanism | None = None) -> tuple:
        """x [B, T, D] -> (x after all blocks, the updated cache, aux), as in `Stack.__call__`."""
        turns, (makers, kept) = self._turns(cross), self._blocks(numerics, cross, rates)
        if not isinstance(self.depth, Universal):
            return self._through(makers, kept, x, context, rates.paths, key, cache, turns)
        if self.scan or self.remat != 'none' or context.head_mask:
            raise ValueError(f'depth={self.depth} has one block, whose heads cannot be pruned or scanned over; leave out '
                             'scan, remat and --heads.')
        return steps(self.depth, makers[0], self.layers, x, context, key=key, cache=cache, path_rates=rates.paths,
                     numerics=numerics)

    def last_norm(self, x: jax.Array, numerics: Numerics, train: bool = False) -> jax.Array:
        """The norm at the end of the last block, 'norm', if the residual needs one."""
        return normed(self.norm, x, 'norm', numerics, train) if self.residual.final_norm else x

    def _blocks(self, numerics, cross, rates):
        """([constructor of each block, called with a name], [{branch: its heads after pruning}])."""
        if self.cross_kept and cross is None:
            raise ValueError(f'model.cross_kept is {self.cross_kept!r}, but these blocks attend to no source; leave it out.')
        branches = 3 if cross else 2
        common = dict(bias=self.projection_bias, output_bias=self.output_bias, numerics=numerics,
                      dropout=rates.attention, **self._initial.attention(self.layers, branches))

        def attention(mechanism, kept):
            if kept == ():
                return partial(NoHeads, self.output_bias, numerics)
            heads = (self.heads, self.key_heads) if kept is None else (len(kept), 0)
            head_width = self.head_width if kept is None else self.each_head
            return partial(MultiHead, *heads, head_width, mechanism=mechanism, **common)

        feed_forward = partial(FeedForwardLayer, self.feed_forward, self._initial.feed_forward(self.layers, branches), numerics)
        turns = math.lcm(self.mask.period, self._turns(cross))
        kept = [{'attention': own, 'cross_attention': other}
                for own, other in zip(kept_heads(self, 'kept', turns), kept_heads(self, 'cross_kept', turns))]
        makers = [partial(Block, attention(self.attention.of_layer(i), one['attention']), feed_forward,
                          attention(cross.of_layer(i), one['cross_attention']) if cross else None, self.norm,
                          self.residual.of_layer(i), self.partition.of_layer(i), rates.dropout, numerics)
                  for i, one in enumerate(kept)]
        return makers, kept

    def _through(self, makers, kept, x, context, paths, key, cache, turns):
        """(x, cache, aux) after blocks named block_0, block_1, ..: the same, with the same names of parameters, for every
        `scan` and `remat`. With a cache, and for initialisation, the blocks are unrolled. Layers of a group have one block."""
        if self.remat not in REMAT:
            raise ValueError(f'remat is {self.remat!r}; expected one of {", ".join(REMAT)}.')
        blocks = [make(name=f'block_{i}') for i, make in enumerate(makers[:self.depth.blocks(self.layers)])]
        each, aux = self.layers // len(blocks), {}  # layers of one block
        of_layer = lambda context, i: of_kept(context.of_layer(i), kept[i])
        rates = jnp.asarray(paths, real_dtype())
        path_rate = lambda i: rates[i] if paths else None
        x = constrain(x, BATCH)
        if cache is not None or blocks[0].is_initializing() or not (self.scan or self.remat != 'none'):
            new = {}
            for i in range(self.layers):
                x, new[f'block_{i}'], own = blocks[i // each](x, of_layer(context, i), key=fold(key, 'block', i),
                                                              cache=None if cache is None else cache[f'block_{i}'],
                                                              path_rate=path_rate(i))
                x, aux = constrain(x, BATCH), aux | _named(i, own)
            return x, None if cache is None else new, aux

        def apply(own, x, key, factors, rate, *, layer):
            x = checkpoint_name(x, INPUT)  # in here, as what comes from outside is stored where it is
            bare = dataclasses.replace(context, head_mask={})
            here = of_kept(dataclasses.replace(bare.of_layer(layer), head_mask=factors), kept[layer])
            x, _, aux = makers[layer](parent=None).apply({'params': own}, x, here, key=key, path_rate=rate)
            return constrain(x, BATCH), aux

        # One step of a scan contains all layers that differ.
        period = math.lcm(context.mask.period, turns) if self.scan else self.layers
        together = self.layers if each == 1 else each  # layers of one scan
        if self.scan and together % period:
            raise ValueError(f'scan: {together} layers cannot be scanned under {context.mask} with {self.attention}, '
                             f'{self.partition} and the attention to a source, which repeat after {period}; choose a multiple, '
                             'or scan=False.')
        functions = [partial(apply, layer=i) for i in range(period)]
        if self.remat != 'none':
            functions = [jax.checkpoint(function, policy=REMAT[self.remat], prevent_cse=not self.scan)
                         for function in functions]

        def period_of_layers(x, given, shared=None):
            (first, own, factors), found = given, []
            for i, function in enumerate(functions):
                x, one = function(own[i] if shared is None else shared, x, fold(key, 'block', first + i),
                                  {name: f[i] for name, f in factors.items()}, path_rate(first + i))
                found.append(one)
            return x, found

        params = [one.variables.get('params', {}) for one in blocks]
        if not self.scan:
            x, found = period_of_layers(x, (0, [params[i // each] for i in range(self.layers)], context.head_mask))
            return x, None, {name: one for i, own in enumerate(found) for name, one in _named(i, own).items()}
        own, shared = (), params  # a scan for each group, over nothing but the numbers of its layers
        if each == 1:
            own, shared = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[i::period]) for i in range(period)], [None]
        for first, one in zip(range(0, self.layers, together), shared):
            last = first + together
            factors = {name: f[first:last].reshape(-1, period, *f.shape[1:]) for name, f in context.head_mask.items()}
            x, found = jax.lax.scan(partial(period_of_layers, shared=one), x, (jnp.arange(first, last, period), own, factors))
            for i in range(together):
                aux |= _named(first + i, {name: x[i // period] for name, x in found[i % period].items()})
        return x, None, aux


@dataclasses.dataclass(frozen=True)
class Stack(Blocks):
    """norm(blocks(x + P)), with a norm if the residual needs one at the end.

    A stack is called by the module that contains it, and whose parameters are then block_0, .., norm.

    Attributes:
      embedding_norm: whether a norm follows the embedding, as in BERT and BART.
      dropout: rate on the embedding and the residual branches.
      attention_dropout: rate on the attention weights; -1: as `dropout`.
      last_dropout: rate on the output of the stack; -1: as `dropout`.
      drop_path: the probability with which the last block leaves out each of its branches, for every example by itself; 0: no
        drop path (Huang et al. 2016, section 3). Over the blocks it increases linearly from 0, which a single block has.
      constant_drop_path: all blocks have the rate of the last one, as in DINOv2.
    """
    embedding_norm: bool = False
    dropout: float = 0.0
    attention_dropout: float = -1.0
    last_dropout: float = 0.0
    drop_path: float = 0.0
    constant_drop_path: bool = False

    def __post_init__(self):
        super().__post_init__()
        path_rates(self.drop_path, self.layers)  # refuses what is no rate

    @property
    def rates(self) -> Rates:
        """What its blocks leave out in training."""
        same = self.constant_drop_path and self.drop_path
        paths = (self.drop_path,) * self.layers if same else path_rates(self.drop_path, self.layers)
        return Rates(self.dropout, self._rate(self.attention_dropout), paths)

    def _rate(self, given):
        """The rate of a field for dropout: `dropout` if it is negative."""
        return self.dropout if given < 0 else given

    def __call__(self, x: jax.Array, context: Context, *, numerics: Numerics, key: jax.Array | None = None,
                 cache: dict | None = None, cross: Mechanism | None = None, projected: bool = False) -> tuple:
        """x [B, T, D] -> (x after all blocks, the updated cache, aux).

        `aux` has the auxiliary outputs of layers, 'block_0/attention', 'block_1/attention', .. (`Block`), the same for every
        `scan` and `remat`; and with depth='Universal(halting=True)' also 'ponder' [B, T].

        Args:
          cross: the mechanism of a third branch in every block, which attends to the context's source; None: no such branch.
          projected: whether x is [B, T, E], of another width, and a dense layer projects it to D before the blocks, after its
            norm and dropout (Lan et al. 2020, section 3.1).
        """
        x = context.encoding.at_input(x)
        if self.embedding_norm:
            x = normed(self.norm, x, 'embedding_norm', numerics, key is not None)
        x = dropout(x, self.dropout, fold(key, 'embedding'))
        if projected:
            if isinstance(self.initial, MuP):
                raise ValueError(f'initial={self.initial} has embeddings of the width of the model; set embedding_width=0.')
            x = Dense(self.width, kernel_init=self.matrix_init, numerics=numerics, name='embedding_projection')(x)
        x, cache, aux = self.through(x, context, self.rates, numerics=numerics, key=key, cache=cache, cross=cross)
        x = self.last_norm(x, numerics, key is not None)
        return dropout(x, self._rate(self.last_dropout), fold(key, 'last')), cache, aux

    def over_rows(self, x: jax.Array, *, length: int, numerics: Numerics, segments: jax.Array | None = None,
                  positions: jax.Array | None = None, prefix: jax.Array | None = None, cache: dict | None = None,
                  what: str = 'sequence', field: str = 'model.length', **given: Any) -> tuple:
        """The stack applied to rows of embedded tokens, x [B, T, D] or with `projected` [B, T, E], as in `__call__`.

        Args:
          length: the longest row; position encodings that are defined beyond it (Alibi(), Rotary(), ...) can be evaluated on
            longer ones.
          segments: [B, T], packed documents (0 = padding); None: each row is one document. With a cache: 0 = padding after a
            prompt, which a recurrent state must not take in. If the stack cannot keep several apart (`packs`), the rows that
            have more than one document with padding behind it become NaN.
          positions: [B, T], the position of each token in its document; None: 0..T-1.
          prefix: [B, T], 1 for tokens that all tokens of their document see, whatever the mask; None: there are none. With a
            cache: those of its first tokens.
          cache: from `empty_cache`; x then holds the next tokens, at `positions`.
          what, field: for the message about a row that is too long: its name, and the field of the config that it exceeds.
          given: key, cross and projected, as in `__call__`; head_mask, source and capture, as in `Context`.
        """
        rows, tokens = x.shape[:2]
        self._require_length(tokens, length, cache is not None, what, field)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens), (rows, tokens))
        mask = self.mask if prefix is None else self.mask | Marked(prefix)
        if segments is not None and cache is None and self.packs:
            mask = mask & Segments(segments, segments)
        elif segments is not None:
            mask = mask & Padding(jnp.where(segments != 0, positions + 1, 0).max(1))
        if segments is not None and not self.packs:
            x = of_one_document(x, segments)
        sizes = self.sizes(length, input_width=x.shape[-1])
        shared = Parameters(self.positions.parameters(sizes), numerics=numerics, name='positions')()
        encoding = Encoding(self.positions, shared, positions, positions, sizes)
        more = {name: given.pop(name) for name in ('head_mask', 'source', 'capture') if name in given}
        more['head_mask'] = more.get('head_mask') or {}
        return self(x, Context(mask, encoding, positions, **more), numerics=numerics, cache=cache, **given)

    def require_causal(self) -> None:
        """Raises ValueError for a mask that lets a token see the tokens that it predicts."""
        if not self.mask.causal:
            raise ValueError(f'The mask {self.mask} lets a token see later ones, which it has to predict; use one such as '
                             'Causal() or Causal() & Window(size=256).')

    def empty_cache(self, batch: int, length: int, dtype: str) -> dict:
        """The caches of all blocks, for `batch` rows of up to `length` tokens."""
        def layer(mechanism, kept):
            heads, key_heads = (self.heads, self.key_heads or self.heads) if kept is None else (len(kept),) * 2
            return mechanism.empty_cache(batch, length, heads, key_heads, self.each_head, dtype)
        return {f'block_{i}': layer(self.attention.of_layer(i), kept) if kept != () else {}
                for i, kept in enumerate(kept_heads(self))}

    def _require_length(self, tokens, length, cached, what, field):
        for part in (self.mask, self.attention):
            part.require_length(length)  # the length to which prompts and sources are padded
        if tokens > length and not (not cached and self.positions.free_length and self.attention.free_length):
            raise ValueError(f'A {what} of {tokens} tokens is longer than the {length} that this model takes; '
                             f'shorten it or train with {field}={tokens}.')


class Heads(NamedTuple):
    """The heads of one attention in every layer of a stack.

    Attributes:
      stack: the blocks.
      group: the path of their group of fields in the config of the model, such as 'encoder'; '': they are the model's own.
      field: their field for the heads left by pruning.
    """
    stack: Blocks
    group: str = ''
    field: str = 'kept'


def of_one_document(x: jax.Array, segments: jax.Array) -> jax.Array:
    """Rows x [B, T, D] for attention that cannot keep documents apart: NaN where `segments` [B, T] have more than one document
    with padding behind it."""
    alone = (segments <= 1).all(1) & (segments[:, 1:] <= segments[:, :-1]).all(1)
    return jnp.where(alone[:, None, None], x, jnp.nan)


def _named(layer, aux):
    """The auxiliary outputs of one layer under their names in the stack."""
    return {f'block_{layer}/{name}': x for name, x in aux.items()}


def inlined(stack: Stack) -> Any:
    """The default of a model's field for its only stack, whose fields appear as the model's own in a config."""
    return dataclasses.field(default=stack, metadata={'inline': True})
