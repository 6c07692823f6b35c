"""The special tokens of a run of texts, as configs of other libraries name them."""

import dataclasses

from data.opened import Opened
from data.seq2seq.parallel import OpenParallel
from data.text import frames
from data.text.examples import OpenExamples
from data.text.masked import OpenMasked
from data.tokenizers import hugging_face
from data.tokenizers.roles import Roles
from data.tokenizers.specs import WordPiece
from data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Special:
    """The special tokens of a run.

    Attributes:
      roles: those of its tokenizer, changed where its data or its decoder use other tokens.
      frame: the special tokens around texts, None if they are unknown.
      start: the first input of the decoder, -1 without a decoder.
      pairs: whether the run translates pairs of texts.
    """

    tokenizer: Tokenizer
    roles: Roles
    frame: frames.Frame | None
    start: int
    pairs: bool

    def ids(self) -> dict[str, int | None]:
        """The fields of the config for transformers that name tokens; None for a missing token that has a default there."""
        found = {name: getattr(self.roles, role) for role, name in hugging_face.IDS.items()}
        found['decoder_start_token_id'] = self.start
        usual = [hugging_face.IDS[role] for role in ('begin', 'end', 'pad')]
        return {name: one if one >= 0 else None for name, one in found.items() if one >= 0 or name in usual}


def of(data: Opened, start: int, pads: bool) -> Special:
    """The special tokens of data.

    Args:
      start: the first input of the decoder of the task, -1 without a decoder.
      pads: whether there is to be a token for padding, if need be that at the end.
    """
    tokenizer = data.tokenizer.inner if isinstance(data.tokenizer, frames.Framed) else data.tokenizer
    roles = tokenizer.roles
    match data:
        case OpenParallel():
            frame, start = frames.Frame.of(data.config.framing, tokenizer), data.start
            roles = dataclasses.replace(roles, begin=next(iter(frame.before), roles.begin), end=data.end)
        case OpenExamples() | OpenMasked():
            frame = data.frame
            if start >= 0:
                roles = dataclasses.replace(roles, end=roles.end if frame.end < 0 else frame.end)
        case _:  # a language model
            frame = frames.Frame.of('plain', tokenizer) if isinstance(data.config.tokenizer, WordPiece) else None
            roles = dataclasses.replace(roles, begin=data.begin, end=data.end)
    if roles.pad < 0 and start >= 0:
        roles = dataclasses.replace(roles, pad=start)
    elif roles.pad < 0 and pads:
        roles = dataclasses.replace(roles, pad=roles.of('end'))
    return Special(tokenizer, roles, frame, start, isinstance(data, OpenParallel))
