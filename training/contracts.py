"""What the parts of a run offer each other: data, model, task, evaluator and reader, which a config names by import path.

`training/run.py` holds each part that it constructs against its contract, and a test every class that any config names. A
method may have further parameters, with defaults or by keyword alone, where a contract has `**`.

B is the rows of a batch, T the tokens of a row. A batch is a flat dict of arrays of B rows: numpy's where the data gives
it, JAX's inside of a step. What is wrong with an input is a ValueError of one sentence.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, runtime_checkable

import jax

Batch = Mapping[str, Any]
Shapes = Mapping[str, tuple[tuple[int, ...], Any]]  # {name: (shape, dtype)} of a batch
Terms = Mapping[str, tuple[Any, Any]]  # {name: (sum, weight)}, scalars in float32


class Data(Protocol):
    """A frozen dataclass that says where data are and how they become batches; `data.pipeline` names it.

    Attributes:
      batch_size: B, examples per optimizer step on all devices.
      reader: the import path of the Reader of such data; '': there is none.
    """
    batch_size: int
    reader: str

    def open(self, folder: Any, source: Any = None) -> 'Opened':
        """The opened data.

        Args:
          folder: of a run whose tokenizer or class names are used, a path; None: they are learnt from the training part.
          source: of a run that this one starts from, a path or None, whose tokenizer is used.
        Raises: ValueError or FileNotFoundError for a field or a source that cannot be used.
        """


class Batches(Protocol):
    """A finite pass over a split, that may be iterated any number of times. All batches have the same number of rows; those
    that fill up the last one have 0 in `example_weights` [B] float32, and all others 1.

    Attributes:
      facts: numbers about the split by name, such as 'bytes' and 'tokens'.
    """
    facts: Mapping[str, Any]

    def __iter__(self) -> Iterator[Batch]:
        """The batches, in the order of the split, or in another with `row` [B], the number of each row in that order."""


class Opened(Protocol):
    """Data that `Data.open` has opened. Only `describe`, `digest`, `contents`, `train`, `evaluation`, `score`,
    `batches_per_epoch` and `plateau` read the data themselves where the folder of a run was given.

    Attributes:
      config: the Data.
      facts: {field of a model: what the data tell of it}, such as 'vocab' and 'classes'.
      meanings: {what the numbers of a batch stand for, such as 'tokenizer' and 'classes': its digest}: models that are applied
        to the same batch must agree in them.
      unit: what `count` counts, in the plural, such as 'tokens'.
      shapes: {name: (shape, dtype)} of a training batch; of several lengths the longest.
      buckets: the shapes of all training batches, the longest last.
      packed: whether a row holds several examples, which a model has to tell apart by `segments`.
      batches_per_epoch: how many batches hold the training part once, a float.
      plateau: nats, the loss of a model that knows only how frequent each target is and copies what it sees of it; nan: it is
        not known.
    """
    config: Data
    facts: Mapping[str, Any]
    meanings: Mapping[str, str]
    unit: str
    shapes: Shapes
    buckets: Sequence[Shapes]
    packed: bool
    batches_per_epoch: float
    plateau: float

    def save(self, folder: Any) -> None:
        """Writes into the folder of a run, a path, what opening with that folder needs."""

    def describe(self) -> str:
        """One line about the training part, for the log."""

    def count(self, batch: Batch) -> int:
        """How many units a batch holds, without padding."""

    def digest(self, split: str) -> str:
        """The name of the contents of a split, and of how they are read: another one means other data."""

    def contents(self, split: str) -> str:
        """The name of the examples of a split, however they are read where the data can tell: runs with the same one can be
        compared example by example."""

    def train(self, seed: int) -> 'Stream':
        """Endless batches, shuffled anew in every epoch. Raises ValueError for data that cannot be used."""

    def evaluation(self, split: str, batch_size: int, **view: Any) -> Batches:
        """Batches that hold every example of a split once.

        Args:
          split: 'train', 'valid', 'test' or an expression over the data such as 'train[:1%]'.
          batch_size: rows in a batch.
          view: how rows are cut, as an evaluator asks for it.
        Raises: ValueError for an unknown or empty split, and for a view that these data do not have.
        """

    def score(self, paths: Sequence[str], batch_size: int, **view: Any) -> Batches:
        """The same over files. Raises ValueError or FileNotFoundError for files that hold no such data."""


class Stream(Protocol):
    """Endless training batches, which go on exactly where they were (a grain.DatasetIterator, say)."""

    def __next__(self) -> Batch:
        """The next batch."""

    def get_state(self) -> Mapping[str, Any]:
        """The position, of which JSON can be made."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a position. Raises anything if it is not one of these data."""

    def start_prefetch(self) -> None:
        """Begins to read ahead, at a position that was set."""


class Model(Protocol):
    """A Flax module, of pure functions and hashable, whose required fields are filled with the facts of the data where the
    config leaves them open. It is called with the `inputs` of its task and a random `key` in training (None: no dropout, and
    running statistics), and returns {name: array}."""

    @property
    def attentions(self) -> Mapping[str, Any]:
        """{name: heads} of the attentions whose heads can be switched off, with the keyword `head_mask` {name: factors}; empty
        if there is none."""

    def init(self, rngs: Any, *args: Any, **inputs: Any) -> Mapping[str, Any]:
        """{'params': nested dict of arrays, 'roles': the same of what each is (`Role`)} for inputs, and 'statistics' of a model
        that gathers any in training, such as the running moments of batch normalization."""

    def apply(self, variables: Mapping[str, Any], *args: Any, **inputs: Any) -> Any:
        """{output: array} for inputs; with the keyword capture=('attention',) also the weights of every attention,
        {'block_0/attention': [B, N, T, S], ..}, where the model has any; [B, N, T, t] over the t keys of the query's window.
        `variables` are {'params': ..} and, of a model that has them, {'statistics': ..}, which training changes with the
        keyword mutable=['statistics']."""


@runtime_checkable
class Role(Protocol):
    """What a parameter is, as the part that makes it declares; axes are numbers of its dimensions.

    Attributes:
      kind: 'matrix', 'table' or 'vector'.
      inputs, outputs: axes of a matrix.
      rows: the axis of a table's rows, or None.
      heads, inner: the axis of attention heads, and of the inner width of a feed-forward; None: there is none.
      multiple: of a matrix under muP, how many times wider than the base its model is; None: there is no muP.
    """

    kind: str
    inputs: tuple
    outputs: tuple
    rows: int | None
    heads: int | None
    inner: int | None
    multiple: float | None


@runtime_checkable
class Fitting(Protocol):
    """A model whose parameters can be made to fit inputs of another shape, as positions of images can."""

    def fitted(self, path: str, parameter: Any, before: Mapping[str, Any], **inputs: Any) -> Any:
        """A parameter for these inputs.

        Args:
          path: its name, such as 'positions/embedding'.
          parameter: that of another run.
          before: the inputs of that run, jax.ShapeDtypeStructs by their names.
          inputs: the same of this run.
        """


@runtime_checkable
class Separating(Protocol):
    """A model that says whether it can have packed rows; all others can.

    Attributes:
      packs: whether it tells apart the examples of a row, by `segments`.
    """
    packs: bool


class Task(Protocol):
    """What is learnt.

    Attributes:
      coefficients: {term: factor}: the loss is the sum over these of factor·sum/weight. Other terms are metrics.
      keywords: names of further keywords of the model, which `loss` computes.
    """
    coefficients: Mapping[str, float]
    keywords: Sequence[str]

    def inputs(self, batch: Batch) -> Mapping[str, Any]:
        """The inputs of the model for a batch, of arrays or of their shapes. Raises KeyError for what the batch lacks."""

    def options(self, train: bool) -> Mapping[str, Any]:
        """Further keywords of the model, constants."""

    def loss(self, forward: Any, batch: Batch, *, key: Any, step: Any, train: bool) -> Terms:
        """{term: (sum, weight)}, scalars; weights depend on the batch alone.

        Args:
          forward: applies the model, `forward(**inputs) -> {output: array}`, and `forward.NAME(**inputs)` the companion of
            that name (training/companions.py). In an evaluation it may lack one, `forward.lacks(NAME)`; the terms that need it
            can then be left out.
          key: for what is drawn at random in training, else None.
          step: of training, int32 []; None in evaluation.
        """

    def derived(self, averages: Mapping[str, float], facts: Mapping[str, Any]) -> Mapping[str, float]:
        """Further numbers from the averages over a split and its facts."""

    def remark(self, rows: Sequence[Mapping[str, float]], data: Opened, steps: int) -> str:
        """A sentence that tells the user what is wrong with how training goes, '' for nothing; it is told once.

        Args:
          rows: those of the training log so far, with 'step', the terms and 'learning_rate'.
          steps: train.steps.
        """


class Snapshot(Protocol):
    """A run at some parameters: what evaluators and readers work with.

    Attributes:
      run: the Run, with `config`, `mesh`, `task`, `evaluation(name, split)`, and for the task's loss `companions.variables` and
        `forward(apply, companions' variables)`; `compiled(function)` is function(run, ..) under jax.jit, kept with the run.
      params: nested dict of arrays.
      variables: what the model is applied to: {'params': params}, with {'statistics': ..} if it has any.
      step: how many steps of training they have had.
      model, data: those of the run.
    """
    run: Any
    params: Any
    variables: Mapping[str, Any]
    step: int
    model: Model
    data: Opened

    def apply(self, **inputs: Any) -> Mapping[str, jax.Array]:
        """The outputs of the model, compiled once for every shape of the inputs."""

    def captured(self, *names: str, **inputs: Any) -> Mapping[str, Any]:
        """{layer/name: array} of what the layers of the model say on request, such as 'attention'."""

    def key(self, name: str, seed: int | None = None) -> jax.Array:
        """The key of a random stream at this step; of a seed other than the run's, at any step."""

    def averages(self, batches: Batches) -> Mapping[str, float]:
        """{term: its average over the split}, 'loss', 'weight', and what the task derives from them."""

    def each(self, batches: Batches) -> Mapping[str, Any]:
        """{term: [rows, 2]}, the sum and the weight of every term for each row, in the order of the split."""

    def text(self, name: str, text: str) -> None:
        """Keeps a text beside the numbers, if there is a report."""

    def picture(self, name: str, image: Any) -> None:
        """Keeps a picture, a matplotlib figure or an array [height, width, 3] in 0..1, if there is a report."""


class Evaluator(Protocol):
    """Measures a run; a frozen dataclass that `evals.NAME.evaluator` names.

    Attributes:
      view: keywords for `Opened.evaluation`: how rows are cut.
      percent: the names of its numbers that are in per cent; of 'bleu/1-5' the part before the slash.
    """
    view: Mapping[str, Any]
    percent: Sequence[str]

    def check(self, run: Any, batches: Batches) -> Sequence[str]:
        """The names of the numbers that it gives. Raises ValueError for what is wrong with it for a run, before anything is
        computed."""

    def __call__(self, snapshot: Snapshot, batches: Batches) -> Mapping[str, float]:
        """{name: number}."""


class Reader(Protocol):
    """Makes something of the inputs of predict.py, and draws those of eval.py; a frozen dataclass that `data.reader` names.

    Attributes:
      flags: what `answers` takes as keywords, of --strategy, --tokens, --seed, --truncate, --prefix, --candidates and
        --pictures, and `watch`, a function that is called with each piece of a text as soon as it is generated.
      usual: the strategy of those that generate text, else None.
      several: whether an input has several lines.
    """
    flags: Sequence[str]
    usual: Any
    several: bool

    def lines(self, content: bytes | None, name: str) -> Sequence[str]:
        """What an input asks, from its bytes; `name` is its path, or '-' for stdin. None: `name` is a folder, or a pattern of
        several files. Raises ValueError for other bytes."""

    def answers(self, snapshot: Snapshot, lines: Sequence[str], name: str, **flags: Any) -> Iterable[tuple[str, Mapping]]:
        """(a line of text, an object for JSON) for each answer, in the order of the lines. Raises ValueError, naming the line,
        for one that cannot be answered, and for a run whose data or model lack what is needed."""

    def picture(self, snapshot: Snapshot, given: str, steps: bool = False) -> tuple[Any, Sequence[Mapping], Mapping]:
        """What the attention of a run looks at in an input: (what draws it: figure() gives a matplotlib figure, page() a page
        of HTML, an object for JSON for each layer, what else is known); with `steps` the figure also has the scores and the
        mask that it comes from. Raises ValueError for what cannot be drawn."""

    def grid(self, snapshot: Snapshot) -> tuple[int, int] | None:
        """(rows, columns) in which the positions of the model lie, without a class token; None: they are a row."""


def members(contract: type) -> dict[str, Any]:
    """{name: function, or None for an attribute} of what a Protocol asks for."""
    found: dict[str, Any] = {}
    for cls in reversed(contract.__mro__):
        if cls not in (object, Generic, Protocol):
            found |= dict.fromkeys(inspect.get_annotations(cls))
            found |= {name: value for name, value in vars(cls).items() if inspect.isfunction(value)
                      and (not name.startswith('_') or name in ('__call__', '__iter__'))}
    return found


def misfits(part: Any, contract: type) -> list[str]:
    """What a part, or a class, lacks of a contract, each a clause such as 'it has no train'. Nothing of the part is run: its
    properties may read a whole text. Of a class, attributes count that its annotations name."""
    asked, nothing = members(contract), object()
    given = {name: inspect.getattr_static(part, name, nothing) for name in asked}
    annotated = {name for cls in part.__mro__ for name in inspect.get_annotations(cls)} if inspect.isclass(part) else ()
    lacks = [name for name in asked if given[name] is nothing and name not in annotated]
    found = [f'it has no {", ".join(lacks)}'] if lacks else []
    for name, function in asked.items():
        if function and given[name] is not nothing:
            own, wanted = _signature(given[name]), _signature(function)
            if own is None or not _takes(own, wanted):
                found.append(f'its {name} is not called as {name}{wanted}' + (f' but as {name}{own}' if own else ''))
    return found


def _signature(method: Any) -> inspect.Signature | None:
    """That of a method in the body of a class, without `self`; None of what is no method."""
    function = method.__func__ if isinstance(method, staticmethod | classmethod) else method
    if not inspect.isroutine(function):
        return None
    given = list(inspect.signature(function).parameters.values())[0 if isinstance(method, staticmethod) else 1:]
    return inspect.Signature([one.replace(annotation=one.empty) for one in given])


def _takes(own: inspect.Signature, wanted: inspect.Signature) -> bool:
    """Whether a method can be called wherever the wanted one can."""
    ordered = [one for one in wanted.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    keywords = [one.name for one in wanted.parameters.values() if one.kind is one.KEYWORD_ONLY]
    names = [one.name for one in own.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    try:
        for some in (ordered, [one for one in ordered if one.default is one.empty]):
            own.bind(*some, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return names[:len(ordered)] == [one.name for one in ordered]
