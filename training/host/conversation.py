"""Inputs and answers at a terminal."""

import contextlib
import dataclasses
import json

from training.config import cli, resolve

# {setting at a terminal: (its type, and of a number the least and the highest)}
SETTINGS = {'tokens': (int, 1, 2 ** 31 - 1), 'seed': (int, 0, 2 ** 32 - 1), 'truncate': (bool,), 'prefix': (str,),
            'candidates': (str,), 'pictures': (str,), 'json': (bool,)}
COMMANDS = """:set NAME=VALUE   change a setting, or a field of the strategy such as temperature
:settings         show the settings
:quit             end (so does Ctrl-D)"""


class Conversation:
    """Inputs and answers at a terminal, with settings that commands change.

    Each answer of a model that generates text has the next seed, so that the same prompt is continued in another way.
    """

    def __init__(self, run, settings, as_json=False):
        self.run, self.reader = run, run.reader
        self.settings, self.unsaid = settings | {'json': as_json}, ''
        if 'strategy' in settings:
            self.settings['strategy'] = run.strategy(settings['strategy'])

    def start(self, name):
        """Reads inputs until :quit, or the end of the terminal's."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, which gives input() a history and the arrow keys
        more = 'end an input with an empty line; ' if self.reader.several else ''
        print(f'{name}: a model of {self.reader.what}; {more}:help shows the commands.')
        while (text := self._asked()) is not None:
            try:
                if not text.startswith(':'):
                    self.answer(text)
                elif not self.command(text[1:].strip()):
                    return
            except KeyboardInterrupt:  # ends the answer, not the conversation
                print('\n(interrupted; :quit ends)')
            except Exception as error:
                if not cli.expected(error):
                    raise
                print(error)

    def _asked(self):
        """The next input; None at the end."""
        try:
            text = input('> ')
            while self.reader.several and text and not text.startswith(':') and (more := input('. ')):
                text += '\n' + more
            return text
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            return ''

    def answer(self, text):
        """Prints the answer to an input; a continuation while it is generated."""
        if not text:
            return
        lines = self.reader.lines((text + '\n').encode(errors='surrogateescape'), '-')
        asked = {name: value for name, value in self.settings.items() if name != 'json'}
        streams = 'watch' in self.reader.flags and asked['strategy'].size == 1 and not self.settings['json']
        self.unsaid = text  # until the first piece of its continuation, as progress has this line
        for found, details in self.run.answers(lines, '-', **asked, **({'watch': self.show} if streams else {})):
            print(self.unsaid if streams else json.dumps(details, ensure_ascii=False) if self.settings['json'] else found)
            if 'note' in details:
                print(f'({details["note"]})')
        if 'seed' in asked:
            self.settings['seed'] = (self.settings['seed'] + 1) % 2 ** 32

    def show(self, text):
        """Writes a piece of a continuation as soon as it is generated, the first one behind its prompt."""
        print(self.unsaid + text, end='', flush=True)
        self.unsaid = ''

    def command(self, text):
        """Carries out a command; returns whether to go on."""
        name, _, rest = text.partition(' ')
        if name in ('quit', 'q', 'exit'):
            return False
        if name == 'set' and '=' in rest:
            self.set(*map(str.strip, rest.split('=', 1)))
        elif name == 'settings':
            print('\n'.join(f'{key}={"" if value is None else value}' for key, value in self.settings.items()))
        else:
            if name not in ('help', 'set'):
                print(f'There is no command :{name}.')
            print(COMMANDS)
        return True

    def set(self, name, value):
        """Changes a setting, or a field of the strategy. Raises ValueError for an unknown name or a value that does not fit."""
        strategy, changed = self.settings.get('strategy'), name
        known = resolve.fields(type(strategy)) if strategy else {}
        if name == 'strategy' and strategy:
            self.settings[name] = self.run.strategy(value)
        elif name in self.settings:
            kind, *bounds = SETTINGS[name]
            found = converted(name, value, kind)
            if bounds and not bounds[0] <= found <= bounds[1]:
                raise ValueError(f'{name} is {found}; expected {bounds[0]} to {bounds[1]}.')
            self.settings[name] = found
        elif name in known:
            kind = known[name].type
            found = converted(name, value, kind) if kind in (int, float, bool) else resolve.parse(value, kind, name)
            self.settings['strategy'], changed = dataclasses.replace(strategy, **{name: found}), 'strategy'
        else:
            raise ValueError(f'There is no setting {name!r}; {resolve.did_you_mean(name, [*self.settings, *known])}')
        print(f'{changed}={self.settings[changed]}')


def converted(name, value, kind):
    """A string as a value of a type. Raises ValueError if it is none."""
    try:
        return {'true': True, 'false': False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        raise ValueError(f'{name} is {value!r}; expected {cli.KINDS[kind.__name__]}.') from None
