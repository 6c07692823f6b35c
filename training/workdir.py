"""The work directory: its lock, its config and environment, and what may change when a run resumes."""

import contextlib
import fcntl
import json
import os
import pathlib
import platform
import re
import tempfile
import time
from importlib import metadata

import jax
import ml_collections

from training import lease, storage
from training.config import schema
from training.host import machine

# Fields that may change when a run resumes; a change of any other makes it another experiment.
# Companions may move: their digests are compared.
CHANGEABLE = (r'train\.steps|(log|checkpoint|evals|generation|mesh|profile|energy|companions)\..*|data\.(workers|reader)')
OURS = 'data', 'transformer', 'vit', 'training'  # packages whose code a config.json may name
NAMES_CODE = r'(model|task|optimizer(\.schedule)?)\.name|data\.(pipeline|reader)|evals\.[^.]+\.evaluator'
NO_FACTS = {'checkpoints', 'damaged', 'samples', 'plots', 'profile', 'config.json', 'environment.json', 'metrics.jsonl',
            'timing.jsonl'}  # of a workdir; all else is the data's
VERSIONS = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy', 'sentencepiece')


def given(path):
    """The path of --workdir. Raises ValueError if it is missing."""
    if not path:
        raise ValueError('Give --workdir=DIR, the folder of a run made by train.py.')
    return storage.path(path)


def existing(path, flag):
    """The path of a workdir that holds a run, as a flag names it. Raises ValueError if it does not."""
    folder = storage.path(path)
    load_config(folder, wanted=f'give {flag} the workdir of a run of train.py')
    return folder


@contextlib.contextmanager
def locked(folder, first=True):
    """Locks the folder for one run; the kernel releases the lock however the process ends, in a bucket a lease does so after
    `lease.LASTS` seconds. Of several processes, the first holds it for all."""
    refusal = f'Another process is training in {folder}; wait for it, or give another --workdir.'
    if not first:
        yield
    elif storage.remote(folder):
        with lease.held(folder / '.lease', refusal):
            yield
    else:
        with open(folder / '.lock', 'w') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(refusal) from None
            yield


def is_run(folder):
    """Whether the folder holds a run to resume. Raises ValueError for a folder that holds anything else."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise ValueError(f'The workdir {folder} is a file; give a folder.')
    if (folder / 'config.json').is_file():
        return True
    foreign = [p.name for p in folder.iterdir() if not p.name.startswith('.')]
    if foreign:
        raise ValueError(f'{folder} is not a workdir of a run: it has no config.json, but {foreign[0]!r}; '
                         'give another --workdir.')
    return False


@contextlib.contextmanager
def create(folder, config, first=True):
    """Makes and locks the folder. It writes config.json first, so that a killed start leaves a valid workdir. Of several
    processes, only the first does so."""
    if not first:
        yield
        return
    require_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (folder / 'config.json').is_file():
            raise ValueError(f'Another process has just started a run in {folder}; give another --workdir.')
        save_config(folder, config)
        yield


@contextlib.contextmanager
def made(folder):
    """A temporary folder that is renamed to `folder` at the end, so that all of it is written or nothing. A bucket renames no
    folders: there it is `folder` itself, which must be empty before, and is emptied after an error."""
    if storage.remote(folder):
        try:
            yield folder
        except BaseException:
            with contextlib.suppress(Exception):  # of a network, or as nothing was written: the first error says more
                for one in folder.iterdir():  # the folder may be a whole bucket, which is not ours to delete
                    one.rmtree()
            raise
        return
    with tempfile.TemporaryDirectory(prefix=f'.{folder.name}.', dir=folder.absolute().parent) as place:
        inside = pathlib.Path(place, folder.name)
        inside.mkdir()
        yield inside
        inside.replace(folder)


def require_writable(folder, name='workdir', instead='give --workdir a folder in a place where you may write'):
    """Raises ValueError if the folder, which the message calls `name`, cannot be made, or is there and cannot be written to;
    leaves nothing behind."""
    if storage.remote(folder):
        try:
            (folder / '.heed').touch()
            (folder / '.heed').unlink()
        except Exception as error:  # of a network, of many types
            why = 'there is no such bucket' if isinstance(error, FileNotFoundError) else error
            raise ValueError(f'The {name} {folder} cannot be written to ({why}); {instead}.') from None
        return
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        pathlib.Path(tempfile.mkdtemp(prefix='.heed', dir=above)).rmdir()
    except OSError as error:
        what = 'written to' if above == folder else 'made'
        raise ValueError(f'The {name} {folder} cannot be {what} ({error.strerror}); {instead}.') from None


def require_run(folder, patience=60):
    """Raises ValueError if this process does not see the run that process 0 has made in `folder`, since it has another disk. A
    network file system may take some seconds to show it."""
    end = time.monotonic() + patience
    while not is_run(folder):
        if time.monotonic() > end:
            raise ValueError(f'The workdir {folder} is not the same folder at all processes; give one in a file system that '
                             'they share.')
        time.sleep(0.5)


def has_facts(folder):
    """Whether a run has saved its tokenizer or classes: environment.json and checkpoints are written after them."""
    return (folder / 'environment.json').is_file() or any((folder / 'checkpoints').glob('[0-9]*'))


def facts(folder):
    """A local folder with what the data has saved in a workdir; None for None."""
    return folder and storage.copied(folder, lambda name: name in NO_FACTS or name.startswith(('.', 'events.')))


def as_json(config):
    """A config as config.json holds it, with lists for tuples."""
    return json.loads(json.dumps(config.to_dict()))


def flat(tree, prefix=''):
    """{'model.layers': 4, ...} of nested dicts."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {k: v for name, value in tree.items() for k, v in flat(value, f'{prefix}{name}.').items()}


def save_config(folder, config):
    storage.write(folder / 'config.json', json.dumps(as_json(config), indent=2) + '\n')


def of_variant(path):
    """The config of the run whose workdir the variant of a config names. Raises ValueError if there is none."""
    wanted = 'name the workdir of a run of train.py or convert.py after the colon of --config'
    return load_config(storage.path(path), wanted=wanted)


def load_config(folder, trusted=(), wanted='give the --workdir of a run of train.py'):
    """The locked config of a workdir.

    Args:
      trusted: packages whose code it may name besides Heed's and those of HEED_MODULES.
      wanted: what to do where there is no run, for the message.
    """
    path = folder / 'config.json'
    if not folder.exists():
        raise ValueError(f'There is no folder {folder}; {wanted}.')
    if not path.is_file():
        raise ValueError(f'{folder} is not a workdir of a run: it has no config.json; {wanted}.')
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError):
        content = None
    broken = f'{path} is not the config of a run; restore it, or {wanted}.'
    if not isinstance(content, dict) or not {'model', 'train'} <= content.keys():
        raise ValueError(broken)
    require_known_code(content, path, trusted)
    try:
        config = ml_collections.ConfigDict(content).lock()
    except ValueError:  # a key with a dot
        raise ValueError(broken) from None
    try:
        schema.check(config)
    except ValueError as error:
        raise ValueError(f'{path} is not from this version of the code: {str(error).removesuffix(".")}; or use the version '
                         'that made this run.') from None
    return config


def packages(content):
    """{field: the package of the code that it names} of a config as JSON."""
    return {name: str(value).partition(':')[0].partition('.')[0] for name, value in flat(content).items()
            if re.fullmatch(NAMES_CODE, name) and value}


def require_known_code(content, path, trusted=()):
    """Raises ValueError if a config.json names modules other than Heed's: importing them would run them, and a workdir may come
    from anybody. HEED_MODULES lists others, separated by commas."""
    known = {*OURS, *os.environ.get('HEED_MODULES', '').split(','), *trusted}
    for name, package in packages(content).items():
        if package not in known:
            raise ValueError(f'{path} names code that is not Heed\'s, {name}={flat(content)[name]!r:.80}; if you trust it, set '
                             f'HEED_MODULES={package:.40}.')


def check_unchanged(folder, config):
    """(the fields that have changed besides train.steps, train.steps of the run). Raises ValueError if one of them may not
    change."""
    trusted = packages(as_json(config)).values()  # their code has run already
    there = load_config(folder, trusted, wanted='train into another --workdir')
    old, new = flat(as_json(there)), flat(as_json(config))

    def may_change(name):  # evaluations may be added and removed; a run lacks another field only if an older version made it
        return re.fullmatch(CHANGEABLE, name) and (name in old or name.startswith('evals.'))
    differing = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    if refused := [f'{name}: {old.get(name, "nothing")!r} there, {new.get(name, "nothing")!r} now'
                   for name in differing if not may_change(name)]:
        if len(refused) > 8:
            refused[8:] = [f'and {len(refused) - 8} more']
        raise ValueError(f'{folder} holds a run with another config ({"; ".join(refused)}); '
                         'give these values again, or another --workdir.')
    return [name for name in differing if name != 'train.steps'], old['train.steps']


def changed(folder, digests, what='data'):
    """The names in `digests` that have others than when the run began: splits of the data, or with what='companions' those."""
    path = folder / 'environment.json'
    try:
        saved = json.loads(path.read_text())[what]
        return [name for name, digest in digests.items() if saved.get(name, digest) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f'{path} is not the environment of a run; restore it, or train into another --workdir.') from None


def check_same_data(folder, digests):
    """Raises ValueError if the data of a run has changed, or its digests are of another version of the code."""
    if splits := changed(folder, digests):
        raise ValueError(f'The data of {" and ".join(splits)} has changed since the run in {folder} began, or is read '
                         'differently by this version; restore it, use the version that made the run, or train in another '
                         f'--workdir, with --config.init_from={folder} to start from these parameters.')


def check_same_companions(folder, digests):
    """Raises ValueError if a companion of a run is another model."""
    if names := changed(folder, digests, 'companions'):
        raise ValueError(f'The companion {" and ".join(names)} is not the model that it was when the run in {folder} began; '
                         f'name that one, or train in another --workdir, with --config.init_from={folder} to start from these '
                         'parameters.')


def save_environment(folder, digests, companions=None):
    """Saves everything that the bits of a run depend on besides its config: versions, devices, cores, data, companions.

    Args:
      digests: {split: digest of its contents}.
      companions: {name: digest of its model and parameters}.
    """
    device = jax.devices()[0]
    environment = {
        'python': platform.python_version(), 'machine': platform.machine(),
        'packages': {name: metadata.version(name) for name in VERSIONS},
        'platform': device.platform, 'device': device.device_kind, 'devices': jax.device_count(),
        'processes': jax.process_count(), 'processor': machine.processor(), 'cores': machine.cores(),
        'xla_flags': os.environ.get('XLA_FLAGS', ''), 'data': digests,
        'companions': companions or {}}
    storage.write(folder / 'environment.json', json.dumps(environment, indent=2) + '\n')
