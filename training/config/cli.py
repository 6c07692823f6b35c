"""The command line of the scripts at the root: flags, an immediate --help, and one sentence for every mistake of a user."""

import ast
import difflib
import importlib.util
import inspect
import linecache
import os
import pathlib
import re
import sys

from absl import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / 'configs'
KINDS = {'int': 'a whole number', 'float': 'a number', 'bool': 'true or false', 'tuple': 'a tuple, in quotes for the shell'}
CONFIG_MODULE = '_config_'  # prefix of the module name of a config file
HELP = ('-h', '-help', '--help', '--helpshort', '--helpfull')


def run(main, *, config=None, shown=str):
    """Parses the command line, calls `main`, with the config if the script takes one, and exits with the code it returns.

    A mistake of the user ends in one sentence on stderr and exit code 1; an unexpected error keeps its traceback, as does
    every error under HEED_TRACEBACK=1.

    Args:
      config: the default of --config=FILE[:VARIANT]; None for a script without it.
      shown: the sentence to print for one about files that are copies.
    """
    arguments, wants_help = _without_help()
    try:
        chosen, arguments = take(arguments, 'config') if config else (None, arguments)
        if chosen == '':
            raise ValueError(f'--config is empty; give it the path of a config such as {config}, or leave it out.')
        if config is None:
            _parse(arguments)
            sys.exit(main())
        loaded, text = load_config(chosen or config)
        override(loaded, arguments)
        if wants_help:
            print(f'{text or ""}\nEvery field is a flag:\n\n' + '\n'.join(_lines(loaded)))
            sys.exit(0)
        sys.exit(main(loaded, chosen or config))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would flush once more at exit
        sys.exit(141)
    except Exception as error:
        if os.environ.get('HEED_TRACEBACK') or not expected(error):
            raise
        if 'RESOURCE_EXHAUSTED' in str(error):
            error = (f'There is not enough memory on the device ({str(error).splitlines()[0].rstrip(".")}); lower '
                     'data.batch_size, raise train.microbatches, or set model.remat; when decoding, lower size or count.')
        sys.exit(f'{pathlib.Path(sys.argv[0]).name}: {shown(str(error))}')


def answer_help(*, config=None):
    """Answers --help and exits; called before the slow imports."""
    arguments, wants_help = _without_help()
    if wants_help:
        if config and take(arguments, 'config')[0]:
            run(None, config=config)  # exits with the fields of that config
        print(sys.modules['__main__'].__doc__ + _known_flags() + (_known_configs() if config else ''))
        sys.exit(0)


def _without_help():
    return [a for a in sys.argv[1:] if a not in HELP], any(a in HELP for a in sys.argv[1:])


def load_module(file):
    """The module of a config file, given by its path."""
    path = pathlib.Path(file)
    if not path.is_file():
        path = ROOT / file
    if path.is_dir():
        raise ValueError(f'--config={file} is a folder; name a config file such as configs/quickstart.py.')
    if not path.is_file() or path.suffix != '.py':
        raise ValueError(f'There is no config file {file!r}; {_near(file)}')
    spec = importlib.util.spec_from_file_location(CONFIG_MODULE + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_config(name):
    """(config, docstring) of FILE[:VARIANT], FILE being the path of a Python file with get_config(variant)."""
    import ml_collections

    file, _, variant = name.partition(':')
    module = load_module(file)
    if not hasattr(module, 'get_config'):
        raise ValueError(f'{file} is not a config file: it has no get_config(variant).')
    try:
        inspect.signature(module.get_config).bind(variant)
    except TypeError:
        raise ValueError(f'get_config of {file} cannot be called with a variant; define get_config(variant).') from None
    config = module.get_config(variant)
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(f'get_config of {file} returns {type(config).__name__}; return an ml_collections.ConfigDict.')
    return config, module.__doc__


def default_workdir(name):
    """runs/<config>[-<variant>] of FILE[:VARIANT]; of TASK,WORKDIR runs/<config>-TASK-NAME."""
    file, _, variant = name.partition(':')
    parts = [pathlib.Path(file).stem, *(pathlib.Path(part).name for part in variant.split(',') if part)]
    return pathlib.Path('runs') / '-'.join(parts)


def take(arguments, name):
    """The last value of --name=value, --name value or -name..., and the arguments without it."""
    rest, value, i = [], None, 0
    while i < len(arguments):
        if arguments[i].startswith((f'--{name}=', f'-{name}=')):
            value = arguments[i].partition('=')[2]
        elif arguments[i] in (f'--{name}', f'-{name}') and i + 1 < len(arguments):
            i += 1
            value = arguments[i]
        else:
            rest.append(arguments[i])
        i += 1
    return value, rest


def override(config, arguments):
    """Applies --config.part.field=value, after checking that the field exists."""
    from ml_collections import config_flags

    from training.config import schema
    for argument in arguments:
        name = re.sub(r'^noconfig\.', 'config.', argument.lstrip('-').partition('=')[0])
        if not name.startswith('config.'):
            continue
        group, last = schema.place(config, name.removeprefix('config.'))
        if hasattr(group.get(last), 'keys'):
            raise ValueError(f'--{name} is a group of fields ({", ".join(group[last].keys())}); set one of them.')
    try:
        config_flags.DEFINE_config_dict('config', config, sys_argv=[sys.argv[0], *arguments])
    except flags.Error as error:  # a --flagfile that cannot be read
        raise ValueError(f'{str(error).splitlines()[0].removeprefix("ERROR:: ")}; see --help.') from None
    _parse(arguments)


def typed(config):
    """{field: its value} of the fields that the command line sets, also to what they are anyway."""
    from training.config import schema
    names = [name.removeprefix('config.') for name in flags.FLAGS if name.startswith('config.')]
    return {name: group[last] for name in names for group, last in [schema.place(config, name)]}


def _parse(arguments):
    try:
        rest = flags.FLAGS([sys.argv[0], *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        from training.config.resolve import did_you_mean
        group, _, rest = error.flagname.partition('.')
        if difflib.get_close_matches(group, ['config'], 1) and 'config' in flags.FLAGS:
            meant = f"did you mean '--config{'.' * bool(rest)}{rest}'?"
        else:
            meant = did_you_mean(error.flagname, _own_flags())
        raise ValueError(f'There is no flag --{error.flagname}; {meant}') from None
    except flags.IllegalFlagValueError as error:
        name, value, reason = re.match(r'flag --([^=]*)=(.*?): (.*)', str(error), re.DOTALL).groups()
        bound = re.search(r' is not (.*)', reason)  # 'integer >= 20'
        wanted = bound[1] if bound else KINDS.get(flags.FLAGS[name].flag_type().removeprefix('multi '), reason)
        raise ValueError(f'--{name} is {value!r}; expected {wanted.rstrip(".")}.') from None
    except flags.Error as error:
        raise ValueError(f'{str(error).splitlines()[0]}; see --help.') from None
    if rest:
        raise ValueError(f'{rest[0]!r} is not a flag; flags are written --name=value, see --help.')


def expected(error):
    """Whether the user can mend an error: one raised by a statement of ours, by the config file or by the file system."""
    if isinstance(error, OSError) or (type(error).__name__ == 'JaxRuntimeError' and 'RESOURCE_EXHAUSTED' in str(error)):
        return True
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    file, module = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get('__name__', '')
    ours = module.startswith(CONFIG_MODULE) or _is_ours(file)
    statement = linecache.getline(file, trace.tb_lineno).strip()
    return isinstance(error, ValueError) and ours and statement.startswith('raise ')


def _is_ours(file):
    """Whether a file belongs to this repository, and not to a virtual environment inside it."""
    file, environment = pathlib.Path(file).resolve(), pathlib.Path(sys.prefix).resolve()
    if ROOT in environment.parents and file.is_relative_to(environment):
        return False
    return file.is_relative_to(ROOT) and 'site-packages' not in file.relative_to(ROOT).parts


def _documents():
    """{'configs/NAME.py': first line of its docstring} of those with a get_config, read without running it."""
    found = {}
    for path in sorted(CONFIGS.glob('*.py')):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == 'get_config' for node in tree.body):
            found[f'configs/{path.name}'] = (ast.get_docstring(tree) or '').partition('\n')[0]
    return found


def _near(file):
    """The configs whose names are like that of a file, for a message."""
    names = {pathlib.Path(name).stem: name for name in _documents()}
    wanted = pathlib.Path(file).stem
    close = [name for name in names if wanted and name.startswith(wanted)] or difflib.get_close_matches(wanted, names, 3)
    found = f'did you mean {" or ".join(names[name] for name in close[:3])}?' if close else 'see --help for those there are'
    return f'{found}{"" if close else ", or give the path of your own."}'


def _own_flags():
    """{name: help} of the flags that the script defines."""
    return {flag.name: flag.help for flag in flags.FLAGS.flags_by_module_dict()[sys.argv[0]]}


def _known_flags():
    return '\nflags:\n' + '\n'.join(f'  --{name}: {text}' for name, text in _own_flags().items()) + '\n'


def _known_configs():
    return ('\nconfigs (--config=FILE --help lists the fields of one, each a flag):\n'
            + '\n'.join(f'  {name}: {line}' for name, line in _documents().items()))


def _lines(config, prefix='--config'):
    for name, value in config.items():
        if hasattr(value, 'items'):
            yield from _lines(value, f'{prefix}.{name}')
        else:
            yield f'{prefix}.{name}=' + ('' if value is None else str(value).replace('\n', '\\n'))
