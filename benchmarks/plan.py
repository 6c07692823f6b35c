"""What a training run needs on TPUs or GPUs that are not there: compiles its step with their compiler, and says whether it
fits, what limits it, how fast it can be at most, and what it costs.

    make plan ARGS="--config=configs/gpt2.py:1558m --topology=v5e:8x8 --config.train.microbatches=4 [--search]"

or, with jax[tpu] installed, python -m benchmarks.plan with these flags; others of the config are as in training, such as
--config.mesh.fsdp=8. The topology is a slice: v4:2x2x2, v5e:4x4, v5p:8x8x8, v6e:4x4; or, with jax[cuda13], h100:1 to h100:8,
GPUs of one machine. Data that are not there are replaced by made-up ones of the same shapes (benchmarks/stand_in.py).

The last line is a JSON object. Of each chip, in GB of 1e9 bytes: `memory_gb`, as JAX counts it, of TPUs more than their
compiler, which refuses what does not fit; `largest`, the largest arrays that the step makes and the layers that they come
from; `traffic_gb` that a step reads from and writes to its memory, `operations`, how often it runs each kind, and
`collectives`, by kind and by axis of the mesh, `hidden` what is sent during other work (benchmarks/hlo.py); `host_gb` of
activations that the host keeps for it (`remat=offload`). Of a step on all chips: `model_tflop`, products alone, those of Muon
too, without rematerialisation, of softmax attention in a model of one stack only what its mask leaves; and `step_tflop`, all
that is computed.

`bounds_ms` is the time of a step if one thing alone took time: products at the chip's peak, traffic at the bandwidth of its
memory (of a GPU also what its cache holds), collectives at that of all its links. `step_ms` is the largest of the three, and
`mfu` what model_tflop is of the peak in that time: a real step overlaps them less, and takes longer. Days, dollars, kWh and
CO2 are of all train.steps at that speed: dollars of TPUs alone, whose prices are published; kWh and CO2 of v4 and h100, whose
power is, and of any other with its power in W, of all chips together, --config.energy.watts.

--search compiles the step on meshes that split the parameters as far as they can be or do not, with each kind of
rematerialisation (`offload` where no other fits) and as few microbatches as fit, then the best of these with other kernels of
attention and other meshes, and ranks them by step_ms.
"""

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import time

from absl import flags

from benchmarks import topologies
from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_string('topology', 'v5e:4x4', 'the slice that is compiled for')
    flags.DEFINE_boolean('search', False, 'try meshes, rematerialisation, microbatches and kernels')
    cli.answer_help(config='configs/gpt2.py:124m')
    topologies.without_devices()

import jax
import numpy as np

from benchmarks import hlo, stand_in
from training import mesh as meshes
from training import roles
from training import run as runs
from training.config import resolve, schema
from training.host import machine
from training.host.devices import chip, peak_flops
from training.report import energy, flops
from training.report.report import duration, si
from transformer.attention.masks.algebra import Mask
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.layers.stack import REMAT

KERNELS = 'auto', 'plain', 'blockwise', 'rows', 'splash', 'cudnn'  # of softmax attention
AT_ONCE = 128  # queries whose mask is looked at: all of a long row would not fit into the memory
STATE = 'parameters', 'optimizer', 'other state', 'companions'  # what a chip holds from step to step


def main(config, name):
    machine.prepare(config, sparing=True)
    devices = topologies.devices_of(flags.FLAGS.topology)
    with tempfile.TemporaryDirectory() as folder:
        config = stand_in.replaced(config, pathlib.Path(folder))
        found = search(config, name, devices) if flags.FLAGS.search else measure(config, name, devices)
    print('\n'.join(lines(found)), flush=True)
    print(json.dumps(found))


def built(config, mesh):
    """The run of a config that is only compiled, for the devices of the mesh: kernels for these are not refused."""
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # set_mesh would compute on devices that are not there
        return runs.build(config, mesh, planned=True)


def measure(config, name, devices, options=None):
    """The plan of a config on these devices, as the docstring of this module describes it; options: the compiler's own."""
    config = config.copy_and_resolve_references().unlock()
    config.evals, config.checkpoint.best, config.train.dispatch = {}, '', 1
    schema.check(config)
    mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    run = built(config, mesh)
    device, chips = mesh.devices.flat[0], mesh.size
    if chip(device) and not peak_flops(device, config.dtype):
        raise ValueError(f'dtype is {config.dtype!r}, for which no speed of {device.device_kind} is known; give another, such '
                         'as --config.dtype=bfloat16.')
    unit = run.data.unit if 'inputs' in run.data.shapes else 'rows'
    units = int(np.prod(run.data.shapes['weights'][0])) if unit == 'tokens' else config.data.batch_size  # as in training's log
    traced = run.trace(run.longest)
    found = {
        'config': name, 'device': f'{chips} x {device.device_kind}', 'mesh': dict(mesh.shape), 'jax': jax.__version__,
        'compiler': _compiler(device), 'dtype': config.dtype, 'parameters': run.parameters(), 'rows': config.data.batch_size,
        'microbatches': config.train.microbatches, 'remat': sorted(_each(config.model, 'remat')), unit: units,
        'model_tflop': _tera(useful := model_flop(config, mesh)),
        'step_tflop': _tera(computed := flops.count_jaxpr(traced.jaxpr))}
    start = time.perf_counter()
    most = {'fsdp': most_split(run, 'fsdp', meshes.rows(mesh)), 'tensor': most_split(run, 'tensor', 2 * mesh.shape['tensor'])}
    limit = (figures := chip(device)) and figures.memory * share_of_memory(device)
    state = {'parameters': _bytes(run.shapes.params), 'optimizer': _bytes(run.shapes.opt_state)}
    state['other state'] = _bytes(run.shapes) - sum(state.values())
    if config.companions:
        state['companions'] = _bytes(run.companions.variables)
    try:
        with jax.set_mesh(mesh):
            compiled = traced.lower().compile(options)
    except jax.errors.JaxRuntimeError as error:
        if not (sizes := too_large(str(error))):
            raise
        needed, limit = sizes
        found |= {'compile_s': round(time.perf_counter() - start, 1), 'fits': False,
                  'memory_gb': _giga(state | {'all': needed, 'there is': limit})}
        return found | {'advice': advice(config, mesh, state, needed, limit, most)}
    found['compile_s'] = round(time.perf_counter() - start, 1)
    memory, program = compiled.memory_analysis(), hlo.Program(compiled.as_text())
    batch = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in run.longest.values()) // meshes.rows(mesh)
    padding = memory.argument_size_in_bytes - sum(state.values()) - batch  # of their tiles
    parts = state | {'batch': batch, 'padding': padding, 'temporaries': memory.temp_size_in_bytes,
                     'program': memory.generated_code_size_in_bytes}
    needed = (memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
              + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)
    fits = limit is None or needed <= limit or refuses(device)
    collectives = hlo.summed(program.collectives(), mesh.shape)
    found |= {'fits': fits, 'memory_gb': _giga(parts | {'all': needed} | ({'there is': limit} if limit else {})),
              'largest': [{'gb': _giga(size), 'of': _short(source)} for size, source in program.largest(5)],
              'traffic_gb': _giga(traffic := program.traffic()), 'operations': program.operations(),
              'collectives': [row | {key: _giga(row[key]) for key in ('payload', 'sent', 'hidden')} for row in collectives]}
    if memory.host_temp_size_in_bytes:
        found['host_gb'] = _giga(memory.host_temp_size_in_bytes)
    if endless := program.endless():
        found['loops_of_unknown_length'] = [_short(one.source) for one in endless]
    if not fits:
        found['advice'] = advice(config, mesh, state, needed, limit, most)
    if not figures:
        return found
    peak = peak_flops(device, config.dtype)
    sent = sum(row['sent'] for row in collectives)
    bounds = {'products': computed / chips / peak, 'memory': traffic / figures.bandwidth,
              'links': sent / figures.links}
    seconds, by = max((bound, key) for key, bound in bounds.items())
    total = seconds * config.train.steps
    found |= {'bounds_ms': {key: round(1e3 * bound, 2) for key, bound in bounds.items()}, 'limited_by': by,
              'step_ms': round(1e3 * seconds, 2), 'mfu': round(useful / chips / peak / seconds, 3),
              f'{unit}_per_day': round(units / seconds * 86_400), 'steps': config.train.steps,
              'days': round(total / 86_400, 3)}
    if figures.price:
        found['dollars'] = round(figures.price * chips * total / 3600, 2)
    if watts := config.energy.watts or energy.full_load_watts(mesh):
        kwh = energy.kilowatt_hours(watts, total, config.energy.pue)
        found |= {'kwh': round(kwh, 1), 'kg_co2e': round(energy.kilograms_co2e(kwh, config.energy.grams_per_kwh), 1)}
    return found


def share_of_memory(device):
    """The share of its memory that JAX takes: of a GPU three quarters, unless the environment says otherwise. Raises ValueError
    if what that says is no share."""
    names = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'  # the second is the older name
    if device.platform != 'gpu':
        return 1.0
    if not (name := next((name for name in names if os.environ.get(name)), '')):
        return 0.75
    try:
        share = float(os.environ[name])
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f'{name} is {os.environ[name]!r}; expected a number above 0 and at most 1, such as 0.75.')
    return share


def refuses(device):
    """Whether the compiler refuses what is too large for the device, so that what it takes fits. JAX counts some temporaries of
    a TPU more than once (docs/tpu.md)."""
    return device.platform == 'tpu'


def too_large(error):
    """(bytes that are needed, bytes of a chip) that the compiler names where a program does not fit; None in other errors."""
    size = r'([\d.]+)([KMGTP])'
    found = re.search(rf'Used {size} of {size} hbm', error, re.IGNORECASE)  # not of the small memories that a kernel has
    found = found or re.search(rf'temporaries \({size}\) exceeds available HBM \({size}\)', error)  # these hold the state too
    if not found:
        return None
    return tuple(float(found[i]) * 1024 ** (1 + 'KMGTP'.index(found[i + 1])) for i in (1, 3))


def model_flop(config, mesh):
    """Floating point operations of a step's products without rematerialisation, on all chips; of softmax attention under the
    mask of a model of one stack those of visible keys, of other mechanisms all that they compute."""
    plain = {field: str(dataclasses.replace(mechanism, implementation='plain'))  # kernels compute scores twice, or skip blocks
             for field, mechanism in _softmaxes(config.model)}
    config = schema.changed(config, plain | {f'{place}remat': 'none' for place in _places(config.model, 'remat')})
    run = built(config, mesh)
    jaxpr = run.trace(run.longest).jaxpr
    whole = flops.count_jaxpr(jaxpr)
    if 'mask' not in config.model or not isinstance(_parsed(config.model.attention, Mechanism), Softmax):
        return whole
    return whole - (1 - visible(_parsed(config.model.mask, Mask), run.data.shapes)) * flops.products_of_activations(jaxpr)


def _parsed(part, kind):
    return resolve.parse(part, kind, 'model') if isinstance(part, str) else part


def visible(mask, shapes):
    """The share of the pairs of positions in a row that a mask leaves."""
    if 'inputs' not in shapes:
        return 1.0
    keys = np.arange(length := shapes['inputs'][0][1])
    masks = (mask.even, mask.odd) if hasattr(mask, 'even') else (mask,)
    parts = np.split(keys, range(AT_ONCE, length, AT_ONCE))
    return sum(int(np.broadcast_to(one(queries, keys), (len(queries), length)).sum()) for one in masks for queries in parts
               ) / len(masks) / length**2


def advice(config, mesh, state, needed, limit, most):
    """What makes a step fit, one sentence.

    Args:
      most: {'fsdp', 'tensor': the size that leaves the fewest parameters on a chip}, of 'tensor' up to twice that of the mesh.
    """
    held = sum(state.values())
    if held > limit / 2 and mesh.shape['fsdp'] < (split := most['fsdp']):
        return (f'Parameters, optimizer and other state take {held / 1e9:.1f} GB of each chip: split them, '
                f'--config.mesh.data={meshes.rows(mesh) // split} --config.mesh.fsdp={split}.')
    if held > limit:
        return f'The state alone takes {held / 1e9:.1f} GB of each chip: take more chips.'
    rows, micro, kept = config.data.batch_size, config.train.microbatches, state['parameters']
    of_rows = needed - held - (kept if micro > 1 else 0)  # several microbatches add up their gradients
    more = next((count for count in range(micro + 1, rows + 1) if rows % (count * meshes.rows(mesh)) == 0 and
                 held + kept + of_rows * micro / count <= limit), 0)
    ways = [f'--config.train.microbatches={more}'] if more else []
    remat = set(_each(config.model, 'remat'))
    less = lambda name: ' '.join(f'--config.{place}remat={name}' for place in _places(config.model, 'remat'))
    ways += [less('full')] if remat & {'none', 'dots'} else []
    wider, free = 2 * mesh.shape['tensor'], [axis for axis in ('data', 'fsdp') if config.mesh[axis] == -1]
    if not ways and most['tensor'] == wider and any(mesh.shape[axis] % 2 == 0 for axis in free):
        ways = [f'--config.mesh.tensor={wider} --config.train.microbatches={2 * micro}']
    ways += [less('offload')] if remat and remat <= {'full'} else []
    return f'All but the state takes {(needed - held) / 1e9:.1f} GB: try {" or ".join(ways) or "fewer rows"}.'


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `search` chooses between, besides microbatches."""
    fsdp: int
    tensor: int
    remat: str
    kernel: str


def search(config, name, devices):
    """The plan with the shortest step of those that fit, of equal ones that whose memory and links take less, with `tried`,
    [(mesh, remat, kernel, microbatches, step_ms or None)].

    First every rematerialisation with whole and with most split parameters; then, from the best of these, one change after the
    other that makes it shorter: each kernel of softmax attention, `mesh.fsdp` between the two, and `mesh.tensor` doubled. Where
    none of the first fits, `mesh.tensor` is doubled until one does, and then the same with `offload`, as no time is counted for
    the way to the host."""
    chips, rows, kind = len(devices), config.data.batch_size, devices[0].device_kind
    parts = meshes.rows(meshes.make(-1, 1, config.mesh.tensor, devices))
    if not chip(devices[0]):
        raise ValueError(f'--search ranks by the time of a step, but no figures of a {kind} are known; leave it out, or name a '
                         'slice of v4, v5e, v5p or v6e.')
    if rows % parts:
        raise ValueError(f'data.batch_size={rows} cannot be divided among the {parts} parts of {chips} x {kind}; choose '
                         f'a multiple of {parts}.')
    places = list(_places(config.model, 'remat'))
    softmaxes = dict(_softmaxes(config.model))
    kernel = next((mechanism.implementation for mechanism in softmaxes.values()), 'auto')
    plans, tried = {}, []

    def most(tensor):
        """The `mesh.fsdp` that leaves the fewest parameters on a chip."""
        whole = schema.changed(config, {'mesh.data': chips // tensor, 'mesh.fsdp': 1, 'mesh.tensor': tensor,
                                        'train.microbatches': 1, 'evals': {}, 'checkpoint.best': ''})
        mesh = meshes.make(chips // tensor, 1, tensor, devices)
        return most_split(built(whole, mesh), 'fsdp', chips // tensor)

    def attempt(choice):
        """Adds the plan of a choice, with as few microbatches as fit."""
        parts = chips // choice.tensor
        changes = {'mesh.data': parts // choice.fsdp, 'mesh.fsdp': choice.fsdp, 'mesh.tensor': choice.tensor}
        changes |= {f'{place}remat': choice.remat for place in places}
        changes |= {field: str(dataclasses.replace(mechanism, implementation=choice.kernel))
                    for field, mechanism in softmaxes.items()}
        counts = [count for count in range(1, rows + 1) if rows % (count * parts) == 0]
        while counts:
            micro = counts[0]
            one = measure(schema.changed(config, changes | {'train.microbatches': micro}), name, devices)
            tried.append({'mesh': one['mesh'], 'remat': choice.remat, 'kernel': choice.kernel, 'microbatches': micro,
                          'step_ms': one.get('step_ms') if one['fits'] else None})
            print(_row(tried[-1]), file=sys.stderr, flush=True)
            if one['fits']:
                plans[choice] = one
                return
            memory = one['memory_gb']
            held = sum(memory.get(key, 0) for key in STATE)  # the rest shrinks at most as the microbatches do
            counts = [count for count in counts[1:] if held + (memory['all'] - held) * micro / count <= memory['there is']]

    def best():
        return min(plans, key=lambda choice: (plans[choice]['step_ms'], sum(plans[choice]['bounds_ms'].values())))

    def improve(**change):
        """Whether the best choice with a change is better, which may need fewer microbatches or more of them."""
        before = best()
        try:
            attempt(dataclasses.replace(before, **change))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            print(f'{", ".join(f"{key}={one}" for key, one in change.items())}: {error}', file=sys.stderr, flush=True)
        return best() != before

    tensor = config.mesh.tensor
    split = most(tensor)
    here = [remat for remat in REMAT if remat != 'offload']
    for fsdp, remat in itertools.product(sorted({1, split}), here if places else ('none',)):
        attempt(Choice(fsdp, tensor, remat, kernel))
    wider = [size for power in range(chips.bit_length()) if chips % (size := tensor * 2**power) == 0]
    for remat, sizes in (('full' if places else 'none', wider[1:]), ('offload', wider if places else [])):
        for size in sizes:
            if not plans:
                attempt(Choice(most(size), size, remat, kernel))
    if not plans:
        raise ValueError(f'No mesh, rematerialisation and number of microbatches of {name} fit into {chips} x {kind}; '
                         'take more chips, or fewer rows.')
    for other in KERNELS if softmaxes else ():
        if other != kernel:
            improve(kernel=other)
    between = 2 ** (split.bit_length() // 2)
    if 1 < between < split and chips // best().tensor % between == 0:
        improve(fsdp=between)
    while chips % (wider := 2 * best().tensor) == 0 and improve(tensor=wider, fsdp=math.gcd(best().fsdp, chips // wider)):
        pass
    return plans[best()] | {'kernel': best().kernel, 'tried': sorted(tried, key=lambda row: row['step_ms'] or math.inf)}


def most_split(run, axis, parts):
    """The size of an axis of the mesh, of so many parts, that leaves the fewest parameters on a chip."""
    return meshes.most_split(run.shapes.params, roles.axes_of(run.roles, run.shapes.params), axis, parts)


def _row(one):
    where = ' '.join(f'{axis}={size}' for axis, size in one['mesh'].items() if size > 1)
    return (f'{where:>28}  remat={one["remat"]:<7} kernel={one["kernel"]:<9} microbatches={one["microbatches"]:<3} '
            + ('does not fit' if one['step_ms'] is None else f'{one["step_ms"]} ms'))


def lines(plan):
    """The plan for people."""
    memory = plan['memory_gb']
    axes = ' '.join(f'{axis}={size}' for axis, size in plan['mesh'].items() if size > 1)
    yield (f'{plan["config"]} on {plan["device"]}{axes and ", " + axes}, {plan["rows"]} rows in {plan["microbatches"]} '
           f'microbatches, {si(plan["parameters"], "")} parameters')
    yield 'memory of a chip: ' + ', '.join(f'{key} {size:.2f} GB' for key, size in memory.items())
    if 'host_gb' in plan:
        way = 2 * plan['host_gb'] * plan['microbatches']  # there and back
        rate = f', {1e3 * way / plan["step_ms"]:.3g} GB/s in that time' if 'step_ms' in plan else ''
        yield (f'memory of the host for each chip: {plan["host_gb"]:.2f} GB of activations; no bound below counts their way '
               f'there and back, {way:.2f} GB a step{rate}')
    for row in plan.get('largest', []):
        yield f'  {row["gb"]:7.3f} GB  {row["of"]}'
    if not plan['fits']:
        yield f'It does not fit. {plan["advice"]}'
    elif memory['all'] > memory.get('there is', math.inf):
        yield 'It fits, as the compiler takes it; JAX, of which these numbers are, counts some temporaries more than once.'
    for row in plan.get('collectives', [])[:6]:
        yield (f'{row["kind"]} over {row["axes"] or "one chip"}: {row["count"]} times, {row["payload"]:.3f} GB in all, '
               f'{row["sent"]:.3f} GB sent, {row["hidden"]:.3f} GB of it during other work')
    for source in plan.get('loops_of_unknown_length', []):
        yield f'counted once, as the program does not say how often it runs: the loop of {source}'
    if 'step_ms' in plan:
        bounds = ', '.join(f'{key} {ms:.1f} ms' for key, ms in plan['bounds_ms'].items())
        unit = next(key for key in plan if key.endswith('_per_day'))
        yield f'a step takes at least: {bounds}; {plan["model_tflop"]:.4g} TFLOP, MFU at most {100 * plan["mfu"]:.1f} %'
        power = f', {plan["kwh"]:g} kWh, {plan["kg_co2e"]:g} kg CO2e' if 'kwh' in plan else ''
        cost = f', ${plan["dollars"]:,.0f}' if 'dollars' in plan else ''
        seconds = plan['steps'] * plan['step_ms'] / 1e3
        yield (f'{plan["steps"]} steps: {duration(seconds)}{cost}{power}; '
               f'{si(plan[unit], " " + unit.partition("_")[0])} a day')
        if not cost:
            yield ('price: unknown, as that of the devices is unknown; multiply yours for an hour of one by '
                   f'{math.prod(plan["mesh"].values()) * seconds / 3600:,.4g}')
        if not power:
            yield energy.UNKNOWN


def _groups(group):
    """A group of fields and all groups inside it."""
    yield group
    for value in group.values():
        if hasattr(value, 'items'):
            yield from _groups(value)


def _each(group, field):
    return {one[field] for one in _groups(group) if field in one}


def _places(group, field, before='model.'):
    """The dotted names, with a dot at their end, of the groups that have a field."""
    if field in group:
        yield before
    for name, value in group.items():
        if hasattr(value, 'items'):
            yield from _places(value, field, f'{before}{name}.')


def _softmaxes(group):
    """(the dotted name of a field, the mechanism) of all softmax attention."""
    for field in 'attention', 'cross_attention':
        for place in _places(group, field):
            value = functools.reduce(lambda node, key: node[key], place.split('.')[1:-1], group)[field]
            if str(value).startswith('Softmax('):
                yield place + field, _parsed(value, Mechanism)


def _bytes(tree):
    """Of one chip."""
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _short(source):
    """The path of an operation without what every one has in front."""
    return re.sub(r'jit\(step\)/|while/body/|closed_call/', '', source)


def _giga(size):
    return {key: _giga(one) for key, one in size.items()} if isinstance(size, dict) else float(f'{size / 1e9:.4g}')


def _tera(count):
    return float(f'{count / 1e12:.4g}')


def _compiler(device):
    """The package of the compiler for a device, and its version."""
    package = topologies.PACKAGES.get(device.platform, 'jaxlib')
    return f'{package} {importlib.metadata.version(package)}'


if __name__ == '__main__':
    cli.run(main, config='configs/gpt2.py:124m')
