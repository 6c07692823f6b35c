"""Recurrent layers as loops over rows and positions, by numpy in float64."""

import numpy as np

from transformer.models.recurrent import Gru, Rnn


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(cell, params, x, state):
    """One step of one row by the formulas of the papers, in float64: each gate with matrices of its own."""
    gates = {'Rnn': 1, 'Gru': 3, 'Lstm': 4}[type(cell).__name__]
    split = lambda a: np.split(np.asarray(a, np.float64), gates, -1)
    w, b, u = split(params['input']['kernel']), split(params['input']['bias']), split(params['state']['kernel'])
    h = state['hidden']
    if isinstance(cell, Rnn):
        return {'hidden': np.tanh(x @ w[0] + h @ u[0] + b[0])}
    if isinstance(cell, Gru):
        c = split(params['state']['bias'])
        r, z = (sigmoid(x @ w[i] + b[i] + h @ u[i] + c[i]) for i in (0, 1))
        n = np.tanh(x @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        return {'hidden': (1 - z) * n + z * h}
    i, f, g, o = (x @ w[k] + h @ u[k] + b[k] for k in range(4))
    memory = sigmoid(f + cell.forget_bias) * state['cell'] + sigmoid(i) * np.tanh(g)
    return {'hidden': sigmoid(o) * np.tanh(memory), 'cell': memory}


def layer(cell, params, x, there=None, begins=None, reverse=False, state=None):
    """[B, T, D] -> ([B, T, H], last states) by a loop over rows and positions."""
    width = params['state']['kernel'].shape[0]
    zeros = {name: np.zeros(width) for name in cell.states}
    out, last = np.zeros((*x.shape[:2], width)), []
    for row in range(len(x)):
        now = zeros if state is None else {name: a[row] for name, a in state.items()}
        for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
            if begins is not None and begins[row, t]:
                now = zeros
            if there is None or there[row, t]:
                now = step(cell, params, x[row, t], now)
            out[row, t] = now['hidden']
        last.append(now)
    return out, {name: np.stack([one[name] for one in last]) for name in cell.states}
