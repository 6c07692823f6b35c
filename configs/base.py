"""The defaults of every experiment, and the helpers with which a config names its parts.

A config file defines `get_config(variant='')`. `part` names a class by import path and makes every field of it a flag:
`config.model = base.part('transformer.gpt:Gpt', layers=4)` gives `--config.model.dropout=0.1` and the rest.
"""

import ml_collections

from training import resolve

# (regex over parameter names, mesh axis of each dimension): the first match counts. Megatron's split: heads and inner
# width over `tensor`; the other large dimension over `fsdp`.
SHARDING = (
    (r'.*/(query|key|value)/kernel', ('fsdp', 'tensor', None)),
    (r'.*/(query|key|value)/bias', ('tensor', None)),
    (r'.*attention/output/kernel', ('tensor', None, 'fsdp')),
    (r'.*/feed_forward/(input|gate|linear)/kernel', ('fsdp', 'tensor')),
    (r'.*/feed_forward/(input|gate|linear)/bias', ('tensor',)),
    (r'.*/feed_forward/output/kernel', ('tensor', 'fsdp')),
    (r'.*/embedding', ('tensor', 'fsdp')),
    (r'output/kernel', ('fsdp', 'tensor')),
    (r'.*', ()),
)
# (regex, multiple of weight_decay): matrices decay; biases and scales do not, whatever a part of attention calls them.
DECAY = ((r'.*/(bias|scale|content|extra|log_sharpness|offset|position|theta)', 0.0), (r'.*', 1.0))
# (regex, dimensions of the input and of the output): the matrices of the blocks, for optimizers that treat them as such;
# embeddings and heads, as tables of rows, are none.
MATRICES = (
    (r'.*attention/(mechanism|positions)/.*', ()),  # stacks of small ones
    (r'(.*/)?block_\d+/.*/(query|key|value)/kernel', ((0,), (1, 2))),
    (r'(.*/)?block_\d+/.*attention/output/kernel', ((0, 1), (2,))),
    (r'(.*/)?block_\d+/.*/kernel', ((0,), (1,))),
    (r'(.*/)?layer_\d+(_reverse)?/(input|state)/kernel', ((0,), (1,))),  # of a recurrent layer, its gates side by side
    (r'decoder/(combined|first_layer_\d+_\w+)/kernel', ((0,), (1,))),  # of a recurrent decoder
    (r'.*', ()),
)


def part(path, /, **fields):
    """A model, task, optimizer or schedule: the class path under `name`, and all its fields but `dtype`, which is the
    experiment's own."""
    config = resolve.describe(path, **fields)
    if 'dtype' in config:
        del config['dtype']
    return config


def data(path, /, **fields):
    """The data: the class path under `pipeline`, and all its fields."""
    return resolve.describe(path, 'pipeline', **fields)


def mixture(parts, /, **fields):
    """Several texts as one, drawn by weight: {name: fields of data.mixture:Part}, and the fields of data.mixture:Mixture."""
    config = data('data.mixture:Mixture', **fields)
    del config['parts']
    config.parts = {name: resolve.describe('data.mixture:Part', 'kind', **part) for name, part in parts.items()}
    for part in config.parts.values():
        del part['kind']
    return config


def evaluation(path, /, *, split, every_steps=0, **fields):
    """An evaluator on a split, every so many steps (0: only at the end); it always runs at the end."""
    config = resolve.describe(path, 'evaluator', **fields)
    config.split, config.every_steps = split, every_steps
    return config


def optimizer(path='training.optimizer:AdamW', /, *, learning_rate, schedule, weight_decay=0.0, clip=1.0,
              average_decay=0.0, **fields):
    """An optimizer with what surrounds it: schedule, decay and multiples of the learning rate by rules (a multiple of 0
    freezes), clipping by global norm (0: none), moving average of the parameters for evaluation (0: none)."""
    config = part(path, **fields)
    config.learning_rate, config.weight_decay, config.clip = float(learning_rate), float(weight_decay), float(clip)
    config.average_decay, config.schedule = float(average_decay), schedule
    config.decay_rules, config.rate_rules = DECAY, ((r'.*', 1.0),)
    config.matrices = fields.get('matrices', MATRICES)
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
    c.dtype = 'float32'  # of matrix products: 'float32' or 'bfloat16'
    c.deterministic = False  # on a GPU: only kernels whose sums are always added in the same order
    c.allocator = True  # keep the memory of large temporaries in the process (glibc): a faster step, a larger process
    c.init_from = ''  # a workdir whose parameters and tokenizer this run starts with
    # (regex over parameter names, 'keep' from init_from | 'fresh' | 'offered': keep it where it is there in this shape)
    c.init_rules = ((r'.*', 'keep'),)
    c.train = dict(
        steps=1000,
        dispatch=1,  # steps that the device does per call: less waiting between short steps; the result is the same
        microbatches=1,  # parts into which a batch is split, worked off one after the other, for memory
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
    c.mesh = dict(data=-1, fsdp=1, tensor=1, rules=SHARDING)
    c.energy = dict(  # for the estimate at the end of a run
        watts=0.0,  # that all devices draw together, with their hosts if known; 0: the devices' own at full load, by a table
        pue=1.54,  # a data centre's power over its computers': average of Uptime Institute's survey of 2025; at home 1
        grams_per_kwh=458.0,  # CO2e of the grid: the world in 2025, Ember, Global Electricity Review 2026
    )
    c.profile = dict(steps='')  # 'first:last' writes a JAX profile of these steps to profile/
    return c
