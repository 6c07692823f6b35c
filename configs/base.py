"""The defaults of every experiment, and the helpers with which a config names its parts.

A config file defines `get_config(variant='')`, and `sweep(variant='')` (training/report/sweeps.py) to compare several
runs. `part` names a class by import path and makes every field of it a flag:
`config.model = base.part('transformer.models.gpt:Gpt', layers=4)` gives `--config.model.dropout=0.1` and the rest.
"""

import ml_collections

from training.config import resolve


def part(path, /, **fields):
    """A model, task, optimizer or schedule: the class path under `name`, and all its fields but `dtype` and `parameter_dtype`,
    which are the experiment's own."""
    config = resolve.describe(path, **fields)
    for name in ('dtype', 'parameter_dtype'):
        if name in config:
            del config[name]
    return config


# Fields of a stack whose layers have no biases.
NO_BIASES = dict(projection_bias=False, output_bias=False, feed_forward='Mlp(bias=False)', norm='LayerNorm(bias=False)')


def both(**fields):
    """The groups `encoder` and `decoder` of a model, with the same fields."""
    return {'encoder': fields, 'decoder': fields}


def data(path, /, **fields):
    """The data: the class path under `pipeline`, and all its fields."""
    return resolve.describe(path, 'pipeline', **fields)


def evaluation(path, /, *, split, every_steps=0, **fields):
    """An evaluator on a split, every so many steps (0: only at the end); it always runs at the end."""
    config = resolve.describe(path, 'evaluator', **fields)
    config.split, config.every_steps = split, every_steps
    return config


def optimizer(path='training.optimizer:AdamW', /, *, learning_rate, schedule, weight_decay=0.0, clip=1.0,
              average_decay=0.0, **fields):
    """An optimizer and its settings: schedule, decay by roles, multiples of the learning rate by rules (a multiple of 0
    freezes), clipping by global norm (0: none), moving average of the parameters for evaluation (0: none)."""
    config = part(path, **fields)
    config.learning_rate, config.weight_decay, config.clip = float(learning_rate), float(weight_decay), float(clip)
    config.average_decay, config.schedule = float(average_decay), schedule
    # (regex over parameter names, multiple of weight_decay), which take precedence over roles: matrices and tables decay.
    config.decay_rules, config.rate_rules = (), ((r'.*', 1.0),)
    return config


def variant_of(given, known):
    """The variant after the colon of --config=FILE:VARIANT; the first one known is the default."""
    given = given or known[0]
    if given not in known:
        raise ValueError(f'There is no variant {given!r} of this config; {resolve.did_you_mean(given, known)}')
    return given


def config():
    """What every experiment has; the experiment adds model, task, data and optimizer, and locks."""
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.dtype = 'float32'  # of matrix products: 'float32', 'bfloat16', or for tests on a CPU 'float64', then of all numbers
    c.parameter_dtype = 'float32'  # of stored parameters: 'float32', 'bfloat16', or with dtype='float64' the same
    c.deterministic = False  # on a GPU: only kernels whose sums are always added in the same order
    c.allocator = True  # keep the memory of large temporaries in the process (glibc): a faster step, a larger process
    c.init_from = ''  # a workdir whose parameters and tokenizer this run starts with
    # (regex over parameter names, 'keep' from init_from | 'fresh' | 'offered': keep it if init_from has it in this shape)
    c.init_rules = ((r'.*', 'keep'),)
    c.train = dict(
        steps=1000,
        dispatch=1,  # steps that the device does per call: less waiting between short steps; the result is the same
        microbatches=1,  # parts into which a batch is split, computed one after the other to save memory
        nonfinite='stop',  # a loss or gradient that is not finite: 'stop', or 'skip' the update
    )
    c.log = dict(
        every_steps=50,
        gradients=False,  # the norm of the gradient of every layer as well
    )
    c.checkpoint = dict(
        every_steps=1000,
        keep=3,
        best='',  # e.g. 'valid/loss': the step with the lowest is kept too, for eval.py --step=best
    )
    c.evals = ml_collections.ConfigDict()
    c.generation = dict(  # how predict.py chooses tokens, unless its flags say
        strategy='',  # such as 'Beam(size=4)'; '': Sample(temperature=0.8), in translation Beam(size=4, length_penalty=0.6)
        tokens=0,  # the most tokens of an output; 0: 100, in translation 50 more than the source has
        settings=ml_collections.ConfigDict(),  # from Hugging Face's generation_config.json, as read by convert.py
    )
    # rules: (regex over parameter names, mesh axis of each dimension), which take precedence over roles.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, rules=())
    c.energy = dict(  # for the estimate at the end of a run
        watts=0.0,  # power of all devices, with their hosts if known; 0: that of the devices at full load, from a table
        pue=1.54,  # a data centre's power over its computers': average of Uptime Institute's survey of 2025; at home 1
        grams_per_kwh=458.0,  # CO2e of the grid: the world in 2025, Ember, Global Electricity Review 2026
    )
    c.profile = dict(steps='')  # 'first:last' writes a JAX profile of these steps to profile/
    return c
