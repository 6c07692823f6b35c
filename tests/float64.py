"""What the tests of dtype='float64' share: that a program computes in nothing narrower, and that its gradient is exact."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import models

NARROW = {jnp.dtype(name) for name in ('float32', 'bfloat16', 'float16')}


def drawn(shapes, scale=0.4):
    """Arrays in float64 for a tree of shapes."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: scale * rng.normal(size=s.shape), shapes)


def narrow(closed):
    """The equations of a program that have an operand or a result narrower than float64, but for the program's arguments."""
    given = {id(variable) for variable in closed.jaxpr.invars}

    def is_narrow(equation):
        variables = [x for x in (*equation.invars, *equation.outvars) if id(x) not in given]
        return any(getattr(x.aval, 'dtype', None) in NARROW for x in variables)

    return [f'{equation.primitive.name} {equation.source_info.traceback}' for equation in models.equations(closed.jaxpr)
            if is_narrow(equation)]


def require_exact(case, loss, params, *args, step=1e-3, tolerance=1e-9):
    """Asserts that `loss(params, *args)` and its gradient are float64 throughout, and that the gradient along a random
    direction of length 1 is that of central differences, (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h."""
    traced = jax.jit(jax.value_and_grad(loss)).trace(params, *args)
    case.assertEqual(narrow(traced.jaxpr), [])
    program, direction = traced.lower().compile(), drawn(params)
    length = sum(np.square(d).sum() for d in jax.tree.leaves(direction)) ** 0.5
    at = lambda h: float(program(jax.tree.map(lambda x, d: x + h / length * d, params, direction), *args)[0])
    slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    gradient = program(params, *args)[1]
    case.assertEqual({x.dtype.name for x in jax.tree.leaves(gradient)}, {'float64'})
    found = sum(float((g * d).sum()) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)))) / length
    case.assertGreater(abs(slope), 1e-4)
    case.assertLess(abs(found - slope), tolerance * max(1.0, abs(slope)))
