"""Settings of generation as strategies: what transformers made of them (tests/reference), in and out again."""

import json

import jax
import pytest
from absl.testing import absltest, parameterized

from tests.recorded import REFERENCE, case, convert, end_of
from training.config import resolve
from transformer.conversion.generation import Prompts, read, stated, write
from transformer.decoding.constraints import First, MaxLength, MinLength, NoRepeat, Repetition, Without
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, DiverseBeam, Greedy, Sample, Strategy

TEXTS, START, END = Prompts(-1, 9), Prompts(0, 9), Prompts(2, 2)
RECORDED = json.loads((REFERENCE / 'generation.json').read_text())


class GenerationTest(parameterized.TestCase):

    @parameterized.parameters(*RECORDED)
    @pytest.mark.slow
    def test_what_transformers_generates(self, name):
        prompt = case(name)['prompt']
        model, params = convert.from_hf(REFERENCE / name)
        rows = [row[there == 1] for row, there in zip(prompt['input_ids'], prompt['attention_mask'])]
        start, end = convert.opened(REFERENCE / name)[1].get('decoder_start_token_id'), end_of(name)
        prompts, source = (rows, None) if name == 'gpt2' else ([[start]] * len(rows), rows)
        for settings, wanted in RECORDED[name]:
            strategy, tokens, rest = read(settings, Prompts(-1 if source is None else start, end))
            self.assertEmpty(rest)
            found = generate(model, params, prompts, source=source, steps=tokens, strategy=strategy, end=end,
                             vocab=model.vocab, key=jax.random.key(0))
            self.assertEqual([[*best.tokens, *[end] * best.finished] for best, *_ in found], wanted, settings)

    @parameterized.parameters(
        ({}, TEXTS, None, 0), ({'max_length': 20, 'early_stopping': True, 'temperature': 0.5}, START, None, 0),
        ({'do_sample': False}, TEXTS, Greedy(), 0), ({'num_beams': 1, 'max_length': 50}, START, Greedy(), 49),
        ({'no_repeat_ngram_size': 3}, TEXTS, Greedy(NoRepeat(3)), 0),
        ({'do_sample': True}, TEXTS, Sample(top_k=50), 0),
        ({'do_sample': True, 'top_k': 0, 'top_p': 0.9, 'temperature': 2, 'num_return_sequences': 3, 'max_new_tokens': 7}, TEXTS,
         Sample(temperature=2.0, top_p=0.9, count=3), 7),
        ({'repetition_penalty': 1.2}, END, Sample(top_k=1, constraint=Repetition(1.2, end=True)), 0),
        ({'num_beams': 4}, TEXTS, Beam(4, 1.0, length_offset=0.0), 0),
        ({'num_beams': 4, 'length_penalty': 0.0, 'num_return_sequences': 2}, TEXTS, Beam(4, count=2), 0),
        ({'num_beams': 6, 'length_penalty': 2.0, 'max_length': 142, 'min_length': 56, 'no_repeat_ngram_size': 3,
          'forced_bos_token_id': 0, 'max_new_tokens': None, 'use_cache': False}, END,
         Beam(6, 2.0, length_offset=0.0, constraint=NoRepeat(3) & MinLength(55) & First(0)), 141),
        ({'num_beams': 2, 'bad_words_ids': [[3], [9]], 'suppress_tokens': [1], 'max_length': 9, 'max_new_tokens': 5}, START,
         Beam(2, 1.0, length_offset=0.0, constraint=Without((3,)) & Without((1,))), 5),
        ({'num_beams': 4, 'min_length': 56, 'min_new_tokens': 10, 'max_length': 142}, END,
         Beam(4, 1.0, length_offset=0.0, constraint=MinLength(10)), 141),
        ({'do_sample': False, 'min_length': 56, 'min_new_tokens': 3}, TEXTS, Greedy(MinLength(3)), 0))
    def test_what_is_said_here(self, settings, prompts, strategy, tokens):
        self.assertEqual(read(settings, prompts), (strategy, tokens, ()))
        self.assertEqual(write(strategy, tokens, settings, prompts), (settings, ()))  # as it was
        if strategy is not None:
            self.assertEqual(resolve.parse(repr(strategy), Strategy, 'strategy'), strategy)

    @parameterized.parameters(
        ({'num_beams': 4, 'length_penalty': -1.0}, TEXTS, Beam(4), ['length_penalty']),
        ({'num_beams': 4, 'early_stopping': True, 'length_penalty': 0.0}, START, Beam(4), ['early_stopping']),
        ({'num_beams': 2, 'do_sample': True, 'top_p': 0.5}, TEXTS, None, ['num_beams', 'do_sample', 'top_p']),
        ({'num_beams': 4, 'num_beam_groups': 2, 'diversity_penalty': 0.5}, TEXTS, None,
         ['num_beams', 'num_beam_groups', 'diversity_penalty']),
        ({'do_sample': True, 'typical_p': 0.9, 'top_k': 9}, TEXTS, Sample(top_k=9), ['typical_p']),
        ({'do_sample': True, 'temperature': 0.0}, TEXTS, None, ['do_sample', 'temperature']),
        ({'do_sample': False, 'max_length': 50, 'min_length': 10, 'forced_bos_token_id': 3}, TEXTS, Greedy(),
         ['max_length', 'min_length', 'forced_bos_token_id']),
        ({'do_sample': False, 'bad_words_ids': [[1, 2]], 'suppress_tokens': [-1], 'forced_eos_token_id': 2}, TEXTS, Greedy(),
         ['bad_words_ids', 'suppress_tokens', 'forced_eos_token_id']),
        ({'eos_token_id': [2, 7], 'assistant_early_exit': 3}, TEXTS, None, ['eos_token_id', 'assistant_early_exit']))
    def test_what_has_no_counterpart_is_named(self, settings, prompts, strategy, names):
        found, tokens, rest = read(settings, prompts)
        self.assertEqual((found, tokens, sorted(rest)), (strategy, 0, sorted(names)))

    @parameterized.parameters(('num_beams', '4', 'a whole number'), ('max_length', 2.5, 'a whole number'),
                              ('top_k', True, 'a whole number'), ('length_penalty', 'much', 'a number'))
    def test_settings_of_another_type(self, name, value, wanted):
        with self.assertRaisesRegex(ValueError, f'have {name}={value!r}; expected {wanted}'):
            read({name: value}, TEXTS)

    @parameterized.parameters(
        (Greedy(), TEXTS), (Sample(0.7, 5, 0.8, 0.1, 2), TEXTS), (Beam(3, count=2), TEXTS),
        (Beam(4, 2.0, length_offset=0.0, constraint=NoRepeat(2) & MinLength(4) & First(7)), START),
        (Sample(top_k=1, constraint=Repetition(1.3, end=True) & Without((1, 2))), END))
    def test_another_strategy_is_written_and_read_again(self, strategy, prompts):
        theirs = {'num_beams': 6, 'early_stopping': True, 'max_length': 30, 'typical_p': 0.9, 'forced_eos_token_id': 2}
        settings, lost = write(strategy, 12, theirs, prompts)
        self.assertEmpty(lost)
        self.assertContainsSubset({'typical_p': 0.9, 'forced_eos_token_id': 2, 'max_new_tokens': 12}, settings)
        self.assertNotIn('max_length', settings)
        self.assertEqual(read(settings, prompts)[:2], (strategy, 12))
        self.assertEqual(json.loads(json.dumps(settings)), settings)

    @parameterized.parameters(
        ({'num_beams': 2, 'do_sample': True, 'top_p': 0.5}, START), ({'do_sample': True, 'temperature': 0.0}, TEXTS),
        ({'num_beams': 4, 'num_beam_groups': 2, 'diversity_penalty': 0.5, 'length_penalty': 2.0}, TEXTS))
    def test_another_number_of_tokens_keeps_a_strategy_that_does_not_exist_here(self, theirs, prompts):
        self.assertEqual(write(None, 30, theirs | {'max_length': 20}, prompts), (theirs | {'max_new_tokens': 30}, ()))
        self.assertEqual(write(None, 0, theirs | {'max_new_tokens': 20}, prompts), (theirs, ()))

    def test_a_strategy_that_exists_here_is_taken_away(self):
        self.assertEqual(write(None, 30, {'num_beams': 4, 'typical_p': 0.9}, TEXTS), (
            {'typical_p': 0.9, 'max_new_tokens': 30}, ()))

    @parameterized.parameters(Greedy(), Beam(4, 1.0, length_offset=0.0))
    def test_groups_of_beams_go_with_the_strategy_that_has_them(self, strategy):
        theirs = {'num_beams': 4, 'num_beam_groups': 4, 'diversity_penalty': 1.0, 'typical_p': 0.9}
        settings, lost = write(strategy, 0, theirs, START)
        self.assertEqual((read(settings, START)[0], lost), (strategy, ()))
        self.assertEqual(settings.keys() & {'num_beam_groups', 'diversity_penalty', 'typical_p'}, {'typical_p'})

    @parameterized.parameters(
        (Beam(4, 0.6), {'length_penalty': 0.0, 'num_beams': 4}, ['length_penalty=0.6 with length_offset=5.0']),
        (Beam(4, coverage_penalty=0.2), {'num_beams': 4}, ['coverage_penalty=0.2']),
        (DiverseBeam(), {}, [repr(DiverseBeam())]), (Beam(2, constraint=MaxLength(3)), {}, ['MaxLength(tokens=3)']),
        (Greedy(Repetition(1.2)), {'num_beams': 1}, [repr(Repetition(1.2))]),
        (Greedy(Without((1,)) & Without((2,))), {'suppress_tokens': [1]}, ['Without(tokens=(2,))']),
        (Greedy(First(3)), {'do_sample': False}, ['First(token=3)']))
    def test_what_has_no_counterpart_there_is_named(self, strategy, wanted, names):
        settings, lost = write(strategy, 0, {}, TEXTS)
        self.assertContainsSubset(wanted, settings)
        self.assertEqual(lost, tuple(names))

    def test_where_settings_are_stated(self):
        config = {'num_beams': 4, 'eos_token_id': 2, 'd_model': 16, 'max_length': None}
        self.assertEqual(stated(config, None), {'num_beams': 4})
        old = {'model_type': 'bart', 'force_bos_token_to_be_generated': True, 'bos_token_id': 5}  # of BART's first files
        self.assertEqual(stated(old, None), {'forced_bos_token_id': 5})
        self.assertEqual(stated(old | {'forced_bos_token_id': 7}, None), {'forced_bos_token_id': 7})
        other = {'eos_token_id': 2, 'top_k': 3, 'novel': 1, 'transformers_version': '5', '_from_model_config': True}
        self.assertEqual(stated(config, other), {'top_k': 3, 'novel': 1})  # transformers looks no further
        self.assertEqual(stated({}, {'eos_token_id': [2, 3], 'pad_token_id': 0}), {'eos_token_id': [2, 3]})


if __name__ == '__main__':
    absltest.main()
