"""A run with parameters, as training, evaluation and prediction apply it: the `Snapshot` of training/contracts.py."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from display import progress
from training import mesh as meshes
from training import step as steps
from training.state import variables


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A `training.run.Run` with parameters and statistics, on which evaluators and readers work. `text` and `picture` go to the
    report, if any, under their names behind `prefix`."""
    run: Any
    params: Any
    step: int
    report: Any = None
    statistics: Any = None
    prefix: str = ''

    @property
    def variables(self):
        """What the model is applied to."""
        return variables(self.params, self.statistics)

    @property
    def model(self):
        return self.run.model

    @property
    def data(self):
        return self.run.data

    def apply(self, **inputs):
        return self._everywhere(_apply(self.run.model, self.variables, inputs))

    def captured(self, *names, **inputs):
        """{layer/name: array} of the outputs that the layers of the model return on request, such as 'attention'."""
        return self._everywhere(_captured(self.run.model, self.variables, names, inputs))

    def _everywhere(self, outputs):
        """Of several processes each then has all of them, however the compiler has split them."""
        if jax.process_count() == 1:
            return outputs
        return jax.jit(lambda x: x, out_shardings=meshes.replicated(self.run.mesh))(outputs)

    def key(self, name, seed=None):
        """The key of a random stream: of the run's seed at this step, or of another seed, then the same at every step."""
        return steps.stream(seed, name) if seed is not None else jax.random.fold_in(
            steps.stream(self.run.config.seed, name), self.step)

    def averages(self, batches):
        """{term: average over the split}, 'loss' (the total), 'weight', and what the task derives from them. The total is left
        out if one of its terms is, as it needs a companion that is not there."""
        sums = {}
        for batch in progress.over(batches, 'evaluating', 'batches'):
            placed = meshes.put(batch, self.run.mesh)
            with jax.set_mesh(self.run.mesh):
                terms = self.run.eval_terms(self.variables, placed)
            for name, pair in jax.device_get(terms).items():
                sums[name] = sums.get(name, 0.0) + np.array(pair, np.float64)
        coefficients = {term: c for term, c in self.run.task.coefficients.items() if term in sums}
        average, loss = averages_of(sums, coefficients)
        weight = float(sums[next(iter(coefficients or sums))][1])
        total = {'loss': loss} if coefficients == self.run.task.coefficients else {}
        numbers = {**total, **{t: a for t, a in average.items() if t != 'loss'}, 'weight': weight}
        return numbers | self.run.task.derived(numbers, batches.facts)

    def each(self, batches):
        """{term: [rows, 2]}: the sum and the weight of every term of the task for each row of the batches, in the order of the
        split."""
        found, numbers = {}, []
        for batch in progress.over(batches, 'evaluating', 'batches'):
            there = np.flatnonzero(batch.get('example_weights', np.ones(len(next(iter(batch.values()))))))
            numbers += list(batch['row'][there]) if 'row' in batch else []
            with jax.set_mesh(self.run.mesh):
                terms = jax.device_get(self.run.row_terms(self.variables, meshes.put(batch, self.run.mesh)))
            for name, pair in terms.items():
                found.setdefault(name, []).append(np.stack(pair, 1)[there].astype(np.float64))
        order = np.argsort(numbers) if numbers else slice(None)
        return {name: np.concatenate(parts)[order] for name, parts in found.items()}

    def evaluate(self, name, batches=None):
        """The numbers of one evaluator of the config."""
        evaluator = self.run.evaluators[name]
        alike = [one for one in self.run.evaluators.values() if type(one) is type(evaluator)]
        own = dataclasses.replace(self, prefix=f'{name}_' if len(alike) > 1 else '')
        with progress.waiting(f'evaluating {name}'):
            return evaluator(own, self.run.evaluation(name) if batches is None else batches)

    def text(self, name, text):
        if self.report:
            self.report.text(self.step, self.prefix + name, text)

    def picture(self, name, image):
        if self.report:
            self.report.picture(self.step, self.prefix + name, image)


@functools.partial(jax.jit, static_argnames='model')
def _apply(model, given, inputs):
    return model.apply(given, **inputs)


@functools.partial(jax.jit, static_argnames=('model', 'names'))
def _captured(model, given, names, inputs):
    outputs = model.apply(given, **inputs, capture=names)
    return {layer: x for layer, x in outputs.items() if layer.endswith(names)}


def averages_of(sums, coefficients):
    """({term: its average, nan for one of weight 0}, the total by their coefficients) of {term: (sum, weight)}. As in training,
    a term of weight 0 adds 0 to the total; it is nan if all are."""
    average = {term: float(s) / float(w) if w else math.nan for term, (s, w) in sums.items()}
    there = [c * average[term] for term, c in coefficients.items() if sums[term][1]]
    return average, sum(there) if there else math.nan
