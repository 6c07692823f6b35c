"""The fields that every experiment has, their types and their ranges.

The fields of the classes that a config names are checked when these are constructed (training/config/resolve.py).
"""

import math
from collections.abc import Mapping

from training.config.resolve import did_you_mean, require_type

FIELDS = {
    'seed': int, 'dtype': str, 'parameter_dtype': str, 'deterministic': bool, 'allocator': bool,
    'init_from': str, 'init_rules': tuple, 'companions': Mapping,
    'train.steps': int, 'train.dispatch': int, 'train.microbatches': int, 'train.nonfinite': str,
    'log.every_steps': int, 'log.gradients': bool,
    'checkpoint.every_steps': int, 'checkpoint.keep': int, 'checkpoint.best': str,
    'generation.strategy': str, 'generation.tokens': int, 'generation.settings': Mapping,
    'mesh.data': int, 'mesh.fsdp': int, 'mesh.tensor': int, 'mesh.rules': tuple, 'profile.steps': str,
    'energy.watts': float, 'energy.pue': float, 'energy.grams_per_kwh': float}
# The parts: the fields of a part's config besides those of its class, and the function that makes it.
PARTS = {
    'data': ({'pipeline': str, 'batch_size': int}, 'base.data'), 'model': ({'name': str}, 'base.part'),
    'task': ({'name': str}, 'base.part'), 'optimizer': ({
        'name': str, 'learning_rate': float, 'weight_decay': float, 'decay_rules': tuple, 'rate_rules': tuple,
        'average_decay': float, 'clip': float, 'schedule.name': str}, 'base.optimizer')}
STORED = 'float32', 'bfloat16', 'float64'
TYPES = {'dtype': (*STORED, 'mixed'), 'parameter_dtype': STORED}
ROWS = 'train', 'timing'  # of metrics.jsonl and of TensorBoard, besides those of evaluations
EVALUATION = {'evaluator': str, 'split': str, 'every_steps': int}, 'base.evaluation'

AT_LEAST = {
    'seed': 0, 'data.batch_size': 1, 'train.steps': 1, 'train.dispatch': 1, 'train.microbatches': 1,
    'log.every_steps': 1, 'checkpoint.every_steps': 1, 'generation.tokens': 0,
    'checkpoint.keep': 2,  # in case one is damaged
    'model.layers': 1, 'model.heads': 1, 'model.width': 1, 'model.length': 1, 'model.patch': 1, 'model.inner': 0,
    'optimizer.learning_rate': 0.0, 'optimizer.weight_decay': 0.0, 'optimizer.clip': 0.0,
    'energy.watts': 0.0, 'energy.pue': 1.0, 'energy.grams_per_kwh': 0.0}


def place(config, name):
    """(the group of fields, the last part) of a dotted name such as 'model.width'. Raises ValueError if it names no field."""
    node, path = config, name.split('.')
    for i, part in enumerate(path):
        known = list(node.keys()) if hasattr(node, 'keys') else []
        if part not in known:
            raise ValueError(f'There is no field {part!r} in {".".join(["config", *path[:i]])}; {did_you_mean(part, known)}')
        group, node = node, node.get(part)
    return group, path[-1]


def changed(config, values):
    """A copy of a config in which fields have other values, {'model.width': 64}; a group of fields is replaced as a whole.

    Raises ValueError if there is no such field, or it holds something else.
    """
    own = config.copy_and_resolve_references()
    for name, value in values.items():
        group, last = place(own, name)
        try:
            group[last] = value
        except TypeError:
            raise ValueError(f'{name} is {value!r}; expected {type(group[last]).__name__}, as in {group[last]!r}.') from None
    return own.lock()


def check(config):
    """Raises ValueError, in one sentence, for a field that is missing, unknown, or out of range."""
    groups = {name.partition('.')[0] for name in FIELDS if '.' in name}
    known = {name.partition('.')[0] for name in FIELDS} | {*PARTS, 'evals'}
    for name in config:
        if name not in known:
            raise ValueError(f'The config has an unknown field {name!r}; {did_you_mean(name, known)}')
    missing = [part for part in PARTS if part not in config]
    if missing:
        raise ValueError(f'The config has no {" and no ".join(missing)}; set it as configs/quickstart.py does.')
    for group in groups & set(config):
        inside = {name.partition('.')[2] for name in FIELDS if name.startswith(f'{group}.')}
        for name in _keys(config[group], group, 'a group of fields'):
            if name not in inside:
                raise ValueError(f'The config has an unknown field {group}.{name}; {did_you_mean(name, inside)}')
    for name, kind in FIELDS.items():
        _require(config, '', name, kind, 'configs begin with base.config()')
    for part, (fields, maker) in PARTS.items():
        for name, kind in fields.items():
            _require(config[part], f'{part}.', name, kind, f'make {part} with {maker}')
    for evaluation in _keys(config.get('evals'), 'evals', 'a group of evaluations'):
        if evaluation in ROWS:
            raise ValueError(f'evals.{evaluation} has the name of the rows of {evaluation} itself; give it another, such as '
                             f'{evaluation}_part.')
        for name, kind in EVALUATION[0].items():
            _require(config.evals[evaluation], f'evals.{evaluation}.', name, kind, f'make it with {EVALUATION[1]}')
    for name, folder in config.companions.items():
        if not isinstance(folder, str) or not folder:
            raise ValueError(f'companions.{name} is {folder!r}; set it to the workdir of the run whose model it is.')
    _check_types(config)
    _check_numbers(config)


def _keys(config, name, wanted):
    if not hasattr(config, 'keys'):
        raise ValueError(f'{name} is {config!r}; expected {wanted}.')
    return config.keys()


def _require(config, prefix, name, kind, advice):
    node, path = config, name.split('.')
    for part in path:
        if not hasattr(node, 'keys') or part not in node:
            raise ValueError(f'The config has no field {prefix}{name}; {advice}.')
        node = node.get(part)
    if kind is Mapping:
        _keys(node, f'{prefix}{name}', 'a group of fields')
    require_type(node, kind, f'{prefix}{name}')


def _check_types(config):
    for name, known in TYPES.items():
        if config[name] not in known:
            raise ValueError(f'{name} is {config[name]!r}; expected one of {", ".join(known)}.')
    if config.parameter_dtype == 'float64' != config.dtype:
        raise ValueError(f"parameter_dtype='float64' is for proofs that compute in float64 too, but dtype is {config.dtype!r}; "
                         "set dtype='float64', or store parameters in float32.")


def _check_numbers(config):
    for name, least in AT_LEAST.items():
        *groups, last = name.split('.')
        value = (config[groups[0]] if groups else config).get(last)
        if value is None:  # open until the data is known, or not a field of this class
            continue
        if not isinstance(value, (int, float)) or not least <= value < math.inf:
            raise ValueError(f'{name} is {value!r}; set it to at least {least}.')
        bound = 32 if name == 'seed' else 31
        if isinstance(value, int) and value >= 1 << bound:
            raise ValueError(f'{name} is {value}; set it to less than 2**{bound}.')
    durations = {'train.steps': config.train.steps, 'log.every_steps': config.log.every_steps,
                 'checkpoint.every_steps': config.checkpoint.every_steps}
    for name, evaluation in config.evals.items():
        if evaluation.every_steps < 0:
            raise ValueError(f'evals.{name}.every_steps is {evaluation.every_steps}; set it to at least 0.')
        durations[f'evals.{name}.every_steps'] = evaluation.every_steps
    if undivided := [f'{name}={value}' for name, value in durations.items() if value % config.train.dispatch]:
        raise ValueError(f'train.dispatch={config.train.dispatch} does not divide {undivided[0]}; choose one that divides '
                         f'all of {", ".join(durations)}.')
    best = config.checkpoint.best.partition('/')[0]
    if config.checkpoint.best and best not in config.evals:
        raise ValueError(f'checkpoint.best is {config.checkpoint.best!r}; expected EVALUATOR/METRIC, the evaluator being '
                         f'one of evals: {", ".join(config.evals) or "none"}.')
