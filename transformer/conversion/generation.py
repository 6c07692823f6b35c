"""Converts generation settings of Hugging Face transformers into a strategy of transformer/decoding and a number of tokens, and
back.

    read({'num_beams': 4, 'length_penalty': 2.0, 'max_length': 142, 'typical_p': 0.9}, Prompts(start=0, end=1))
    -> Beam(size=4, length_penalty=2.0, length_offset=0.0), 141, ('typical_p',)

Beams there divide log P by |Y|^length_penalty, which is `Beam` with length_offset=0. `Beam` stops only when no better output
can follow, which is early_stopping='never' there. Repetition penalties there change logits in greedy decoding and sampling, and
log-probabilities in beams; here `Greedy` and `Beam` change log-probabilities and `Sample` logits, so that greedy decoding with
such a penalty becomes Sample(top_k=1).
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

from transformer.decoding.constraints import Anything, Constraint, First, MinLength, NoRepeat, Repetition, Without, parts_of
from transformer.decoding.strategies import Beam, DiverseBeam, Greedy, Sample, Strategy

# Every setting that config.json may hold too, and its default, which is equivalent to its absence.
SETTINGS = {
    'bad_words_ids': None, 'begin_suppress_tokens': None, 'diversity_penalty': 0.0, 'do_sample': False, 'early_stopping': False,
    'encoder_no_repeat_ngram_size': 0, 'encoder_repetition_penalty': 1.0, 'epsilon_cutoff': 0.0, 'eta_cutoff': 0.0,
    'exponential_decay_length_penalty': None, 'forced_bos_token_id': None, 'forced_eos_token_id': None, 'length_penalty': 1.0,
    'max_length': 20, 'max_new_tokens': None, 'min_length': 0, 'min_new_tokens': None, 'min_p': None, 'no_repeat_ngram_size': 0,
    'num_beam_groups': 1, 'num_beams': 1, 'num_return_sequences': 1, 'remove_invalid_values': False,
    'renormalize_logits': False, 'repetition_penalty': 1.0, 'suppress_tokens': None, 'temperature': 1.0, 'top_k': 50,
    'top_p': 1.0, 'typical_p': 1.0}
_WHOLE = ('max_length', 'max_new_tokens', 'min_length', 'min_new_tokens', 'no_repeat_ngram_size', 'num_beams',
          'num_return_sequences', 'top_k', 'forced_bos_token_id')
_NUMBERS = ('length_penalty', 'min_p', 'repetition_penalty', 'temperature', 'top_p')
_OF_BEAMS = ('diversity_penalty', 'early_stopping', 'length_penalty', 'num_beam_groups')  # without effect elsewhere
_OF_SAMPLES = ('epsilon_cutoff', 'eta_cutoff', 'min_p', 'temperature', 'top_h', 'top_k', 'top_p', 'typical_p')
_LENGTHS = 'max_length', 'max_new_tokens'
# Settings that a strategy and a number of tokens express here, or exclude.
_SAID = (*_WHOLE, *_NUMBERS, 'bad_words_ids', 'diversity_penalty', 'do_sample', 'early_stopping', 'num_beam_groups',
         'suppress_tokens')
# Other contents of generation_config.json: special tokens, its origin, and settings without effect on outputs.
IDS = 'bos_token_id', 'eos_token_id', 'pad_token_id', 'decoder_start_token_id'
_ORIGIN = 'transformers_version', '_from_model_config', '_commit_hash', '_original_object_hash'
_WITHOUT_EFFECT = ('cache_config', 'cache_implementation', 'output_attentions', 'output_hidden_states', 'output_logits',
                   'output_scores', 'remove_invalid_values', 'return_dict_in_generate', 'use_cache')


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The tokens with which outputs begin and end.

    Attributes:
      start: the first input of the decoder; -1: prompts are texts.
      end: the token that ends an output; -1: there is none.
    """
    start: int
    end: int

    @property
    def decoder(self) -> bool:
        return self.start >= 0


def stated(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings in generation_config.json or, if there is none (None), in config.json, where older versions wrote them. If
    several tokens end an output, `eos_token_id` is among them."""
    if generation is None:
        found = {name: config[name] for name in SETTINGS if config.get(name) is not None}
        # BART's first files; transformers 4 reads it so.
        first = config.get('bos_token_id', 0) if (
            config.get('model_type') == 'bart' and config.get('force_bos_token_to_be_generated')) else None
        return ({} if first is None else {'forced_bos_token_id': first}) | found
    found = {name: value for name, value in generation.items() if name not in (*IDS, *_ORIGIN) and value is not None}
    ends = generation.get('eos_token_id')
    return found | ({'eos_token_id': ends} if isinstance(ends, list) and len(ends) > 1 else {})


def read(settings: Mapping[str, Any], prompts: Prompts) -> tuple[Strategy | None, int, tuple[str, ...]]:
    """(strategy, tokens, names of the settings that have no counterpart).

    The strategy is None where the settings name none, or one that does not exist here; tokens is 0 where they do not limit the
    new tokens. Raises ValueError for a setting of the wrong type.
    """
    given = {name: value for name, value in settings.items() if value not in (None, [], SETTINGS.get(name))}
    for names, kinds, wanted in ((_WHOLE, int, 'a whole number'), (_NUMBERS, (int, float), 'a number')):
        for name in names:
            if name in given and (not isinstance(given[name], kinds) or isinstance(given[name], bool)):
                raise ValueError(f'The settings of generation have {name}={given[name]!r}; expected {wanted}.')
    if 'min_new_tokens' in given:
        given.pop('min_length', None)  # which min_new_tokens overrides
    rest = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
    tokens = rest.pop('max_new_tokens', 0)
    if tokens:
        rest.pop('max_length', None)  # which max_new_tokens overrides
    elif prompts.decoder:
        tokens = max(rest.pop('max_length', 1) - 1, 0)
    strategy, said = _strategy(settings, given, prompts)
    return strategy, tokens, tuple(name for name in rest if name not in said)


def _strategy(settings, given, prompts):
    """(the strategy, the settings that it expresses or that have no effect with it)."""
    beams, draws, count = (given.get(name, SETTINGS[name]) for name in ('num_beams', 'do_sample', 'num_return_sequences'))
    if beams > 1 and (draws or 'num_beam_groups' in given):
        return None, ()
    constraint, said = _constraint(given, prompts)
    said += ['num_beams', 'do_sample', 'num_return_sequences']
    said += () if beams > 1 else _OF_BEAMS
    said += ('temperature', 'top_k', 'top_p', 'min_p') if draws else _OF_SAMPLES
    try:
        if beams > 1:
            power = float(given.get('length_penalty', SETTINGS['length_penalty']))
            said += ('length_penalty',) if power >= 0 else ()
            said += ('early_stopping',) if given.get('early_stopping') == 'never' else ()
            more = dict(length_penalty=power, length_offset=0.0) if power > 0 else {}
            return Beam(size=beams, count=count, constraint=constraint, **more), said
        if draws:
            more = {name: float(given[name]) for name in ('temperature', 'top_p', 'min_p') if name in given}
            top_k = SETTINGS['top_k'] if settings.get('top_k') is None else settings['top_k']
            return Sample(top_k=top_k, count=count, constraint=constraint, **more), said
    except ValueError:  # values that are out of range here
        return None, ()
    if count > 1:
        return None, ()
    if any(isinstance(part, Repetition) for part in parts_of(constraint)):
        return Sample(top_k=1, constraint=constraint), said
    named = constraint != Anything() or any(settings.get(name) is not None for name in ('num_beams', 'do_sample'))
    return Greedy(constraint) if named else None, said


def _constraint(given, prompts):
    """(the constraint, the names of the settings that it expresses)."""
    parts = {}
    if (penalty := given.get('repetition_penalty', 0)) > 0:
        parts['repetition_penalty'] = Repetition(float(penalty), end=prompts.start == prompts.end)
    if (size := given.get('no_repeat_ngram_size', 0)) > 0:
        parts['no_repeat_ngram_size'] = NoRepeat(size)
    words = given.get('bad_words_ids', ())
    single = [word[0] for word in words if len(word) == 1]
    if words and len(single) == len(words) and _are_ids(single):
        parts['bad_words_ids'] = Without(tuple(word for word in single if word != prompts.end))  # never forbids the end
    if prompts.decoder and given.get('min_length', 0) > 1:
        parts['min_length'] = MinLength(given['min_length'] - 1)
    if given.get('min_new_tokens', 0) > 0:
        parts['min_new_tokens'] = MinLength(given['min_new_tokens'])
    if prompts.decoder and given.get('forced_bos_token_id', -1) >= 0:
        parts['forced_bos_token_id'] = First(given['forced_bos_token_id'])
    if 'suppress_tokens' in given and _are_ids(given['suppress_tokens']):
        parts['suppress_tokens'] = Without(tuple(given['suppress_tokens']))
    return functools.reduce(operator.and_, parts.values()) if parts else Anything(), [*parts]


def _are_ids(found):
    return all(type(one) is int and one >= 0 for one in found)


def write(strategy: Strategy | None, tokens: int, theirs: Mapping[str, Any],
          prompts: Prompts) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(settings, parts of the strategy without a counterpart there).

    Args:
      theirs: the settings that were read. They are written unchanged if they still mean this strategy and number of tokens;
        those without a counterpart here are always written, also those of a strategy that does not exist here unless there is
        another now.
    """
    if read(theirs, prompts)[:2] == (strategy, tokens):
        return dict(theirs), ()
    unread = strategy is None and read(theirs, prompts)[0] is None
    settings = {name: value for name, value in theirs.items() if name not in (_LENGTHS if unread else _SAID)}
    if tokens:
        settings['max_new_tokens'] = tokens
    if strategy is None:
        return settings, ()
    chosen, lost = _choice(strategy)
    for part in parts_of(strategy.constraint):
        said = _settings_of(part, strategy, prompts)
        if not said or said.keys() & chosen.keys():
            lost.append(repr(part))
        chosen = said | chosen
    return settings | chosen, tuple(lost)


def _choice(strategy):
    """(the settings of a strategy without its constraint, the parts that no setting expresses)."""
    count = {'num_return_sequences': strategy.count} if strategy.count > 1 else {}
    match strategy:
        case Greedy() | Sample(top_k=1, count=1):
            return {'do_sample': False, 'num_beams': 1}, []
        case Sample():
            return count | {'do_sample': True, 'num_beams': 1, 'temperature': strategy.temperature, 'top_k': strategy.top_k,
                            'top_p': strategy.top_p} | ({'min_p': strategy.min_p} if strategy.min_p else {}), []
        case DiverseBeam():
            return {}, [repr(dataclasses.replace(strategy, constraint=Anything()))]
        case Beam():
            lost = [f'coverage_penalty={strategy.coverage_penalty}'] if strategy.coverage_penalty else []
            power = strategy.length_penalty
            if power and strategy.length_offset:
                lost.append(f'length_penalty={power} with length_offset={strategy.length_offset}')
                power = 0.0
            return count | {'do_sample': False, 'num_beams': strategy.size, 'length_penalty': power,
                            'early_stopping': 'never'}, lost
    return {}, [repr(strategy)]


def _settings_of(part: Constraint, strategy: Strategy, prompts: Prompts) -> dict[str, Any]:
    """The settings that express a constraint, {} if none does."""
    match part:
        case NoRepeat():
            return {'no_repeat_ngram_size': part.ngram}
        case Repetition() if part.end == (prompts.start == prompts.end) and not isinstance(strategy, Greedy):
            return {'repetition_penalty': part.penalty}
        case Without():
            return {'suppress_tokens': list(part.tokens)}
        case MinLength():
            return {'min_new_tokens': part.tokens}
        case First() if prompts.decoder:
            return {'forced_bos_token_id': part.token}
    return {}
