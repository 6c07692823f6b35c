"""The only construction: `build(config, mesh) -> Run`, used by training, evaluation, prediction, benchmarks and tests.

A run reaches its parts through import paths and the contracts of training/contracts.py alone.
"""

import dataclasses
import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from display import progress
from training import contracts, roles, storage, workdir
from training import mesh as meshes
from training import optimizer as optimizers
from training import step as steps
from training.checkpoint import Checkpoints
from training.companions import Companions
from training.config import resolve, schema
from training.report import energy, flops
from training.snapshot import Snapshot, averages_of
from training.state import State, initialised, wide

EVAL_FIELDS = ('every_steps', 'split')


@dataclasses.dataclass(frozen=True)
class Run:
    """A built experiment; nothing is allocated on the devices yet.

    Attributes:
      config: the locked ConfigDict.
      reader: reads the inputs of predict.py and draws those of eval.py; None: predict.py refuses the run.
      companions: the frozen models that the task applies besides its own.
      shapes: a State of jax.ShapeDtypeStruct with the sharding of every array, the target of init and restore.
      roles: {path: role} of the parameters.
    """
    config: Any
    mesh: jax.sharding.Mesh
    data: contracts.Opened
    model: contracts.Model
    task: contracts.Task
    evaluators: dict[str, contracts.Evaluator]
    reader: contracts.Reader | None
    optimizer: optimizers.Optimizer
    companions: Companions
    shapes: State
    roles: dict

    def init(self):
        """The fresh state, created sharded, the same on any mesh."""
        shardings = jax.tree.map(lambda s: s.sharding, self.shapes)
        return jax.jit(self._fresh, out_shardings=shardings)()

    def _fresh(self):
        return _fresh(self.config, self.data, self.model, self.task, self.optimizer, self.companions.models,
                      self.companions.variables)

    def begun_with(self, given):
        """The fresh state with these `variables`, parameters and statistics."""
        shapes, first = self.shapes, self.optimizer.first_average
        put = lambda tree, like: jax.tree.map(lambda x, s: jax.device_put(x.astype(s.dtype), s.sharding), tree, like)
        params, statistics = given['params'], put(given.get('statistics', {}), shapes.statistics)
        average = first(put(params, shapes.average or shapes.params))
        return self.init().replace(params=put(params, shapes.params), average=average, statistics=statistics,
                                   average_statistics=first(statistics))

    def init_from(self, folder):
        """(state, names of fresh parameters): the fresh state, with the parameters and statistics that init_rules keep from the
        newest step of another workdir."""
        rules, fits = self.config.init_rules, isinstance(self.model, contracts.Fitting)
        certain = [rule for rule in rules if isinstance(rule, tuple | list) and rule[1:] in (('fresh',), ['fresh'])]
        meshes.require_used(certain, meshes.flat(self.shapes.params, self.shapes.statistics), 'init_rules')
        source = load(folder, data=1, onto=self.mesh)
        have = meshes.flat(*source.variables.values())
        inputs = lambda run: run.task.inputs(
            {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in run.data.shapes.items()})
        made, taken = [], []

        def choose(keys, fresh):
            path = meshes.path_of(keys)
            rule, name = _init_rule(rules, path)
            there = have.get(name)
            if rule == 'fresh' or (rule == 'offered' and (there is None or there.shape != fresh.shape)):
                made.append(path)
                return fresh
            if fits and there is not None:
                there = self.model.fitted(path, there, inputs(source.run), **inputs(self))
            if there is None or there.shape != fresh.shape:
                raise ValueError(f'init_from={folder} has {"nothing" if there is None else there.shape} for {name}, but the '
                                 f'model needs {fresh.shape}{f" for {path}" * (path != name)}; change the model, or give it '
                                 "the rule 'fresh' in init_rules.")
            placed = jax.device_put(there.astype(fresh.dtype), fresh.sharding)
            taken.append(name)
            return jnp.copy(placed) if taken.count(name) > 1 else placed  # the step donates each of its arrays once

        fresh = self.init()
        params, statistics = (jax.tree_util.tree_map_with_path(choose, tree) for tree in (fresh.params, fresh.statistics))
        first = self.optimizer.first_average
        return fresh.replace(params=params, statistics=statistics, average=first(wide(params)),
                             average_statistics=first(statistics)), made

    def training_row(self, numbers, step):
        """The row of metrics.jsonl of a step: averages since the last row, and norms of this step; with log.gradients also the
        gradient norm of each layer, `grad_norm/block_3`."""
        aside = ('step', 'finite') if self.config.log.gradients else ('step', 'finite', 'grad_norms')
        numbers = jax.device_get({k: v for k, v in numbers.items() if k not in aside})
        average, loss = averages_of(numbers['sums'], self.task.coefficients)
        row = average | {'loss': loss}
        row |= {name: float(numbers[name]) for name in ('learning_rate', 'grad_norm', 'update_norm', 'param_norm')}
        row |= {f'grad_norm/{group}': float(norm) for group, norm in numbers.get('grad_norms', {}).items()}
        row['epoch'] = step / self.data.batches_per_epoch
        if self.config.train.nonfinite == 'skip':
            row['skipped'] = int(numbers['skipped'])
        return row

    def parameters(self):
        return sum(int(np.prod(s.shape)) for s in jax.tree.leaves(self.shapes.params))

    @functools.cached_property
    def step_function(self):
        c = self.config
        return steps.make(
            self.model, self.task, self.optimizer, seed=c.seed, microbatches=c.train.microbatches,
            log_every=c.log.every_steps, last=c.train.steps, nonfinite=c.train.nonfinite,
            companions=self.companions.models)

    def batches(self, iterator):
        """(batch, number of its units) for the compiled step: the next batch, or train.dispatch of them stacked. Small batches
        stay in numpy: the compiled step places them on the devices, ten times as fast as device_put."""
        found = [next(iterator) for _ in range(self.config.train.dispatch)]
        stacked = {name: np.stack([batch[name] for batch in found]) for name in found[0]} if len(found) > 1 else found[0]
        if jax.process_count() > 1 or any(x.nbytes > meshes.AT_ONCE for x in stacked.values()):
            stacked = meshes.put(stacked, self.mesh, stacked=len(found) > 1)
        return stacked, sum(map(self.data.count, found))

    @property
    def longest(self):
        """{name: (shape, dtype)} of what the compiled step takes: the longest batch, or train.dispatch of them."""
        count = self.config.train.dispatch
        return {name: ((count,) * (count > 1) + shape, dtype) for name, (shape, dtype) in self.data.shapes.items()}

    def trace(self, shapes):
        """train.dispatch training steps, traced for this mesh and a batch of such shapes; they donate their state."""
        shardings, count = jax.tree.map(lambda s: s.sharding, self.shapes), self.config.train.dispatch
        function = steps.several(self.step_function, count, self.config.train.nonfinite)
        jitted = jax.jit(function, donate_argnums=0, out_shardings=(shardings, meshes.replicated(self.mesh)),
                         compiler_options=meshes.compiler_options(self.mesh))
        place = meshes.batch_sharding(self.mesh, stacked=count > 1)
        batch = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=place) for name, (shape, dtype) in shapes.items()}
        with jax.set_mesh(self.mesh):
            return jitted.trace(self.shapes, batch, self.companions.variables)

    def compile(self):
        """The traced steps, compiled as `Programs` with the floating point operations of one step."""
        def program(shapes):
            with jax.set_mesh(self.mesh), progress.waiting('compiling the training step'):
                traced = self.trace(shapes)
                return traced.lower().compile(), flops.count_jaxpr(traced.jaxpr) // self.config.train.dispatch

        return steps.Programs(program, self.longest, self.companions.variables)

    def forward(self, apply, frozen):
        """What the task's loss calls: `apply` for the model, and the companions with the `variables` `frozen`."""
        return steps.Forward(apply, steps.with_models(self.companions.present.models, frozen), self.companions.absent)

    @functools.cached_property
    def eval_terms(self):
        """(variables, batch) -> {term: (sum, weight)} without randomness, compiled for each shape of batch. Terms of companions
        that are not there are left out."""
        return self._with_companions(self._terms)

    @functools.cached_property
    def row_terms(self):
        """As `eval_terms`, {term: (sums [B], weights [B])} of every row by itself."""
        of_row = lambda given, row, frozen: self._terms(given, jax.tree.map(lambda x: x[None], row), frozen)
        return self._with_companions(jax.vmap(of_row, in_axes=(None, 0, None)))

    def _terms(self, given, batch, frozen):
        forward = self.forward(steps.applied(self.model, **given), frozen)
        return self.task.loss(forward, batch, key=None, step=None, train=False)

    def compiled(self, function):
        """`function(self, ..)`, compiled once for each shape of its other arguments, with results that every device has."""
        if function not in self._compiled:
            self._compiled[function] = jax.jit(functools.partial(function, self), out_shardings=meshes.replicated(self.mesh))
        return self._compiled[function]

    @functools.cached_property
    def _compiled(self):
        return {}

    def _with_companions(self, terms):
        """(variables, batch) -> terms(variables, batch, variables of the companions), compiled."""
        compiled = jax.jit(terms, out_shardings=meshes.replicated(self.mesh))
        return lambda given, batch: compiled(given, batch, self.companions.present.variables)

    def evaluation(self, name, split=None, rows=None):
        """The batches of the evaluator `name`, of its own split or of another; rows: None: `eval_rows`."""
        with progress.waiting('reading the data'):
            return self.data.evaluation(split or self.config.evals[name].split, rows or self.eval_rows,
                                        **self.evaluators[name].view)

    def data_digests(self):
        """{split: digest of its contents} of the training part and of the splits of the evaluators."""
        splits = {'train', *(evaluation.split for evaluation in self.config.evals.values())}
        return {split: self.data.digest(split) for split in sorted(splits)}

    def check_evaluation(self, name):
        """Raises ValueError, before anything is computed, if an evaluator does not fit this data and this model."""
        metrics = self.evaluators[name].check(self, self.evaluation(name, rows=meshes.rows(self.mesh)))  # of any size
        best, _, metric = self.config.checkpoint.best.partition('/')
        if best == name and metric not in metrics:
            raise ValueError(f'checkpoint.best is {self.config.checkpoint.best!r}, but {name} measures '
                             f'{", ".join(metrics) or "nothing"}; choose one of these.')

    def metric_names(self, batches):
        """The names of the numbers that `Snapshot.averages` returns for these batches."""
        with jax.set_mesh(self.mesh):
            terms = jax.eval_shape(self.eval_terms, self.shapes.variables, next(iter(batches)))
        names = ['loss', *(t for t in terms if t != 'loss'), 'weight']
        return (*names, *self.task.derived(dict.fromkeys(names, 1.0), batches.facts))

    @property
    def eval_rows(self):
        """Rows in an evaluation batch: as many as in a training microbatch, so that memory suffices."""
        return self.config.data.batch_size // self.config.train.microbatches


def _init_rule(rules, path):
    """('keep', 'fresh' or 'offered', the name in the other run) of a parameter, by the rules of base.config()."""
    match, rule = meshes.matched(rules, path, 'init_rules')
    action, _, name = str(rule).partition(':')
    if action not in ('keep', 'fresh', 'offered') or (action == 'fresh' and name):
        raise ValueError(f"init_rules gives {rule!r} for {path}; expected 'keep', 'fresh' or 'offered', or 'keep:NAME' or "
                         "'offered:NAME' with its name in the other run.")
    try:
        return action, match.expand(name) if name else path
    except (re.error, IndexError) as error:
        raise ValueError(f'init_rules gives {rule!r} for {path}, where {error}; write \\1 for what the first group of the '
                         'regular expression matches, and \\g<0> for the whole name.') from None


def _example(data):
    return {name: jnp.zeros(shape, dtype) for name, (shape, dtype) in data.shapes.items()}


def _fresh(config, data, model, task, optimizer, models, frozen):
    """The fresh state. models, frozen: of the companions, with their `variables` or the shapes of these; None: they are not
    there, and the sums of the terms neither."""
    batch = _example(data)
    params, statistics = initialised(model, task.inputs(batch), steps.stream(config.seed, 'init'))

    def terms(params, frozen):
        forward = steps.Forward(steps.applied(model, params, statistics), steps.with_models(models, frozen))
        return task.loss(forward, batch, key=None, step=0, train=False)
    sums = {} if frozen is None else {term: jnp.zeros(2) for term in jax.eval_shape(terms, params, frozen)}
    exact, zero = wide(params), jnp.zeros((), jnp.int32)
    return State(zero, params, optimizer.tx.init(exact), optimizer.first_average(exact), sums, zero, statistics,
                 optimizer.first_average(statistics))


def _part(config, contract, what, *, key='name', **options):
    """The object that a config names. Raises ValueError unless it meets the contract."""
    return _held(resolve.construct(config, key, **options), contract, what, config[key])


def _held(part, contract, what, path):
    """Returns the part. Raises ValueError unless it meets its contract."""
    if misfits := contracts.misfits(part, contract):
        raise ValueError(f'{path} is no {what}: {", and ".join(misfits)}; name another class.')
    return part


def build(config, mesh, folder=None, source=None, *, applied=False, planned=False):
    """Constructs all parts that a config names and checks that they fit together, before anything is computed.

    Args:
      folder: the workdir of this run, with its tokenizer or class names; None: they are learnt from the data.
      source: the workdir from which this run takes its first parameters, and therefore its tokenizer.
      applied: the model is only applied, so that companions need not be there; `shapes.sums` may then be empty.
      planned: the step is only compiled, for devices that need not be there and on data that may be made up; companions are
        then shapes.
    """
    schema.check(config)
    rows, parts, micro = config.data.batch_size, meshes.rows(mesh), config.train.microbatches
    if rows % (micro * parts):
        raise ValueError(f'data.batch_size={rows} cannot be divided into train.microbatches={micro} for {parts} parts of '
                         f'the mesh (data x fsdp); choose a multiple of {micro * parts}, other microbatches, or fewer '
                         'devices with mesh.data.')
    described = _part(config.data, contracts.Data, 'data', key='pipeline')
    reader = described.reader and _part({'reader': described.reader}, contracts.Reader, 'reader', key='reader')
    data = _held(described.open(workdir.facts(folder), workdir.facts(source)), contracts.Opened, 'data', config.data.pipeline)
    if len(data.buckets) > 1 and config.train.dispatch > 1:
        raise ValueError(f'train.dispatch={config.train.dispatch} does steps with batches of one shape, but data.packing='
                         f'{config.data.packing!r} gives several; set train.dispatch=1, or another packing.')
    types = {'dtype': config.dtype, 'parameter_dtype': config.parameter_dtype}
    model = _part(config.model, contracts.Model, 'model', extra=types | data.facts)
    parts = {'model': model} | ({'model.head': model.head} if 'head' in resolve.fields(type(model)) else {})
    for field, part in parts.items():
        for name in filter(resolve.fields(type(part)).__contains__, data.facts):
            if getattr(part, name) < data.facts[name] and data.facts[name] > 1:  # a single kind needs no embedding
                raise ValueError(f'{field}.{name} is {getattr(part, name)}, but the data has {data.facts[name]}; leave it out '
                                 'of the config, or raise it.')
    task = _part(config.task, contracts.Task, 'task')
    for name, value in task.options(train=True).items():
        if name not in inspect.signature(type(model).__call__).parameters:
            raise ValueError(f'task.{name} is {value}, but {config.model.name} has no {name}; leave it out of the config.')
    companions = Companions(config.companions.to_dict(), data, lambda other: load(other, data=1, onto=mesh, planned=planned),
                            planned)
    evaluators = {name: _part(e, contracts.Evaluator, 'evaluator', key='evaluator', ignore=EVAL_FIELDS)
                  for name, e in config.evals.items()}
    try:
        inputs, takes = jax.eval_shape(lambda: task.inputs(_example(data))), inspect.signature(type(model).__call__).parameters
        if unknown := [name for name in (*inputs, *task.keywords) if name not in takes]:
            raise ValueError(f'{config.task.name} gives the model {" and ".join(unknown)}, which {config.model.name} does not '
                             'take; choose a task for this model.')
        roles_of = roles.of_model(model, inputs)
        optimizer = optimizers.make(config.optimizer, config.train.steps, roles_of)
        others = None, None  # read before anything is traced
        if not (applied and companions.folders):
            others = companions.models, companions.variables
        shapes = jax.eval_shape(functools.partial(_fresh, config, data, model, task, optimizer, *others))
    except KeyError as error:
        if error.args[0] in data.shapes:
            raise
        raise ValueError(f'{config.task.name} asks for {error.args[0]!r}, which neither {config.model.name} gives nor '
                         f'{config.data.pipeline}, whose batches have {", ".join(data.shapes)}; choose another task.') from None
    if data.packed and isinstance(model, contracts.Separating) and not model.packs:
        raise ValueError(f'{config.model.name} cannot separate documents that share a row, as with data.packing='
                         f"{config.data.packing!r}; set data.packing='none', or take another attention.")
    whole = meshes.replicated(mesh)
    axes_of = roles.axes_of(roles_of, shapes.params)
    params = meshes.shardings(shapes.params, axes_of, config.mesh.rules, mesh)
    if not applied:
        meshes.require_split(params, shapes.params, axes_of, mesh)
    moments = meshes.follow(shapes.opt_state, shapes.params, params, mesh)
    everywhere = lambda tree: jax.tree.map(lambda _: whole, tree)
    place = State(whole, params, moments, params if shapes.average else {}, everywhere(shapes.sums), whole,
                  everywhere(shapes.statistics), everywhere(shapes.average_statistics))
    shapes = jax.tree.map(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), shapes, place)
    return Run(config, mesh, data, model, task, evaluators, reader or None, optimizer, companions, shapes, roles_of)


def load(folder, step='last', data=None, onto=None, planned=False):
    """The Snapshot of a workdir, with its parameters sharded as in training if there are enough devices.

    Args:
      step: 'last', 'best' or a number.
      data: devices over which batches are split; None: as in training, or all that divide a batch of evaluation.
      onto: another mesh for the parameters alone, such as that of several processes, which must then all read them.
      planned: as in `build`; the parameters are then shapes.
    """
    folder = storage.path(folder)
    config = workdir.load_config(folder)
    with progress.waiting(f'reading {folder}'):
        return _loaded(folder, config, step, data, onto, planned)


def _loaded(folder, config, step, data, onto, planned):
    run = build(config, mesh_for(config, data), folder, applied=True)
    target = run.shapes.evaluated
    if onto:
        axes_of = roles.axes_of(run.roles, target['params'])
        place = {'params': meshes.shardings(target['params'], axes_of, config.mesh.rules, onto),
                 'statistics': jax.tree.map(lambda _: meshes.replicated(onto), target['statistics'])}
        target = jax.tree.map(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), target, place)
    if planned:
        return Snapshot(run, **target, step=0)
    checkpoints = Checkpoints(folder, best=config.checkpoint.best, writable=False)
    try:
        number = checkpoint_step(checkpoints, step, config)
        names = dict(zip(('params', 'statistics'), ('average', 'average_statistics') if run.shapes.average else (
            'params', 'statistics')))
        restored = checkpoints.restore({names[name]: tree for name, tree in target.items()}, step=number)
    finally:
        checkpoints.close()
    if restored is None:
        raise ValueError(f'{folder} has no checkpoint yet; train it for longer.')
    found = {name: restored.state[stored] for name, stored in names.items()}
    return Snapshot(run, **found, step=restored.step)


def require_new(folder):
    """Raises ValueError unless a workdir can be made at `folder`."""
    if folder.name in ('', '..'):
        raise ValueError(f"'{folder}' is no name of a new folder; give it one.")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f'{folder} is there already; give the new folder another name.')
    if storage.remote(folder):
        workdir.require_writable(folder)
        return
    if not folder.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(folder.absolute().parent)!r} to make {folder.name} in; make it first.')
    workdir.require_writable(folder.absolute().parent, 'folder', f'give {folder.name} another place')


def write(folder, run, tree, source=None):
    """Writes a run at step 0: all of it or nothing.

    Args:
      tree: as of `State.tree()`; its 'params' and 'statistics' alone for a run that only serves as init_from of others.
      source: the workdir that it comes from, whose environment.json is copied.
    """
    require_new(folder)
    with workdir.made(folder) as made, progress.waiting(f'writing {folder}'):
        with storage.filled(made) as place:
            run.data.save(place)
        checkpoints = Checkpoints(made)
        try:
            checkpoints.save(0, tree, None, meta={'best': {}, 'pending': [], 'evaluated': [], 'energy': energy.NOTHING})
        finally:
            checkpoints.close()
        workdir.save_config(made, run.config)
        if source is None:
            workdir.save_environment(made, {})
        elif (source / 'environment.json').is_file():
            (made / 'environment.json').write_bytes((source / 'environment.json').read_bytes())


def mesh_for(config, data):
    """The mesh of `load`: data times fsdp divides the rows of an evaluation batch."""
    fsdp, tensor = (max(1, size) for size in (config.mesh.fsdp, config.mesh.tensor))  # -1: all remaining devices
    rows, free = config.data.batch_size // config.train.microbatches, jax.device_count() // (fsdp * tensor)
    wanted = data or config.mesh.data  # as in training, if that names a number
    for size in range(min(wanted, free) if wanted > 0 else free, 0, -1):
        if rows % (size * fsdp) == 0:
            return meshes.make(size, fsdp, tensor)
    return meshes.make(1, 1, 1)


def checkpoint_step(checkpoints, step, config):
    """The step that 'last', 'best' or a number means; None stands for the newest undamaged one."""
    if step == 'last':
        return None
    if step == 'best':
        best = checkpoints.best_step()
        if best is None:
            raise ValueError('This run has no best step; train it with --config.checkpoint.best=NAME/METRIC, such as '
                             'valid/loss, or take the step last.')
        return best
    if not str(step).isdecimal():
        raise ValueError(f'The step is {step!r}; expected last, best or a number.')
    return int(step)
