"""What a compiled program does, read from its text: the traffic of the main memory and the collectives of one chip.

`compiled.cost_analysis()` counts the body of a loop once, and what stays in the memory beside the processor as traffic. Here
loops count as often as they run, and only what the layout places in the main memory, with the padding of its tiles.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

_SHAPE = re.compile(r'([a-z]+[0-9]*[a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (.*)$')
# What moves nothing: names for what is there, and ends of what has been counted where it started.
_FREE = {'parameter', 'get-tuple-element', 'constant', 'bitcast', 'tuple', 'after-all', 'partition-id', 'replica-id', 'iota',
         'optimization-barrier', 'add-dependency', 'async-update'}
_FREE_CALLS = ('AllocateBuffer', 'ConcatBitcast', 'AssumeGatherIndicesInBound', 'Sharding')
_SLICES = {'dynamic-slice', 'slice', 'gather', 'slice-start', 'dynamic-slice-start'}  # they read as much as they give
_VIEWS = {'bitcast', 'reshape', 'transpose', 'convert', 'copy'}  # within a fusion, of the same numbers
COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute', 'ragged-all-to-all')


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a program.

    Attributes:
      dims: its shape.
      bits: of one number.
      order: its axes, the one that is contiguous first.
      tile: its first tile, over the last axes of memory; (): none.
      space: 0, the main memory; others are beside the processor.
    """
    dims: tuple[int, ...]
    bits: int
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def bytes(self) -> int:
        """In memory, with the padding of its tiles."""
        sizes = [self.dims[axis] for axis in reversed(self.order)] if self.order else list(self.dims)
        for back, tile in enumerate(reversed(self.tile), 1):
            if back <= len(sizes):
                sizes[-back] = -(-sizes[-back] // tile) * tile
        return math.prod(sizes) * self.bits // 8

    @property
    def payload(self) -> int:
        """Its numbers alone, in bytes."""
        return math.prod(self.dims) * self.bits // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `arrays` of the result, names of the operands, and all that follows as text."""
    name: str
    operation: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @functools.cached_property
    def source(self) -> str:
        """The path in the model that it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ''


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between chips.

    Attributes:
      kind: of COLLECTIVES.
      payload: bytes of the whole array that is gathered, reduced or exchanged, on one chip.
      group: the numbers of the chips, in the order of the mesh, that the first chip exchanges with, itself included.
      times: how often a step runs it.
      source: the path in the model.
      hidden: whether anything is computed or moved, however little, between its start and its end.
    """
    kind: str
    payload: int
    group: tuple[int, ...]
    times: int
    source: str
    hidden: bool = False

    @property
    def sent(self) -> int:
        """Bytes that a chip has to send for it, all times together, by the best algorithm of a ring."""
        others = len(self.group) - 1
        share = {'all-reduce': 2 * others / len(self.group), 'collective-permute': min(others, 1)}.get(
            self.kind, others / len(self.group))
        return round(self.times * self.payload * share)

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a mesh {name: size} along which the chips of the group lie."""
        places = np.array(np.unravel_index(self.group, tuple(mesh.values())))
        return tuple(name for name, row in zip(mesh, places) if len(set(row)) > 1)


class Program:
    """A program from its text, `compiled.as_text()`.

    Attributes:
      computations: {name: its instructions by name}.
      entry: the name of the one that runs.
      chips: how many run it together.
    """

    def __init__(self, text: str) -> None:
        self.computations, self.entry, current = {}, '', None
        sizes = re.findall(r'\b(?:num_partitions|replica_count)=(\d+)', text.partition('\n')[0])
        self.chips = math.prod(map(int, sizes))
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = self.computations.setdefault(head[2], {})
                self.entry = head[2] if head[1] else self.entry
            elif current is not None and (found := _INSTRUCTION.match(line)):
                one = _instruction(found[2], found[3], bool(found[1]))
                current[one.name] = one
        if not self.entry:
            raise ValueError('The text is no compiled program; expected an ENTRY computation.')

    def executed(self) -> Iterator[tuple[Instruction, Mapping[str, Instruction], int]]:
        """(instruction, its computation, how often it runs) of all that are no parts of a fusion; of a conditional the branch
        with the largest traffic."""
        yield from self._executed(self.entry, 1)

    def _executed(self, name, times):
        for one in self.computations[name].values():
            if one.operation == 'while':
                for part in ('condition', 'body'):
                    yield from self._executed(_named(one, part), times * (self.trips(one) or 1))
            elif one.operation == 'conditional':
                branches = [list(self._executed(branch, times)) for branch in _branches(one)]
                yield from max(branches, key=lambda some: sum(count * self.moved(inner, there) for inner, there, count in some))
            elif one.operation == 'call':
                yield from self._executed(_named(one, 'to_apply'), times)
            else:
                yield one, self.computations[name], times

    def endless(self) -> list[Instruction]:
        """The loops of which the text does not say how often they run; they count once."""
        return [one for part in self.computations.values() for one in part.values()
                if one.operation == 'while' and self.trips(one) is None]

    def trips(self, loop: Instruction) -> int | None:
        """How often a loop runs: its counter from 0 up to a constant; None where that cannot be read."""
        if found := re.search(r'known_trip_count[^0-9]*(\d+)', loop.attributes):
            return int(found[1])
        condition = self.computations[_named(loop, 'condition')]
        root = next(one for one in condition.values() if one.root)
        if root.operation == 'fusion':  # the comparison, with the constant as an operand or within
            inside = self.computations[_named(root, 'calls')]
            numbers = [_constant(one) for one in (*inside.values(), *(condition[name] for name in root.operands))]
        else:
            numbers = [_constant(condition[name]) for name in root.operands]
        numbers = [number for number in numbers if number is not None]
        return numbers[0] if len(numbers) == 1 else None

    def moved(self, one: Instruction, there: Mapping[str, Instruction]) -> int:
        """Bytes that an instruction reads from and writes to the main memory."""
        if _is_free(one):
            return 0
        operands = [there[name].arrays for name in one.operands if name in there]
        if one.operation == 'fusion':
            return self._fused(self.computations[_named(one, 'calls')], operands, one.arrays)
        if one.operation == 'async-start':  # around an instruction that is the root of its computation
            inside = self.computations[_named(one, 'calls')]
            return self.moved(_root(inside), inside)
        written = _written(one, operands)
        if one.operation in _SLICES:
            return _main([dataclasses.replace(x, space=operands[0][0].space) for x in written]) + _main(written)
        if one.operation in ('dynamic-update-slice', 'scatter'):
            update = operands[1 if one.operation == 'dynamic-update-slice' else -1]
            return _main(update) + _main([dataclasses.replace(update[0], space=written[0].space)])
        return sum(map(_main, operands)) + _main(written)

    def _fused(self, inside, operands, results):
        """Of a fusion: parameters of which only slices are read count those, and a result that updates an operand in place
        what is new."""
        root = _root(inside)
        roots = [inside[part] for part in root.operands] if root.operation == 'tuple' else [root]
        total, in_place = 0, []
        for out, result in zip(roots, results):
            out, within = self._made(out, inside)
            if out.operation == 'dynamic-update-slice':
                total += _main([dataclasses.replace(within[out.operands[1]].arrays[0], bits=result.bits, space=result.space)])
                in_place.append(out)
            else:
                total += _main([result])
        for one in inside.values():
            if one.operation == 'parameter':
                given = operands[_number(one)]
                whole = _main(given)
                total += min(whole, self._read(one.name, inside, given[0], in_place)) if whole else 0
        return total

    def _made(self, one, inside):
        """(the instruction whose numbers an instruction of a fusion gives, its computation)."""
        while True:
            if one.operation in _VIEWS and one.operands and one.operands[0] in inside:
                one = inside[one.operands[0]]
            elif one.operation == 'fusion' and _root(self.computations[_named(one, 'calls')]).operation != 'tuple':
                inside = self.computations[_named(one, 'calls')]
                one = _root(inside)
            else:
                return one, inside

    def _read(self, name, inside, given, in_place):
        """Bytes that a fusion reads of an array of the main memory that is called so in it, with repetitions."""
        total = given.bytes if inside[name].root else 0
        for user in inside.values():
            for place in (place for place, operand in enumerate(user.operands) if operand == name):
                if user.operation in _SLICES and place == 0:
                    total += dataclasses.replace(user.arrays[0], bits=given.bits).bytes
                elif user.operation in _VIEWS:
                    total += self._read(user.name, inside, given, in_place)
                elif user.operation == 'fusion':
                    nested = self.computations[_named(user, 'calls')]
                    inner = next(one.name for one in nested.values() if one.operation == 'parameter' and _number(one) == place)
                    total += self._read(inner, nested, given, in_place)
                elif place or not any(user is out for out in in_place):
                    total += given.bytes
        return total

    def traffic(self) -> int:
        """Bytes that one chip reads from and writes to its main memory in a run of the program."""
        return sum(times * self.moved(one, there) for one, there, times in self.executed())

    def operations(self) -> dict[str, int]:
        """{operation: how often a run does it}, the most frequent first, of those that make an array; fusions and kernels
        (`custom-call`) count as one."""
        found = collections.Counter()
        for one, _, times in self.executed():
            if not _is_free(one) and any(x.dims for x in one.arrays):
                inside = _root(self.computations[_named(one, 'calls')]) if one.operation == 'async-start' else one
                found[inside.operation.removesuffix('-start')] += times
        return dict(found.most_common())

    def largest(self, count: int) -> list[tuple[int, str]]:
        """(bytes, path in the model) of the largest arrays in the main memory that it makes."""
        found = {}
        for one, there, _ in self.executed():
            if _is_free(one):
                continue
            for x in _written(one, [there[name].arrays for name in one.operands if name in there]):
                if x.space == 0:
                    key = one.source or one.name
                    found[key] = max(found.get(key, 0), x.bytes)
        return sorted(((size, source) for source, size in found.items()), reverse=True)[:count]

    def collectives(self) -> list[Collective]:
        """Those that a run has, in its order; `times` counts loops."""
        found, places, repeated = [], {}, collections.Counter()
        for one, there, times in self.executed():
            for part, inside in self._parts(one, there):
                kind = part.operation.removesuffix('-start')
                if kind not in COLLECTIVES:
                    continue
                if channel := re.search(r'channel_id=(\d+)', part.attributes):  # its start, what hides it and its end repeat it
                    key = id(there), kind, channel[1]
                    repeated[key] += 1
                    if repeated[key] > 1:
                        found[places[key]] = dataclasses.replace(found[places[key]], hidden=repeated[key] > 2)
                        continue
                    places[key] = len(found)
                hidden = one.operation.endswith('-start') and _works_meanwhile(one, there)
                given = [x for name in part.operands if name in inside for x in inside[name].arrays]
                sizes = [x.payload for x in given]
                group = _group(part, self.chips)
                if kind == 'all-gather':
                    payload = sum(sizes) * len(group)
                else:
                    payload = sum(sizes)
                    if kind == 'all-reduce' and inside is not there and any(
                            user.operation == 'dynamic-slice' and user.operands[0] == part.name for user in inside.values()):
                        kind = 'reduce-scatter'
                found.append(Collective(kind, payload, group, times, part.source or one.source, hidden))
        return found

    def _parts(self, one, there):
        """(instruction, its computation) of all that an instruction runs: itself, or what is in a fusion, however deep."""
        if one.operation not in ('fusion', 'async-start'):
            yield one, there
            return
        inside = self.computations[_named(one, 'calls')]
        for part in inside.values():
            yield from self._parts(part, inside)


def _is_free(one):
    """Whether an instruction moves and computes nothing."""
    free = one.operation == 'custom-call' and any(f'"{name}"' in one.attributes for name in _FREE_CALLS)
    return free or one.operation in _FREE or one.operation.endswith('-done')


def _works_meanwhile(start, computation):
    """Whether anything is computed or moved between the start of an asynchronous instruction and its end."""
    after = itertools.dropwhile(lambda one: one is not start, computation.values())
    meanwhile = itertools.takewhile(lambda one: start.name not in one.operands, after)
    return any(not _is_free(one) and not one.operation.endswith('-start') for one in meanwhile)


def _main(arrays: Iterable[Array]) -> int:
    """Their bytes in the main memory."""
    return sum(x.bytes for x in arrays if x.space == 0)


def _root(computation):
    return next(one for one in computation.values() if one.root)


def _number(parameter):
    return int(re.match(r'(\d+)\)', parameter.attributes)[1])


def _written(one, operands):
    """The arrays that an instruction makes: of the start of an asynchronous one those that its end will give."""
    if one.operation == 'copy-start':  # (result, operand, flag)
        return one.arrays[:1]
    if one.operation.endswith('-start') and one.operation != 'all-reduce-start':  # (operands, results, flags)
        return tuple(x for x in one.arrays[sum(map(len, operands)):] if x.dims)
    return one.arrays


def _named(one, attribute):
    return re.search(rf'{attribute}=%?([\w.\-]+)', one.attributes)[1]


def _branches(one):
    if found := re.search(r'branch_computations=\{([^}]*)\}', one.attributes):
        return [name.strip().lstrip('%') for name in found[1].split(',')]
    return [_named(one, 'true_computation'), _named(one, 'false_computation')]


def _constant(one):
    """The whole number that an instruction is; None for others."""
    found = one.operation == 'constant' and re.match(r'(-?\d+)\)', one.attributes)
    return int(found[1]) if found else None


def _instruction(name, rest, root):
    shape, rest = _split(rest)
    operation, _, rest = rest.partition('(')
    operands, depth, end = [], 1, len(rest)
    for at, letter in enumerate(rest):
        depth += (letter in '([{') - (letter in ')]}')
        if depth == 0:
            end = at
            break
    if operation.strip() not in ('parameter', 'constant'):
        operands = re.findall(r'%([\w.\-]+)', rest[:end])
    attributes = rest if operation.strip() in ('parameter', 'constant') else rest[end + 1:]
    return Instruction(name, operation.strip(), tuple(_arrays(shape)), tuple(operands), attributes, root)


def _split(text):
    """(the shape in front, what follows it) of what stands behind the equals sign."""
    if not text.startswith('('):
        shape, _, rest = text.partition(' ')
        return shape, rest
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if depth == 0:
            return text[:at + 1], text[at + 2:]
    return text, ''


def _arrays(shape: str) -> Iterator[Array]:
    for kind, dims, layout in _SHAPE.findall(shape):
        digits = re.search(r'\d+', kind)
        bits = 8 if kind == 'pred' else int(digits[0]) if digits else 0
        order, _, rest = layout.partition(':')
        tile = re.search(r'T\(([\d,]*)\)', rest)
        space = re.search(r'S\((\d+)\)', rest)
        yield Array(_numbers(dims.replace('<=', '')), bits, _numbers(order), _numbers(tile[1]) if tile else (),
                    int(space[1]) if space else 0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(',') if part)


def _group(one: Instruction, chips: int) -> tuple[int, ...]:
    """The chips that the first one exchanges with, of the ways in which a program lists the groups, or of the first pair."""
    text = one.attributes
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", found[1])}
        over = re.findall(r"'([^']*)'", found[3])
        numbers = np.arange(math.prod(sizes.values()))
        if order := re.search(r'\[([\d,]+)\]T\(([\d,]+)\)', found[2]):
            numbers = numbers.reshape(_numbers(order[1])).transpose(_numbers(order[2]))
        elif listed := re.search(r'device_ids=\(([\d,]+)\)', found[2]):
            numbers = np.array(_numbers(listed[1]))
        numbers = numbers.reshape(tuple(sizes.values()))
        return tuple(numbers[tuple(slice(None) if name in over else 0 for name in sizes)].reshape(-1).tolist())
    if found := re.search(r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', text):
        shape, order = _numbers(found[2]), _numbers(found[3] or '')
        numbers = np.arange(math.prod(shape)).reshape(shape)
        numbers = numbers.transpose(order) if order else numbers
        return tuple(numbers.reshape(_numbers(found[1]))[0].tolist())
    if found := re.search(r'replica_groups=\{\{([\d,]*)\}', text):
        return _numbers(found[1])
    if 'replica_groups={}' in text:
        return tuple(range(chips))
    if found := re.search(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}', text):
        pairs = re.findall(r'(\d+),(\d+)', found[1])
        return next(((int(start), int(end)) for start, end in pairs if start != end), (0,))
    raise ValueError(f'{one.name} does not say, in a form that is known, which chips exchange: {text:.200}')


def summed(collectives: Sequence[Collective], mesh: Mapping[str, int]) -> list[dict]:
    """[{kind, axes, count, payload, sent, hidden}] of collectives, by kind and axes, the most that is sent first; of what is
    sent, other work hides `hidden`."""
    groups = {}
    for one in collectives:
        axes = ' '.join(one.axes(mesh))
        row = groups.setdefault((one.kind, axes), {'kind': one.kind, 'axes': axes, 'count': 0, 'payload': 0, 'sent': 0,
                                                 'hidden': 0})
        row['count'] += one.times
        row['payload'] += one.times * one.payload
        row['sent'] += one.sent
        row['hidden'] += one.hidden * one.sent
    return sorted(groups.values(), key=lambda row: -row['sent'])
