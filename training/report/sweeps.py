"""A sweep: several runs that are trained and compared. A config file defines it, sweep.py trains it.

A config file defines `sweep(variant) -> Sweep` beside `get_config(variant)`. Points that differ in their seed alone are one row
of the table, with the mean and the standard deviation of their numbers. A point may start from another one of the sweep:

    Sweep({'bert': Point('configs/bert_mini.py'), 'reviews': Point('configs/classify.py:{bert}', {'data.path': 'reviews.tsv'})})
"""

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from training import workdir
from training.config import cli, schema
from training.report import report

_FOLDER = re.compile(r'\{([\w.+-]+)\}')


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The mean of `count` values and their standard deviation, with the divisor count - 1; nan for one value."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> 'Estimate':
        if len(values) == 1:
            return cls(values[0], math.nan, 1)
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))

    def __str__(self):
        mean = str(self.mean) if isinstance(self.mean, int) else f'{self.mean:#.4g}'
        return mean if self.count == 1 else f'{mean} ± {self.deviation:.2g}'


Table = dict[str, dict[str, Estimate | None]]  # {row: {column: number, None where the row has none}}


def last_numbers(folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """{'': {'EVALUATION METRIC': value}} of the last row of every evaluation of a run, without whole numbers (settings)."""
    last = {row['split']: row for row in report.rows(folder) if row['split'] != 'train'}
    return {'': {f'{split} {name}': value for split, row in last.items() for name, value in row.items()
                 if isinstance(value, float) and name != 'weight'}}


def costs(folder: pathlib.Path) -> dict[str, float]:
    """{'TFLOP': floating point operations, counted as in the log, 'seconds'} of the training steps of a run, without evaluation
    and saving. The time is that of the median over the log, as other work on a machine delays some steps; operations are those
    of the mean, as batches may differ in length."""
    rows = [json.loads(line) for line in (folder / report.TIMING).read_text().splitlines()]
    steps = json.loads((folder / 'config.json').read_text())['train']['steps']
    flops = [row['flops_per_s'] * row['step_ms'] / 1e3 for row in rows]
    return {'TFLOP': steps * float(np.mean(flops)) / 1e12,
            'seconds': steps * float(np.median([row['step_ms'] for row in rows])) / 1e3}


@dataclasses.dataclass(frozen=True)
class Point:
    """A run of a sweep.

    Attributes:
      config: FILE[:VARIANT] of its config; '' for that of the sweep.
      fields: {field of the config, such as 'model.positions': value}.

    In the config and in values, '{NAME}' stands for the folder of an earlier point, which is finished first.
    """

    config: str = ''
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def after(self) -> list[str]:
        """The points that it starts from."""
        return list(dict.fromkeys(name for text in self._texts for name in _FOLDER.findall(text)))

    @property
    def _texts(self) -> list[str]:
        return [text for text in (self.config, *self.fields.values()) if isinstance(text, str)]

    def replaced(self, folder_of: Callable[[str], str], **fields: Any) -> 'Point':
        """The point with something else for each '{NAME}', and with further fields."""
        put = lambda text: _FOLDER.sub(lambda found: folder_of(found[1]), text) if isinstance(text, str) else text
        return Point(put(self.config), {name: put(value) for name, value in self.fields.items()} | fields)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The points of a sweep, and how they are measured and drawn.

    Attributes:
      points: {name of its folder: a `Point`, or the fields of one}.
      measure: maps the folder of a finished run to {'': {column: number or None}}, its row of the table; a key other than ''
        makes a further row, named POINT_KEY.
      draw: maps {group: folders of its runs} and the table to a matplotlib figure, or to {'': figure}, where a key other than
        '' ends the name of a further picture; where points have failed, groups without numbers are left out. None: no picture.
      title: the heading of the column of names.
      table: maps {group of points: folders of its finished runs, of which there may be none where points have failed} to the
        whole table, where its rows are not the groups; None: they are.
    """

    points: Mapping[str, Mapping[str, Any] | Point]
    measure: Callable[[pathlib.Path], Mapping[str, Mapping[str, float | None]]] = last_numbers
    draw: Callable | None = None
    title: str = ''
    table: Callable[[Mapping[str, Sequence[pathlib.Path]]], Table] | None = None

    @property
    def all_points(self) -> dict[str, Point]:
        return {name: one if isinstance(one, Point) else Point(fields=one) for name, one in self.points.items()}

    def seeded(self, first: int, count: int) -> 'Sweep':
        """The sweep with `count` runs of every point, NAME-0, NAME-1, .., with the seeds first, first + 1, .."""
        if any('seed' in point.fields for point in self.all_points.values()):
            raise ValueError('The points of this sweep have seeds of their own; leave out --seeds.')
        return dataclasses.replace(self, points={
            f'{name}-{number}': point.replaced(lambda one, number=number: f'{{{one}-{number}}}', seed=first + number)
            for name, point in self.all_points.items() for number in range(count)})

    def check(self, config: Any, given: Mapping[str, Any], folder: pathlib.Path) -> None:
        """Raises ValueError, naming the point, for an invalid config; of points that start from others once these exist."""
        for i, (name, point) in enumerate(self.all_points.items()):
            if not re.fullmatch(r'\w[\w.+-]*', name) or name == 'plots':
                raise ValueError(f'A point of the sweep is named {name!r}, which names its folder too; take letters, digits, _ '
                                 'and -.')
            if unknown := [one for one in point.after if one not in list(self.points)[:i]]:
                raise ValueError(f'Point {name!r} of the sweep starts from {unknown[0]!r}, which is no point before it.')
            self._require_unset(name, given)
            if not point.after:
                self.config_of(name, config, given, folder)

    def _require_unset(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises ValueError if a point sets a field of `given`, or a group that holds it, to something else."""
        for flag, value in given.items():
            for field, own in self.all_points[name].fields.items():
                if flag.startswith(f'{field}.') or (flag == field and own != value):
                    shown = field if flag != field else f'{field}={own}'
                    raise ValueError(f'Point {name!r} of the sweep sets {shown} itself, which --config.{flag}={value} does not '
                                     'change; leave that out, or change the config file.')

    def config_of(self, name: str, config: Any, given: Mapping[str, Any], folder: pathlib.Path) -> Any:
        """The locked config of a point. A run that is there keeps its path of the point it starts from, which may have moved.

        Args:
          config: that of the sweep.  given: {field: value} of the command line, which `config` has already.
          folder: of the sweep.
        Raises: ValueError, naming the point, for an invalid config, and if it sets a field of `given` to something else.
        """
        self._require_unset(name, given)
        point = self.all_points[name].replaced(lambda one: str(folder / one))
        try:
            if point.config:
                config = schema.changed(cli.load_config(point.config)[0], given)
            made = schema.changed(config, point.fields)
            schema.check(made)
            if self.all_points[name].after and workdir.is_run(folder / name):  # perhaps before the sweep moved
                told = workdir.load_config(folder / name).init_from
                source = pathlib.PurePath(told).name
                if source in self.all_points[name].after and made.init_from == str(folder / source):
                    made = schema.changed(made, {'init_from': told})
        except ValueError as error:
            raise ValueError(f'Point {name!r} of the sweep: {error}') from None
        return made

    @property
    def groups(self) -> dict[str, list[str]]:
        """{name: points} of points that differ in their seed alone; the name is the common prefix of theirs. A point that
        equals an earlier one, also in its seed, is in another group."""
        alike, named, points = {}, {}, [*self.all_points.values()]
        for number, (name, point) in enumerate(self.all_points.items()):
            before = points[:number].count(point)  # so many are equal
            alike_to = {one: names[0] for names in alike.values() for one in names}  # what it starts from, whatever the seed
            point = point.replaced(lambda one, first=alike_to: first[one])
            key = point.config, sorted((k, repr(v)) for k, v in point.fields.items() if k != 'seed'), before
            alike.setdefault(repr(key), []).append(name)
        for names in alike.values():
            common = re.sub(r'[-_]\d*$', '', os.path.commonprefix(names)) if names[1:] else names[0]  # noqa: RUF071
            named[common if common and common not in named else names[0]] = names
        return named


def rows(name: str, measured: Sequence[Mapping[str, Mapping[str, float | None]]]) -> Table:
    """The rows of a group, from the results of `measure` for each of its runs."""
    def number(key, column):
        values = [one[key][column] for one in measured]
        return None if None in values else Estimate.of(values)

    return {f'{name}_{key}' if key else name: {column: number(key, column) for column in columns}
            for key, columns in measured[0].items()}


def lines(table: Table, title: str = '', *, wide: int = 8, columns: Sequence[str] = ()) -> list[str]:
    """The table as text: a line for each row, and a heading before each with other `columns` than the one before it; columns
    have `wide` characters, or more for what is wider."""
    cells = lambda texts: ''.join(f' {text:>{max(wide, len(column) + 2) - 1}}' for column, text in zip(columns, texts))
    found = []
    for name, row in table.items():
        if tuple(row) != tuple(columns):
            columns = tuple(row)
            found.append(f'{title:27} {cells(columns)}')
        found.append(f'{name:27} ' + cells('n/a' if number is None else str(number) for number in row.values()))
    return found


def as_json(table: Table, others: Mapping | None = None) -> str:
    """The table as JSON: a number, an object of mean, deviation and count for several runs, or null. others: rows as they were
    read from such a JSON, which stay if the table has none of their name."""
    def plain(number):
        numbers = {k: v if math.isfinite(v) else str(v) for k, v in dataclasses.asdict(number).items()} if number else None
        return numbers['mean'] if number and number.count == 1 else numbers

    found = {name: {column: plain(number) for column, number in row.items()} for name, row in table.items()}
    return json.dumps({**(others or {}), **found}, indent=1, allow_nan=False) + '\n'
