"""Stories with questions in the format of bAbI, from its files and archives (Weston et al. 2015).

A file holds stories, whose lines count from 1:

    1 Mary moved to the bathroom.
    2 Where is Mary?<TAB>bathroom<TAB>1
"""

import dataclasses
import functools
import hashlib
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WORD = re.compile(r"[\w'-]+")


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question of a story.

    Attributes:
      story: all sentences of the story, which its questions share.
      after: number of its sentences before the question.
      answer: '' if none is given.
      line: line number in the file.
    """

    story: list[str]
    after: int
    text: str
    answer: str
    line: int

    @property
    def sentences(self) -> list[str]:
        """The sentences before the question, the oldest first."""
        return self.story[:self.after]


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def read(text: str | bytes, name: str, answered: bool = True) -> list[list[Asked]]:
    """The questions of each story of a text in bAbI's format.

    Args:
      text: a string, or the bytes of a file in UTF-8, with or without a byte order mark.
      name: of the file, for messages.
      answered: whether every question needs an answer after a tab. A line is a question if it has a tab or ends with a
        question mark.
    Raises: ValueError with file and line.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode('utf-8-sig')
        except UnicodeDecodeError as error:
            raise ValueError(f'{name} is not UTF-8: byte {error.start} cannot be decoded; give the files of bAbI.') from None
    found, sentences, last = [], [], 0
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip():
            continue
        wrong = functools.partial(_wrong, name, line, content)
        number, _, rest = content.strip(' ').partition(' ')
        if not number.isdecimal():
            raise wrong("begins with no number; expected '1 Mary went home.' or '2 Where is Mary?<TAB>home<TAB>1'")
        if int(number) not in (1, last + 1):
            raise wrong(f'has the number {number}; expected {last + 1}, or 1 where a story begins')
        said, tab, behind = rest.partition('\t')
        if not words(said):
            raise wrong('has no words; expected a sentence or a question')
        question = bool(tab) or said.rstrip().endswith('?')
        answer = behind.partition('\t')[0].strip().lower()
        if question and answered and not answer:
            raise wrong('is a question without an answer; expected a tab and the answer behind the question')
        if int(number) == 1:
            sentences = []
            found.append([])
        last = int(number)
        if question:
            found[-1].append(Asked(sentences, len(sentences), said.strip(), answer, line))
        else:
            sentences.append(said.strip())
    if not any(found):
        raise ValueError(f"{name} holds no question; expected lines such as '2 Where is Mary?<TAB>home<TAB>1'.")
    return [story for story in found if story]


def _wrong(name: str, line: int, content: str, what: str) -> ValueError:
    return ValueError(f'{name}, line {line}: {content[:60]!r} {what}.')


@dataclasses.dataclass(frozen=True)
class StoryFile:
    """The stories of one file, and a digest of its contents."""

    stories: list[list[Asked]]
    digest: str

    @classmethod
    def of(cls, name: str, contents: bytes) -> 'StoryFile':
        return cls(read(contents, name), hashlib.sha256(contents).hexdigest())


def files(path: str, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    """(path, contents) of the files with wanted paths in a folder or an archive; archives in the folder are read too."""
    if os.path.isdir(path):
        for file in sorted(Path(path).rglob('*')):
            if file.name.endswith('.tar.gz'):
                yield from files(os.fspath(file), wanted)
            elif wanted(os.path.abspath(file)):
                yield os.path.abspath(file), file.read_bytes()
    elif os.path.isfile(path):
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and wanted(f'{path}/{member.name}'):
                        yield f'{path}/{member.name}', archive.extractfile(member).read()
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            why = str(error).partition('\n')[0].rstrip(':')
            raise ValueError(
                f'{path} cannot be read ({why}); data.path must be a complete .tar.gz of bAbI, or a folder with its files.'
            ) from error
    else:
        raise FileNotFoundError(f'{path!r} does not exist; data.path must be a folder or a .tar.gz with the files of bAbI.')
