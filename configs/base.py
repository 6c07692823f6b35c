"""The defaults of every experiment, and the helpers with which a config names its parts.

A config file defines `get_config(variant='')`, and `sweep(variant='')` (training/report/sweeps.py) if several runs are to be
compared. `part` names a class by import path and makes each of its fields a flag:
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


def stages(*, layers, widths, heads, **fields):
    """The group `stages` of a hierarchical model: for each stage its number of blocks, its width and its heads; all stages
    share `fields`."""
    return {f'stage_{i}': dict(layers=own, width=width, heads=count, **fields)
            for i, (own, width, count) in enumerate(zip(layers, widths, heads, strict=True))}


def data(path, /, **fields):
    """The data: the class path under `pipeline`, and all its fields."""
    return resolve.describe(path, 'pipeline', **fields)


def evaluation(path, /, *, split, every_steps=0, **fields):
    """An evaluator of a split, which runs every `every_steps` steps (0: never) and at the end."""
    config = resolve.describe(path, 'evaluator', **fields)
    config.split, config.every_steps = split, every_steps
    return config


def optimizer(path='training.optimizer:AdamW', /, *, learning_rate, schedule, weight_decay=0.0, clip=1.0,
              average_decay=0.0, **fields):
    """An optimizer with its schedule, weight decay by roles, multiples of the learning rate by rules (0 freezes a parameter),
    clipping by global norm (0: none), and a moving average of the parameters for evaluation (0: none)."""
    config = part(path, **fields)
    config.learning_rate, config.weight_decay, config.clip = float(learning_rate), float(weight_decay), float(clip)
    config.average_decay, config.schedule = float(average_decay), schedule
    # (regex over parameter names, multiple of weight_decay); by default the roles decide: matrices and tables decay.
    config.decay_rules, config.rate_rules = (), ((r'.*', 1.0),)
    return config


def variant_of(given, known):
    """The variant after the colon of --config=FILE:VARIANT; the first one known is the default."""
    given = given or known[0]
    if given not in known:
        raise ValueError(f'There is no variant {given!r} of this config; {resolve.did_you_mean(given, known)}')
    return given


def config():
    """The fields that every experiment has; the experiment adds model, task, data and optimizer, and locks the config."""
    c = ml_collections.ConfigDict()
    c.seed = 0
    # Of matrix products: 'float32', 'bfloat16', 'mixed' (float32 with their operands in bfloat16, faster on a CPU with AMX), or
    # for proofs on a CPU 'float64', then of all numbers.
    c.dtype = 'float32'
    c.parameter_dtype = 'float32'  # of stored parameters: 'float32', 'bfloat16', or with dtype='float64' that
    c.deterministic = False  # on a GPU: only kernels that always sum in the same order
    c.allocator = True  # keep the memory of large temporaries in the process (glibc): a faster step, a larger process
    c.init_from = ''  # a workdir from which this run takes its first parameters and its tokenizer
    # (regex over parameter names, 'keep' from init_from | 'fresh' | 'offered': keep if it exists there with the same shape).
    # 'keep:NAME' and 'offered:NAME' take the parameter NAME, in which \1 is what the first group of the regex matches:
    # (r'block_1/(.*)', r'keep:block_2/\1'); \g<0> is the whole name: (r'.*', r'keep:discriminator/\g<0>').
    c.init_rules = ((r'.*', 'keep'),)
    c.companions = ml_collections.ConfigDict()  # {name: workdir}: frozen models that the task applies, such as a teacher
    c.train = dict(
        steps=1000,
        dispatch=1,  # steps per call of the device: less waiting between short steps; the result is the same
        microbatches=1,  # parts of a batch that are processed one after the other, to save memory
        nonfinite='stop',  # at a loss or gradient that is not finite: 'stop', or 'skip' the update
    )
    c.log = dict(
        every_steps=50,
        gradients=False,  # also log the gradient norm of every layer
    )
    c.checkpoint = dict(
        every_steps=1000,
        keep=3,
        best='',  # such as 'valid/loss', 'valid/accuracy': also keep the step with its best value, for eval.py --step=best
    )
    c.evals = ml_collections.ConfigDict()
    c.generation = dict(  # the defaults of predict.py's flags
        strategy='',  # such as 'Beam(size=4)'; '': Sample(temperature=0.8), for translation Beam(size=4, length_penalty=0.6)
        tokens=0,  # the most tokens of an output; 0: 100, for translation 50 more than the source has
        settings=ml_collections.ConfigDict(),  # those of Hugging Face's generation_config.json, read by convert.py
    )
    # rules: (regex over parameter names, mesh axis of each dimension); by default the roles decide.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, rules=())
    c.energy = dict(  # for the estimate at the end of a run
        watts=0.0,  # of all devices together, with their hosts if known; 0: of the devices at full load, from a table
        pue=1.54,  # a data centre's power over its computers': average of Uptime Institute's survey of 2025; at home 1
        grams_per_kwh=458.0,  # CO2e of the grid: the world in 2025, Ember, Global Electricity Review 2026
    )
    c.profile = dict(steps='')  # 'first:last' writes a JAX profile of these steps to profile/
    return c
