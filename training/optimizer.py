"""Optimizers, built from Optax.

update = clip by global norm -> direction of the optimizer, of a matrix under muP over m -> + decay·parameter
         -> times -learning rate·multiple

Each class says with `entrywise` whether the entries of its direction are about 1, whatever the size of the gradient.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from training.config import resolve
from training.mesh import first_match, path_of, platform, require_used
from training.roles import decay, multiples, sides

# Fields of config.optimizer that are not fields of the optimizer's class.
OWN = ('learning_rate', 'weight_decay', 'decay_rules', 'rate_rules', 'average_decay', 'clip', 'schedule')
TOGETHER = 2 ** 22  # numbers of the small matrices that Muon orthogonalises together
FROZEN = 0.0  # in rate_rules: the parameter has no gradient and no moments, and never changes


def _require(okay, optimizer, expected):
    if not okay:
        raise ValueError(f'{optimizer}: expected {expected}.')


@dataclasses.dataclass(frozen=True)
class AdamW:
    """m / (sqrt(v) + eps) of the moments m, v with their bias corrected; decoupled weight decay is optimizer.weight_decay
    (Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019)."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    entrywise = True

    def __post_init__(self):
        _require(0 <= self.b1 < 1 and 0 <= self.b2 < 1 and self.eps > 0, self, 'b1 and b2 in [0, 1) and eps > 0')

    def direction(self, roles):
        return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class SGD:
    """v = momentum·v + gradient; the direction is v, with `nesterov` gradient + momentum·v (Sutskever et al. 2013)."""
    momentum: float = 0.0
    nesterov: bool = False
    entrywise = False

    def __post_init__(self):
        _require(0 <= self.momentum < 1, self, 'momentum in [0, 1)')
        _require(self.momentum or not self.nesterov, self, 'a momentum for nesterov')

    def direction(self, roles):
        return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@dataclasses.dataclass(frozen=True)
class Lion:
    """sign(b1·m + (1 - b1)·gradient), then m = b2·m + (1 - b2)·gradient (Chen et al. 2023, algorithm 2). It has one moment per
    parameter, and needs a learning rate 3 to 10 times lower than Adam's and a weight decay as many times higher."""
    b1: float = 0.9
    b2: float = 0.99
    entrywise = True

    def __post_init__(self):
        _require(0 <= self.b1 < 1 and 0 <= self.b2 < 1, self, 'b1 and b2 in [0, 1)')

    def direction(self, roles):
        return optax.scale_by_lion(self.b1, self.b2)


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """Adam without a first moment, and with the second moment of a matrix stored as its row and column means (Shazeer and Stern
    2018, algorithm 4): with b2 = 1 - t^-decay_rate at update t, U = gradient / sqrt(v), U / max(1, RMS(U) / clipping), and, if
    `relative`, times max(1e-3, RMS(parameter)) (algorithm 5), which needs a learning rate near 1e-2.

    Attributes:
      factored_from: matrices with a smaller side than this store all of v.

    A matrix with several input or output axes is factored as one matrix; other parameters over their two longest axes.
    """
    decay_rate: float = 0.8
    clipping: float = 1.0
    relative: bool = True
    factored_from: int = 128
    entrywise = False

    def __post_init__(self):
        _require(0 < self.decay_rate <= 1 and self.clipping > 0 and self.factored_from > 0, self,
                 'decay_rate in (0, 1], clipping > 0 and factored_from > 0')

    def direction(self, roles):
        moments = optax.scale_by_factored_rms(decay_rate=self.decay_rate, min_dim_size_to_factor=self.factored_from)
        return optax.chain(
            _on_matrices(moments, roles),
            optax.clip_by_block_rms(self.clipping),
            optax.scale_by_param_block_rms() if self.relative else optax.identity())


@dataclasses.dataclass(frozen=True)
class Muon:
    """The momentum of every parameter that is one matrix, orthogonalised by Newton-Schulz steps (Jordan et al. 2024); AdamW
    updates the others, also those of several matrices. The update is scaled to the size of Adam's, 0.2·sqrt(larger side), so
    that one learning rate and weight decay serve both (Liu et al. 2025, eq. 4).

    Attributes:
      b1, b2, eps: of AdamW.
    """
    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    entrywise = False

    def __post_init__(self):
        AdamW(self.b1, self.b2, self.eps)
        _require(0 <= self.momentum < 1 and self.iterations > 0, self, 'momentum in [0, 1) and iterations > 0')

    def direction(self, roles):
        def orthogonal(updates, _):
            matrices, tree = jax.tree.flatten(updates)
            found = [x.T if x.shape[0] > x.shape[1] else x for x in matrices]
            for places in _alike(matrices):
                turned = [found[place] for place in places]
                together = self.newton_schulz(jnp.stack(turned)) if turned[1:] else [self.newton_schulz(*turned)]
                for place, x in zip(places, together):
                    found[place] = 0.2 * max(x.shape) ** 0.5 * (x if matrices[place].shape == x.shape else x.T)
            return jax.tree.unflatten(tree, found)

        label = lambda keys, x: 'adam' if _sides(roles, keys, x) is None else 'muon'
        muon = optax.chain(optax.trace(self.momentum, self.nesterov),
                           _on_matrices(optax.stateless(orthogonal), roles))
        return optax.partition({'muon': muon, 'adam': AdamW(self.b1, self.b2, self.eps).direction(roles)},
                               functools.partial(jax.tree_util.tree_map_with_path, label))

    def newton_schulz(self, x):
        """X <- aX + (bA + cA²)X with A = XXᵀ, from X / |X| on: all singular values of [.., R, C], R <= C, approach 1.
        optax.contrib's own runs under vmap, where its products take twice the time on a CPU."""
        matmul = functools.partial(jnp.matmul, precision='highest')
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
        for _ in range(self.iterations):
            square = matmul(x, x.mT)
            x = 3.4445 * x + matmul(-4.7750 * square + 2.0315 * matmul(square, square), x)
        return x


def _alike(matrices):
    """Lists of the places of matrices that are orthogonalised together. On a GPU or TPU small ones of one shape are: each alone
    is a chain of products that leaves most of the device idle. A step of configs/vit_fashion_mnist.py:small for an H100 has 790
    kernels so, 1,870 with each alone."""
    if platform() == 'cpu':
        return [[place] for place in range(len(matrices))]
    mesh, of_shape = jax.sharding.get_abstract_mesh().shape, {}
    split = any(mesh.get(axis, 1) > 1 for axis in ('fsdp', 'tensor'))  # a matrix that is turned is split along its other side
    for place, x in enumerate(matrices):
        of_shape.setdefault(x.shape if split else tuple(sorted(x.shape)), []).append(place)
    most = {shape: max(1, TOGETHER // math.prod(shape)) for shape in of_shape}
    return [places[i:i + most[shape]] for shape, places in of_shape.items() for i in range(0, len(places), most[shape])]


def _sides(roles, keys, x):
    """(input axes, output axes) of a parameter that is a single matrix, such as ((0,), (1, 2)) of an attention kernel [D, N,
    H]; None for others."""
    return sides(roles[path_of(keys)], x.ndim)


def _on_matrices(inner, roles):
    """`inner` applied with every matrix parameter reshaped to two axes; its state has these shapes too."""
    def reshaped(tree):
        def one(keys, x):
            axes = _sides(roles, keys, x)
            return x if axes is None else x.transpose(*axes[0], *axes[1]).reshape(
                math.prod(x.shape[d] for d in axes[0]), -1)
        return jax.tree_util.tree_map_with_path(one, tree)

    def restored(tree, like):
        def one(keys, x, like):
            axes = _sides(roles, keys, like)
            if axes is None:
                return x
            order = axes[0] + axes[1]
            return x.reshape([like.shape[d] for d in order]).transpose(sorted(range(like.ndim), key=order.__getitem__))
        return jax.tree_util.tree_map_with_path(one, tree, like)

    def update(updates, state, params):
        new, state = inner.update(reshaped(updates), state, reshaped(params))
        return restored(new, updates), state

    return optax.GradientTransformation(lambda params: inner.init(reshaped(params)), update)


def schedule(config, train_steps):
    """step -> learning rate."""
    shape = resolve.construct(config.schedule)(train_steps)
    return lambda count: config.learning_rate * shape(count)


def _multiples(rules, name, tree, default=None):
    """The number that (regex, number) rules give each parameter. A parameter that no rule covers takes its number from
    default, {path: number}, and is refused without one."""
    def one(keys, _):
        multiple = first_match(rules, path_of(keys), f'optimizer.{name}', default and default[path_of(keys)])
        if not isinstance(multiple, (int, float)) or not 0 <= multiple < math.inf:
            raise ValueError(f'optimizer.{name} gives {multiple!r} for {path_of(keys)}; expected a number, 0 or more.')
        return multiple
    return jax.tree_util.tree_map_with_path(one, tree)


def _each(rules, name, change, default=None):
    """A stateless transformation: change(update, parameter, multiple of the parameter by the rules)."""
    def init(params):
        _multiples(rules, name, params, default)  # refuses a parameter that no rule covers before anything is computed
        return optax.EmptyState()

    def update(updates, state, params):
        return jax.tree.map(change, updates, params, _multiples(rules, name, params, default)), state

    return optax.GradientTransformation(init, update)


def _narrowed(widths):
    """Divides the direction of each parameter in {path: m} by m (Yang et al. 2022, table 8, row "Adam LR"). Decay comes
    after it, so that the share of a matrix that decays in a step does not depend on the width."""
    def update(updates, _):
        return jax.tree_util.tree_map_with_path(
            lambda keys, x: x / widths[path_of(keys)] if widths.get(path_of(keys), 1) != 1 else x, updates)

    return optax.stateless(update)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The optimizer as the training step uses it.

    Attributes:
      tx: the optax transformation.
      rate: updates done -> learning rate of the next one.
      rate_rules: (regex over parameter names, multiple of the learning rate).
      average_decay: the decay of the moving average of the parameters; 0: no average.
    """
    tx: optax.GradientTransformation
    rate: Callable
    rate_rules: tuple = ((r'.*', 1.0),)
    average_decay: float = 0.0

    def hold(self, params):
        """The parameters, with stop_gradient on the frozen ones."""
        stop = lambda x, multiple: jax.lax.stop_gradient(x) if multiple == FROZEN else x
        return jax.tree.map(stop, params, _multiples(self.rate_rules, 'rate_rules', params))

    def first_average(self, params):
        return jax.tree.map(jnp.copy, params) if self.average_decay else {}

    def average(self, old, params, updates):
        """d·old + (1 - d)·params with d = min(average_decay, (1 + n) / (10 + n)) after n earlier updates, so that the first
        parameters are soon forgotten (as in TensorFlow's ExponentialMovingAverage)."""
        decay = jnp.minimum(self.average_decay, (1.0 + updates) / (10.0 + updates))
        return jax.tree.map(lambda a, p: a + (1.0 - decay) * (p - a), old, params) if self.average_decay else old


def make(config, train_steps, roles):
    """The Optimizer of `config.optimizer` for parameters with the roles {path: role}."""
    for name in ('decay_rules', 'rate_rules'):
        require_used(config[name], roles, f'optimizer.{name}')
    own, widths = resolve.construct(config, ignore=OWN), multiples(roles)
    if widths and not own.entrywise:
        raise ValueError('The model has initial=MuP(..), whose rates are those of updates with entries of about 1, as of AdamW '
                         f'and Lion; use one of these in place of {type(own).__name__}, or another initial.')
    decayed = lambda update, parameter, multiple: (
        update + config.weight_decay * multiple * parameter if config.weight_decay * multiple else update)
    scale = lambda update, parameter, multiple: update if multiple == 1 else multiple * update
    rate = schedule(config, train_steps)
    tx = optax.chain(
        optax.clip_by_global_norm(config.clip) if config.clip else optax.identity(),
        own.direction(roles),
        *([_narrowed(widths)] if widths else []),
        _each(config.decay_rules, 'decay_rules', decayed, {path: decay(role) for path, role in roles.items()}),
        optax.scale_by_learning_rate(rate),
        _each(config.rate_rules, 'rate_rules', scale))
    if FROZEN in [rule[1] for rule in config.rate_rules if isinstance(rule, (tuple, list)) and len(rule) == 2]:
        label = lambda multiple: 'frozen' if multiple == FROZEN else 'trained'
        tx = optax.partition({'trained': tx, 'frozen': optax.set_to_zero()},
                             lambda params: jax.tree.map(label, _multiples(config.rate_rules, 'rate_rules', params)))
    if not 0 <= config.average_decay < 1:
        raise ValueError(f'optimizer.average_decay is {config.average_decay}; expected a decay in [0, 1), 0 for no average.')
    return Optimizer(tx, rate, config.rate_rules, config.average_decay)
