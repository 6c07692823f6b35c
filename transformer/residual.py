"""How a branch f of a block joins the stream x that runs through the layers, and where the norm stands."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from transformer.layers import zeros


class Residual:
    """Base of the residuals. A block asks for what the branch `name` is given and for what comes of its output; the
    modules made on the way are the block's, and bear the name of the branch.

    Attributes:
      final_norm: whether the end of the stack is still to be normalised.
    """
    final_norm = False

    def before(self, name, x, norm):
        """The input of the branch; `norm` is the constructor of a norm."""
        return x

    def after(self, name, x, branch, norm):
        """The stream after the branch."""
        return x + branch


@dataclasses.dataclass(frozen=True)
class PreNorm(Residual):
    """x + f(norm(x)), and a norm at the end of the stack (Radford et al. 2019, section 2.3; Xiong et al. 2020, table 1)."""

    final_norm = True

    def before(self, name, x, norm):
        return norm(name=f'{name}_norm')(x)


@dataclasses.dataclass(frozen=True)
class PostNorm(Residual):
    """norm(x + f(x)) (Vaswani et al. 2017, section 3.1)."""

    def after(self, name, x, branch, norm):
        return norm(name=f'{name}_norm')(x + branch)


@dataclasses.dataclass(frozen=True)
class ReZero(Residual):
    """x + a·f(x) with a learnt number a that starts at 0, and no norm (Bachlechner et al. 2020, eq. 1); every branch has
    its own, where the paper's Transformer shares one between the two of a layer."""

    def after(self, name, x, branch, norm):
        return x + Scale(name=f'{name}_residual')(branch)


@dataclasses.dataclass(frozen=True)
class NoNorm(Residual):
    """x + f(x), as T-Fixup has it: all that keeps it stable is how it begins (see `transformer.initial`)."""


class Scale(nn.Module):
    """a·x with one learnt number a, 0 at the start."""

    @nn.compact
    def __call__(self, x):
        return self.param('scale', zeros, (), jnp.float32).astype(x.dtype) * x
