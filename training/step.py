"""The training step as one pure function: gradient, accumulation, update and the numbers that are logged."""

import zlib

import jax
import jax.numpy as jnp
import optax

from training.state import State, variables, wide

NONFINITE = ('stop', 'skip')


def stream(seed, name):
    """The key of a named random stream; fold in the step, then the layer. No key is stored in a checkpoint."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


class Forward:
    """What tasks call: `forward(**inputs)` applies the model, `forward.NAME(**inputs)` a companion, a frozen model.

    Args:
      apply: from inputs to the outputs of the model.
      companions: {name: (model, parameters, statistics)}.
      absent: {name: the error of applying it} of companions that are not there; an evaluation leaves out what needs them.
    """

    def __init__(self, apply, companions=None, absent=None):
        self._apply, self._companions, self._absent = apply, companions or {}, absent or {}

    def __call__(self, **inputs):
        return self._apply(**inputs)

    def __getattr__(self, name):
        if name.startswith('_'):
            raise AttributeError(name)
        if name in self._absent:
            raise ValueError(self._absent[name])
        if name not in self._companions:
            raise ValueError(f'The task applies a companion {name!r}, a frozen model of another run, but the config names '
                             f'{", ".join(self._companions) or "none"}; set companions.{name} to the workdir of that run.')
        return applied(*self._companions[name])

    def lacks(self, name):
        """Whether a companion that the config names is not there."""
        return name in self._absent


def applied(model, params, statistics=None):
    """From inputs to the outputs of a model with these parameters and statistics."""
    return lambda **inputs: model.apply(variables(params, statistics), **inputs)


class Moving:
    """As `applied`, in training: each application moves `statistics` on, which the next one begins with."""

    def __init__(self, model, params, statistics):
        self._model, self._params, self.statistics = model, params, statistics

    def __call__(self, **inputs):
        if not self.statistics:
            return applied(self._model, self._params)(**inputs)
        outputs, changed = self._model.apply(variables(self._params, self.statistics), mutable=['statistics'], **inputs)
        self.statistics = changed['statistics']
        return outputs


def with_models(models, frozen):
    """{name: (model, parameters, statistics)} of companions, from {name: model} and {name: their `variables`}."""
    return {name: (model, frozen[name]['params'], frozen[name].get('statistics')) for name, model in models.items()}


def total_loss(coefficients, sums, weights):
    """sum over terms of coefficient · sum / weight; a term of weight 0 adds 0."""
    return sum(c * sums[t] / jnp.where(weights[t] > 0, weights[t], 1.0) for t, c in coefficients.items())


def split_terms(terms):
    return {t: s for t, (s, _) in terms.items()}, {t: w for t, (_, w) in terms.items()}


def gradients(model, task, params, batch, *, key, step, microbatches, statistics=None, hold=lambda params: params,
              companions=None):
    """(gradients, sums, weights, statistics) of one batch, the same for any number of microbatches, if the model has no
    statistics and nothing is drawn at random, as dropout is: that depends on the microbatch.

    Weights depend on the batch alone, so those of the whole batch are computed first (the compiler drops the forward pass)
    and each microbatch adds the gradient of its share of the total. A model with batch normalization sees the moments of a
    microbatch alone (ghost batches, Hoffer et al. 2017, section 4), and one microbatch after the other moves its statistics, as
    in PyTorch. `hold` stops the gradient of frozen parameters; `companions` are those of `Forward`."""
    def terms(params, statistics, batch, key):
        own = Moving(model, hold(params), statistics)
        return *split_terms(task.loss(Forward(own, companions), batch, key=key, step=step, train=True)), own.statistics

    def share(params, statistics, batch, key, weights):
        sums, own, moved = terms(params, statistics, batch, key)
        return total_loss(task.coefficients, sums, own if weights is None else weights), (sums, own, moved)

    statistics = statistics or {}
    if microbatches == 1:
        grads, (sums, weights, statistics) = jax.grad(share, has_aux=True)(params, statistics, batch, key, None)
        return grads, sums, weights, statistics
    weights = terms(params, statistics, batch, key)[1]
    # Row i·A + a goes to microbatch a: every device keeps its own rows.
    batches = jax.tree.map(lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1), batch)

    def add(carry, item):
        (i, batch), (added, statistics) = item, carry
        grads, (sums, _, statistics) = jax.grad(share, has_aux=True)(
            params, statistics, batch, jax.random.fold_in(key, i), weights)
        return (jax.tree.map(jnp.add, added, (grads, sums)), statistics), None

    zeros = jax.tree.map(jnp.zeros_like, (params, {t: jnp.zeros(()) for t in weights}))
    ((grads, sums), statistics), _ = jax.lax.scan(add, (zeros, statistics), (jnp.arange(microbatches), batches))
    return grads, sums, weights, statistics


def group_norms(tree):
    """The L2 norm of each top-level group of a tree of parameters, {group: norm}."""
    return {group: optax.global_norm(leaves) for group, leaves in tree.items()}


def make(model, task, optimizer, *, seed, microbatches=1, log_every=1, last=0, nonfinite='stop', companions=None):
    """step(state, batch, frozen) -> (state, report); `frozen` are the `variables` of the companions, {name: variables}.

    Gradient, moments and update u are in at least float32, whatever the type of the stored parameters, p' = round(p + u): a
    bfloat16 parameter is rounded once in a step.

    Args:
      optimizer: a training.optimizer.Optimizer.
      microbatches: the batch is processed in so many parts, one after the other, to save memory; the result is the same
        but for what is drawn at random and batch normalization (see `gradients`).
      log_every: steps from one row of the log to the next. `state.sums` is reset after each row, and the norms of update and
        parameters are computed only at a row (and at step `last`), and are 0 elsewhere.
      nonfinite: 'skip' keeps parameters and optimizer unchanged if the loss or a gradient is not finite; 'stop' leaves the
        decision to the loop, which reads report['finite'] and report['grad_norms'].
      companions: {name: model}.
    """
    if nonfinite not in NONFINITE:
        raise ValueError(f'train.nonfinite is {nonfinite!r}; expected one of {", ".join(NONFINITE)}.')

    def step(state, batch, frozen=None):
        key = jax.random.fold_in(stream(seed, 'train'), state.step)
        before = wide(state.params)
        grads, sums, weights, statistics = gradients(
            model, task, before, batch, key=key, step=state.step, microbatches=microbatches, statistics=state.statistics,
            hold=optimizer.hold, companions=with_models(companions or {}, frozen))
        loss = total_loss(task.coefficients, sums, weights)
        norms = group_norms(grads)
        finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(jnp.stack(list(norms.values()))))
        for moments in jax.tree.leaves(statistics):  # a variance may overflow where nothing else does
            finite &= jnp.isfinite(moments).all()
        updates, opt_state = optimizer.tx.update(grads, state.opt_state, before)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype), optax.apply_updates(before, updates), state.params)
        skipped, done = state.skipped, state.step - state.skipped
        average = optimizer.average(state.average, wide(params), done)
        average_statistics = optimizer.average(state.average_statistics, statistics, done)
        if nonfinite == 'skip':
            finite &= jnp.isfinite(optax.global_norm(updates))
            keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
            params, statistics, opt_state, average, average_statistics = (keep(new, old) for new, old in (
                (params, state.params), (statistics, state.statistics), (opt_state, state.opt_state),
                (average, state.average), (average_statistics, state.average_statistics)))
            sums = {t: jnp.where(finite, s, 0.0) for t, s in sums.items()}
            weights = {t: jnp.where(finite, w, 0.0) for t, w in weights.items()}
            skipped = skipped + ~finite
        fresh = state.step % log_every == 0
        logged = ((state.step + 1) % log_every == 0) | (state.step + 1 == last)
        norm = lambda tree: jax.lax.cond(logged, optax.global_norm, lambda tree: jnp.zeros(()), tree)
        added = {t: jnp.where(fresh, 0.0, state.sums[t]) + jnp.stack([sums[t], weights[t]]) for t in sums}
        report = {'step': state.step + 1, 'sums': added, 'loss': loss, 'finite': finite, 'grad_norms': norms,
                  'learning_rate': optimizer.rate(done),
                  'grad_norm': optax.global_norm(grads), 'update_norm': norm(updates),
                  'param_norm': norm(wide(params)), 'skipped': skipped}
        return State(state.step + 1, params, opt_state, average, added, skipped, statistics, average_statistics), report

    return step


def several(step, count, nonfinite='stop'):
    """step(state, batches, frozen) for `count` batches, stacked along a first axis: as many steps in one program. The report is
    that of the last step or, with nonfinite='stop', of the first that is not finite."""
    def steps(state, batches, frozen=None):
        state, reports = jax.lax.scan(lambda state, batch: step(state, batch, frozen), state, batches)
        finite = reports['finite']
        number = count - 1 if nonfinite == 'skip' else jnp.where(finite.all(), count - 1, jnp.argmin(finite))
        return state, jax.tree.map(lambda x: x[number], reports)

    return step if count == 1 else steps


class Programs:
    """step(state, batch), compiled for every shape of batch: for the longest at once, for the others at their first use.

    Args:
      make: from {name: (shape, dtype)} of a batch to (program, its floating point operations).
      longest: the shapes of the longest batch.
      frozen: the `variables` of the companions, the last argument of each program.

    Attributes:
      flops: the operations for the longest batch.
    """

    def __init__(self, make, longest, frozen):
        self._make, self._made, self._frozen = make, {}, frozen
        self._longest, self.flops = self._program(longest)

    def __call__(self, state, batch):
        return self._of(batch)[0](state, batch, self._frozen)

    def flops_with(self, batch):
        """The floating point operations of a step with this batch."""
        return self._of(batch)[1]

    def memory_analysis(self):
        """The memory analysis of the program for the longest batch."""
        return self._longest.memory_analysis()

    def cost_analysis(self):
        """The operations and the traffic that the compiler counts in the program for the longest batch, of one device."""
        return self._longest.cost_analysis()

    def _of(self, batch):
        return self._program({name: (x.shape, x.dtype) for name, x in batch.items()})

    def _program(self, shapes):
        key = tuple(sorted((name, shape) for name, (shape, _) in shapes.items()))
        if key not in self._made:
            self._made[key] = self._make(shapes)
        return self._made[key]
