"""Operations, sequential steps and longest paths of attention, its cheaper forms and its alternatives, over lengths.

    python -m benchmarks.complexity [--out=DIR]

prints a table against the formulas of Vaswani et al. 2017, table 1, and a JSON line for each layer and length; --out writes
them to DIR/complexity.txt and .jsonl, with a picture over lengths, complexity.png. All numbers are measured on the programs
themselves, of one layer without its projections, causal but for the channel groups: n positions, width d = 64 in one head,
windows and chunks of r = 64, a kernel of k = 3.

flops   of the products in the jaxpr (training/report/flops.py). A product and its sum count as two: 4 n² d is the n² d of the
        paper, for q·k and for the weights times v.
steps   the longest chain of dependent operations in the jaxpr; for a loop, the chain from state to state through all
        iterations. In the formulas, O(.).
path    the longest of the shortest paths between two positions, through as many layers as needed: 1 for each layer, and 1 for
        each iteration of a loop that passes a state on. The number of iterations between two positions is measured by the
        derivative of the output with respect to the values: scaled by z at each iteration, it is proportional to z to the
        number of iterations.

Steps and iterations are those of the program: blocks of a window could run in parallel, but run in sequence to save memory.
"""

import json
import os

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_string('out', '', 'folder for the table, the lines and the picture')
    cli.answer_help()

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from display import figures
from training.report import flops
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanism import Given, Softmax
from transformer.attention.mechanisms.alternatives import Convolution, Recurrence
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.mechanisms.linear import Linear

WIDTH, SIZE, KERNEL = 64, 64, 3
COLOURS = *figures.COLOURS, '#8B4513'
LENGTHS = 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384
LONGEST_PATH = 256  # paths are measured on n·n derivatives
SMALL = 4  # the width for paths, which do not depend on it


def recurrent(mechanism):
    """A mechanism applied to one position after the other, in its form for decoding."""
    def apply(parameters, query, key, value, given):
        cache = mechanism.empty_cache(query.shape[0], *query.shape[1:3], key.shape[2], key.shape[3], 'float32')

        def step(cache, inputs):
            at, *new = inputs
            out, cache = mechanism.step(parameters, *(x[:, None] for x in new), cache, at[:, None], given)
            return cache, out[:, 0]

        rows = jnp.broadcast_to(jnp.arange(query.shape[1])[:, None], (query.shape[1], query.shape[0]))
        _, out = jax.lax.scan(step, cache, (rows, *(jnp.swapaxes(x, 0, 1) for x in (query, key, value))))
        return jnp.swapaxes(out, 0, 1)
    return apply


class Operation:
    """An operation to compare: a function, its mask, and its formulas of (n, d)."""

    def __init__(self, mechanism, mask, flops, steps, path, apply=None):
        self.mechanism, self.mask, self.formulas = mechanism, mask, {'flops': flops, 'steps': steps, 'path': path}
        self.apply = apply or mechanism

    def function(self, length, width):
        """(f(query, key, value), shapes of its arguments)."""
        shape = jax.ShapeDtypeStruct((1, length, 1, width), 'float32')
        given, wanted = Given(self.mask), self.mechanism.parameters(shape, shape, shape)
        keys = jax.random.split(jax.random.key(0), len(wanted) + 1)
        parameters = {name: one.initialiser(key, one.shape) for key, (name, one) in zip(keys, wanted.items())}
        return lambda *arrays: self.apply(parameters, *arrays, given), (shape,) * 3


def _window(n, r):
    """The number of layers, each of which reaches r - 1 positions back, that span n positions."""
    return -(-(n - 1) // (r - 1))


# A product and its sum are two operations: 2·n²·d for the scores and 2·n²·d for the values, where table 1 has n²·d.
LAYERS = {
    'self-attention': Operation(Softmax(implementation='plain'), Causal(), ('4 n² d', lambda n, d: 4 * n * n * d),
                            ('1', lambda n: 1), ('1', lambda n: 1)),
    'window, dense': Operation(Softmax(implementation='plain'), Causal() & Window(SIZE), ('4 n² d', lambda n, d: 4 * n * n * d),
                           ('1', lambda n: 1), ('(n-1) / (r-1)', lambda n: _window(n, SIZE))),
    'window, by blocks': Operation(Softmax(implementation='blockwise'), Causal() & Window(SIZE),
                               ('8 r n d', lambda n, d: 8 * SIZE * n * d),
                               ('n / r', lambda n: n / SIZE), ('(n-1) / (r-1)', lambda n: _window(n, SIZE))),
    'linear, in chunks': Operation(Linear(chunk=SIZE), Causal(),
                               ('4 n d² + 4 r n d', lambda n, d: 4 * n * d * d + 4 * SIZE * n * d),
                               ('n / r', lambda n: n / SIZE), ('n / r', lambda n: n / SIZE)),
    'linear, recurrent': Operation(Linear(chunk=1), Causal(), ('4 n d²', lambda n, d: 4 * n * d * d),
                               ('n', lambda n: n), ('n', lambda n: n), recurrent(Linear(chunk=1))),
    # Of all positions: it has no causal form. In Understanding Deep Learning (Prince 2023) it is problem 12.10.
    'channel groups': Operation(ChannelGroups(), Full(), ('4 n d²', lambda n, d: 4 * n * d * d),
                                ('1', lambda n: 1), ('1', lambda n: 1)),
    'convolution': Operation(Convolution(KERNEL), Causal(), ('2 k n d²', lambda n, d: 2 * KERNEL * n * d * d),
                         ('1', lambda n: 1), ('(n-1) / (k-1)', lambda n: _window(n, KERNEL))),
    'recurrence': Operation(Recurrence(gated=False), Causal(), ('2 n d²', lambda n, d: 2 * n * d * d),
                        ('n', lambda n: n), ('n', lambda n: n)),
}


def chains(jaxpr, before):
    """For each output of a jaxpr the number of operations on the longest chain of dependent ones to it.

    Args:
      before: the lengths of the chains to the inputs; -inf: an input that does not count."""
    lengths = dict.fromkeys(jaxpr.constvars, -np.inf) | dict(zip(jaxpr.invars, before))
    length = lambda v: lengths[v] if isinstance(v, core.Var) else -np.inf
    for equation in jaxpr.eqns:
        inputs, inner = [length(v) for v in equation.invars], body(equation)
        if equation.primitive.name == 'scan':
            found = _chains_of_scan(equation, inner.jaxpr, inputs)
        elif inner is not None:
            found = chains(inner.jaxpr, inputs)
        else:
            found = [max(inputs, default=-np.inf) + 1] * len(equation.outvars)
        lengths |= zip(equation.outvars, found)
    return [length(v) for v in jaxpr.outvars]


def body(equation):
    """The ClosedJaxpr that an equation calls with its own inputs; None for an operation."""
    inner = [equation.params[name] for name in ('jaxpr', 'call_jaxpr') if name in equation.params]
    if not inner:
        return None
    return inner[0] if isinstance(inner[0], core.ClosedJaxpr) else core.ClosedJaxpr(inner[0], ())


def _constants_and_states(scan, inner):
    """The numbers of constants and of states, which follow them, in the inputs of a loop: rows and their stacks have one more
    axis outside than inside. (The names of the equation's parameters differ between versions of JAX.)"""
    rows = sum(outer.aval.ndim != own.aval.ndim for outer, own in zip(scan.invars, inner.invars))
    states = sum(outer.aval.ndim == own.aval.ndim for outer, own in zip(scan.outvars, inner.outvars))
    return len(scan.invars) - states - rows, states


def _chains_of_scan(scan, inner, before):
    consts, states = _constants_and_states(scan, inner)
    state = np.array(before[consts:consts + states])
    # The chains of one iteration from each state alone, [states, outputs], and from all other inputs.
    alone = lambda i: [0.0 if j == consts + i else -np.inf for j in range(len(before))]
    through = np.array([chains(inner, alone(i)) for i in range(states)]).reshape(states, -1)
    others = np.array(chains(inner, [-np.inf if consts <= j < consts + states else b for j, b in enumerate(before)]))
    for _ in range(scan.params['length']):
        out = np.maximum(others, (state[:, None] + through).max(0, initial=-np.inf))
        state = out[:states]
    return list(out)


def evaluate(closed, z, arguments, in_loop=False):
    """The outputs of a jaxpr; derivatives are multiplied by z wherever a loop passes a state on to its next iteration."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts)) | dict(zip(jaxpr.invars, arguments))
    for equation in jaxpr.eqns:
        inputs = [values[v] if isinstance(v, core.Var) else v.val for v in equation.invars]
        inner = body(equation)
        if equation.primitive.name == 'scan':
            out = _evaluate_scan(equation, inner, z, inputs)
        elif inner is not None:
            out = evaluate(inner, z, inputs, in_loop)
        else:
            if in_loop and equation.primitive.name == 'dynamic_update_slice':  # undo z where an iteration changes nothing
                inputs[0] = scaled(inputs[0], 1 / z)
            out = equation.primitive.bind(*inputs, **equation.params)
            out = out if equation.primitive.multiple_results else [out]
        values |= zip(equation.outvars, out)
    return [values[v] if isinstance(v, core.Var) else v.val for v in jaxpr.outvars]


def scaled(x, z):
    """x, with its derivatives multiplied by z."""
    return x + (z - 1) * (x - jax.lax.stop_gradient(x)) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _evaluate_scan(scan, inner, z, inputs):
    (consts, states), params = _constants_and_states(scan, inner.jaxpr), scan.params
    fixed, start, rows = inputs[:consts], inputs[consts:consts + states], inputs[consts + states:]

    def turn(carry, row):
        passed = carry if params['length'] == 1 else [scaled(x, z) for x in carry]
        out = evaluate(inner, z, [*fixed, *passed, *row], in_loop=True)
        return out[:states], out[states:]

    end, out = jax.lax.scan(turn, list(start), list(rows), length=params['length'], reverse=params['reverse'])
    return [*end, *out]


def turns(layer, length, width=SMALL):
    """[length, length]: the number of loop iterations from each value to each output within one layer; inf: no path."""
    function, shapes = layer.function(length, width)
    jaxpr = jax.make_jaxpr(function)(*shapes)
    # Small numbers, so that no tanh saturates; and only the values, from which there is one path to each output.
    arrays = [jnp.asarray(0.1 * np.random.default_rng(i).normal(size=s.shape), jnp.float32) for i, s in enumerate(shapes)]

    @jax.jit
    def derivative(z):
        out = lambda value: evaluate(jaxpr, z, [*arrays[:2], value])[0].sum((0, 2, 3))  # [T]
        return jnp.abs(jax.jacrev(out)(arrays[2])).sum((1, 3, 4))  # [T, S]

    one, less = (np.float64(derivative(z)) for z in (1.0, 0.9))
    if not np.isfinite([one, less]).all():
        raise FloatingPointError(f'The derivatives of {layer.mechanism} are not finite, so they do not determine paths.')
    with np.errstate(divide='ignore', invalid='ignore'):
        return np.where(one > 0, np.round(np.log(less / one) / np.log(0.9)), np.inf)


def longest_path(layer, length):
    """The longest path between any two positions, through as many layers as needed."""
    paths = turns(layer, length) + 1
    while True:
        further = np.minimum(paths, [(row[:, None] + paths).min(0) for row in paths])
        if np.array_equal(further, paths):
            return int(paths[np.isfinite(paths)].max())
        paths = further


def measure(name, length):
    """{'layer', 'length', 'flops', 'steps' and, for short rows, 'path'}."""
    function, shapes = LAYERS[name].function(length, WIDTH)
    jaxpr = jax.make_jaxpr(function)(*shapes)
    row = {'layer': name, 'length': length, 'flops': flops.count_jaxpr(jaxpr),
           'steps': int(max(chains(jaxpr.jaxpr, [0.0] * len(shapes))))}
    return row | ({'path': longest_path(LAYERS[name], length)} if length <= LONGEST_PATH else {})


def formula(name, key, length):
    wanted = LAYERS[name].formulas[key][1]
    return wanted(length, WIDTH) if key == 'flops' else wanted(length)


def table(rows):
    """Lines with the formula, the measurement at the longest row, and the exponents of both between the two longest rows."""
    measured = {(row['layer'], row['length']): row for row in rows}
    lines = [f'd = {WIDTH}, r = {SIZE}, k = {KERNEL}; ^ is the exponent of n between the two longest rows, (formula).', '']
    for key in ('flops', 'steps', 'path'):
        half, whole = sorted({row['length'] for row in rows if key in row})[-2:]
        lines.append(f'{key:<18} {"formula":<18} {"n = " + str(whole):>14} {"formula":>14} {"^":>6} {"":>7}')
        for name, layer in LAYERS.items():
            low, high = (measured[name, length][key] for length in (half, whole))
            exponent = lambda a, b: np.log(b / a) / np.log(whole / half)  # noqa: B023
            by_formula = formula(name, key, whole)
            wanted = f'({exponent(formula(name, key, half), by_formula):.2f})'
            lines.append(f'{name:<18} {layer.formulas[key][0]:<18} {high:>14,} {f"{by_formula:,.0f}":>14} '
                         f'{exponent(low, high):>6.2f} {wanted:>7}')
        lines.append('')
    return lines


def picture(rows):
    """A matplotlib figure over lengths: measurements (points) and formulas (lines; for steps through the last point)."""
    from matplotlib.lines import Line2D

    figure, body = figures.new(13, 4.8)
    panels = body.subplots(1, 3)
    for axes, key in zip(panels, ('flops', 'steps', 'path')):
        for i, name in enumerate(LAYERS):
            found = [(row['length'], row[key]) for row in rows if row['layer'] == name and key in row]
            lengths, values = map(np.array, zip(*found))
            lines = np.array([formula(name, key, n) for n in lengths], float)
            lines *= values[-1] / lines[-1] if key == 'steps' else 1.0
            axes.plot(lengths, values, 'osD^v<>p'[i], color=COLOURS[i], markersize=11 - i, fillstyle='none', label=name)
            axes.plot(lengths, lines, color=COLOURS[i], linewidth=1)
        label = {'flops': 'floating point operations', 'steps': 'dependent operations',
                 'path': 'layers, and turns of loops'}[key]
        title = {'flops': 'work', 'steps': 'sequential steps', 'path': 'longest path between two positions'}[key]
        axes.set_title(title, fontsize=13)
        axes.set(yscale='log')
        axes.set_xscale('log', base=2)
        axes.set_xlabel('length n in positions (log scale)', fontsize=11)
        axes.set_ylabel(f'{label} (log scale)', fontsize=11)
        axes.grid(alpha=0.3)
    handles = [*panels[0].get_legend_handles_labels()[0],
               Line2D([], [], color='gray', marker='o', fillstyle='none', linestyle='', label='mark: counted'),
               Line2D([], [], color='gray', linewidth=1, label='line: formula')]
    body.legend(handles=handles, loc='outside lower center', ncols=5, frameon=False, fontsize=11)
    return figures.explain(
        figure, 'Attention, its cheaper forms and its alternatives: counts and formulas',
        'Marks are counts in the programs of one layer, causal but for channel groups, lines the formulas of Vaswani et al. '
        '2017, table 1, and of docs/attention.md; formulas of sequential steps have no constant, '
        'so their lines go through the last mark.')


def main(lengths=LENGTHS, folder=''):
    rows = [measure(name, length) for name in LAYERS for length in lengths]
    lines = table(rows)
    print('\n'.join([*lines, *map(json.dumps, rows)]))
    if folder:
        os.makedirs(folder, exist_ok=True)
        for file, text in (('complexity.txt', lines), ('complexity.jsonl', map(json.dumps, rows))):
            with open(os.path.join(folder, file), 'w') as out:
                out.write('\n'.join(text) + '\n')
        picture(rows).savefig(os.path.join(folder, 'complexity.png'), dpi=110)


if __name__ == '__main__':
    cli.run(lambda: main(folder=flags.FLAGS.out))
