"""The report of a run: metrics, times, samples and pictures in its workdir, progress on the terminal."""

import collections
import contextlib
import json
import logging
import math
import pathlib
import sys
import textwrap
import time
from collections.abc import Collection, Iterator

import numpy as np

from display import figures, progress
from training import storage

METRICS, TIMING = 'metrics.jsonl', 'timing.jsonl'


class Report:
    """Writes metrics.jsonl, timing.jsonl, TensorBoard events and samples/ of one run, and shows its progress.

    Opening it makes a restart exact: rows after `step` and a torn last line are cut (the file is replaced atomically),
    TensorBoard hides its points after `step`, and new rows are appended. `step=0` is a fresh start and drops
    everything. One writer per workdir: only process 0 of a run opens one.

    Rows of metrics.jsonl hold deterministic numbers only, so two equal runs write equal bytes. They are valid JSON:
    numbers that are not finite are written as the strings "nan", "inf" or "-inf", which `float()` and `rows` read back.

    Args:
        workdir: directory of the run, created if missing.
        step: optimizer steps already done, 0 for a fresh run.
        steps: optimizer steps of the whole run.
        unit: the unit of the speed, such as 'tokens' or 'images'.
        peak: FLOP/s of all devices together, None if unknown.
        bar: progress bar (True) or plain lines (False); by default a bar if stdout is a terminal that knows its size.
        again: splits that will be evaluated again at `step`: their rows of this step are cut too.

    Raises ValueError if a file cannot be written, for instance on a full disk.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        *,
        step: int,
        steps: int,
        unit: str,
        peak: float | None,
        bar: bool | None = None,
        again: Collection[str] = (),
    ):
        self._workdir, self._samples = workdir, workdir / 'samples'
        self._steps, self._unit, self._peak = steps, unit, peak
        with self._writing():
            self._samples.mkdir(parents=True, exist_ok=True)
            cut(workdir, step, again)
            self._metrics, self._timing = (storage.appending(workdir / name) for name in (METRICS, TIMING))
            self._board = _Board(workdir, step)
        self._bar = None
        if progress.shown(sys.stdout) if bar is None else bar:
            import tqdm

            self._bar = tqdm.tqdm(
                total=steps,
                initial=step,
                file=sys.stdout,
                dynamic_ncols=True,
                bar_format='step {n_fmt}/{total_fmt} |{bar:12}| {desc}',
            )

    def scalars(self, step: int, split: str, values: dict[str, float]) -> None:
        """Appends the row {"step", "split", "loss", the other values by name} and TensorBoard '<split>/<name>'."""
        self._row(self._metrics, {'step': int(step), 'split': split}, values, split)

    def timing(self, step: int, values: dict[str, float]) -> None:
        """Appends the row {"step", values by name} to timing.jsonl and TensorBoard 'timing/<name>'."""
        self._row(self._timing, {'step': int(step)}, values, 'timing')

    def text(self, step: int, name: str, text: str) -> None:
        """Writes samples/<name>_<step>.txt and the same text to TensorBoard."""
        with self._writing():
            self._sample(name, step, 'txt').write_text(text.rstrip('\n') + '\n', encoding='utf-8')
            # TensorBoard renders Markdown: indented, so that line breaks stay
            self._board.add('text', step, name, textwrap.indent(text, '    ', lambda line: True))

    def picture(self, step: int, name: str, image) -> None:
        """Writes samples/<name>_<step>.png and the same picture to TensorBoard.

        `image` is an array [height, width, 3], uint8 or float in 0..1, or a matplotlib figure. Raises ValueError for
        another shape or type.
        """
        from PIL import Image

        pixels = _pixels(image)
        with self._writing():
            with self._sample(name, step, 'png').open('wb') as file:
                Image.fromarray(pixels).save(file, 'png')
            self._board.add('image', step, name, pixels, dataformats='HWC')

    def progress(
        self,
        step: int,
        *,
        loss: float,
        units_per_s: float,
        flops_per_s: float | None,
        data_wait: float,
        seconds_left: float | None,
    ) -> None:
        """Moves the bar to `step`, or prints one line.

        `units_per_s` and `flops_per_s` are of all devices together; `data_wait` is the share of the time, 0..1, that
        the loop waited for batches. Arguments that are None are left out.
        """
        parts = [f'loss {loss:.4g}', f'{_digits(units_per_s)} {self._unit}/s']
        if flops_per_s is not None:
            share = f' ({_digits(100 * flops_per_s / self._peak)}% of peak)' if self._peak else ''
            parts.append(si(flops_per_s, 'FLOP/s') + share)
        parts.append(f'data wait {100 * data_wait:.1f}%')
        known = seconds_left is not None and math.isfinite(seconds_left)
        left = [f'{duration(seconds_left)} left'] if known else []
        if self._bar is None:
            print('  '.join([f'step {step}/{self._steps}', *parts, *left]), flush=True)
        else:
            self._bar.n = step
            self._bar.set_description_str('  '.join(left + parts))  # a narrow terminal cuts the end off

    def note(self, line: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.write(line, file=self._bar.fp)

    def flush(self) -> None:
        """Writes all rows so far to the disk; call it before a checkpoint that relies on them."""
        with self._writing():
            for file in (self._metrics, self._timing):
                storage.flush(file)
            self._board.flush()

    def close(self) -> None:
        """Flushes and closes everything; a second call does nothing."""
        if self._metrics.closed:
            return
        with self._writing(), contextlib.ExitStack() as last:  # each is closed, even if closing another fails
            for one in filter(None, (self._bar, self._board, self._timing, self._metrics)):
                last.callback(one.close)
            self.flush()

    def _row(self, file, row: dict, values: dict[str, float], group: str) -> None:
        if taken := row.keys() & values.keys():
            raise ValueError(
                f'The values of {group!r} at step {row["step"]} hold {sorted(taken)[0]!r}, expected metric names: '
                'rename that value.'
            )
        # in a fixed order, because the bytes of a row must not depend on how its values were gathered
        values = {name: _number(values[name]) for name in sorted(values, key=lambda name: (name != 'loss', name))}
        with self._writing():
            file.write(as_json(row | values) + '\n')
            for name, value in values.items():
                self._board.add('scalar', row['step'], f'{group}/{name}', value)

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except Exception as error:
            if not isinstance(error, OSError) and not storage.unreachable(error):
                raise
            reason = getattr(error, 'strerror', '') or error
            raise ValueError(
                f'The report in {self._workdir} cannot be written ({reason}); fix that, then give the same command again: it '
                'resumes from the last checkpoint.'
            ) from error

    def _sample(self, name: str, step: int, ending: str) -> pathlib.Path:
        return self._samples / f'{name.replace("/", "_")}_{step}.{ending}'


class _Board:
    """TensorBoard's events, written by the calling thread: the thread of tensorboardX's SummaryWriter ends on a full disk, and
    its queue then blocks for ever."""

    def __init__(self, workdir: pathlib.Path, step: int):
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        logging.getLogger('tensorboardX.x2num').setLevel(logging.ERROR)  # it warns of every number that is not finite
        self._summary, self._pb = summary, event_pb2
        # the name holds whole seconds: a quick restart must not take the same one
        self._writer = event_file_writer.EventsWriter(str(workdir / 'events'), f'.{step}')
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # hides the points from this step on
        self._writer.write_event(event_pb2.Event(step=step + 1 if step else 0, session_log=start))
        self.flush, self.close = self._writer.flush, self._writer.close

    def add(self, kind: str, step: int, *values, **options) -> None:
        """`kind` is a function of tensorboardX.summary, called with the rest."""
        summary = getattr(self._summary, kind)(*values, **options)
        self._writer.write_event(self._pb.Event(step=step, wall_time=time.time(), summary=summary))


class Nothing:
    """The report of a process that writes none: it accepts every call."""

    def __getattr__(self, name: str):
        return lambda *_, **__: None


def speeds(lap: dict[str, float], steps: int, units: int, unit: str, flops: int) -> dict[str, float]:
    """The numbers of timing.jsonl from a lap of the loop's `Clock`; the time of a step excludes evaluation and saving.

    `flops` are the floating point operations of all these steps together. `host_share` is the host's own work, dispatch and
    transfers, most of it done while the device computes.
    """
    wall, aside = lap['wall'], lap.get('eval', 0.0) + lap.get('save', 0.0)
    busy = max(wall - aside, 1e-9)
    data, device = lap.get('data', 0.0), lap.get('device', 0.0)
    return {
        'step_ms': 1e3 * busy / steps,
        f'{unit}_per_s': units / busy,
        'flops_per_s': flops / busy,
        'data_wait_share': data / busy,
        'host_share': (busy - data - device) / busy,
        'eval_s': lap.get('eval', 0.0),
        'save_s': lap.get('save', 0.0),
    }


def as_json(row: dict) -> str:
    """A row, whose values may be dicts, as a line of JSON, which has no numbers but finite ones: others become strings."""
    def plain(value):
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(row), allow_nan=False)


def rows(workdir: pathlib.Path, split: str | None = None) -> list[dict]:
    """Rows of metrics.jsonl in order, of one split or of all; a torn last line is left out.

    Raises FileNotFoundError if the run has none yet, ValueError if a line before the last is damaged.
    """
    path = workdir / METRICS
    if not path.exists():
        raise FileNotFoundError(
            f'{workdir} has no {METRICS}, expected the workdir of a run that has started: train it first.'
        )
    kept = [row for _, row in _parse(path) if split is None or row['split'] == split]
    return [{k: float(v) if k != 'split' and isinstance(v, str) else v for k, v in row.items()} for row in kept]


def check(workdir: pathlib.Path) -> None:
    """Raises ValueError if the rows of a run that goes on are damaged, before anything is compiled for it."""
    for name in (METRICS, TIMING):
        if (workdir / name).exists():
            collections.deque(_parse(workdir / name), maxlen=0)


def plot_losses(workdir: pathlib.Path) -> pathlib.Path:
    """Draws `losses` to plots/loss.png and returns that path. Raises what `losses` raises."""
    figure, path = losses(workdir), workdir / 'plots' / 'loss.png'
    path.parent.mkdir(exist_ok=True)
    with path.open('wb') as file:
        figure.savefig(file)
    return path


def losses(workdir: pathlib.Path):
    """A matplotlib figure of the loss of every split over the steps, from metrics.jsonl.

    Long training curves are drawn pale under their running mean; the legend names the last value of each line. Raises
    what `rows` raises, and ValueError if no row holds a finite loss.
    """
    from matplotlib.ticker import FixedLocator, MaxNLocator

    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows(workdir):
        if math.isfinite(row.get('loss', math.nan)):
            curves.setdefault(row['split'], []).append((row['step'], row['loss']))
    if not curves:
        raise ValueError(f'{workdir / METRICS} holds no finite loss to plot, expected at least one: train for longer.')

    figure, body = figures.new(7, 4.2, dpi=150)
    axes, smooth = body.subplots(), False
    for i, split in enumerate(sorted(curves, key=lambda split: split != 'train')):
        color = figures.COLOURS[i % len(figures.COLOURS)]
        steps, values = np.array(curves[split]).T
        if split == 'train':
            if smooth := len(values) >= 50:
                axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
                values = _running_mean(values, len(values) // 50)
            alone = dict(marker='o', markersize=6) if len(values) == 1 else {}
            axes.plot(steps, values, color=color, linewidth=1.6, label=f'{split}  {values[-1]:.4g}', **alone)
        else:
            best = int(values.argmin())
            label = f'{split}  {values[-1]:.4g}, best {values[best]:.4g} at {steps[best]:.0f}'
            axes.plot(steps, values, color=color, marker='s', markersize=4, linewidth=1.4, label=label)
    axes.set(xlabel='step (updates of the parameters)', ylabel='loss')
    different = {step for points in curves.values() for step, _ in points}
    axes.xaxis.set_major_locator(MaxNLocator(integer=True) if len(different) > 1 else FixedLocator([*different]))
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False, loc='best')
    said = [f'{split} is the mean of the steps since the point before' + (' (pale), and its running mean' if smooth else '')
            for split in curves if split == 'train'] + (['the other lines are evaluations'] if len(curves) > 1 else [])
    return figures.explain(
        figure, f'Loss of {workdir.resolve().name}',
        f'The loss against the steps, with its last value in the legend: {", ".join(said) or "an evaluation"}.')


class Clock:
    """Measures the time of a loop by section.

    `with clock("data"): ...` charges the time to a section; time in a nested section is charged to that one alone, so the
    sections never add up to more than the wall time. JAX returns before the device is done: wait for a result inside the
    section that should be charged for it.
    """

    def __init__(self):
        self._open: list[str] = []
        self._seconds: dict[str, float] = {}
        self._start = self._mark = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        """Charges the time spent inside to `section`; raises ValueError for the name 'wall'."""
        if section == 'wall':
            raise ValueError("Clock was given the section 'wall', which is the total of a lap: choose another name.")
        self._charge()
        self._open.append(section)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def lap(self) -> dict[str, float]:
        """Seconds of every section since the last lap, and 'wall', all seconds since then; starts a new lap."""
        self._charge()
        seconds = self._seconds | {'wall': self._mark - self._start}
        self._seconds, self._start = {}, self._mark
        return seconds

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._mark
        self._mark = now


def _parse(path: pathlib.Path) -> Iterator[tuple[bytes, dict]]:
    """(line, row) of every complete line; an incomplete or invalid last line was torn by a kill and is dropped."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            whole = line.endswith(b'\n') and isinstance(row, dict) and isinstance(row.get('step'), int)
        except ValueError:
            whole = False
        if whole:
            yield line, row
        elif number < len(lines):
            raise ValueError(
                f'Line {number} of {path} is damaged, expected one JSON row with its step: delete that line.'
            )


def cut(workdir: pathlib.Path, step: int, again: Collection[str] = ()) -> None:
    """Cuts the rows after `step`, all of them for a fresh run, and those at it of the splits that are measured `again`; a kill
    in the middle leaves the old files."""
    for name in (METRICS, TIMING):
        _cut(workdir / name, step, again)


def _cut(path, step, again):
    def stays(row):
        return row['step'] < step or (row['step'] == step and row.get('split') not in again)

    if not path.exists():
        return
    kept = b''.join(line for line, row in _parse(path) if stays(row)) if step else b''
    if kept != path.read_bytes():
        storage.write(path, kept.decode())


def _running_mean(values: np.ndarray, radius: int) -> np.ndarray:
    """Mean over up to `radius` neighbours on each side, fewer at the start, where a loss falls too fast to average."""
    i = np.arange(len(values))
    low, high = i - np.minimum(radius, i), i + np.minimum(radius, i) + 1
    high = np.minimum(high, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[high] - sums[low]) / (high - low)


def _number(value) -> int | float:
    """A Python number from any scalar; counts stay integers."""
    return value if type(value) in (int, float) else np.asarray(value).item()


def _pixels(image) -> np.ndarray:
    """[height, width, 3] uint8."""
    if hasattr(image, 'savefig'):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(image)
        canvas.draw()
        return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    pixels = np.asarray(image)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or (pixels.dtype.kind in 'biu' and pixels.dtype != np.uint8):
        raise ValueError(
            f'A picture was given as {pixels.dtype} {list(pixels.shape)}, expected [height, width, 3] in uint8 or in '
            'float 0..1, or a matplotlib figure: convert it first.'
        )
    if pixels.dtype != np.uint8:
        pixels = np.round(np.nan_to_num(pixels.astype(np.float32)).clip(0, 1) * 255).astype(np.uint8)
    return pixels


def _digits(value: float) -> str:
    """12,345 and 31 but 3.2 and 0.045."""
    return f'{value:,.0f}' if not value < 10 else f'{value:.2g}'


def si(value: float, unit: str) -> str:
    """4.1e9 -> '4.1 GFLOP/s'."""
    power = 0
    while value >= 999.5 and power < 6:
        value, power = value / 1000, power + 1
    return f'{value:.3g} {" kMGTPE"[power].strip()}{unit}'


def duration(seconds: float) -> str:
    """45s, 1m20s, 2h05m, 3d04h."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f'{days}d{hours:02d}h'
    if hours:
        return f'{hours}h{minutes:02d}m'
    return f'{minutes}m{seconds:02d}s' if minutes else f'{seconds}s'
