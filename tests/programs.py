"""What the programs of configs do on TPUs, by the compiler for TPUs, and the record of it in reference/programs.json.

    .venv-plan/bin/python -m tests.programs [NAME[:VARIANT] ..]

writes the record anew, of these configs or of all, after a change that was meant. Another version of the compiler makes other
programs: the record says of which it is, and those of others may not do much more.
"""

import functools
import json
import pathlib
import sys
import tempfile

from benchmarks import topologies

if __name__ == '__main__':
    topologies.without_devices()

from benchmarks import plan, stand_in
from tests import configs_test, experiments
from training.config import cli

RECORD = pathlib.Path(__file__).parent / 'reference' / 'programs.json'
TOPOLOGY = 'v5e:2x2'
STACKS = '', 'encoder.', 'decoder.', 'generator.', 'discriminator.'
# Small, but with the kernels of the full size: heads of 64, and rows of several blocks.
SIZES = {**{f'model.{stack}{field}': value for stack in STACKS
            for field, value in (('layers', 1), ('heads', 2), ('width', 128))},
         'model.length': 256, 'data.length': 256, 'model.source_length': 256, 'data.source_length': 256, 'data.batch_size': 8,
         'train.microbatches': 1}
SMALL = 'data.size', 'model.stages.', 'model.depths'  # of images as in configs_test: a convolution takes long to compile
CHANGES = {'gpt2:1558m': {'model.layers': 2, 'train.microbatches': 2}, 'gpt_translate': {'model.length': 512}}  # else
NAMES = tuple(configs_test.CHANGES)
# Up to two thirds of the compiler's time go into moving arrays to the memory beside the processor and back; without it programs
# have fewer copies, and their traffic and temporaries are of all arrays.
QUICK = {'exec_time_optimization_effort': -1.0, 'memory_fitting_effort': -1.0}
# As a run compiles them; of the recurrent one it would leave collectives in a loop.
WHOLE = 'quickstart:code', 'gpt2:1558m', 't5_small:step', 'vit_ti16:step', 'bahdanau_fra_eng:full'

KEPT = 0.01  # by how much bytes may differ between machines
MORE = 1.25  # times the bytes that another version of the compiler may need
BUFFER_GB = 2e-5  # and besides, as programs of a few kB have almost nothing to multiply


@functools.cache
def devices():
    return topologies.devices_of(TOPOLOGY)


def program(name):
    """{'versions', 'traffic_gb', 'temporaries_gb', 'operations', 'collectives'} of a config's step, made small."""
    file, _, variant = name.partition(':')
    config, _ = cli.load_config(f'configs/{file}.py:{variant}')
    sizes = {field: value for field, value in SIZES.items() if configs_test.has(config, field)}
    sizes |= {field: value for field, value in configs_test.CHANGES[name].items() if field.startswith(SMALL)}
    mesh = {'mesh.data': 2, 'mesh.fsdp': 2} if config.mesh.fsdp == -1 else {'mesh.data': 4}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = stand_in.replaced(experiments.changed(config, **sizes | mesh | CHANGES.get(name, {})), folder)
        if not pathlib.Path(config.data.get('path', '') or '.').exists() or 'parts' in config.data:
            config = experiments.changed(config, **configs_test.CHANGES[name] | configs_test.sources(config, folder))
        found = plan.measure(config, name, devices(), None if name in WHOLE else QUICK)
    return {'versions': f'jax {found["jax"]}, {found["compiler"]}', 'traffic_gb': found['traffic_gb'],
            'temporaries_gb': found['memory_gb']['temporaries'], 'operations': found['operations'],
            'collectives': {f'{row["kind"]} over {row["axes"]}': [row['count'], row['payload']]
                            for row in found['collectives']}}


def differences(found, wanted):
    """The keys of a program that differ from the record; of other versions of the compiler, those in which it does more: kinds
    of collectives over axes that are not there, or bytes by a factor of MORE."""
    sizes = 'traffic_gb', 'temporaries_gb'
    if found['versions'] == wanted['versions']:
        return [key for key in ('operations', 'collectives') if found[key] != wanted[key]] + [
            key for key in sizes if abs(found[key] - wanted[key]) > KEPT * wanted[key]]
    return ['collectives'] * (not found['collectives'].keys() <= wanted['collectives'].keys()) + [
        key for key in sizes if found[key] > MORE * wanted[key] + BUFFER_GB]


def recorded():
    return json.loads(RECORD.read_text())


def write(programs):
    lines = ',\n'.join(f'{json.dumps(name)}: {json.dumps(programs[name])}' for name in NAMES if name in programs)
    RECORD.write_text(f'{{\n{lines}\n}}\n')


def main(names):
    for name in names or NAMES:
        found = program(name)
        write((recorded() if RECORD.is_file() else {}) | {name: found})
        print(name, found, flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
