"""Benchmark of attention: one JSON line per case.

    python -m benchmarks.attention [--case=NAME ...] [--rounds=5]

Forward and backward, float32, batch 1, 8 heads of 64. The two programs of a case take turns in one process, so that a machine
that slows down or speeds up favours neither; `ms` is the median of each, `ratio` that of the ratios of the turns. `mb` is the
memory for temporaries of the compiled program, as reported by XLA, also for programs that are not run.

window, bigbird   Window(256), and BigBird (window of 3 blocks, 2 global, 3 random blocks of 64), at 8192: block by block
                  without the hidden blocks, against all scores at once.
long              Full() at 16384 by blocks; all scores at once are not run.
full              Full() at 4096, the same two.
causal_LENGTH     Causal() at 1024, 2048, 4096 and 8192 (where all scores at once are not run), the same two.
linear            linear attention, causal, at 16384 against 8192.
score_NAME        a score against ScaledDot(), causal at 1024.
attention_NAME    another mechanism against Softmax(), at 4096, causal if it supports that.
positions_NAME    a position encoding against none, in a layer of MultiHead 512 wide, causal at 1024 (SwinBias() and
                  Sinusoidal2d(): all of 32 x 32 patches).
"""

import json
import statistics
import time
from functools import partial

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_multi_string('case', [], 'only the cases whose names begin with this; repeat the flag for several')
    flags.DEFINE_integer('rounds', 5, 'timed turns of each program', lower_bound=1)
    cli.answer_help()

import jax
import jax.numpy as jnp

from training.config.resolve import did_you_mean, subclasses
from training.host import machine
from transformer.attention.context import Context
from transformer.attention.kernels.attend import attend
from transformer.attention.masks.patterns import Causal, Full, Global, Random, Window
from transformer.attention.mechanism import AlternateAttention, Given, Mechanism, Softmax
from transformer.attention.mechanisms.linear import Linear
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions.base import Encoding, NoPositions, Positions, Sizes
from transformer.attention.scores import ScaledDot, Score
from transformer.layers.dense import Parameters

HEADS, WIDTH = 8, 64
BIGBIRD = Window(2, block=64) | Global(128) | Random(3, block=64, length=8192)


def kernel(mask, implementation, length):
    """(function, its arrays), with respect to all of which it is differentiated."""
    return partial(attend, mask=mask, implementation=implementation), drawn(*[(1, length, HEADS, WIDTH)] * 3)


def mechanism(kind, mask, length):
    arrays = drawn(*[(1, length, HEADS, WIDTH)] * 3)
    given = arrays if 'key' in kind.projections else (arrays[0], None, arrays[2])
    parameters = Parameters(kind.parameters(*given)).init(jax.random.key(0)).get('params', {})

    def function(parameters, query, key, value):
        key = key if 'key' in kind.projections else None
        query = query if 'query' in kind.projections else None
        return kind(parameters, query, key, value, Given(mask))

    return function, (parameters, *arrays)


def layer(kind, length, side=0):
    """Multi-head attention with a position encoding; over side x side patches if side is not 0."""
    width, mask = HEADS * WIDTH, Full() if side else Causal()
    module, row = MultiHead(HEADS), jnp.arange(length)
    sizes = Sizes(length, width, HEADS, WIDTH, grid=(side, side) if side else None, causal=not side)
    (x,) = drawn((1, length, width))
    shared = Parameters(kind.parameters(sizes)).init(jax.random.key(0)).get('params', {})
    context = Context(mask, Encoding(kind, shared, row, row, sizes))
    own = {'params': module.init(jax.random.key(1), x, context=context)['params']}

    def function(shared, own, x):
        encoding = Encoding(kind, shared, row, row, sizes)
        return module.apply(own, encoding.at_layer(encoding.at_input(x)), context=Context(mask, encoding))[0]

    return function, (shared, own, x)


def drawn(*shapes):
    return tuple(jax.random.normal(jax.random.fold_in(jax.random.key(0), i), shape) for i, shape in enumerate(shapes))


def defaults(kind, **longest):
    """{name: instance} of the parts of a kind with their defaults, but with the fields `longest` where a part has them; without
    `AlternateAttention`, which has no work of its own."""
    return {name: cls(**{field: value for field, value in longest.items() if field in cls.__dataclass_fields__})
            for name, cls in sorted(subclasses(kind).items()) if cls is not AlternateAttention}


def cases():
    """{name: (maker of the first program, maker of the second)}."""
    both = lambda mask, length: tuple(partial(kernel, mask, name, length) for name in ('blockwise', 'plain'))
    found = {'window': both(Window(256), 8192), 'bigbird': both(BIGBIRD, 8192), 'long': both(Full(), 16384),
             'full': both(Full(), 4096), **{f'causal_{n}': both(Causal(), n) for n in (1024, 2048, 4096, 8192)},
             'linear': (partial(mechanism, Linear(), Causal(), 16384), partial(mechanism, Linear(), Causal(), 8192))}
    for name, score in defaults(Score).items():
        found[f'score_{name}'] = tuple(partial(mechanism, Softmax(score=one), Causal(), 1024) for one in (score, ScaledDot()))
    for name, kind in defaults(Mechanism, length=4096).items():
        mask = Causal() if kind.causal else Full()
        found[f'attention_{name}'] = partial(mechanism, kind, mask, 4096), partial(mechanism, Softmax(), mask, 4096)
    for name, kind in defaults(Positions).items():
        side = 32 if name in ('SwinBias', 'Sinusoidal2d') else 0
        found[f'positions_{name}'] = partial(layer, kind, 1024, side), partial(layer, NoPositions(), 1024, side)
    return found


NOT_RUN = ('long', 'causal_8192')  # cases whose second program is not run


def main():
    machine.prepare({})
    lines(cases(), NOT_RUN)


def lines(known, not_run=()):
    """Prints the line of each case that --case asks for, of {name: (maker of the first program, maker of the second)}."""
    asked = [name for name in known if not flags.FLAGS.case or any(name.startswith(one) for one in flags.FLAGS.case)]
    for one in flags.FLAGS.case:
        if not any(name.startswith(one) for name in known):
            raise ValueError(f'There is no case {one!r}; {did_you_mean(one, known)}')
    for name in asked:
        row = measure(*known[name], flags.FLAGS.rounds, run_second=name not in not_run)
        print(json.dumps({'case': name} | row), flush=True)


def compiled(function, arrays):
    """The compiled program for output and gradients."""
    @jax.jit
    def both(*arrays):
        out, pull = jax.vjp(function, *arrays)
        return out, pull(jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return both.lower(*arrays).compile()


def measure(first, second, rounds, run_second=True):
    """{name: number} of two programs that take turns."""
    pair = [make() for make in (first, second)]
    programs = [compiled(*one) for one in pair]
    memory = [program.memory_analysis().temp_size_in_bytes / 1e6 for program in programs]
    seconds = [[], []]
    for turn in range(rounds + 1):
        for own, program, (_, arrays) in list(zip(seconds, programs, pair))[:2 if run_second else 1]:
            start = time.perf_counter()
            jax.block_until_ready(program(*arrays))
            if turn:  # the first turn is a warm-up
                own.append(time.perf_counter() - start)
    row = {'device': jax.devices()[0].device_kind, 'cores': machine.cores(), 'jax': jax.__version__}
    row['ms'] = [round(1e3 * statistics.median(own), 1) for own in seconds if own]
    row['ms_min'] = [round(1e3 * min(own), 1) for own in seconds if own]
    if run_second:
        row['ratio'] = round(statistics.median(a / b for a, b in zip(*seconds)), 3)
    return row | {'mb': [round(m, 1) for m in memory], 'memory_ratio': round(memory[0] / memory[1], 4)}


if __name__ == '__main__':
    cli.run(main)
