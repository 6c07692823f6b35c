"""Compiles the training step of a config for a TPU that is not there, and says what it needs: one JSON line.

    pip install "jax[tpu]"
    python -m benchmarks.tpu --config=configs/vit_ti16.py [--topology=v5e:4x4] [--config.part.field=value ...]

The compiler for TPUs runs on any Linux, and tells the memory and the traffic of a program without a TPU. The topology is a
slice: v4:2x2x2, v5e:4x4, v5p:8x8x8, v6e:4x4. Of the data only shapes and classes matter: a few photos in a folder for each of
two classes stand for ImageNet, --config.data.source=folder --config.data.name= --config.data.path=photos.

Of each chip: arguments_gb (parameters, optimizer, batch) and temporaries_gb; traffic_gb that a step reads and writes, and
gflop, both as the compiler counts them (without kernels in Pallas); and step_gflop of all chips, as in the log of training.
products_ms is gflop at the chip's peak.
"""

import json
import os
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_string('topology', 'v5e:4x4', 'the slice that is compiled for')
    cli.answer_help(config='configs/vit_ti16.py')
    os.environ |= {'JAX_PLATFORMS': 'cpu', 'TPU_SKIP_MDS_QUERY': '1'}  # no TPU is looked for

import jax

from training import mesh as meshes
from training import run as runs
from training.config import schema
from training.host.devices import peak_flops


def main(config, name):
    print(json.dumps(measure(config, name, devices_of(flags.FLAGS.topology))))


def devices_of(topology):
    """The devices of a slice of TPUs. Raises ValueError without libtpu, and for an unknown topology."""
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(platform='tpu', topology_name=topology).devices
    except Exception as error:  # of several types, one for each release
        reason = str(error).splitlines()[0]
        raise ValueError(f'--topology={topology} cannot be compiled for ({reason:.200}); install "jax[tpu]", and name a slice '
                         'such as v5e:4x4.') from None


def measure(config, name, devices):
    """{name: number} for a config on these devices."""
    schema.check(config)
    with config.unlocked():
        config.evals = {}
    mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    run = runs.build(config, mesh)
    start = time.perf_counter()
    programs = run.compile()
    seconds = time.perf_counter() - start
    memory, cost = programs.memory_analysis(), programs.cost_analysis()
    peak = peak_flops(mesh.devices.flat[0], config.dtype)
    return {'config': name, 'device': f'{mesh.size} x {mesh.devices.flat[0].device_kind}', 'jax': jax.__version__,
            'dtype': config.dtype, 'parameters': run.parameters(), 'rows': config.data.batch_size,
            'compile_s': round(seconds, 1), 'step_gflop': round(programs.flops / 1e9, 1),
            'arguments_gb': round(memory.argument_size_in_bytes / 1e9, 3),
            'temporaries_gb': round(memory.temp_size_in_bytes / 1e9, 3),
            'traffic_gb': round(cost['bytes accessed'] / 1e9, 3), 'gflop': round(cost['flops'] / 1e9, 1),
            'products_ms': peak and round(1e3 * cost['flops'] / peak, 2)}


if __name__ == '__main__':
    cli.run(main, config='configs/vit_ti16.py')
