"""The residual block, of which every Transformer here is a stack, composed of parts."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax

from transformer.attention.context import Context
from transformer.attention.partition import Partition, Whole
from transformer.layers.dropout import drop_path, dropout, fold
from transformer.layers.norm import LayerNorm, Norm, normed
from transformer.layers.numerics import Numerics
from transformer.layers.residual import PreNorm, Residual


class Block(nn.Module):
    """Attention, then cross attention to a source if there is one, then feed-forward: branches that `residual` joins to the
    stream (Vaswani et al. 2017, section 3.1).

    Attributes:
      attention, feed_forward: constructors of the branches, called with a name.
      cross_attention: constructor of the attention to the context's source; None: there is none.
      norm: the norm that the residual uses.
      residual: where the norms stand; PreNorm: x + attention(norm(x)), then x + feed_forward(norm(x)).
      partition: which tokens attention sees together.
      dropout: rate on each branch before it joins.
    """
    attention: Callable
    feed_forward: Callable
    cross_attention: Callable | None = None
    norm: Norm = LayerNorm()
    residual: Residual = PreNorm()
    partition: Partition = Whole()
    dropout: float = 0.0
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, context: Context = Context(), *, key: jax.Array | None = None,
                 cache: dict | None = None, path_rate: float | jax.Array | None = None) -> tuple:
        """x [B, T, D], the context of this layer -> ([B, T, D], cache, aux). Each branch is left out for an example with
        probability `path_rate`, independently of the other branches; None: never.

        With a source, the cache holds its projection under 'source'. `aux` has further outputs of the branches: 'attention' and
        'cross_attention', their weights [B, N, T, S], 'attention/scores' and 'attention/visible', and 'hidden', the output of
        the block, if these are captured, and the auxiliary outputs of the feed-forward. Of the partition's groups, they are
        as of `Groups.rows`."""
        new, aux = {}, {}

        def attention(x):
            x, inside, whole, rows = self.partition(x, context)
            out, own, more = self.attention(name='attention')(
                x, context=inside, key=fold(key, 'attention'), cache=cache, head_mask=inside.head_mask.get('attention'))
            new.update(own or {})
            aux.update({name: rows(one) for name, one in _named('attention', more).items()})
            return whole(out)

        def cross_attention(x):
            source = context.source
            own = Context(source.mask, capture=context.capture)
            out, projected, more = self.cross_attention(name='cross_attention')(
                x, source.hidden, context=own, key=fold(key, 'cross_attention'), projected=(cache or {}).get('source'),
                head_mask=context.head_mask.get('cross_attention'))
            new.update(source=projected)
            aux.update(_named('cross_attention', more))
            return out

        def feed_forward(x):
            out, more = self.feed_forward(name='feed_forward')(x, key=fold(key, 'feed_forward'))
            aux.update(more)
            return out

        def dropped(name, branch):
            return lambda x: dropout(branch(x), self.dropout, fold(key, f'{name}_branch'))

        def drop(x, name):
            return drop_path(x, path_rate, fold(key, f'{name}_drop_path'))

        branches = {'attention': attention} | ({'cross_attention': cross_attention} if self.cross_attention else {}) | {
            'feed_forward': feed_forward}
        x = self.residual(context.encoding.at_layer(x), {name: dropped(name, branch) for name, branch in branches.items()},
                          partial(normed, self.norm, numerics=self.numerics, train=key is not None), self.numerics, drop,
                          None if context.encoding.sizes.extra else context.encoding.sizes.grid)
        if 'hidden' in context.capture:
            aux['hidden'] = x
        return x, None if cache is None else new, aux


def _named(branch, aux):
    """The auxiliary outputs of an attention under their names in a block: the weights have the name of the branch."""
    return {branch if name == 'weights' else f'{branch}/{name}': x for name, x in aux.items()}
